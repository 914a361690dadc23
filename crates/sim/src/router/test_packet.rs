//! A packet for tests of routers and of what hears them.

use crate::packet::{Header, Kind, Packet, Protocol};

/// A packet of 1500 bytes with a header.
pub(crate) fn data(protocol: Protocol, number: u32, told: f32) -> Packet {
    let mut packet = Packet::bare(0, Kind::Data, 1500);
    packet.told = told;
    packet.set_header(Header { protocol, number, rtt_us: 100_000, spacing: 0.01 });
    packet
}
