//! Where connections come in, and how it is known where they go on to.

use std::net::{Ipv4Addr, SocketAddr};

/// An address at which connections come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAt {
    /// The address. For [`Destination::Original`] an unspecified IPv6 address stands for both
    /// families.
    pub at: SocketAddr,
    /// Where the connections go on to.
    pub to: Destination,
}

/// How it is known where a connection goes on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The address that the client dialled: connections routed through this host, taken by TPROXY.
    Original,
    /// Always this one.
    Fixed(SocketAddr),
    /// The client names it, in a protocol of whatever listens here.
    Named,
}

impl ListenAt {
    /// Routed connections, taken by TPROXY.
    pub fn transparent(at: SocketAddr) -> Self {
        ListenAt { at, to: Destination::Original }
    }

    /// Whether connections are taken by TPROXY.
    pub fn is_transparent(&self) -> bool {
        self.to == Destination::Original
    }

    /// The addresses of its sockets. A transparent listener has one a family: TPROXY names the
    /// family, and clients keep their true form of address.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        let both = self.is_transparent() && self.at.is_ipv6() && self.at.ip().is_unspecified();
        let v4 = both.then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.at.port())));
        [self.at].into_iter().chain(v4).collect()
    }
}

/// Puts 0.0.0.0 in the place of [::] where this kernel has IPv6 switched off (`ipv6.disable=1`).
pub(crate) fn without_absent_families(at: &mut SocketAddr) {
    if at.is_ipv6() && at.ip().is_unspecified() && !crate::sys::has_ipv6() {
        tracing::info!("this kernel has IPv6 switched off: listening on 0.0.0.0:{} alone", at.port());
        at.set_ip(Ipv4Addr::UNSPECIFIED.into());
    }
}
