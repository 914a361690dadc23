//! What a client says before its data: a PROXY protocol header, a SOCKS request; and what is said
//! before data to a far end. Pure: bytes in, bytes out.

use crate::config::ProxyVersion;
use intercept::Users;
use ppp::{v1, v2};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// No greeting is longer (a PROXY header of version 2 may be, with extensions nobody has a use for
/// here).
pub(crate) const LONGEST: usize = 4096;
/// No line of the PROXY protocol's version 1 is longer (section 2.1).
const LONGEST_LINE: usize = 107;

/// The bytes of a header of version 2 that are always there, of which the last two are the length
/// of the others, and the byte behind the signature that says version 2, command LOCAL (section
/// 2.2).
const V2_FIXED: usize = 16;
const V2_LOCAL: u8 = 0x20;

/// Methods of authentication (RFC 1928 §3).
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;

/// Where a SOCKS client wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestedServer {
    /// To this address.
    Address(SocketAddr),
    /// To a name, and a port.
    Name(String, u16),
}

/// What came of the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GreetingStep {
    /// More must come.
    More,
    /// This is to be said to the client; then more must come, or has already.
    Reply(Vec<u8>),
    /// It is over; where to, when the client has said so.
    Done(Option<RequestedServer>),
}

/// Why a greeting leads nowhere.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// For the log.
    pub(crate) why: &'static str,
    /// What the client is told.
    pub(crate) say: Vec<u8>,
}

fn refuse(why: &'static str, say: &[u8]) -> Refusal {
    Refusal { why, say: say.to_vec() }
}

/// What is still expected, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    ProxyHeader { then_socks: bool },
    SocksMethods,
    SocksPassword,
    SocksRequest,
    Nothing,
}

/// A client that has not said all yet.
#[derive(Debug)]
pub(crate) struct Greeting {
    stage: Stage,
    heard: Vec<u8>,
    /// Who may use a SOCKS listener.
    users: Users,
    /// Who the client is, where a PROXY header has said so.
    pub(crate) client: Option<SocketAddr>,
}

impl Greeting {
    pub(crate) fn new(proxy_header: bool, socks: bool) -> Self {
        let stage = match (proxy_header, socks) {
            (true, then_socks) => Stage::ProxyHeader { then_socks },
            (false, true) => Stage::SocksMethods,
            (false, false) => Stage::Nothing,
        };
        Greeting { stage, heard: Vec::new(), users: Users::default(), client: None }
    }

    /// Asks a SOCKS client for user and password, where there are users.
    pub(crate) fn with_users(self, users: &Users) -> Self {
        Greeting { users: users.clone(), ..self }
    }

    /// What came after the greeting: data.
    pub(crate) fn rest(self) -> Vec<u8> {
        self.heard
    }

    /// Takes in what came. After [`GreetingStep::Reply`] it is to be called again, with no bytes.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<GreetingStep, Refusal> {
        self.heard.extend_from_slice(bytes);
        loop {
            let heard = match self.stage {
                Stage::ProxyHeader { then_socks } => self.proxy_header(then_socks)?,
                Stage::SocksMethods => self.socks_methods()?,
                Stage::SocksPassword => self.socks_password()?,
                Stage::SocksRequest => self.socks_request()?,
                Stage::Nothing => return Ok(GreetingStep::Done(None)),
            };
            match heard {
                Some(GreetingStep::More) if self.heard.len() > LONGEST => return Err(refuse("a greeting without end", &[])),
                Some(heard) => return Ok(heard),
                None => {}
            }
        }
    }

    /// PROXY protocol, sections 2.1 and 2.2 of its specification.
    fn proxy_header(&mut self, then_socks: bool) -> Result<Option<GreetingStep>, Refusal> {
        let is_begun = |prefix: &[u8]| prefix.starts_with(&self.heard[..self.heard.len().min(prefix.len())]);
        // Parsed once it is whole, so that the result does not depend on segmentation.
        let parsed = if is_begun(b"PROXY ") {
            let line = &self.heard[..self.heard.len().min(LONGEST_LINE)];
            match line.iter().position(|byte| *byte == b'\n') {
                Some(end) => v1::Header::try_from(&line[..=end]).ok().map(|header| (of_v1(&header.addresses), end + 1)),
                None if line.len() < LONGEST_LINE => return Ok(Some(GreetingStep::More)),
                None => None,
            }
        } else if is_begun(v2::PROTOCOL_PREFIX) {
            let Some((fixed, rest)) = self.heard.split_at_checked(V2_FIXED) else { return Ok(Some(GreetingStep::More)) };
            let length = V2_FIXED + usize::from(u16::from_be_bytes([fixed[V2_FIXED - 2], fixed[V2_FIXED - 1]]));
            match fixed[v2::PROTOCOL_PREFIX.len()] {
                _ if length > LONGEST => None,
                _ if V2_FIXED + rest.len() < length => return Ok(Some(GreetingStep::More)),
                // A connection of the proxy itself, as for health checks, whatever addresses
                // follow.
                V2_LOCAL => Some((None, length)),
                _ => v2::Header::try_from(&self.heard[..length]).ok().map(|header| (of_v2(&header.addresses), length)),
            }
        } else {
            None
        };
        let Some((client, length)) = parsed else {
            return Err(refuse("no PROXY protocol header, which this listener expects first", &[]));
        };
        self.client = client;
        self.heard.drain(..length);
        self.stage = if then_socks { Stage::SocksMethods } else { Stage::Nothing };
        Ok(None)
    }

    /// RFC 1928 §3.
    fn socks_methods(&mut self) -> Result<Option<GreetingStep>, Refusal> {
        match self.heard.first() {
            None => return Ok(Some(GreetingStep::More)),
            Some(5) => {}
            Some(4) => return Err(refuse("SOCKS version 4; this is version 5", &[0, 91, 0, 0, 0, 0, 0, 0])),
            Some(_) => return Err(refuse("not SOCKS", &[])),
        }
        let Some(count) = self.heard.get(1).map(|count| usize::from(*count)) else { return Ok(Some(GreetingStep::More)) };
        let Some(methods) = self.heard.get(2..2 + count) else { return Ok(Some(GreetingStep::More)) };
        let (method, next, lacks) = if self.users.are_required() {
            (PASSWORD, Stage::SocksPassword, "a SOCKS client that offers no user and password")
        } else {
            (NO_AUTHENTICATION, Stage::SocksRequest, "a SOCKS client that insists on authentication")
        };
        if !methods.contains(&method) {
            return Err(refuse(lacks, &[5, 0xff]));
        }
        self.heard.drain(..2 + count);
        self.stage = next;
        Ok(Some(GreetingStep::Reply(vec![5, method])))
    }

    /// RFC 1929 §2.
    fn socks_password(&mut self) -> Result<Option<GreetingStep>, Refusal> {
        let [version, rest @ ..] = self.heard.as_slice() else { return Ok(Some(GreetingStep::More)) };
        if *version != 1 {
            return Err(refuse("a SOCKS client that says no user and password where it must", &[1, 1]));
        }
        let Some((name, rest)) = counted(rest) else { return Ok(Some(GreetingStep::More)) };
        let Some((password, _)) = counted(rest) else { return Ok(Some(GreetingStep::More)) };
        if !self.users.have(name, password) {
            return Err(refuse("a wrong user or password", &[1, 1]));
        }
        let all = 1 + 1 + name.len() + 1 + password.len();
        self.heard.drain(..all);
        self.stage = Stage::SocksRequest;
        Ok(Some(GreetingStep::Reply(vec![1, 0])))
    }

    /// RFC 1928 §4.
    fn socks_request(&mut self) -> Result<Option<GreetingStep>, Refusal> {
        let heard = &self.heard;
        let [version, command, _, kind, body @ ..] = heard.as_slice() else { return Ok(Some(GreetingStep::More)) };
        if *version != 5 {
            return Err(refuse("not SOCKS", &[]));
        }
        if *command != 1 {
            return Err(refuse("a SOCKS command other than CONNECT", &socks_reply(7)));
        }
        let length = match (kind, body.first()) {
            (1, _) => 4,
            (4, _) => 16,
            (3, Some(length)) => 1 + usize::from(*length),
            (3, None) => return Ok(Some(GreetingStep::More)),
            _ => return Err(refuse("a SOCKS address of unknown kind", &socks_reply(8))),
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
        self.heard.drain(..all);
        self.stage = Stage::Nothing;
        Ok(Some(GreetingStep::Done(Some(target))))
    }
}

/// The target that a name is; some clients write addresses as names.
fn named(name: &[u8], port: u16) -> Result<RequestedServer, Refusal> {
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0'));
    let name = name.ok_or_else(|| refuse("a SOCKS request for a name that is none", &socks_reply(1)))?;
    Ok(match name.parse::<IpAddr>() {
        Ok(address) => RequestedServer::Address(SocketAddr::new(address, port)),
        Err(_) => RequestedServer::Name(name.into(), port),
    })
}

/// Bytes behind their count, and what follows; none: more must come.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

/// A SOCKS reply (RFC 1928 §6): 0 connected, else why not. The address it is to carry is of no use
/// to a client; like others we tell none.
pub(crate) fn socks_reply(code: u8) -> Vec<u8> {
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The code for an error of a connect.
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

fn of_v1(addresses: &v1::Addresses) -> Option<SocketAddr> {
    match addresses {
        v1::Addresses::Tcp4(ip) => Some(SocketAddr::new(ip.source_address.into(), ip.source_port)),
        v1::Addresses::Tcp6(ip) => Some(SocketAddr::new(ip.source_address.into(), ip.source_port)),
        v1::Addresses::Unknown => None,
    }
}

fn of_v2(addresses: &v2::Addresses) -> Option<SocketAddr> {
    match addresses {
        v2::Addresses::IPv4(ip) => Some(SocketAddr::new(ip.source_address.into(), ip.source_port)),
        v2::Addresses::IPv6(ip) => Some(SocketAddr::new(ip.source_address.into(), ip.source_port)),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => None,
    }
}

/// The header that tells a far end who the client is and what address it called.
pub(crate) fn proxy_header(version: ProxyVersion, client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    // Both of one family, as the protocol wants them.
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

    /// What was said to the client, where it goes, who it is, and what it sent besides.
    type Talk = (Vec<u8>, Option<RequestedServer>, Option<SocketAddr>, Vec<u8>);

    /// Feeds `bytes` in pieces of `step`.
    fn talk(mut greeting: Greeting, bytes: &[u8], step: usize) -> Result<Talk, Refusal> {
        let mut said = Vec::new();
        let mut pieces = bytes.chunks(step);
        let mut piece = pieces.next().unwrap_or_default();
        loop {
            match greeting.receive(piece)? {
                GreetingStep::More => match pieces.next() {
                    Some(next) => piece = next,
                    None => return Err(refuse("it never ended", &[])),
                },
                GreetingStep::Reply(bytes) => {
                    said.extend(bytes);
                    piece = &[];
                }
                GreetingStep::Done(target) => {
                    let client = greeting.client;
                    let mut rest = greeting.rest();
                    pieces.for_each(|piece| rest.extend(piece));
                    return Ok((said, target, client, rest));
                }
            }
        }
    }

    const TO_ADDRESS: &[u8] = &[5, 2, 2, 0, 5, 1, 0, 1, 192, 0, 2, 1, 0, 80, b'G', b'E', b'T'];
    const TO_NAME: &[u8] = &[5, 1, 0, 5, 1, 0, 3, 4, b'h', b'o', b's', b't', 1, 187];

    #[test]
    fn a_socks_client_says_where_to_however_its_bytes_fall() {
        for step in 1..TO_ADDRESS.len() {
            let (said, target, client, rest) = talk(Greeting::new(false, true), TO_ADDRESS, step).unwrap();
            assert_eq!((said, client, rest), (vec![5, 0], None, b"GET".to_vec()));
            assert_eq!(target, Some(RequestedServer::Address("192.0.2.1:80".parse().unwrap())));
            let (_, target, _, _) = talk(Greeting::new(false, true), TO_NAME, step).unwrap();
            assert_eq!(target, Some(RequestedServer::Name("host".into(), 443)));
        }
    }

    #[test]
    fn what_is_not_served_is_refused_by_its_code() {
        let refused = |bytes: &[u8]| talk(Greeting::new(false, true), bytes, 64).unwrap_err().say;
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

    /// What a client sends that says user and password.
    fn with_password(name: &str, password: &str) -> Vec<u8> {
        let counted = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        [&[5, 2, 0, 2, 1][..], &counted(name), &counted(password), &TO_ADDRESS[4..]].concat()
    }

    #[test]
    fn a_user_with_its_password_goes_on_however_its_bytes_fall() {
        let bytes = with_password("alice", "secret");
        for step in 1..bytes.len() {
            let (said, target, _, rest) = talk(guarded(), &bytes, step).unwrap();
            assert_eq!((said, rest), (vec![5, 2, 1, 0], b"GET".to_vec()));
            assert_eq!(target, Some(RequestedServer::Address("192.0.2.1:80".parse().unwrap())));
        }
    }

    #[test]
    fn who_is_no_user_is_refused() {
        let refused = |bytes: &[u8]| talk(guarded(), bytes, 64).unwrap_err().say;
        assert_eq!(refused(TO_NAME), [5, 0xff], "no method but none");
        let long = "x".repeat(255);
        for (name, password) in [("alice", "secre"), ("alice", "secret2"), ("", ""), ("bob", "secret"), ("alices", "ecret"), (&long, &long)]
        {
            assert_eq!(refused(&with_password(name, password)), [1, 1], "{name} {password}");
        }
        assert_eq!(refused(&[5, 1, 2, 5, 1, 0, 1]), [1, 1], "a request in the place of a password");
        // A greeting that ends early goes nowhere.
        let whole = with_password("alice", "secret");
        for length in 0..whole.len() - 3 {
            assert_eq!(talk(guarded(), &whole[..length], 64).unwrap_err().why, "it never ended");
        }
    }

    #[test]
    fn a_proxy_header_that_we_write_is_one_that_we_read() {
        let (v4, v6): (SocketAddr, SocketAddr) = ("192.0.2.7:4711".parse().unwrap(), "[2001:db8::7]:80".parse().unwrap());
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            for (client, server) in [(v4, v4), (v6, v6), (v4, v6), (v6, v4)] {
                let mut bytes = proxy_header(version, client, server);
                bytes.extend_from_slice(TO_ADDRESS);
                for step in [1, 7, 1000] {
                    let (_, target, heard, rest) = talk(Greeting::new(true, true), &bytes, step).unwrap();
                    let heard = heard.unwrap();
                    assert_eq!((heard.ip().to_canonical(), heard.port()), (client.ip(), client.port()));
                    assert_eq!((target.is_some(), rest), (true, b"GET".to_vec()));
                }
            }
        }
        assert!(talk(Greeting::new(true, false), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 3).is_err());
        // Over though it lacks something, or without end: refused then, not when it has taken too
        // long.
        let long = [v2::PROTOCOL_PREFIX, &[0x21, 0x11, 0xff, 0xff, 0]].concat();
        for wrong in [b"PROXY TCP4 192.0.2.1\r\n".to_vec(), [b"PROXY TCP4 ", &[b'1'; 100][..]].concat(), b"P\rPXY ".to_vec(), long] {
            for step in [1, wrong.len()] {
                let refusal = talk(Greeting::new(true, false), &wrong, step).unwrap_err();
                assert!(refusal.why.starts_with("no PROXY protocol header"), "{refusal:?}");
            }
        }
    }

    #[test]
    fn a_proxy_that_speaks_for_itself_names_no_client() {
        let mut header = proxy_header(ProxyVersion::V2, "192.0.2.7:4711".parse().unwrap(), "192.0.2.1:80".parse().unwrap());
        assert!(talk(Greeting::new(true, false), &header, 5).unwrap().2.is_some());
        // LOCAL instead of PROXY.
        header[v2::PROTOCOL_PREFIX.len()] = 0x20;
        assert_eq!(talk(Greeting::new(true, false), &header, 5).unwrap().2, None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_go_on_for_ever(bytes in prop::collection::vec(any::<u8>(), 0..6000), proxy: bool, step in 1..500usize) {
            let _ = talk(Greeting::new(proxy, true), &bytes, step);
            // Where the method is agreed on, the same bytes are a password.
            let _ = talk(guarded(), &[&[5, 1, 2, 1], &bytes[..]].concat(), step);
        }
    }
}
