//! One connection as one capture recorded it: both directions, in bounded memory.

use crate::{
    copies::RecentSegments,
    layer::be16,
    packet::{self, ACK, FIN, RST, SYN, TcpSegment},
    progress::ProgressCurve,
    series::BinnedSeries,
    sketch::{Sketch, note_content, spread},
    stream_stats::{AdvertisedWindows, SegmentSizes},
};
use std::net::SocketAddr;

/// A sequence number farther than this from the current position belongs to another connection,
/// bytes (RFC 7323 §2.3: no window exceeds 2^30).
const FARTHEST: i64 = 1 << 30;
/// Within this distance a number of another network belongs to the same connection, bytes. A
/// number of an unrelated connection is within it with a probability of 0.8 %, both numbers of a
/// segment with one of 0.006 %.
const NEAR: u32 = 1 << 24;

/// A SYN as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SynSegment {
    pub(crate) at: i64,
    pub(crate) isn: u32,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    /// Names of the options, in order.
    pub(crate) order: String,
    pub(crate) clock: Option<u32>,
    pub(crate) window: u16,
    pub(crate) ttl: u8,
}

impl SynSegment {
    fn of(at: i64, segment: &TcpSegment<'_>) -> Self {
        let (mut mss, mut scale, mut order) = (None, None, String::new());
        for (kind, value) in packet::options_of(segment.options) {
            let name = match kind {
                1 => "nop",
                2 => "mss",
                3 => "scale",
                4 => "sack",
                8 => "timestamps",
                34 => "fastopen",
                30 => "mptcp",
                _ => "",
            };
            order += if order.is_empty() { "" } else { " " };
            order += &if name.is_empty() { format!("option-{kind}") } else { name.into() };
            match kind {
                2 => mss = be16(value, 0),
                // RFC 7323 §2.3: a scale above 14 counts as 14.
                3 => scale = value.first().map(|scale| (*scale).min(14)),
                _ => {}
            }
        }
        let clock = segment.timestamps().map(|(value, _)| value);
        SynSegment { at, isn: segment.seq, mss, scale, order, clock, window: segment.window, ttl: segment.ttl }
    }
}

/// The timestamp clock of one side (RFC 7323): time (ns since 1970) and value of its first and last
/// timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimestampSpan {
    pub(crate) first: (i64, u32),
    pub(crate) last: (i64, u32),
}

/// What one side sent, as recorded.
#[derive(Debug, Clone, Default)]
pub(crate) struct TracedStream {
    pub(crate) syn: Option<Box<SynSegment>>,
    pub(crate) syns: u32,
    /// Sequence number of byte 0: the ISN plus one, or, without a SYN, the first number recorded.
    base: Option<u32>,
    /// End of the highest byte recorded, from the base. Sequence numbers are unwrapped around it.
    top: i64,
    pub(crate) packets: u64,
    /// Payload bytes including retransmissions, and the payload bytes at or below `top`.
    pub(crate) bytes: u64,
    pub(crate) again: u64,
    pub(crate) sent: ProgressCurve,
    /// Progress of its ACKs for the other side's stream.
    pub(crate) acked: ProgressCurve,
    pub(crate) windows: AdvertisedWindows,
    pub(crate) sizes: SegmentSizes,
    pub(crate) ttl: Option<(u8, u8)>,
    pub(crate) clock: Option<TimestampSpan>,
    pub(crate) content: Sketch,
    /// Whether some segments are truncated.
    pub(crate) is_cut: bool,
    /// Positions at which data segments begin, with their IP IDs.
    pub(crate) cuts: Sketch,
    /// Pure ACKs, hashed in four ways: all fields; window and timestamps; position, window and IP
    /// ID; sequence number and window.
    pub(crate) as_sent: Sketch,
    pub(crate) by_clock: Sketch,
    pub(crate) by_number: Sketch,
    pub(crate) bare: Sketch,
    pub(crate) first_data: Option<i64>,
    pub(crate) last_data: Option<i64>,
    pub(crate) last: Option<i64>,
    pub(crate) fin: Option<i64>,
    /// End of the stream according to its FIN, even if bytes before it are missing.
    pub(crate) end: Option<i64>,
    pub(crate) reset: Option<i64>,
    pub(crate) series: BinnedSeries,
    recent: RecentSegments,
}

impl TracedStream {
    /// Length of the stream as far as recorded, bytes.
    pub(crate) fn length(&self) -> u64 {
        self.top.max(0) as u64
    }

    /// Converts a sequence number to a position in this stream.
    fn place(&mut self, number: u32) -> Option<i64> {
        let base = *self.base.get_or_insert(number);
        let ahead = number.wrapping_sub(base.wrapping_add(self.top as u32)) as i32;
        (i64::from(ahead).abs() <= FARTHEST).then_some(self.top + i64::from(ahead))
    }

    /// Whether a sequence number is near the current position. `None` if that is not known.
    fn is_near(&self, number: u32) -> Option<bool> {
        let apart = number.wrapping_sub(self.base?.wrapping_add(self.top as u32)) as i32;
        Some(apart.unsigned_abs() <= NEAR)
    }

    /// Sequence number of byte 0.
    pub(crate) fn base(&self) -> Option<u32> {
        self.base
    }
}

/// One connection as one capture recorded it. Times are ns since 1970.
#[derive(Debug, Clone)]
pub(crate) struct TracedConnection {
    /// The two sides. `halves` uses the same index.
    pub(crate) sides: [SocketAddr; 2],
    pub(crate) halves: [TracedStream; 2],
    /// The side that opened the connection, if recorded.
    pub(crate) client: Option<usize>,
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Segments whose sequence numbers cannot belong to this connection.
    pub(crate) odd: u64,
}

impl TracedConnection {
    pub(crate) fn new(sides: [SocketAddr; 2], at: i64) -> Self {
        TracedConnection { sides, halves: Default::default(), client: None, first: at, last: at, odd: 0 }
    }

    /// Whether the segment is a SYN that opens a new connection between the same ports.
    pub(crate) fn is_over_for(&self, side: usize, segment: &TcpSegment<'_>) -> bool {
        let begins = segment.has(SYN) && !segment.has(ACK);
        let known = self.halves[side].syn.as_deref().map(|syn| syn.isn);
        let carried = self.halves.iter().any(|half| half.length() > 0 || half.fin.is_some() || half.reset.is_some());
        begins && known.is_none_or(|isn| isn != segment.seq) && (known.is_some() || carried)
    }

    /// Whether a segment that `side` sent in another network belongs to this connection: it is
    /// there with and without a tunnel, or each direction has a tunnel of its own. If the sequence
    /// numbers are those of another connection, two networks use the same addresses.
    pub(crate) fn is_continued_by(&self, side: usize, segment: &TcpSegment<'_>) -> bool {
        let (mine, other) = (&self.halves[side], &self.halves[1 - side]);
        if let (true, Some(syn)) = (segment.has(SYN), mine.syn.as_deref()) {
            return syn.isn == segment.seq;
        }
        let acknowledges = if segment.has(ACK) { other.is_near(segment.ack) } else { None };
        match (mine.is_near(segment.seq.wrapping_add(u32::from(segment.has(SYN)))), acknowledges) {
            (None, None) => false,
            (one, two) => one.unwrap_or(true) && two.unwrap_or(true),
        }
    }

    /// Records a segment that `side` sent. A progress curve keeps at most `room` steps. Returns
    /// whether it is a copy of one that was recorded: then it is left out.
    pub(crate) fn note(&mut self, at: i64, side: usize, segment: &TcpSegment<'_>, room: usize) -> bool {
        let stamps = segment.timestamps();
        if self.halves[side].recent.is_copy(segment, stamps) {
            return true;
        }
        self.first = self.first.min(at);
        self.last = self.last.max(at);
        if segment.has(SYN) {
            self.note_syn(at, side, segment);
        }
        let (mine, other) = match &mut self.halves {
            [first, second] if side == 0 => (first, second),
            [first, second] => (second, first),
        };
        let number = segment.seq.wrapping_add(u32::from(segment.has(SYN)));
        let acknowledged = if segment.has(ACK) { other.place(segment.ack) } else { None };
        let (Some(begin), false) = (mine.place(number), segment.has(ACK) && acknowledged.is_none()) else {
            self.odd += 1;
            return false;
        };
        mine.packets += 1;
        mine.last = Some(at);
        mine.ttl = Some(mine.ttl.map_or((segment.ttl, segment.ttl), |(low, high)| (low.min(segment.ttl), high.max(segment.ttl))));
        if let Some((value, _)) = stamps {
            mine.clock.get_or_insert(TimestampSpan { first: (at, value), last: (at, value) }).last = (at, value);
        }
        if segment.has(RST) {
            mine.reset.get_or_insert(at);
        }
        if segment.has(SYN) {
            mine.sent.note(at, -1, 0, room);
        }
        mine.note_data(at, begin, segment, room);
        if segment.has(FIN) {
            mine.fin.get_or_insert(at);
            mine.end.get_or_insert(begin + i64::from(segment.length));
        }
        if let Some(reach) = acknowledged.filter(|_| !segment.has(RST)) {
            mine.note_ack(at, reach, segment, stamps);
            // The ACK of a FIN is one past the end of the stream.
            let data = if other.fin.is_some() { reach.min(other.top.max(0)) } else { reach };
            // ACKs are cumulative.
            mine.acked.note(at, i64::MIN, data, room);
        }
        if !segment.has(SYN) && !segment.has(RST) {
            // Window scaling is active if both SYNs have the option (RFC 7323 §2.2).
            let scale = match (mine.syn.as_deref(), other.syn.as_deref()) {
                (Some(mine), Some(other)) if other.scale.is_some() => mine.scale.unwrap_or(0),
                (Some(mine), None) => mine.scale.unwrap_or(0),
                _ => 0,
            };
            let window = u64::from(segment.window) << scale;
            mine.windows.note(window);
            mine.series.note(at, u64::from(segment.length), window);
        }
        false
    }

    fn note_syn(&mut self, at: i64, side: usize, segment: &TcpSegment<'_>) {
        self.client.get_or_insert(if segment.has(ACK) { 1 - side } else { side });
        let half = &mut self.halves[side];
        half.syns += 1;
        if half.syn.is_none() {
            half.syn = Some(Box::new(SynSegment::of(at, segment)));
            // Data recorded before the SYN (out of order) keep their base.
            if half.top == 0 {
                half.base = Some(segment.seq.wrapping_add(1));
            }
        }
    }

    pub(crate) fn thin(&mut self, room: usize) {
        for half in &mut self.halves {
            half.sent.thin(room);
            half.acked.thin(room);
        }
    }

    /// Payload of both directions without retransmissions, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.halves.iter().map(TracedStream::length).sum()
    }

    /// Whether byte 0 of a side's stream is known to follow its SYN.
    pub(crate) fn anchored(&self, side: usize) -> bool {
        // The SYN-ACK acknowledges that number too.
        self.halves[side].syn.is_some() || (self.client == Some(side) && self.halves[1 - side].syn.is_some())
    }

    /// Whether the client's SYN was recorded.
    pub(crate) fn began(&self) -> bool {
        self.client.is_some_and(|client| self.halves[client].syn.is_some())
    }

    /// The side that sent more.
    pub(crate) fn sender(&self) -> usize {
        usize::from(self.halves[1].length() > self.halves[0].length())
    }
}

impl TracedStream {
    fn note_data(&mut self, at: i64, begin: i64, segment: &TcpSegment<'_>, room: usize) {
        // A single byte before `top` is a keep-alive probe (RFC 9293 §3.8.4).
        if segment.length == 0 || (segment.length == 1 && begin == self.top - 1) {
            return;
        }
        let end = begin + i64::from(segment.length);
        self.bytes += u64::from(segment.length);
        self.again += (self.top.min(end) - begin).max(0) as u64;
        self.sizes.note(segment.length);
        self.cuts.note(spread(begin as u64), i64::from(segment.ip_id.unwrap_or(0)));
        note_content(&mut self.content, segment.payload, begin);
        self.is_cut |= (segment.payload.len() as u64) < u64::from(segment.length);
        self.first_data.get_or_insert(at);
        self.last_data = Some(at);
        self.top = self.top.max(end);
        self.sent.note(at, begin, end, room);
    }

    fn note_ack(&mut self, at: i64, reach: i64, segment: &TcpSegment<'_>, stamps: Option<(u32, u32)>) {
        if segment.length > 0 || segment.has(SYN) || segment.has(FIN) {
            return;
        }
        let (window, number) = (u64::from(segment.window), u64::from(segment.ack));
        let (id, (value, echo)) = (u64::from(segment.ip_id.unwrap_or(0)), stamps.unwrap_or_default());
        let clock = spread((u64::from(value) << 32) | u64::from(echo));
        self.as_sent.note(spread(clock ^ spread((number << 32) ^ (window << 22) ^ id)), at);
        self.bare.note(spread(spread(number) ^ window), at);
        if stamps.is_some() {
            self.by_clock.note(spread(clock ^ window), at);
        }
        // Without an IP ID, equal hashes do not show that the ACK is the same.
        if id != 0 {
            self.by_number.note(spread(spread(reach as u64) ^ (window << 24) ^ id), at);
        }
    }
}
