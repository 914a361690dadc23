//! Addresses and ports of clients, servers and the proxy.

use std::net::{Ipv4Addr, SocketAddr};

/// Ports of the servers. A rule of the proxy's configuration makes connections to the last one
/// bypass it.
pub(crate) const PORTS: std::ops::Range<u16> = 9200..9217;
pub(crate) const BYPASSED: u16 = 9216;
/// Addresses of the servers. Connections to the second bypass the proxy now and then.
pub(crate) const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 2, 2), Ipv4Addr::new(10, 79, 2, 3)];
/// Address of clients that abort a connection or whose server does. It differs from that of other
/// clients, so that silenced ports are not used by other connections.
pub(crate) const ABORTING_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 3);
/// Address of hostile clients. Honest clients never use it.
pub(crate) const HOSTILE: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 66);
/// Address of honest clients, which forged packets carry.
pub(crate) const HONEST: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 1);
/// Server ports for hostile clients. The ledger does not track their connections.
pub(crate) const TARGETS: std::ops::Range<u16> = 9300..9304;
/// The proxy's SOCKS5 listener.
pub(crate) const SOCKS: &str = "10.79.1.2:1080";
/// The proxy's metrics listener.
pub(crate) const METRICS: &str = "127.0.0.1:9155";

/// Whether a flow with this client address belongs to a hostile client.
pub(crate) fn is_hostile(client: SocketAddr) -> bool {
    client.ip() == HOSTILE
}
