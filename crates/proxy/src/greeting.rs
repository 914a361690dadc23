//! The greeting of a client, which precedes its data: a PROXY protocol header, a SOCKS5 request, or
//! both. Also the PROXY protocol header that the proxy sends to servers. Pure: bytes in, bytes out.

use crate::config::{ListenerConfig, ProxyVersion};
use intercept::{Users, canonical};
use ppp::{v1, v2};
use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};
use units::Bytes;

/// The most bytes of a greeting that are held, besides those of one read. The longest SOCKS message
/// is shorter, and of a PROXY protocol header only the addresses are held.
pub(crate) const MAX_GREETING: usize = 4096;
/// The longest header of the PROXY protocol's version 1, bytes (section 2.1).
const MAX_V1_LINE: usize = 107;

/// Length of the fixed part of a version 2 header, bytes; its last two bytes are the length of the
/// rest (section 2.2).
const V2_FIXED: usize = 16;
/// The longest addresses of a version 2 header, bytes: two of Unix sockets (section 2.2).
/// Extensions follow them.
const V2_ADDRESSES: usize = 216;
/// The byte after the signature for version 2, command LOCAL, and command PROXY (section 2.2).
const V2_LOCAL: u8 = 0x20;
const V2_PROXY: u8 = 0x21;

/// Methods of authentication (RFC 1928 §3).
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;

/// The destination that a client names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestedServer {
    /// An address.
    Address(SocketAddr),
    /// A name and a port.
    Name(String, u16),
}

/// Result of [`Greeting::receive`]: what the caller does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GreetingStep {
    /// Wait for more bytes.
    More,
    /// Send this to the client, then call [`Greeting::receive`] again with no bytes.
    Reply(Vec<u8>),
    /// The greeting is complete. The destination, if the client named one. Bytes after the greeting
    /// are in [`Greeting::into_rest`].
    Done(Option<RequestedServer>),
}

/// Why a greeting was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The reason, for the log.
    pub(crate) why: Cow<'static, str>,
    /// The reply to the client; may be empty.
    pub(crate) reply: Vec<u8>,
}

fn refuse(why: impl Into<Cow<'static, str>>, reply: &[u8]) -> Refusal {
    Refusal { why: why.into(), reply: reply.to_vec() }
}

/// The next part of the greeting. Parts arrive in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GreetingStage {
    ProxyHeader {
        then_socks: bool,
    },
    /// The extensions of a PROXY header, which the proxy does not use: so many bytes are left.
    ProxyExtensions {
        left: usize,
        then_socks: bool,
    },
    SocksMethods,
    SocksPassword,
    SocksRequest,
    Complete,
}

/// Parses the greeting of a client.
///
/// The caller passes received bytes to [`receive`](Self::receive) and acts on its result, until
/// that is [`GreetingStep::Done`] or a refusal. Bytes after the greeting are then in
/// [`into_rest`](Self::into_rest).
#[derive(Debug)]
pub(crate) struct Greeting {
    stage: GreetingStage,
    /// Received bytes that were not parsed yet.
    received: Vec<u8>,
    /// Users that may use a SOCKS listener.
    users: Users,
    /// The longest PROXY header that is accepted, bytes.
    most_header: usize,
    /// Address of the client by its PROXY header.
    pub(crate) client: Option<SocketAddr>,
    /// The address that the client connected to, by its PROXY header.
    pub(crate) destination: Option<SocketAddr>,
}

impl Greeting {
    /// Expects a PROXY header, a SOCKS request, both or neither.
    pub(crate) fn new(proxy_header: bool, socks: bool) -> Self {
        let stage = match (proxy_header, socks) {
            (true, then_socks) => GreetingStage::ProxyHeader { then_socks },
            (false, true) => GreetingStage::SocksMethods,
            (false, false) => GreetingStage::Complete,
        };
        let most_header = ListenerConfig::MOST_PROXY_HEADER.0 as usize;
        Greeting { stage, received: Vec::new(), users: Users::default(), most_header, client: None, destination: None }
    }

    /// Refuses longer PROXY headers.
    pub(crate) fn with_longest_header(self, most: Bytes) -> Self {
        Greeting { most_header: usize::try_from(most.0).unwrap_or(usize::MAX), ..self }
    }

    /// Requires user and password of SOCKS clients, if there are users.
    pub(crate) fn with_users(self, users: &Users) -> Self {
        Greeting { users: users.clone(), ..self }
    }

    /// The bytes that followed the greeting: data for the server.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.received
    }

    /// Parses received bytes. How they are divided does not matter.
    ///
    /// # Errors
    /// When the greeting is malformed, too long, or not permitted: the caller sends the refusal's
    /// reply and closes the connection.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<GreetingStep, Refusal> {
        self.received.extend_from_slice(bytes);
        loop {
            let step = match self.stage {
                GreetingStage::ProxyHeader { then_socks } => self.proxy_header(then_socks)?,
                GreetingStage::ProxyExtensions { left, then_socks } => self.proxy_extensions(left, then_socks),
                GreetingStage::SocksMethods => self.socks_methods()?,
                GreetingStage::SocksPassword => self.socks_password()?,
                GreetingStage::SocksRequest => self.socks_request()?,
                GreetingStage::Complete => return Ok(GreetingStep::Done(None)),
            };
            match step {
                Some(GreetingStep::More) if self.received.len() > MAX_GREETING => return Err(refuse("its greeting is too long", &[])),
                Some(step) => return Ok(step),
                None => {}
            }
        }
    }

    /// Parses a PROXY protocol header (sections 2.1 and 2.2 of its specification).
    fn proxy_header(&mut self, then_socks: bool) -> Result<Option<GreetingStep>, Refusal> {
        let is_begun = |prefix: &[u8]| prefix.starts_with(&self.received[..self.received.len().min(prefix.len())]);
        // Parsed once all that is parsed of it is there, so that the result does not depend on
        // segmentation: the addresses, the bytes up to there, and the length of the whole header.
        let parsed = if is_begun(b"PROXY ") {
            let line = &self.received[..self.received.len().min(MAX_V1_LINE)];
            match line.iter().position(|byte| *byte == b'\n') {
                Some(end) => v1::Header::try_from(&line[..=end]).ok().map(|header| (of_v1(&header.addresses), end + 1, end + 1)),
                None if line.len() < MAX_V1_LINE => return Ok(Some(GreetingStep::More)),
                None => None,
            }
        } else if is_begun(v2::PROTOCOL_PREFIX) {
            let Some((fixed, rest)) = self.received.split_at_checked(V2_FIXED) else { return Ok(Some(GreetingStep::More)) };
            let length = V2_FIXED + usize::from(u16::from_be_bytes([fixed[V2_FIXED - 2], fixed[V2_FIXED - 1]]));
            let is_version_2 = matches!(fixed[v2::PROTOCOL_PREFIX.len()], V2_LOCAL | V2_PROXY);
            if is_version_2 && length > self.most_header {
                let why = format!(
                    "its PROXY protocol header has {length} bytes, and this listener accepts {} (accept_proxy_max)",
                    self.most_header
                );
                return Err(refuse(why, &[]));
            }
            let begin = length.min(V2_FIXED + V2_ADDRESSES);
            match fixed[v2::PROTOCOL_PREFIX.len()] {
                // At once: the length of what is no header means nothing.
                _ if !is_version_2 => None,
                _ if V2_FIXED + rest.len() < begin => return Ok(Some(GreetingStep::More)),
                // A connection of the sending proxy itself, such as a health check. Its addresses
                // are ignored.
                V2_LOCAL => Some((None, begin, length)),
                _ => {
                    let mut header = self.received[..begin].to_vec();
                    header[V2_FIXED - 2..V2_FIXED].copy_from_slice(&((begin - V2_FIXED) as u16).to_be_bytes());
                    v2::Header::try_from(header.as_slice()).ok().map(|header| (of_v2(&header.addresses), begin, length))
                }
            }
        } else {
            return Err(refuse("it did not begin with a PROXY protocol header, which this listener expects (accept_proxy)", &[]));
        };
        let Some((addresses, begin, length)) = parsed else {
            return Err(refuse("its PROXY protocol header is malformed", &[]));
        };
        // The header of an IPv4 client and an IPv6 server has the client in the form of IPv6, which
        // no rule for IPv4 would match.
        (self.client, self.destination) = addresses.map(|(client, server)| (canonical(client), canonical(server))).unzip();
        self.received.drain(..begin);
        self.stage = GreetingStage::ProxyExtensions { left: length - begin, then_socks };
        Ok(None)
    }

    /// Discards the extensions of a PROXY header as they arrive.
    fn proxy_extensions(&mut self, left: usize, then_socks: bool) -> Option<GreetingStep> {
        let count = left.min(self.received.len());
        self.received.drain(..count);
        self.stage = match left - count {
            0 if then_socks => GreetingStage::SocksMethods,
            0 => GreetingStage::Complete,
            left => GreetingStage::ProxyExtensions { left, then_socks },
        };
        (left > count).then_some(GreetingStep::More)
    }

    /// Parses the method selection message (RFC 1928 §3).
    fn socks_methods(&mut self) -> Result<Option<GreetingStep>, Refusal> {
        match self.received.first() {
            None => return Ok(Some(GreetingStep::More)),
            Some(5) => {}
            Some(4) => return Err(refuse("it speaks SOCKS version 4, this listener version 5", &[0, 91, 0, 0, 0, 0, 0, 0])),
            Some(_) => return Err(refuse("it does not speak SOCKS", &[])),
        }
        let Some(count) = self.received.get(1).map(|count| usize::from(*count)) else { return Ok(Some(GreetingStep::More)) };
        let Some(methods) = self.received.get(2..2 + count) else { return Ok(Some(GreetingStep::More)) };
        let (method, next, refusal) = if self.users.are_required() {
            (PASSWORD, GreetingStage::SocksPassword, "it offers no user and password, which this listener requires (users)")
        } else {
            (NO_AUTHENTICATION, GreetingStage::SocksRequest, "it requires authentication, and this listener has no users")
        };
        if !methods.contains(&method) {
            return Err(refuse(refusal, &[5, 0xff]));
        }
        self.received.drain(..2 + count);
        self.stage = next;
        Ok(Some(GreetingStep::Reply(vec![5, method])))
    }

    /// Parses user and password (RFC 1929 §2).
    fn socks_password(&mut self) -> Result<Option<GreetingStep>, Refusal> {
        let [version, rest @ ..] = self.received.as_slice() else { return Ok(Some(GreetingStep::More)) };
        if *version != 1 {
            return Err(refuse("it sent no user and password", &[1, 1]));
        }
        let Some((name, rest)) = length_prefixed(rest) else { return Ok(Some(GreetingStep::More)) };
        let Some((password, _)) = length_prefixed(rest) else { return Ok(Some(GreetingStep::More)) };
        if !self.users.have(name, password) {
            return Err(refuse("its user or password is wrong", &[1, 1]));
        }
        let all = 1 + 1 + name.len() + 1 + password.len();
        self.received.drain(..all);
        self.stage = GreetingStage::SocksRequest;
        Ok(Some(GreetingStep::Reply(vec![1, 0])))
    }

    /// Parses the request (RFC 1928 §4).
    fn socks_request(&mut self) -> Result<Option<GreetingStep>, Refusal> {
        let [version, command, _, kind, body @ ..] = self.received.as_slice() else { return Ok(Some(GreetingStep::More)) };
        if *version != 5 {
            return Err(refuse("its SOCKS request is malformed", &[]));
        }
        if *command != 1 {
            return Err(refuse("it requested a SOCKS command other than CONNECT", &socks_reply(7)));
        }
        let length = match (kind, body.first()) {
            (1, _) => 4,
            (4, _) => 16,
            (3, Some(length)) => 1 + usize::from(*length),
            (3, None) => return Ok(Some(GreetingStep::More)),
            _ => return Err(refuse("its SOCKS request has an address of unknown type", &socks_reply(8))),
        };
        let (Some(address), Some(port)) = (body.get(..length), body.get(length..length + 2)) else { return Ok(Some(GreetingStep::More)) };
        let port = u16::from_be_bytes([port[0], port[1]]);
        let target = match address.len() {
            4 if *kind == 1 => {
                RequestedServer::Address(SocketAddr::new(Ipv4Addr::from(<[u8; 4]>::try_from(address).unwrap_or_default()).into(), port))
            }
            16 if *kind == 4 => {
                RequestedServer::Address(SocketAddr::new(Ipv6Addr::from(<[u8; 16]>::try_from(address).unwrap_or_default()).into(), port))
            }
            _ => named(&address[1..], port)?,
        };
        let all = 4 + length + 2;
        self.received.drain(..all);
        self.stage = GreetingStage::Complete;
        Ok(Some(GreetingStep::Done(Some(target))))
    }
}

/// The destination that a name stands for. Some clients send addresses as names.
fn named(name: &[u8], port: u16) -> Result<RequestedServer, Refusal> {
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0'));
    let name = name.ok_or_else(|| refuse("its SOCKS request has an invalid name", &socks_reply(1)))?;
    Ok(match name.parse::<IpAddr>() {
        Ok(address) => RequestedServer::Address(SocketAddr::new(address, port)),
        Err(_) => RequestedServer::Name(name.into(), port),
    })
}

/// Splits off bytes that are preceded by their length; none: they are incomplete.
fn length_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

/// A SOCKS reply (RFC 1928 §6): code 0 for connected, else the reason. Its address is zero: clients
/// have no use for it.
pub(crate) fn socks_reply(code: u8) -> Vec<u8> {
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The SOCKS reply code (RFC 1928 §6) for an error of a connect.
pub(crate) fn socks_code(why: std::io::ErrorKind) -> u8 {
    use std::io::ErrorKind;
    match why {
        ErrorKind::ConnectionRefused => 5,
        ErrorKind::NetworkUnreachable => 3,
        ErrorKind::HostUnreachable | ErrorKind::NotFound => 4,
        ErrorKind::TimedOut => 6,
        // Not allowed by ruleset.
        ErrorKind::PermissionDenied => 2,
        _ => 1,
    }
}

/// Source and destination of a header; none: it has no IP addresses.
fn of_v1(addresses: &v1::Addresses) -> Option<(SocketAddr, SocketAddr)> {
    match addresses {
        v1::Addresses::Tcp4(ip) => Some((
            SocketAddr::new(ip.source_address.into(), ip.source_port),
            SocketAddr::new(ip.destination_address.into(), ip.destination_port),
        )),
        v1::Addresses::Tcp6(ip) => Some((
            SocketAddr::new(ip.source_address.into(), ip.source_port),
            SocketAddr::new(ip.destination_address.into(), ip.destination_port),
        )),
        v1::Addresses::Unknown => None,
    }
}

/// As [`of_v1`].
fn of_v2(addresses: &v2::Addresses) -> Option<(SocketAddr, SocketAddr)> {
    match addresses {
        v2::Addresses::IPv4(ip) => Some((
            SocketAddr::new(ip.source_address.into(), ip.source_port),
            SocketAddr::new(ip.destination_address.into(), ip.destination_port),
        )),
        v2::Addresses::IPv6(ip) => Some((
            SocketAddr::new(ip.source_address.into(), ip.source_port),
            SocketAddr::new(ip.destination_address.into(), ip.destination_port),
        )),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => None,
    }
}

/// The PROXY protocol header that tells a server the client's address and the address that the
/// client connected to, `server`.
pub(crate) fn proxy_header(version: ProxyVersion, client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    // The protocol requires two addresses of one family.
    let (client, server) = match (client, server) {
        (SocketAddr::V4(client), SocketAddr::V6(server)) => {
            (SocketAddr::new(client.ip().to_ipv6_mapped().into(), client.port()), SocketAddr::V6(server))
        }
        (SocketAddr::V6(client), SocketAddr::V4(server)) => {
            (SocketAddr::V6(client), SocketAddr::new(server.ip().to_ipv6_mapped().into(), server.port()))
        }
        same => same,
    };
    match version {
        ProxyVersion::V1 => {
            let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
            format!("PROXY {family} {} {} {} {}\r\n", client.ip(), server.ip(), client.port(), server.port()).into_bytes()
        }
        ProxyVersion::V2 => v2::Builder::with_addresses(v2::Version::Two | v2::Command::Proxy, v2::Protocol::Stream, (client, server))
            .build()
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Replies to the client, destination, client's address, and the bytes after the greeting.
    type Exchange = (Vec<u8>, Option<RequestedServer>, Option<SocketAddr>, Vec<u8>);

    /// Feeds `bytes` in pieces of `step`.
    fn exchange(mut greeting: Greeting, bytes: &[u8], step: usize) -> Result<Exchange, Refusal> {
        let mut replies = Vec::new();
        let mut pieces = bytes.chunks(step);
        let mut piece = pieces.next().unwrap_or_default();
        loop {
            match greeting.receive(piece)? {
                GreetingStep::More => match pieces.next() {
                    Some(next) => piece = next,
                    None => return Err(refuse("incomplete", &[])),
                },
                GreetingStep::Reply(bytes) => {
                    replies.extend(bytes);
                    piece = &[];
                }
                GreetingStep::Done(target) => {
                    let client = greeting.client;
                    let mut rest = greeting.into_rest();
                    pieces.for_each(|piece| rest.extend(piece));
                    return Ok((replies, target, client, rest));
                }
            }
        }
    }

    const TO_ADDRESS: &[u8] = &[5, 2, 2, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80, b'G', b'E', b'T'];
    const TO_NAME: &[u8] = &[5, 1, 0, 5, 1, 0, 3, 4, b'h', b'o', b's', b't', 1, 187];

    #[test]
    fn a_socks_request_is_read_however_it_is_segmented() {
        for step in 1..TO_ADDRESS.len() {
            let (replies, target, client, rest) = exchange(Greeting::new(false, true), TO_ADDRESS, step).unwrap();
            assert_eq!((replies, client, rest), (vec![5, 0], None, b"GET".to_vec()));
            assert_eq!(target, Some(RequestedServer::Address("192.0.2.1:80".parse().unwrap())));
            let (_, target, _, _) = exchange(Greeting::new(false, true), TO_NAME, step).unwrap();
            assert_eq!(target, Some(RequestedServer::Name("host".into(), 443)));
        }
    }

    #[test]
    fn unsupported_requests_are_refused_with_their_code() {
        let refused = |bytes: &[u8]| exchange(Greeting::new(false, true), bytes, 64).unwrap_err().reply;
        assert_eq!(refused(&[5, 1, 2]), [5, 0xff]);
        assert_eq!(refused(&[5, 1, 0, 5, 2, 0, 1, 1, 1, 1, 1, 0, 80]), socks_reply(7));
        assert_eq!(refused(&[5, 1, 0, 5, 1, 0, 9, 1, 1, 1, 1, 0, 80]), socks_reply(8));
        assert_eq!(refused(&[4, 1, 0, 80, 1, 1, 1, 1, 0])[1], 91);
        assert!(refused(b"GET / HTTP/1.1\r\n").is_empty());
    }

    /// A listener with one user, alice, whose password is secret.
    fn guarded() -> Greeting {
        let mut users = Users::default();
        users.add("alice:secret").unwrap();
        Greeting::new(false, true).with_users(&users)
    }

    /// The bytes of a client with user and password.
    fn with_password(name: &str, password: &str) -> Vec<u8> {
        let counted = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        [&[5, 2, 0, 2, 1][..], &counted(name), &counted(password), &TO_ADDRESS[4..]].concat()
    }

    #[test]
    fn a_password_is_read_however_it_is_segmented() {
        let bytes = with_password("alice", "secret");
        for step in 1..bytes.len() {
            let (replies, target, _, rest) = exchange(guarded(), &bytes, step).unwrap();
            assert_eq!((replies, rest), (vec![5, 2, 1, 0], b"GET".to_vec()));
            assert_eq!(target, Some(RequestedServer::Address("192.0.2.1:80".parse().unwrap())));
        }
    }

    #[test]
    fn unknown_users_are_refused() {
        let refused = |bytes: &[u8]| exchange(guarded(), bytes, 64).unwrap_err().reply;
        assert_eq!(refused(TO_NAME), [5, 0xff], "only the method without authentication");
        let long = "x".repeat(255);
        for (name, password) in [("alice", "secre"), ("alice", "secret2"), ("", ""), ("bob", "secret"), ("alices", "ecret"), (&long, &long)]
        {
            assert_eq!(refused(&with_password(name, password)), [1, 1], "{name} {password}");
        }
        assert_eq!(refused(&[5, 1, 2, 5, 1, 0, 1]), [1, 1], "a request in the place of a password");
        // A truncated greeting names no destination.
        let whole = with_password("alice", "secret");
        for length in 0..whole.len() - 3 {
            assert_eq!(exchange(guarded(), &whole[..length], 64).unwrap_err().why, "incomplete");
        }
    }

    #[test]
    fn own_proxy_headers_are_read_back() {
        let (v4, v6): (SocketAddr, SocketAddr) = ("192.0.2.7:4711".parse().unwrap(), "[2001:db8::7]:80".parse().unwrap());
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            for (client, server) in [(v4, v4), (v6, v6), (v4, v6), (v6, v4)] {
                let mut bytes = proxy_header(version, client, server);
                bytes.extend_from_slice(TO_ADDRESS);
                for step in [1, 7, 1000] {
                    let (_, target, named_client, rest) = exchange(Greeting::new(true, true), &bytes, step).unwrap();
                    assert_eq!(named_client, Some(client));
                    assert_eq!((target.is_some(), rest), (true, b"GET".to_vec()));
                }
            }
        }
    }

    #[test]
    fn what_is_no_proxy_header_is_refused_at_once_with_the_reason() {
        let why = |bytes: &[u8], step: usize| exchange(Greeting::new(true, false), bytes, step).unwrap_err().why;
        let unsupported = [v2::PROTOCOL_PREFIX, &[0x31, 0x11, 0, 0, 0]].concat();
        for (bytes, said) in [
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "it did not begin with a PROXY protocol header"),
            (b"P\rPXY ".to_vec(), "it did not begin with a PROXY protocol header"),
            (b"PROXY TCP4 192.0.2.1\r\n".to_vec(), "its PROXY protocol header is malformed"),
            ([b"PROXY TCP4 ", &[b'1'; 100][..]].concat(), "its PROXY protocol header is malformed"),
            (unsupported, "its PROXY protocol header is malformed"),
            // It is refused before the length that it seems to have, 25 kB, has arrived.
            ([v2::PROTOCOL_PREFIX, b"rubbish"].concat(), "its PROXY protocol header is malformed"),
        ] {
            for step in [1, bytes.len()] {
                assert!(why(&bytes, step).starts_with(said), "{}", why(&bytes, step));
            }
        }
    }

    /// A header of version 2 with extensions of `length` bytes.
    fn extended(client: SocketAddr, server: SocketAddr, length: u16) -> Vec<u8> {
        let mut header = proxy_header(ProxyVersion::V2, client, server);
        let whole = (header.len() - V2_FIXED) as u16 + 3 + length;
        header[V2_FIXED - 2..V2_FIXED].copy_from_slice(&whole.to_be_bytes());
        // The type for TLS, then a length.
        header.push(0x20);
        header.extend(length.to_be_bytes());
        header.extend(vec![5; length.into()]);
        header
    }

    #[test]
    fn extensions_of_a_header_are_discarded_as_they_arrive() {
        let (client, server): (SocketAddr, SocketAddr) = ("192.0.2.7:4711".parse().unwrap(), "198.51.100.9:25".parse().unwrap());
        let most = u16::MAX - 12 - 3;
        for length in [0, 100, 4096, 10_000, most] {
            let bytes = [&extended(client, server, length), TO_ADDRESS].concat();
            for step in [1, 1460, bytes.len()] {
                let (_, target, named_client, rest) = exchange(Greeting::new(true, true), &bytes, step).unwrap();
                assert_eq!((target.is_some(), named_client, rest), (true, Some(client), b"GET".to_vec()));
            }
            let mut greeting = Greeting::new(true, true);
            for piece in bytes[..bytes.len() - TO_ADDRESS.len()].chunks(2048) {
                assert_eq!(greeting.receive(piece), Ok(GreetingStep::More));
                assert!(greeting.received.len() <= 2048 + V2_FIXED + V2_ADDRESSES, "{} bytes are held", greeting.received.len());
            }
            assert_eq!(greeting.destination, Some(server));
        }
        assert_eq!(extended(client, server, most).len() as u64, ListenerConfig::MOST_PROXY_HEADER.0);
    }

    #[test]
    fn a_header_beyond_the_limit_is_refused_by_its_length() {
        let address = "192.0.2.7:4711".parse().unwrap();
        let limited = || Greeting::new(true, false).with_longest_header(Bytes(1000));
        let fits = 1000 - V2_FIXED as u16 - 12 - 3;
        assert!(exchange(limited(), &extended(address, address, fits), 500).is_ok());
        let refusal = exchange(limited(), &extended(address, address, fits + 1), 500).unwrap_err();
        assert_eq!(refusal.why, "its PROXY protocol header has 1001 bytes, and this listener accepts 1000 (accept_proxy_max)");
    }

    #[test]
    fn a_local_header_names_neither_client_nor_destination() {
        let mut header = proxy_header(ProxyVersion::V2, "192.0.2.7:4711".parse().unwrap(), "192.0.2.1:80".parse().unwrap());
        assert!(exchange(Greeting::new(true, false), &header, 5).unwrap().2.is_some());
        // LOCAL instead of PROXY.
        header[v2::PROTOCOL_PREFIX.len()] = 0x20;
        let unspecified = [v2::PROTOCOL_PREFIX, &[0x21, 0, 0, 0]].concat();
        for header in [&header[..], b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", &unspecified] {
            let mut greeting = Greeting::new(true, false);
            assert_eq!(greeting.receive(header), Ok(GreetingStep::Done(None)), "{header:?}");
            assert_eq!((greeting.client, greeting.destination), (None, None), "{header:?}");
        }
    }

    #[test]
    fn a_header_names_the_destination_in_each_version_and_family() {
        let (v4, v6): (SocketAddr, SocketAddr) = ("192.0.2.7:4711".parse().unwrap(), "[2001:db8::7]:80".parse().unwrap());
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            for (client, server) in [(v4, v4), (v6, v6), (v4, v6), (v6, v4)] {
                let mut greeting = Greeting::new(true, false);
                greeting.receive(&proxy_header(version, client, server)).unwrap();
                assert_eq!((greeting.client, greeting.destination), (Some(client), Some(server)));
            }
        }
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic_or_an_endless_loop(bytes in prop::collection::vec(any::<u8>(), 0..6000), proxy: bool, step in 1..500usize) {
            let _ = exchange(Greeting::new(proxy, true), &bytes, step);
            // The same bytes after the method selection, as a password.
            let _ = exchange(guarded(), &[&[5, 1, 2, 1], &bytes[..]].concat(), step);
        }
    }
}
