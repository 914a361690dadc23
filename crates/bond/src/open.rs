//! The first message of a stream in each direction, before its payload, and the reasons of a reset.
//!
//! The end that opens a stream writes an [`OpenRequest`] as the first bytes of the stream: its
//! client and the destination. The accepting end connects there and writes an [`OpenReply`] as the
//! first bytes of its direction: the address that was reached. If that fails it sends a
//! [`Reset`](crate::Frame::Reset) with a [`ResetReason`] instead. The receiver decodes the bytes as
//! they arrive: `decode` returns `None` until the message is complete.
//!
//! | message | fields (bytes) |
//! |---|---|
//! | request | length (2), client, target |
//! | reply | length (2), address |
//!
//! An address is encoded as in SOCKS (RFC 1928 §5): type 1 and 4 bytes, type 4 and 16 bytes, or
//! type 3, a length (1) and a name; then a port (2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest body of either message, bytes: two names with type, length and port.
const MAX_BODY: usize = 2 * (1 + 1 + 255 + 2);

/// Where a stream is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// This address.
    Address(SocketAddr),
    /// A host name, which the accepting end resolves, and a port.
    Name(String, u16),
}

/// The first message of a stream, from the end that opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRequest {
    /// Client address of the connection that the stream carries.
    pub client: SocketAddr,
    /// Where the client wants to go.
    pub target: Target,
}

/// The first message of the other direction: the address that the accepting end has connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenReply(pub SocketAddr);

/// The first bytes of a stream are no request, or no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bond's peer began a stream with a malformed address: reset the stream")]
pub struct BadOpenMessage;

fn put_address(bytes: &mut Vec<u8>, address: &SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend([&[1][..], &ip.octets()].concat()),
        IpAddr::V6(ip) => bytes.extend([&[4][..], &ip.octets()].concat()),
    }
    bytes.extend(address.port().to_be_bytes());
}

/// Removes the first `N` bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], BadOpenMessage> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(BadOpenMessage)?;
    *bytes = rest;
    Ok(*first)
}

fn take_target(bytes: &mut &[u8]) -> Result<Target, BadOpenMessage> {
    let [kind] = take(bytes)?;
    let ip: IpAddr = match kind {
        1 => Ipv4Addr::from(take::<4>(bytes)?).into(),
        4 => Ipv6Addr::from(take::<16>(bytes)?).into(),
        3 => {
            let [len] = take(bytes)?;
            let (name, rest) = bytes.split_at_checked(len.into()).ok_or(BadOpenMessage)?;
            *bytes = rest;
            let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0')).ok_or(BadOpenMessage)?;
            return Ok(Target::Name(name.into(), u16::from_be_bytes(take(bytes)?)));
        }
        _ => return Err(BadOpenMessage),
    };
    Ok(Target::Address(SocketAddr::new(ip, u16::from_be_bytes(take(bytes)?))))
}

fn take_address(bytes: &mut &[u8]) -> Result<SocketAddr, BadOpenMessage> {
    match take_target(bytes)? {
        Target::Address(address) => Ok(address),
        Target::Name(..) => Err(BadOpenMessage),
    }
}

/// Puts the length before a body.
fn with_length(body: Vec<u8>) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes()[..], &body].concat()
}

/// Decodes a message with `read`, which must use all of its body; returns it with its length.
/// `None`: it is incomplete.
fn decode_message<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut &[u8]) -> Result<T, BadOpenMessage>,
) -> Result<Option<(T, usize)>, BadOpenMessage> {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*len));
    if len > MAX_BODY {
        return Err(BadOpenMessage);
    }
    let Some(mut body) = rest.get(..len) else { return Ok(None) };
    let message = read(&mut body)?;
    if body.is_empty() { Ok(Some((message, 2 + len))) } else { Err(BadOpenMessage) }
}

impl OpenRequest {
    /// Encodes the request. A name is cut after 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_address(&mut body, &self.client);
        match &self.target {
            Target::Address(address) => put_address(&mut body, address),
            Target::Name(name, port) => {
                let name = &name.as_bytes()[..name.len().min(255)];
                body.extend([&[3, name.len() as u8][..], name, &port.to_be_bytes()].concat());
            }
        }
        with_length(body)
    }

    /// Decodes the request at the beginning of a stream; returns it with its length in bytes.
    /// `None`: more bytes are needed.
    ///
    /// # Errors
    /// When the bytes are no request.
    pub fn decode(bytes: &[u8]) -> Result<Option<(OpenRequest, usize)>, BadOpenMessage> {
        decode_message(bytes, |body| Ok(OpenRequest { client: take_address(body)?, target: take_target(body)? }))
    }
}

impl OpenReply {
    /// Encodes the reply.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_address(&mut body, &self.0);
        with_length(body)
    }

    /// Decodes the reply at the beginning of a stream; returns it with its length in bytes. `None`:
    /// more bytes are needed.
    ///
    /// # Errors
    /// When the bytes are no reply.
    pub fn decode(bytes: &[u8]) -> Result<Option<(OpenReply, usize)>, BadOpenMessage> {
        decode_message(bytes, |body| take_address(body).map(OpenReply))
    }
}

/// Why a stream is reset: the number in a [`Reset`](crate::Frame::Reset) frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ResetReason {
    /// Any other reason, and any unknown number.
    Other = 0,
    /// The target refused the connection.
    Refused = 1,
    /// There is no route to the target's network.
    NetworkUnreachable = 2,
    /// There is no route to the target.
    HostUnreachable = 3,
    /// The target did not answer in time.
    TimedOut = 4,
    /// The target's name has no address.
    NoSuchName = 5,
    /// The accepting end's configuration does not allow the target.
    NotAllowed = 6,
    /// The connection beyond the bond was reset.
    Reset = 7,
    /// The limit of streams is reached.
    NoRoom = 8,
    /// The program ends.
    Stopped = 9,
    /// The idle timeout has passed.
    Idle = 10,
}

impl From<u8> for ResetReason {
    fn from(code: u8) -> ResetReason {
        const ALL: [ResetReason; 11] = [
            ResetReason::Other,
            ResetReason::Refused,
            ResetReason::NetworkUnreachable,
            ResetReason::HostUnreachable,
            ResetReason::TimedOut,
            ResetReason::NoSuchName,
            ResetReason::NotAllowed,
            ResetReason::Reset,
            ResetReason::NoRoom,
            ResetReason::Stopped,
            ResetReason::Idle,
        ];
        ALL.get(usize::from(code)).copied().unwrap_or(ResetReason::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = SocketAddr> {
        any::<(IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    fn targets() -> impl Strategy<Value = Target> {
        prop_oneof![
            addresses().prop_map(Target::Address),
            ("[a-z.é]{1,100}", any::<u16>()).prop_map(|(name, port)| Target::Name(name, port))
        ]
    }

    #[test]
    fn messages_are_encoded_as_specified() {
        let request = OpenRequest { client: "192.0.2.7:258".parse().unwrap(), target: Target::Name("host".into(), 80) };
        assert_eq!(request.encode(), [&[0, 15, 1, 192, 0, 2, 7, 1, 2, 3, 4][..], b"host", &[0, 80]].concat());
        assert_eq!(OpenReply("192.0.2.7:80".parse().unwrap()).encode(), [0, 7, 1, 192, 0, 2, 7, 0, 80]);
    }

    #[test]
    fn malformed_messages_are_refused() {
        for wrong in [&[0xff, 0xff][..], &[0, 1, 9], &[0, 0], &[0, 7, 3, 4, b'h', b'o', b's', b't', 0], &[0, 8, 1, 1, 1, 1, 1, 0, 80, 0]] {
            assert_eq!(OpenRequest::decode(wrong), Err(BadOpenMessage), "{wrong:?}");
        }
        assert_eq!(OpenReply::decode(&[0, 8, 3, 4, b'h', b'o', b's', b't', 0, 80]), Err(BadOpenMessage));
        assert_eq!(OpenReply::decode(&[0]), Ok(None));
    }

    #[test]
    fn reset_reasons_map_to_their_numbers_and_back() {
        for code in 0..=10 {
            assert_eq!(ResetReason::from(code) as u8, code);
        }
        assert_eq!(ResetReason::from(200), ResetReason::Other);
    }

    proptest! {
        #[test]
        fn encoded_messages_decode_to_themselves(client in addresses(), target in targets(), rest in prop::collection::vec(any::<u8>(), 0..20)) {
            let request = OpenRequest { client, target };
            let bytes = request.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(OpenRequest::decode(&bytes[..len]), Ok(None));
            }
            let len = bytes.len();
            prop_assert_eq!(OpenRequest::decode(&[bytes, rest].concat()), Ok(Some((request, len))));
            let reply = OpenReply(client).encode();
            prop_assert_eq!(OpenReply::decode(&reply), Ok(Some((OpenReply(client), reply.len()))));
        }

        #[test]
        fn no_input_makes_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = (OpenRequest::decode(&bytes), OpenReply::decode(&bytes));
        }
    }
}
