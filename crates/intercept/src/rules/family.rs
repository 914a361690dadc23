//! Address families, and their names in nftables, `ip` and netlink.

use crate::routes::AddressFamily;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// The nftables keyword of its header.
    pub(super) const fn ip(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    /// The suffix of its sets.
    pub(super) const fn number(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    /// Its index in arrays of IPv4 and IPv6.
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// The family in rtnetlink messages.
    pub(super) const fn routing(self) -> AddressFamily {
        match self {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }

    /// The option of `ip`.
    pub(super) const fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }

    /// The nftables key of a connection in a packet from the client: addresses and ports of client
    /// and server.
    pub(super) fn client_key(self) -> String {
        let ip = self.ip();
        format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport")
    }

    /// The same key in a packet from the server.
    pub(super) fn server_key(self) -> String {
        let ip = self.ip();
        format!("{ip} daddr . tcp dport . {ip} saddr . tcp sport")
    }
}
