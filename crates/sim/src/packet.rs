//! A packet, as links carry it: what TCP's header says, and nothing of the payload but its place in the stream.

use link::LinkPacket as _;
use units::Span;

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
    /// SACK blocks, begin and end counted from `seq`, the newest first; one without bytes is none. Of data: the words of the [`Header`].
    sack: [(i32, i32); BLOCKS],
    /// Which connection it belongs to.
    pub(crate) conn: u32,
    /// Of data: payload bytes. Of all else: the window, in bytes.
    pub(crate) amount: u32,
    /// What routers have told so far, and of an ACK what they told the receiver. XCP: a change of the rate, bytes/s; routers only lower it. VCP:
    /// a code of [`crate::router`], 0 for none. MPCP: two bits of a level; of an ACK the level and one, 0 for none.
    pub(crate) told: f32,
    /// Bytes of IP.
    pub(crate) size: u16,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
}

/// What a sender tells routers that take part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Header {
    /// Which routers.
    pub(crate) protocol: Protocol,
    /// Its number among the packets of its connection, sent again or for the first time (the identification of IP, RFC 791 §3.1).
    pub(crate) number: u32,
    /// Round trip, µs; 0: not known.
    pub(crate) rtt_us: u32,
    /// Time from one packet to the next: a round trip / cwnd, in seconds.
    pub(crate) spacing: f32,
}

/// Whose words a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Xcp,
    Vcp,
    /// MPCP with a level's bits spread over so many packets.
    Mpcp(u32),
}

impl Packet {
    /// One with headers alone.
    pub(crate) fn bare(conn: u32, kind: Kind, size: u32) -> Self {
        Packet { seq: 0, sent: 0, extra: 0, sack: [(0, 0); BLOCKS], conn, amount: 0, told: 0.0, size: size as u16, kind, flags: 0 }
    }

    /// A place for one.
    pub(crate) fn none() -> Self {
        Packet::bare(0, Kind::Udp, 0)
    }

    /// Whether it has a flag.
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Has it say that a byte range has arrived beyond `seq`, or twice, after those that it says already; false: there was no room.
    pub(crate) fn add_range(&mut self, start: u64, end: u64) -> bool {
        let offset = |at: u64| at.wrapping_sub(self.seq) as i64 as i32;
        let block = (offset(start), offset(end));
        let Some(free) = self.sack.iter_mut().find(|block| !is_block(**block)) else { return false };
        *free = block;
        true
    }

    /// Whether it says so of any.
    pub(crate) fn has_ranges(&self) -> bool {
        is_block(self.sack[0])
    }

    /// Payload that a SYN carries.
    pub(crate) fn syn_payload(&self) -> u32 {
        u32::from(self.size).saturating_sub(SYN_BYTES + COOKIE_BYTES)
    }

    /// Byte ranges that it says have arrived beyond `seq`, or twice.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let at = |offset: i32| self.seq.wrapping_add_signed(offset.into());
        self.sack.into_iter().take_while(|block| is_block(*block)).map(move |(begin, end)| (at(begin), at(end)))
    }

    /// Gives data a word to routers.
    pub(crate) fn set_header(&mut self, header: Header) {
        let protocol = match header.protocol {
            Protocol::Xcp => 1,
            Protocol::Vcp => 2,
            Protocol::Mpcp(packets) => 0x100 | packets as i32,
        };
        // The bits are what counts.
        self.sack[..2].copy_from_slice(&[(protocol, header.number as i32), (header.rtt_us as i32, header.spacing.to_bits() as i32)]);
    }

    /// What it tells routers.
    pub(crate) fn header(&self) -> Option<Header> {
        if self.kind != Kind::Data {
            return None;
        }
        let [(protocol, number), (rtt_us, spacing), _] = self.sack;
        let protocol = match protocol {
            0 => return None,
            1 => Protocol::Xcp,
            2 => Protocol::Vcp,
            packets => Protocol::Mpcp(packets as u32 & 0xff),
        };
        Some(Header { protocol, number: number as u32, rtt_us: rtt_us as u32, spacing: f32::from_bits(spacing as u32) })
    }
}

fn is_block(block: (i32, i32)) -> bool {
    block.0 != block.1
}

impl link::LinkPacket for Packet {
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
        let mut packet = Packet { seq: 5_000_000_000, ..Packet::bare(0, Kind::Ack, HEADER) };
        assert!(!packet.has_ranges());
        let ranges = [(5_000_001_448, 5_000_002_896), (4_999_999_990, 5_000_000_000)];
        assert!(ranges.iter().all(|(start, end)| packet.add_range(*start, *end)));
        assert_eq!(packet.ranges().collect::<Vec<_>>(), ranges);
        assert!(packet.has_ranges() && packet.add_range(1, 2) && !packet.add_range(3, 4));
    }

    #[test]
    fn what_a_sender_tells_comes_out_as_it_went_in() {
        for protocol in [Protocol::Xcp, Protocol::Vcp, Protocol::Mpcp(2), Protocol::Mpcp(3)] {
            let mut packet = Packet::bare(0, Kind::Data, 1500);
            assert_eq!(packet.header(), None);
            let header = Header { protocol, number: u32::MAX, rtt_us: 4_000_000_000, spacing: 0.006 };
            packet.set_header(header);
            assert_eq!(packet.header(), Some(header));
        }
    }
}
