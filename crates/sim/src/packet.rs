//! A simulated packet: the fields of its TCP header and the place of its payload in the stream,
//! without the payload itself.

use link::{Ecn, LinkPacket as _};
use units::Span;

/// Size of the IPv4 and TCP headers with the timestamp option (RFC 7323), bytes.
pub(crate) const HEADER_BYTES: u32 = 52;
/// Size of a SYN without payload, bytes. Its options are MSS, SACK permitted, timestamps and window
/// scale.
pub(crate) const SYN_BYTES: u32 = 60;
/// Size of the Fast Open cookie in a SYN (RFC 7413 §4.1.1), padded to four bytes.
pub(crate) const TFO_COOKIE_BYTES: u32 = 12;
/// How much smaller the payload of a SYN is than that of a full segment, bytes: Linux reserves 40
/// bytes for all possible options (tcp_send_syn_data), and a full segment has 12 bytes of
/// timestamps.
pub(crate) const SYN_PAYLOAD_REDUCTION: u32 = 28;
/// SACK blocks that fit beside timestamps (RFC 2018 §3).
pub(crate) const MAX_SACK_BLOCKS: usize = 3;

/// The types of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Syn,
    SynAck,
    /// A data segment.
    Data,
    /// An acknowledgement without payload.
    Ack,
    /// End-to-end acknowledgement past a proxy in `semi` mode: what the far end has received.
    DeliveryReceipt,
    /// A segment without payload that requests an answer: a zero-window probe, or a request for a
    /// delivery receipt.
    Probe,
    /// Cross traffic. It is discarded at the end of its link.
    Udp,
}

/// [`SimPacket::flags`]: this segment ends the stream.
pub(crate) const FIN: u8 = 1;
/// [`SimPacket::flags`]: ECN-capable transport (RFC 3168).
pub(crate) const ECT: u8 = 2;
/// [`SimPacket::flags`]: congestion experienced (RFC 3168).
pub(crate) const CE: u8 = 4;
/// [`SimPacket::flags`]: ECN echo (RFC 3168).
pub(crate) const ECE: u8 = 8;
/// [`SimPacket::flags`]: congestion window reduced (RFC 3168).
pub(crate) const CWR: u8 = 16;
/// [`SimPacket::flags`]: the first SACK block reports a duplicate segment (RFC 2883).
pub(crate) const DSACK: u8 = 32;
/// [`SimPacket::flags`]: a SYN with a Fast Open cookie (RFC 7413).
pub(crate) const TFO_COOKIE: u8 = 64;
/// [`SimPacket::flags`]: an agent has added a notice of loss.
const NOTICE: u8 = 128;
/// Size of a notice of loss, bytes: a TCP option with a byte number.
const NOTICE_BYTES: u16 = 8;

/// Size of the SACK option with this number of blocks, bytes: a header of two bytes, padded to a
/// multiple of four (RFC 2018 §3).
pub(crate) fn sack_option_bytes(blocks: u16) -> u16 {
    if blocks > 0 { 4 + 8 * blocks } else { 0 }
}

/// A packet. It fits a cache line and is passed by copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimPacket {
    /// Of data: the first byte of the payload. Of an ACK, a SYN-ACK and a delivery receipt: the
    /// next expected byte.
    pub(crate) seq: u64,
    /// When it was sent (TSval). Of an ACK and a SYN-ACK: the timestamp of the segment that it
    /// answers (TSecr, RFC 7323).
    pub(crate) timestamp_ns: u64,
    /// Extra delay of the flow on the link that the packet is on, ns; at most 4.2 s.
    pub(crate) extra_delay_ns: u32,
    /// Of an ACK: when it was sent (TSval), µs modulo 2^32.
    pub(crate) sent_us: u32,
    /// SACK blocks as offsets of begin and end from `seq`, newest first; an empty one is unused. Of
    /// data: the encoded [`CongestionHeader`]. Of a SYN-ACK: when it was sent.
    sack: [(i32, i32); MAX_SACK_BLOCKS],
    /// The number of its connection.
    pub(crate) connection: u32,
    /// Of data: payload bytes. Of all other packets: the advertised window, bytes.
    pub(crate) len_or_window: u32,
    /// Feedback of routers so far; of an ACK, what the receiver returns to the sender. XCP: a
    /// change of rate, bytes/s, which routers only lower. VCP: the code of a
    /// [`LoadRegion`](crate::router::LoadRegion), 0 for none. MPCP: two bits of a load level; of an
    /// ACK, the level plus one, 0 for none.
    pub(crate) feedback: f32,
    /// Size with the IP header, bytes.
    pub(crate) size: u16,
    pub(crate) kind: PacketKind,
    pub(crate) flags: u8,
}

/// What a sender tells the routers on the path (XCP's congestion header, and its equivalent for VCP
/// and MPCP).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CongestionHeader {
    /// The protocol of the routers that it addresses.
    pub(crate) protocol: RouterProtocol,
    /// The number of this packet on its connection, where each transmission counts (as the IPv4
    /// identification, RFC 791 §3.1).
    pub(crate) number: u32,
    /// The sender's RTT estimate, µs; 0 if there is none.
    pub(crate) rtt_us: u32,
    /// Mean time between packets: RTT / cwnd, seconds.
    pub(crate) spacing: f32,
}

/// The protocol of a [`CongestionHeader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterProtocol {
    Xcp,
    Vcp,
    /// MPCP that spreads the bits of a load level over this number of packets.
    Mpcp(u32),
}

impl SimPacket {
    /// A packet of this size without payload; all other fields are zero.
    pub(crate) fn without_payload(connection: u32, kind: PacketKind, size: u32) -> Self {
        SimPacket {
            seq: 0,
            timestamp_ns: 0,
            extra_delay_ns: 0,
            sent_us: 0,
            sack: [(0, 0); MAX_SACK_BLOCKS],
            connection,
            len_or_window: 0,
            feedback: 0.0,
            size: size as u16,
            kind,
            flags: 0,
        }
    }

    /// A value to be overwritten.
    pub(crate) fn placeholder() -> Self {
        SimPacket::without_payload(0, PacketKind::Udp, 0)
    }

    /// Whether `flag` is set.
    pub(crate) fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Adds a SACK block after those that are there. Returns false if there is no room.
    pub(crate) fn add_sack_block(&mut self, start: u64, end: u64) -> bool {
        let offset = |at: u64| at.wrapping_sub(self.seq) as i64 as i32;
        let block = (offset(start), offset(end));
        let Some(free) = self.sack.iter_mut().find(|block| !is_sack_block(**block)) else { return false };
        *free = block;
        true
    }

    /// Notes when a SYN-ACK was sent (TSval), ns.
    pub(crate) fn set_syn_ack_sent_ns(&mut self, sent_ns: u64) {
        self.sack[0] = ((sent_ns >> 32) as i32, sent_ns as i32);
    }

    /// When a SYN-ACK was sent (TSval), ns.
    pub(crate) fn syn_ack_sent_ns(&self) -> u64 {
        let (high, low) = self.sack[0];
        u64::from(high as u32) << 32 | u64::from(low as u32)
    }

    /// Adds a notice of loss to an ACK (ACK-CLN of E-TCP; Explicit Loss Notification): all data
    /// before this byte has passed the agent. It takes the place of the feedback of routers.
    pub(crate) fn set_notice(&mut self, passed_to: u64) {
        self.flags |= NOTICE;
        self.size += NOTICE_BYTES;
        self.feedback = f32::from_bits(passed_to.saturating_sub(self.seq).min(u32::MAX.into()) as u32);
    }

    /// The byte of the notice of loss, if there is one.
    pub(crate) fn notice(&self) -> Option<u64> {
        self.has_flag(NOTICE).then(|| self.seq + u64::from(self.feedback.to_bits()))
    }

    /// The duplicate segment that the first SACK block reports, if it does.
    pub(crate) fn dsack(&self) -> Option<(u64, u64)> {
        if self.has_flag(DSACK) { self.sack_blocks().next() } else { None }
    }

    /// Removes the SACK blocks of an ACK, except a DSACK if `keeps_dsack`.
    pub(crate) fn remove_sack_blocks(&mut self, keeps_dsack: bool) {
        let kept = usize::from(keeps_dsack && self.has_flag(DSACK));
        self.sack[kept..].fill((0, 0));
        self.flags &= if kept == 0 { !DSACK } else { !0 };
        self.size = HEADER_BYTES as u16 + sack_option_bytes(kept as u16);
    }

    /// Whether there is a SACK block.
    pub(crate) fn has_sack_blocks(&self) -> bool {
        is_sack_block(self.sack[0])
    }

    /// Payload of a SYN, bytes.
    pub(crate) fn syn_payload(&self) -> u32 {
        u32::from(self.size).saturating_sub(SYN_BYTES + TFO_COOKIE_BYTES)
    }

    /// The SACK blocks, first byte and end of each.
    pub(crate) fn sack_blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let at = |offset: i32| self.seq.wrapping_add_signed(offset.into());
        self.sack.into_iter().take_while(|block| is_sack_block(*block)).map(move |(begin, end)| (at(begin), at(end)))
    }

    /// Stores a header in a data packet, in the space of the SACK blocks.
    pub(crate) fn set_congestion_header(&mut self, header: CongestionHeader) {
        let protocol = match header.protocol {
            RouterProtocol::Xcp => 1,
            RouterProtocol::Vcp => 2,
            RouterProtocol::Mpcp(packets) => 0x100 | packets as i32,
        };
        // The casts keep all bits.
        self.sack[..2].copy_from_slice(&[(protocol, header.number as i32), (header.rtt_us as i32, header.spacing.to_bits() as i32)]);
    }

    /// The header of a data packet, if it has one.
    pub(crate) fn congestion_header(&self) -> Option<CongestionHeader> {
        if self.kind != PacketKind::Data {
            return None;
        }
        let [(protocol, number), (rtt_us, spacing), _] = self.sack;
        let protocol = match protocol {
            0 => return None,
            1 => RouterProtocol::Xcp,
            2 => RouterProtocol::Vcp,
            packets => RouterProtocol::Mpcp(packets as u32 & 0xff),
        };
        Some(CongestionHeader { protocol, number: number as u32, rtt_us: rtt_us as u32, spacing: f32::from_bits(spacing as u32) })
    }
}

fn is_sack_block(block: (i32, i32)) -> bool {
    block.0 != block.1
}

impl link::LinkPacket for SimPacket {
    fn wire_bytes(&self) -> u32 {
        self.size.into()
    }

    fn extra_delay(&self) -> Span {
        Span(self.extra_delay_ns.into())
    }

    fn ecn(&self) -> Ecn {
        match (self.has_flag(CE), self.has_flag(ECT)) {
            (true, _) => Ecn::Ce,
            (false, true) => Ecn::Ect0,
            (false, false) => Ecn::NotEct,
        }
    }

    fn mark_congestion(&mut self) {
        self.flags |= CE;
    }

    fn flow(&self) -> u64 {
        self.connection.into()
    }
}

/// The wire size of a packet, as counters need it.
pub(crate) fn wire_bytes_of(packet: &SimPacket) -> u64 {
    packet.wire_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_fits_a_cache_line() {
        assert!(std::mem::size_of::<SimPacket>() <= 64);
    }

    #[test]
    fn sack_blocks_are_offsets_from_the_acknowledged_byte() {
        let mut packet = SimPacket { seq: 5_000_000_000, ..SimPacket::without_payload(0, PacketKind::Ack, HEADER_BYTES) };
        assert!(!packet.has_sack_blocks());
        let sack_blocks = [(5_000_001_448, 5_000_002_896), (4_999_999_990, 5_000_000_000)];
        assert!(sack_blocks.iter().all(|(start, end)| packet.add_sack_block(*start, *end)));
        assert_eq!(packet.sack_blocks().collect::<Vec<_>>(), sack_blocks);
        assert!(packet.has_sack_blocks() && packet.add_sack_block(1, 2) && !packet.add_sack_block(3, 4));
    }

    #[test]
    fn an_ack_without_its_sack_blocks_is_smaller_and_may_keep_a_dsack() {
        let mut packet = SimPacket { seq: 10_000, flags: DSACK | ECE, ..SimPacket::without_payload(0, PacketKind::Ack, HEADER_BYTES + 20) };
        assert!(packet.add_sack_block(5000, 6000) && packet.add_sack_block(11_000, 12_000));
        let mut kept = packet;
        kept.remove_sack_blocks(true);
        assert_eq!((kept.dsack(), kept.sack_blocks().count(), u32::from(kept.size)), (Some((5000, 6000)), 1, HEADER_BYTES + 12));
        packet.remove_sack_blocks(false);
        assert_eq!((packet.dsack(), packet.has_sack_blocks(), packet.flags, u32::from(packet.size)), (None, false, ECE, HEADER_BYTES));
    }

    #[test]
    fn a_notice_of_loss_has_a_byte_number() {
        let mut packet = SimPacket { seq: 5_000_000_000, ..SimPacket::without_payload(0, PacketKind::Ack, HEADER_BYTES) };
        assert_eq!(packet.notice(), None);
        packet.set_notice(5_000_100_001);
        assert_eq!((packet.notice(), u32::from(packet.size)), (Some(5_000_100_001), HEADER_BYTES + 8));
    }

    #[test]
    fn congestion_headers_round_trip() {
        for protocol in [RouterProtocol::Xcp, RouterProtocol::Vcp, RouterProtocol::Mpcp(2), RouterProtocol::Mpcp(3)] {
            let mut packet = SimPacket::without_payload(0, PacketKind::Data, 1500);
            assert_eq!(packet.congestion_header(), None);
            let header = CongestionHeader { protocol, number: u32::MAX, rtt_us: 4_000_000_000, spacing: 0.006 };
            packet.set_congestion_header(header);
            assert_eq!(packet.congestion_header(), Some(header));
        }
    }
}
