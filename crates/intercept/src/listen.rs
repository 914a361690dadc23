//! Addresses of listeners, and how the destination of their connections is determined.

use std::net::{Ipv4Addr, SocketAddr};

/// An address on which a proxy listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAt {
    /// The address. For [`Destination::Original`] an unspecified IPv6 address stands for both
    /// families.
    pub at: SocketAddr,
    /// How the destination of a connection is determined.
    pub to: Destination,
}

/// How the destination of an accepted connection is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The address that the client dialled. The connections are routed through this host and
    /// intercepted by TPROXY.
    Original,
    /// This address for every connection.
    Fixed(SocketAddr),
    /// The client names it, in the protocol that the listener speaks.
    Named,
}

impl ListenAt {
    /// A listener for routed connections, which TPROXY intercepts.
    pub fn transparent(at: SocketAddr) -> Self {
        ListenAt { at, to: Destination::Original }
    }

    /// Whether its connections are intercepted by TPROXY.
    pub fn is_transparent(&self) -> bool {
        self.to == Destination::Original
    }

    /// The addresses of its sockets. A transparent listener for both families has two sockets,
    /// because a TPROXY rule applies to one family.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        let both = self.is_transparent() && self.at.is_ipv6() && self.at.ip().is_unspecified();
        let v4 = both.then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.at.port())));
        [self.at].into_iter().chain(v4).collect()
    }
}

/// Replaces `[::]` by 0.0.0.0 if IPv6 is disabled in this kernel (`ipv6.disable=1`).
pub(crate) fn without_absent_families(at: &mut SocketAddr) {
    if at.is_ipv6() && at.ip().is_unspecified() && !crate::sys::has_ipv6() {
        tracing::info!("IPv6 is disabled in this kernel: listening on 0.0.0.0:{} instead of [::]", at.port());
        at.set_ip(Ipv4Addr::UNSPECIFIED.into());
    }
}
