//! Where this host has routes to: an accepting end says so in its handshake, so that the other end
//! accepts no connections that would be reset.

use bond::Families;
use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

/// How long an answer counts as current: a table with all routes of the Internet takes long to
/// read.
const CURRENT: Duration = Duration::from_secs(5);
/// Flags of a route in /proc/net/ipv6_route: it rejects packets, or is a local address.
const REJECT: u32 = 0x0200;
const LOCAL: u32 = 0x8000_0000;

/// The IP versions that this host has routes for.
#[derive(Debug, Default)]
pub(crate) struct OwnRoutes(Option<(Families, Instant)>);

impl OwnRoutes {
    /// The present families.
    pub(crate) fn families(&mut self, now: Instant) -> Families {
        match self.0 {
            Some((families, read)) if now.saturating_duration_since(read) < CURRENT => families,
            _ => {
                let families = Families { ipv4: has_ipv4(), ipv6: has_ipv6() };
                self.0 = Some((families, now));
                families
            }
        }
    }
}

/// The lines of a file of /proc/net in the network namespace of this thread. None: it cannot be
/// read.
fn lines(name: &str) -> Option<impl Iterator<Item = String>> {
    let file = File::open(format!("/proc/thread-self/net/{name}")).ok()?;
    Some(BufReader::new(file).lines().map_while(Result::ok))
}

/// Whether there is a route to hosts of IPv4. If that cannot be found out, there is one.
fn has_ipv4() -> bool {
    // This file has the main routing table; connecting a UDP socket, which sends nothing, consults
    // the others too.
    let routed = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))).is_ok();
    lines("route").is_none_or(|mut lines| lines.any(|line| is_ipv4_route(&line))) || routed()
}

fn is_ipv4_route(line: &str) -> bool {
    !["lo", "Iface"].contains(&line.split_whitespace().next().unwrap_or("lo"))
}

/// Whether there is a route to a part of the IPv6 Internet. If that cannot be found out, there is
/// one, unless the kernel has no IPv6.
fn has_ipv6() -> bool {
    match lines("ipv6_route") {
        Some(mut lines) => lines.any(|line| is_global_ipv6_route(&line)),
        None => lines("route").is_none(),
    }
}

/// Whether a line of /proc/net/ipv6_route is a route to a part of 2000::/3 or more. Other
/// addresses, such as link-local and unique local ones, are not of the Internet.
fn is_global_ipv6_route(line: &str) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [destination, prefix, .., flags, device] = fields[..] else { return false };
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let (Some(first), Some(prefix), Some(flags)) = (destination.get(..1).and_then(number), number(prefix), number(flags)) else {
        return false;
    };
    let covers = prefix == 0 || first & 0xe == 2;
    covers && device != "lo" && flags & (REJECT | LOCAL) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "00000000000000000000000000000000";

    #[test]
    fn routes_to_the_ipv6_internet_are_told_from_others() {
        let line = |destination: &str, prefix: &str, flags: &str, device: &str| {
            is_global_ipv6_route(&format!("{destination} {prefix} {ZERO} 00 {ZERO} 00000400 00000001 00000000 {flags} {device}"))
        };
        assert!(line(ZERO, "00", "00000003", "eth0"), "the default route");
        assert!(line("20010db8000000000000000000000000", "20", "00000001", "eth0"));
        assert!(line("3fff0000000000000000000000000000", "20", "00000001", "eth0"));
        assert!(!line(ZERO, "00", "00200200", "lo"), "unreachable, as without any route");
        assert!(!line(ZERO, "00", "00000200", "eth0"), "prohibited");
        assert!(!line("fe800000000000000000000000000000", "40", "00000001", "eth0"), "link-local");
        assert!(!line("fd000001000000000000000000000000", "40", "00000001", "eth0"), "unique local");
        assert!(!line("20010db8000000000000000000000001", "80", "80200001", "eth0"), "an own address");
        assert!(!line("ff000000000000000000000000000000", "08", "00000001", "eth0"), "multicast");
        assert!(!is_global_ipv6_route(""));
    }

    #[test]
    fn loopback_is_no_route_of_ipv4() {
        assert!(is_ipv4_route("eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"));
        assert!(!is_ipv4_route("lo\t0000007F\t00000000\t0001") && !is_ipv4_route("Iface\tDestination\tGateway") && !is_ipv4_route(""));
    }
}
