//! A data packet for tests of routers and of router feedback.

use crate::packet::{CongestionHeader, PacketKind, RouterProtocol, SimPacket};

/// A packet of 1500 bytes with a congestion header (RTT 100 ms, spacing 10 ms) and this feedback.
pub(crate) fn data(protocol: RouterProtocol, number: u32, feedback: f32) -> SimPacket {
    let mut packet = SimPacket::without_payload(0, PacketKind::Data, 1500);
    packet.feedback = feedback;
    packet.set_congestion_header(CongestionHeader { protocol, number, rtt_us: 100_000, spacing: 0.01 });
    packet
}
