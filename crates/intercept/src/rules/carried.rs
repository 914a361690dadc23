//! Connections that a carrier takes: those that it cannot carry at present pass unsplit.
//!
//! Each rule of the policy whose action is the carrier, and the default, jumps to the chain `carry`
//! first. That chain is empty while the carrier works.

use super::{Rules, TABLE};
use std::net::IpAddr;

/// The addresses of the IPv6 Internet (RFC 4291 §2.4: global unicast as far as it is assigned).
/// Other ones, such as unique local addresses, are reached by routes of their own.
const GLOBAL_V6: &str = "2000::/3";

/// What a carrier can carry at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Carried {
    /// Whether its other end is reached. If not, it carries nothing.
    pub reached: bool,
    /// Whether its other end has a route to hosts of IPv4.
    pub ipv4: bool,
    /// Whether its other end has a route to the IPv6 Internet.
    pub ipv6: bool,
}

impl Carried {
    /// Everything.
    pub const ALL: Carried = Carried { reached: true, ipv4: true, ipv6: true };

    /// Whether it can carry a connection to this address.
    pub fn includes(self, server: IpAddr) -> bool {
        let family = match server.to_canonical() {
            IpAddr::V4(_) => self.ipv4,
            IpAddr::V6(address) => self.ipv6 || address.segments()[0] >> 13 != 1,
        };
        self.reached && family
    }
}

impl Rules {
    /// The rule that has a connection pass unsplit if the carrier cannot carry it, for chains whose
    /// connections the carrier takes; none: there is no carrier.
    pub(super) fn ask_carrier(&self) -> Option<&'static str> {
        self.carried.map(|_| "jump carry")
    }

    /// The rules of the chain `carry`.
    pub(super) fn carry(&self) -> Vec<String> {
        let Carried { reached, ipv4, ipv6 } = self.carried.unwrap_or(Carried::ALL);
        let unsplit = |condition: &str| format!("add rule inet {TABLE} carry {condition}counter name unsplit goto direct");
        if !reached {
            return vec![unsplit("")];
        }
        let v4 = (!ipv4).then(|| unsplit("meta nfproto ipv4 "));
        let v6 = (!ipv6).then(|| unsplit(&format!("meta nfproto ipv6 ip6 daddr {GLOBAL_V6} ")));
        v4.into_iter().chain(v6).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_route_to_the_ipv6_internet_concerns_global_addresses_alone() {
        let without = Carried { ipv6: false, ..Carried::ALL };
        let carries = |carried: Carried, address: &str| carried.includes(address.parse().unwrap());
        assert!(!carries(without, "2001:db8::1") && !carries(without, "3fff:ffff::1"));
        assert!(carries(without, "fd00::1") && carries(without, "4000::1") && carries(without, "::ffff:192.0.2.1"));
        assert!(!carries(Carried { ipv4: false, ..Carried::ALL }, "::ffff:192.0.2.1"));
        assert!(carries(Carried::ALL, "2001:db8::1"));
        assert!(!carries(Carried { reached: false, ..Carried::ALL }, "192.0.2.1"));
    }
}
