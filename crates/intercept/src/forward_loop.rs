//! Finds listeners that forward to this proxy itself. Each connection to one would make the proxy
//! connect to itself again, until the limit of flows is reached.

use crate::{
    destinations::canonical,
    listen::{Destination, ListenAt},
    routes::Routes,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first listener whose connections loop among the listeners of this proxy, or lead to its
/// transparent listener, which resets connections to its own address. Returns the listener's
/// address and where it forwards to.
pub(crate) fn find(listen: &[ListenAt]) -> Option<(SocketAddr, SocketAddr)> {
    listen.iter().find_map(|first| {
        let Destination::Fixed(to) = first.to else { return None };
        let mut next = to;
        // A chain of forwards that visits no listener twice has at most as many steps as there are
        // listeners.
        for _ in 0..listen.len() {
            match reached(listen, next)?.to {
                Destination::Fixed(further) => next = further,
                Destination::Original => break,
                Destination::Named => return None,
            }
        }
        Some((first.at, to))
    })
}

/// The listener that accepts a connection from this host to `to`. A listener at exactly that
/// address has precedence over one at the unspecified address.
fn reached(listen: &[ListenAt], to: SocketAddr) -> Option<&ListenAt> {
    let to = destination(to);
    let candidates = || listen.iter().filter(|listen| listen.at.port() == to.port() && to.port() != 0);
    let exact = candidates().find(|listen| canonical(listen.at).ip() == to.ip());
    exact.or_else(|| candidates().find(|listen| listens_on_all(listen, to.ip()) && is_own(to)))
}

/// The address to which the kernel connects: for an unspecified address it uses loopback.
fn destination(to: SocketAddr) -> SocketAddr {
    let mut to = canonical(to);
    match to.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => to.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => to.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    to
}

/// Whether it listens on all addresses of this family. `[::]` stands for both families.
fn listens_on_all(listen: &ListenAt, to: IpAddr) -> bool {
    listen.at.ip().is_unspecified() && (listen.at.is_ipv6() || to.is_ipv4())
}

fn is_own(to: SocketAddr) -> bool {
    let scope = if let SocketAddr::V6(to) = to { to.scope_id() } else { 0 };
    to.ip().is_loopback() || Routes::open().is_ok_and(|routes| routes.is_local(to.ip(), scope).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether these listeners are refused.
    fn is_loop(texts: &[&str]) -> bool {
        let listen: Vec<ListenAt> = texts.iter().map(|text| listener(text)).collect();
        find(&listen).is_some()
    }

    /// `transparent=AT`, `socks5=AT` or `forward=AT=TO`.
    fn listener(text: &str) -> ListenAt {
        let address = |text: &str| text.parse().unwrap();
        match text.split_once('=').unwrap() {
            ("transparent", at) => ListenAt::transparent(address(at)),
            ("socks5", at) => ListenAt { at: address(at), to: Destination::Named },
            (_, both) => {
                let (at, to) = both.split_once('=').unwrap();
                ListenAt { at: address(at), to: Destination::Fixed(address(to)) }
            }
        }
    }

    #[test]
    fn a_listener_that_forwards_to_itself_is_found_by_every_address() {
        for text in [
            "forward=127.0.0.1:80=127.0.0.1:80",
            "forward=127.0.0.1:80=0.0.0.0:80",
            "forward=127.0.0.1:80=[::ffff:127.0.0.1]:80",
            "forward=0.0.0.0:80=127.9.9.9:80",
            "forward=[::]:80=127.0.0.1:80",
            "forward=[::]:80=[::1]:80",
            "forward=[::]:80=0.0.0.0:80",
            "forward=[::1]:80=[::]:80",
            "forward=192.0.2.1:80=192.0.2.1:80",
        ] {
            assert!(is_loop(&[text]), "{text}");
        }
        assert!(is_loop(&["forward=127.0.0.1:80=127.0.0.1:81", "forward=127.0.0.1:81=127.0.0.1:80"]));
        // The second is a loop, the first leads into it.
        assert!(is_loop(&["forward=127.0.0.1:80=127.0.0.1:81", "forward=127.0.0.1:81=127.0.0.1:81"]));
        assert!(is_loop(&["forward=127.0.0.1:80=127.0.0.1:5000", "transparent=[::]:5000"]), "it resets connections to its own address");
    }

    #[test]
    fn a_chain_that_ends_elsewhere_is_not_a_loop() {
        for texts in [
            &["forward=127.0.0.1:80=127.0.0.1:81"][..],
            &["forward=127.0.0.1:80=127.0.0.2:80"],
            &["forward=127.0.0.1:80=[::1]:80"],
            // 192.0.2.1 is not an address of this host, and 0.0.0.0 does not accept IPv6.
            &["forward=[::]:80=192.0.2.1:80"],
            &["forward=0.0.0.0:80=[::1]:80"],
            &["forward=127.0.0.1:0=127.0.0.1:0"],
            &["forward=127.0.0.1:80=127.0.0.1:1080", "socks5=127.0.0.1:1080"],
            &["forward=127.0.0.1:80=127.0.0.1:81", "forward=127.0.0.1:81=192.0.2.1:80"],
            &["forward=127.0.0.1:80=127.0.0.1:81", "forward=127.0.0.1:81=192.0.2.1:80", "forward=[::]:81=127.0.0.1:80"],
        ] {
            assert!(!is_loop(texts), "{texts:?}");
        }
    }
}
