//! Address families, and what nftables, `ip` and netlink call them.

use crate::routes::AddressFamily;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const fn ip(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    pub(super) const fn number(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }

    pub(super) const fn routing(self) -> AddressFamily {
        match self {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }

    pub(super) const fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }

    /// A connection's addresses and ports in a packet from the client …
    pub(super) fn from_client(self) -> String {
        let ip = self.ip();
        format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport")
    }

    /// … and the same four in one from the server.
    pub(super) fn from_server(self) -> String {
        let ip = self.ip();
        format!("{ip} daddr . tcp dport . {ip} saddr . tcp sport")
    }
}
