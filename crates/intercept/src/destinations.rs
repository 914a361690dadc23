//! Which destinations a proxy connects to for clients that name them.
//!
//! Without a check, a client that names its destination (SOCKS5, HTTP CONNECT) could reach what
//! only this host should reach: services on loopback, the metrics port, the metadata service of a
//! cloud. Check every address immediately before it is dialled, after name resolution.

use crate::{policy::Prefix, routes::Routes};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The destinations that the clients of a listener may name.
///
/// Refused by default: loopback, unspecified, link-local, multicast and broadcast addresses, and
/// all addresses of this host. [`allow`](Self::allow) permits them if it names them explicitly: by
/// a prefix that lies within one of these ranges, or, for an address of this host, by that very
/// address. `0.0.0.0/0` does not permit `127.0.0.1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Only these are permitted. Empty: all except those refused by default.
    pub allow: Vec<Prefix>,
    /// These are refused, even if `allow` contains them.
    pub deny: Vec<Prefix>,
}

/// Ranges that are refused by default. Linux connects to this host for 0.0.0.0 and ::. The rest of
/// 0.0.0.0/8 is not a valid destination (RFC 1122 §3.2.1.3).
const PROTECTED: [IpNet; 9] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
];

impl Destinations {
    /// Checks an address that is about to be dialled.
    ///
    /// # Errors
    /// `PermissionDenied` for a destination that is not permitted. Another kind if the kernel does
    /// not answer whether the address is one of this host.
    pub fn check(&self, to: SocketAddr) -> io::Result<()> {
        self.check_lists(to.ip())?;
        let to = canonical(to);
        for form in forms(to.ip()) {
            let protected = PROTECTED.iter().find(|range| range.contains(&form));
            if protected.is_some_and(|range| !self.names_within(form, *range)) {
                return Err(refused(to.ip(), "such addresses lead to the proxy's own host or its links"));
            }
        }
        self.check_own(to)
    }

    /// Checks an address against `allow` and `deny` alone, for an address that another host dials:
    /// that host refuses its own addresses.
    ///
    /// # Errors
    /// `PermissionDenied` for a destination that is not permitted.
    pub fn check_lists(&self, to: IpAddr) -> io::Result<()> {
        let to = to.to_canonical();
        if forms(to).any(|form| self.deny.iter().any(|prefix| prefix.contains(form))) {
            return Err(refused(to, "a deny prefix contains it"));
        }
        if !self.allow.is_empty() && !self.allow.iter().any(|prefix| prefix.contains(to)) {
            return Err(refused(to, "no allow prefix contains it"));
        }
        Ok(())
    }

    /// Whether `allow` or `deny` has a prefix. If so, a name must be resolved before it can be
    /// checked.
    pub fn has_lists(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// Asks the kernel each time, since addresses of this host change while a proxy runs.
    fn check_own(&self, to: SocketAddr) -> io::Result<()> {
        let scope = if let SocketAddr::V6(to) = to { to.scope_id() } else { 0 };
        // `check` has refused loopback and unspecified addresses unless `allow` names them.
        let named = |form: IpAddr| form.is_loopback() || form.is_unspecified() || self.names(form);
        for form in forms(to.ip()).filter(|form| !named(*form)) {
            if Routes::open()?.is_local(form, scope)? {
                return Err(refused(to.ip(), "it is an address of the proxy's own host"));
            }
        }
        Ok(())
    }

    fn names(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|prefix| prefix.0.prefix_len() == prefix.0.max_prefix_len() && prefix.contains(address))
    }

    fn names_within(&self, address: IpAddr, range: IpNet) -> bool {
        self.allow.iter().any(|prefix| range.contains(&prefix.0) && prefix.contains(address))
    }

    /// Finds prefixes that match no address: addresses are compared in canonical form, so that an
    /// IPv4-mapped prefix never matches.
    ///
    /// # Errors
    /// The first such prefix, and how to write it.
    pub fn check_prefixes(&self) -> Result<(), String> {
        let mapped = |prefix: &&Prefix| matches!(prefix.0.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
        match self.allow.iter().chain(&self.deny).find(mapped) {
            Some(prefix) => Err(format!("{prefix} is an IPv4 prefix in the form of IPv6 and would match nothing: write it as IPv4")),
            None => Ok(()),
        }
    }
}

/// The form of an address that is checked and dialled: an IPv4-mapped IPv6 address becomes IPv4.
pub fn canonical(to: SocketAddr) -> SocketAddr {
    match to.ip().to_canonical() {
        IpAddr::V4(address) => SocketAddr::new(address.into(), to.port()),
        // `to` has a scope, which `SocketAddr::new` would drop.
        IpAddr::V6(_) => to,
    }
}

/// An address, and the IPv4 address to which a gateway or tunnel would translate it.
fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let embedded = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => embedded(address).map(IpAddr::V4),
    };
    std::iter::once(address).chain(embedded)
}

/// The IPv4 address embedded in an address of NAT64 (RFC 6052 §2.1, RFC 8215) or 6to4 (RFC 3056
/// §2), or in an IPv4-compatible address (RFC 4291 §2.5.5.1).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, .., high, low] => Some(join(high, low)),
        [0x2002, high, low, ..] => Some(join(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high > 0 => Some(join(high, low)),
        _ => None,
    }
}

fn refused(to: IpAddr, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("connections to {to} are not allowed here: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(allow: &[&str], deny: &[&str]) -> Destinations {
        let read = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        Destinations { allow: read(allow), deny: read(deny) }
    }

    fn may(destinations: &Destinations, to: &str) -> bool {
        match destinations.check(SocketAddr::new(to.parse().unwrap(), 80)) {
            Ok(()) => true,
            Err(why) => {
                assert_eq!(why.kind(), io::ErrorKind::PermissionDenied, "{to}: {why}");
                false
            }
        }
    }

    #[test]
    fn a_wide_prefix_does_not_permit_what_is_refused_by_default() {
        let wide = destinations(&["0.0.0.0/0", "::/0"], &[]);
        for to in ["127.0.0.1", "0.0.0.0", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1"] {
            assert!(!may(&wide, to), "{to}");
        }
        let named = destinations(&["127.0.0.0/8", "169.254.169.254", "::/0", "::1"], &[]);
        for to in ["127.0.0.1", "::ffff:127.9.9.9", "169.254.169.254", "::1", "64:ff9b::7f00:1"] {
            assert!(may(&named, to), "{to}");
        }
        for to in ["169.254.0.1", "0.0.0.0", "198.51.100.1"] {
            assert!(!may(&named, to), "{to}");
        }
    }

    #[test]
    fn deny_wins_over_allow_in_every_form_of_an_address() {
        let both = destinations(&["127.0.0.0/8", "::/0"], &["127.0.0.2", "10.0.0.0/8"]);
        assert!(may(&both, "127.0.0.1"));
        for to in ["127.0.0.2", "::ffff:127.0.0.2", "64:ff9b::10.1.2.3", "64:ff9b:1::10.1.2.3", "2002:a01:203::"] {
            assert!(!may(&both, to), "{to}");
        }
    }

    #[test]
    fn a_prefix_that_would_match_nothing_is_refused() {
        assert!(destinations(&[], &["::ffff:10.0.0.0/104"]).check_prefixes().unwrap_err().contains("write it as IPv4"));
        assert_eq!(destinations(&["::/0"], &["10.0.0.0/8"]).check_prefixes(), Ok(()));
    }
}
