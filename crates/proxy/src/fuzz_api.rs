//! Entry points of the fuzz targets into private parts of this crate. Not an API.

use crate::{
    config::ProxyVersion,
    greeting::{Greeting, GreetingStep, MAX_GREETING, RequestedServer, proxy_header},
};
use intercept::fuzz_api::{name, take};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Result of a greeting.
#[derive(Debug, PartialEq)]
enum GreetingOutcome {
    /// Incomplete; the replies so far.
    Incomplete(Vec<u8>),
    /// Refused; all replies.
    Refused(Vec<u8>),
    /// Complete; the replies, the destination, the client's address, and the data after it.
    Complete(Vec<u8>, Option<RequestedServer>, Option<SocketAddr>, Vec<u8>),
}

/// Passes `bytes` to the parser in pieces of `step` bytes.
fn greet(mut greeting: Greeting, bytes: &[u8], step: usize) -> GreetingOutcome {
    let mut replies = Vec::new();
    let mut pieces = bytes.chunks(step);
    while let Some(piece) = pieces.next() {
        let mut piece = piece;
        loop {
            match greeting.receive(std::mem::take(&mut piece)) {
                Ok(GreetingStep::More) => break,
                Ok(GreetingStep::Reply(bytes)) => {
                    replies.extend(bytes);
                    assert!(replies.len() <= 2, "more was sent than the choice of a method");
                }
                Ok(GreetingStep::Done(target)) => {
                    let client = greeting.client;
                    let mut rest = greeting.into_rest();
                    pieces.for_each(|piece| rest.extend(piece));
                    assert!(bytes.ends_with(&rest), "the data differ from the bytes after the greeting");
                    return GreetingOutcome::Complete(replies, target, client, rest);
                }
                Err(refusal) => {
                    replies.extend(refusal.reply);
                    return GreetingOutcome::Refused(replies);
                }
            }
        }
    }
    assert!(greeting.into_rest().len() <= MAX_GREETING, "an endless greeting was accepted");
    GreetingOutcome::Incomplete(replies)
}

/// Parses greetings of SOCKS5 and the PROXY protocol. The first byte chooses which are expected and
/// the length of the pieces in which the other bytes arrive.
///
/// # Panics
/// When the outcome depends on how the bytes are divided, or a valid header or request is parsed
/// wrongly.
pub fn greeting(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (proxy, socks) = (first & 1 != 0, first & 2 != 0);
    let new = || Greeting::new(proxy, socks);
    let whole = greet(new(), bytes, bytes.len().max(1));
    for step in [1, 1 + usize::from(first >> 2)] {
        assert_eq!(greet(new(), bytes, step), whole, "in pieces of {step} bytes");
    }
    if let GreetingOutcome::Complete(_, target, client, _) = whole {
        assert!(socks == target.is_some() && (proxy || client.is_none()));
    }
    round_trip(bytes, 1 + usize::from(first >> 2));
}

/// Checks that a valid greeting made from `choices` is parsed correctly.
fn round_trip(mut choices: &[u8], step: usize) {
    let rest = &mut choices;
    let address = |rest: &mut &[u8]| {
        let [kind, high, low] = take(rest);
        let ip: IpAddr = if kind & 1 == 0 { Ipv4Addr::from(take::<4>(rest)).into() } else { Ipv6Addr::from(take::<16>(rest)).into() };
        SocketAddr::new(ip, u16::from_be_bytes([high, low]))
    };
    let (client, server) = (address(rest), address(rest));
    let [kind] = take(rest);
    let (mut request, target) = (vec![5, 1, 0, 5, 1, 0], if kind & 2 == 0 { name(rest) } else { None });
    match (&target, server.ip()) {
        (Some(name), _) => request.extend([&[3, name.len() as u8][..], name.as_bytes()].concat()),
        (None, IpAddr::V4(ip)) => request.extend([&[1][..], &ip.octets()].concat()),
        (None, IpAddr::V6(ip)) => request.extend([&[4][..], &ip.octets()].concat()),
    }
    request.extend(server.port().to_be_bytes());
    let to = match target {
        // Some clients send addresses as names.
        Some(name) => name
            .parse()
            .map_or(RequestedServer::Name(name, server.port()), |ip| RequestedServer::Address(SocketAddr::new(ip, server.port()))),
        None => RequestedServer::Address(server),
    };
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let bytes = [proxy_header(version, client, server), request.clone(), rest.to_vec()].concat();
        let GreetingOutcome::Complete(replies, target, named_client, data) = greet(Greeting::new(true, true), &bytes, step) else {
            panic!("{version:?} for {client} and {server} is refused");
        };
        assert_eq!((replies, target, data), (vec![5, 0], Some(to.clone()), rest.to_vec()));
        // With addresses of two families, the IPv4 address is written as IPv6.
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        assert_eq!(named_client.map(canonical), Some(canonical(client)));
    }
}
