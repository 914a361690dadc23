//! What the fuzz targets try of this crate that is private to it. Not an API.

use crate::{
    config::ProxyVersion,
    greeting::{Greeting, GreetingStep, LONGEST, RequestedServer, proxy_header},
};
use intercept::fuzz_api::{name, take};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What a greeting comes to.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// It never ends; this was said meanwhile.
    More(Vec<u8>),
    /// What was said in all.
    Refused(Vec<u8>),
    /// What was said, where to, for whom, and the data behind it.
    Over(Vec<u8>, Option<RequestedServer>, Option<SocketAddr>, Vec<u8>),
}

/// Greets with `bytes` in pieces of `step`.
fn greet(mut greeting: Greeting, bytes: &[u8], step: usize) -> Outcome {
    let mut said = Vec::new();
    let mut pieces = bytes.chunks(step);
    while let Some(piece) = pieces.next() {
        let mut piece = piece;
        loop {
            match greeting.receive(std::mem::take(&mut piece)) {
                Ok(GreetingStep::More) => break,
                Ok(GreetingStep::Reply(bytes)) => {
                    said.extend(bytes);
                    assert!(said.len() <= 2, "it says more than which method it takes");
                }
                Ok(GreetingStep::Done(target)) => {
                    let client = greeting.client;
                    let mut rest = greeting.rest();
                    pieces.for_each(|piece| rest.extend(piece));
                    assert!(bytes.ends_with(&rest), "data are not what came behind the greeting");
                    return Outcome::Over(said, target, client, rest);
                }
                Err(refusal) => {
                    said.extend(refusal.say);
                    return Outcome::Refused(said);
                }
            }
        }
    }
    assert!(greeting.rest().len() <= LONGEST, "a greeting without end");
    Outcome::More(said)
}

/// Greetings of SOCKS5 and the PROXY protocol. The first byte says which are expected and how long
/// the pieces are that the rest comes in.
///
/// # Panics
/// When the outcome depends on how the bytes are divided, or when a header or a request that says
/// something is understood as something else.
pub fn greeting(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let (proxy, socks) = (first & 1 != 0, first & 2 != 0);
    let new = || Greeting::new(proxy, socks);
    let whole = greet(new(), bytes, bytes.len().max(1));
    for step in [1, 1 + usize::from(first >> 2)] {
        assert_eq!(greet(new(), bytes, step), whole, "in pieces of {step} bytes");
    }
    if let Outcome::Over(_, target, client, _) = whole {
        assert!(socks == target.is_some() && (proxy || client.is_none()));
    }
    round_trip(bytes, 1 + usize::from(first >> 2));
}

/// What is said in the words of a client is heard.
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
        // Some clients write addresses as names.
        Some(name) => name
            .parse()
            .map_or(RequestedServer::Name(name, server.port()), |ip| RequestedServer::Address(SocketAddr::new(ip, server.port()))),
        None => RequestedServer::Address(server),
    };
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let bytes = [proxy_header(version, client, server), request.clone(), rest.to_vec()].concat();
        let Outcome::Over(said, target, heard, data) = greet(Greeting::new(true, true), &bytes, step) else {
            panic!("{version:?} for {client} and {server} is refused");
        };
        assert_eq!((said, target, data), (vec![5, 0], Some(to.clone()), rest.to_vec()));
        // Of two families IPv4 is written as IPv6.
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        assert_eq!(heard.map(canonical), Some(canonical(client)));
    }
}
