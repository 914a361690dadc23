//! A packet, as links carry it: what TCP's header says, and nothing of the payload but its place in the stream.

use link::Packet as _;
use scenario::Span;

/// Bytes of the IPv4 and TCP headers with the timestamp option (RFC 7323).
pub(crate) const HEADER: u32 = 52;
/// The same of a SYN, which has options of its own: MSS, SACK permitted, timestamps, window scale.
pub(crate) const SYN_BYTES: u32 = 60;
/// The cookie of Fast Open in a SYN (RFC 7413 §4.1.1), padded to four bytes.
pub(crate) const COOKIE_BYTES: u32 = 12;
/// By how much a SYN's payload is less than a full segment's: Linux leaves room for all options there could be, 40 bytes
/// (tcp_send_syn_data), of which a segment has the 12 of timestamps.
pub(crate) const SYN_PAYLOAD_LESS: u32 = 28;
/// SACK blocks that fit beside timestamps (RFC 2018 §3).
pub(crate) const BLOCKS: usize = 3;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Asks for a connection.
    Syn,
    /// Grants it.
    SynAck,
    /// Payload.
    Data,
    /// An acknowledgement.
    Ack,
    /// Tells, past a proxy that acknowledges end to end, what the far end has.
    Receipt,
    /// Asks for the window while it is closed, or for a receipt.
    Probe,
    /// Cross traffic, which ends behind its link.
    Udp,
}

/// [`Packet::flags`]: the last byte of the stream.
pub(crate) const FIN: u8 = 1;
/// [`Packet::flags`]: may be marked (RFC 3168: ECT).
pub(crate) const ECT: u8 = 2;
/// [`Packet::flags`]: was marked.
pub(crate) const CE: u8 = 4;
/// [`Packet::flags`]: tells the sender of a mark.
pub(crate) const ECE: u8 = 8;
/// [`Packet::flags`]: the sender has heard of it.
pub(crate) const CWR: u8 = 16;
/// [`Packet::flags`]: the first block is of what came twice (RFC 2883).
pub(crate) const DSACK: u8 = 32;

/// [`Packet::flags`]: a SYN with the cookie of Fast Open.
pub(crate) const COOKIE: u8 = 64;

/// A packet. It fills a cache line, and is copied rather than kept anywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    /// Of data: its first byte. Of an ACK, a SYN-ACK and a receipt: the byte that is expected next.
    pub(crate) seq: u64,
    /// When it was sent. Of an ACK: when what it answers was (RFC 7323: TSecr).
    pub(crate) sent: u64,
    /// Extra delay on the link that it is on.
    pub(crate) extra: u64,
    /// SACK blocks, begin and end counted from `seq`, the newest first.
    pub(crate) sack: [(i32, i32); BLOCKS],
    /// Which connection it belongs to.
    pub(crate) conn: u32,
    /// Of data: payload bytes. Of all else: the window, in bytes.
    pub(crate) amount: u32,
    /// Bytes of IP.
    pub(crate) size: u16,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    /// How many blocks there are.
    pub(crate) blocks: u8,
}

impl Packet {
    /// One with headers alone.
    pub(crate) fn bare(conn: u32, kind: Kind, size: u32) -> Self {
        Packet { seq: 0, sent: 0, extra: 0, sack: [(0, 0); BLOCKS], conn, amount: 0, size: size as u16, kind, flags: 0, blocks: 0 }
    }

    /// Whether it has a flag.
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Payload that a SYN carries.
    pub(crate) fn syn_payload(&self) -> u32 {
        u32::from(self.size).saturating_sub(SYN_BYTES + COOKIE_BYTES)
    }

    /// Byte ranges that it says have arrived beyond `seq`, or twice.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let at = |offset: i32| self.seq.wrapping_add_signed(offset.into());
        self.sack.into_iter().take(self.blocks.into()).map(move |(begin, end)| (at(begin), at(end)))
    }
}

impl link::Packet for Packet {
    fn wire_bytes(&self) -> u32 {
        self.size.into()
    }

    fn extra_delay(&self) -> Span {
        Span(self.extra)
    }
}

/// Bytes of a packet as counters want them.
pub(crate) fn bytes_of(packet: &Packet) -> u64 {
    packet.wire_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_fills_a_cache_line_at_most() {
        assert!(std::mem::size_of::<Packet>() <= 64);
    }

    #[test]
    fn ranges_are_counted_from_what_is_acknowledged() {
        let packet = Packet { seq: 5_000_000_000, sack: [(1448, 2896), (-10, 0), (0, 0)], blocks: 2, ..Packet::bare(0, Kind::Ack, HEADER) };
        assert_eq!(packet.ranges().collect::<Vec<_>>(), [(5_000_001_448, 5_000_002_896), (4_999_999_990, 5_000_000_000)]);
    }
}
