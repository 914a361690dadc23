//! Addresses and ports of clients, servers and the proxy.

use std::net::{Ipv4Addr, SocketAddr};

/// Ports of the servers; connections to the last bypass by a rule of the configuration.
pub(crate) const PORTS: std::ops::Range<u16> = 9200..9217;
pub(crate) const BYPASSED: u16 = 9216;
/// Where the servers are; connections to the second bypass now and then.
pub(crate) const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 2, 2), Ipv4Addr::new(10, 79, 2, 3)];
/// The address of clients whose connection is to be killed, so that the dead keep nobody else's ports.
pub(crate) const ABORTING_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 3);
/// The address of hostile clients that make connections. An honest client never has it.
pub(crate) const HOSTILE: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 66);
/// The address of honest clients, for packets that are forged in their name.
pub(crate) const HONEST: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 1);
/// The ports of the server that hostile clients use: what is said there is in nobody's state.
pub(crate) const TARGETS: std::ops::Range<u16> = 9300..9304;
/// Where the proxy speaks SOCKS5.
pub(crate) const SOCKS: &str = "10.79.1.2:1080";
/// Where the proxy serves its metrics.
pub(crate) const METRICS: &str = "127.0.0.1:9155";

/// Whether a flow is one of a hostile client.
pub(crate) fn is_hostile(client: SocketAddr) -> bool {
    client.ip() == HOSTILE
}
