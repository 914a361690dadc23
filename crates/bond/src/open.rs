//! What a stream begins with, before its bytes: who calls and where it wants to go; back, which address was reached. And why a stream is given up.
//!
//! A call is a length (2 bytes), who calls and where to; an answer a length and the address. An address is its kind, itself and a port, as in SOCKS (RFC 1928
//! §5): 1 and 4 bytes, 4 and 16, or 3, a length and a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest of either: two names and what is around them.
const MOST: usize = 2 * (1 + 1 + 255 + 2);

/// Where a stream is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// To this address.
    Address(SocketAddr),
    /// To whatever this name stands for at the end that accepts, and this port.
    Name(String, u16),
}

/// What a stream begins with, from who dials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who has opened it.
    pub client: SocketAddr,
    /// Where it wants to go.
    pub to: Target,
}

/// What a stream begins with, from who accepts: the address that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer(pub SocketAddr);

/// What came is no call, or no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other end of the bond has begun a stream with what is no address: give the stream up")]
pub struct BadCall;

fn put(bytes: &mut Vec<u8>, address: &SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend([&[1][..], &ip.octets()].concat()),
        IpAddr::V6(ip) => bytes.extend([&[4][..], &ip.octets()].concat()),
    }
    bytes.extend(address.port().to_be_bytes());
}

/// Takes the first `N` bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], BadCall> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(BadCall)?;
    *bytes = rest;
    Ok(*first)
}

fn target(bytes: &mut &[u8]) -> Result<Target, BadCall> {
    let [kind] = take(bytes)?;
    let ip: IpAddr = match kind {
        1 => Ipv4Addr::from(take::<4>(bytes)?).into(),
        4 => Ipv6Addr::from(take::<16>(bytes)?).into(),
        3 => {
            let [len] = take(bytes)?;
            let (name, rest) = bytes.split_at_checked(len.into()).ok_or(BadCall)?;
            *bytes = rest;
            let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0')).ok_or(BadCall)?;
            return Ok(Target::Name(name.into(), u16::from_be_bytes(take(bytes)?)));
        }
        _ => return Err(BadCall),
    };
    Ok(Target::Address(SocketAddr::new(ip, u16::from_be_bytes(take(bytes)?))))
}

fn address(bytes: &mut &[u8]) -> Result<SocketAddr, BadCall> {
    match target(bytes)? {
        Target::Address(address) => Ok(address),
        Target::Name(..) => Err(BadCall),
    }
}

/// Behind its length.
fn framed(body: Vec<u8>) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes()[..], &body].concat()
}

/// Reads what is behind its length, to the last byte, and tells how much that was; none: more must come.
fn unframed<T>(bytes: &[u8], read: impl FnOnce(&mut &[u8]) -> Result<T, BadCall>) -> Result<Option<(T, usize)>, BadCall> {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*len));
    if len > MOST {
        return Err(BadCall);
    }
    let Some(mut body) = rest.get(..len) else { return Ok(None) };
    let read = read(&mut body)?;
    if body.is_empty() { Ok(Some((read, 2 + len))) } else { Err(BadCall) }
}

impl Call {
    /// As it goes over the wire. A name has at most 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put(&mut body, &self.client);
        match &self.to {
            Target::Address(address) => put(&mut body, address),
            Target::Name(name, port) => {
                let name = &name.as_bytes()[..name.len().min(255)];
                body.extend([&[3, name.len() as u8][..], name, &port.to_be_bytes()].concat());
            }
        }
        framed(body)
    }

    /// The call that a stream begins with, and how long it is; none: more must come.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Call, usize)>, BadCall> {
        unframed(bytes, |body| Ok(Call { client: address(body)?, to: target(body)? }))
    }
}

impl Answer {
    /// As it goes over the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put(&mut body, &self.0);
        framed(body)
    }

    /// The answer that a stream begins with, and how long it is; none: more must come.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Answer, usize)>, BadCall> {
        unframed(bytes, |body| address(body).map(Answer))
    }
}

/// Why a stream is given up: a [`Reset`](crate::Frame::Reset)'s number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// Something else.
    Other = 0,
    /// The address refused.
    Refused = 1,
    /// No way leads to its network.
    NetworkUnreachable = 2,
    /// No way leads to it.
    HostUnreachable = 3,
    /// It did not answer in time.
    TimedOut = 4,
    /// The name has no address.
    NoSuchName = 5,
    /// The other end's operator does not allow it.
    NotAllowed = 6,
    /// The connection beyond was reset.
    Reset = 7,
    /// There is no room for another stream.
    NoRoom = 8,
    /// The program ends.
    Stopped = 9,
    /// Nothing moved for too long.
    Idle = 10,
}

impl From<u8> for Why {
    fn from(code: u8) -> Why {
        const ALL: [Why; 11] = [
            Why::Other,
            Why::Refused,
            Why::NetworkUnreachable,
            Why::HostUnreachable,
            Why::TimedOut,
            Why::NoSuchName,
            Why::NotAllowed,
            Why::Reset,
            Why::NoRoom,
            Why::Stopped,
            Why::Idle,
        ];
        ALL.get(usize::from(code)).copied().unwrap_or(Why::Other)
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
    fn it_looks_like_this_on_the_wire() {
        let call = Call { client: "192.0.2.7:258".parse().unwrap(), to: Target::Name("host".into(), 80) };
        assert_eq!(call.encode(), [&[0, 15, 1, 192, 0, 2, 7, 1, 2, 3, 4][..], b"host", &[0, 80]].concat());
        assert_eq!(Answer("192.0.2.7:80".parse().unwrap()).encode(), [0, 7, 1, 192, 0, 2, 7, 0, 80]);
    }

    #[test]
    fn what_is_no_call_is_refused() {
        for wrong in [&[0xff, 0xff][..], &[0, 1, 9], &[0, 0], &[0, 7, 3, 4, b'h', b'o', b's', b't', 0], &[0, 8, 1, 1, 1, 1, 1, 0, 80, 0]] {
            assert_eq!(Call::decode(wrong), Err(BadCall), "{wrong:?}");
        }
        assert_eq!(Answer::decode(&[0, 8, 3, 4, b'h', b'o', b's', b't', 0, 80]), Err(BadCall));
        assert_eq!(Answer::decode(&[0]), Ok(None));
    }

    #[test]
    fn each_reason_has_its_number() {
        for code in 0..=10 {
            assert_eq!(Why::from(code) as u8, code);
        }
        assert_eq!(Why::from(200), Why::Other);
    }

    proptest! {
        #[test]
        fn what_is_called_is_heard(client in addresses(), to in targets(), rest in prop::collection::vec(any::<u8>(), 0..20)) {
            let call = Call { client, to };
            let bytes = call.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(Call::decode(&bytes[..len]), Ok(None));
            }
            let len = bytes.len();
            prop_assert_eq!(Call::decode(&[bytes, rest].concat()), Ok(Some((call, len))));
            let answer = Answer(client).encode();
            prop_assert_eq!(Answer::decode(&answer), Ok(Some((Answer(client), answer.len()))));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = (Call::decode(&bytes), Answer::decode(&bytes));
        }
    }
}
