//! What lies between the ends: links, their queues, the shapers of proxies, and the clock.

use crate::{
    event_queue::{Key, NEVER, Timer, Timers},
    link_monitor::Record,
    packet::{CE, ECT, HEADER, Kind, Packet, bytes_of},
    router::{self, Router},
};
use link::{LinkDirection, Time};
use scenario::{Network, Purpose, QueueKind, Scenario, stream};
use units::{Bytes, PKT, QueueSize, Rate, Span};

/// Where packets go that come out of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// Into another line.
    Line(usize),
    /// To the ends of connections that stand to the right of it.
    Right,
    /// To those on the left.
    Left,
}

/// One direction of a link, or the shaper before one.
#[derive(Debug)]
pub(crate) struct Line {
    /// With the router at its queue, where that takes part.
    way: LinkDirection<Packet, Option<Box<Router>>>,
    hop: Hop,
    /// It is the scenario's first link, which has flows' own extra delays.
    is_first: bool,
    /// A queue above so many bytes has the packets marked that come.
    mark_above: Option<u64>,
    /// The record that is told of what enters (a link) or leaves (a shaper).
    record: Option<usize>,
    is_shaper: bool,
}

impl Line {
    fn new(way: LinkDirection<Packet, Option<Box<Router>>>, hop: Hop, limit: QueueSize, kind: QueueKind) -> Self {
        let mark_above = (kind == QueueKind::Ecn).then(|| match limit {
            QueueSize::Bytes(bytes) => (bytes.0 / MARK_ABOVE).max(3 * PKT.0),
            QueueSize::Packets(count) => (count / MARK_ABOVE).max(3) * PKT.0,
        });
        Line { way, hop, is_first: false, mark_above, record: None, is_shaper: false }
    }
}

/// Links, records and the clock.
#[derive(Debug)]
pub(crate) struct Net {
    /// Nanoseconds since the beginning.
    pub(crate) now: u64,
    pub(crate) timers: Timers,
    pub(crate) records: Vec<Record>,
    lines: Vec<Line>,
    /// When something comes out of each line.
    wakes: Vec<u64>,
    /// Whether a connection's controller is `share`, whose packets are not foreign to it.
    pub(crate) shares: Vec<bool>,
    /// Flows' extra delays on the first link, by connection.
    pub(crate) extra: Vec<u64>,
}

/// The line of a link in the direction of the data.
pub(crate) fn forward(link: usize) -> usize {
    2 * link
}

/// And against it.
pub(crate) fn backward(link: usize) -> usize {
    2 * link + 1
}

/// A queue that marks does so above this part of its limit. DCTCP needs a seventh of a bandwidth-delay product to keep the link busy
/// (RFC 8257 §4.4), and the limit is one BDP unless a scenario says otherwise; three packets at least.
const MARK_ABOVE: u64 = 5;

impl Net {
    /// The links of a scenario. The lines of link k are 2k and 2k + 1; shapers come after them.
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut lines = Vec::new();
        let is_split = |node: usize| scenario.splits.iter().any(|split| split.after == node);
        for (index, link) in scenario.links.iter().enumerate() {
            let to_right = index + 1 < scenario.links.len() && !is_split(index + 1);
            let to_left = index > 0 && !is_split(index);
            let hops = [
                if to_right { Hop::Line(forward(index + 1)) } else { Hop::Right },
                if to_left { Hop::Line(backward(index - 1)) } else { Hop::Left },
            ];
            // Nothing is told to acknowledgements.
            let routers = [router::of(link.queue.kind, link.rate), None];
            for ((hop, loss), router) in hops.into_iter().zip([link.loss, None]).zip(routers) {
                let limit = scenario.queue_size(index);
                let way = LinkDirection::new(link.rate, limit, link.delay, loss, stream(seed, Purpose::Losses, index as u64)).with_tap(router);
                lines.push(Line { is_first: index == 0, ..Line::new(way, hop, limit, link.queue.kind) });
            }
        }
        Net::of(lines)
    }

    /// Networks in parallel, whose segments have so much payload. The lines of network k are 2k and 2k + 1, and lead to the ends.
    pub(crate) fn parallel(networks: &[Network], mss: u32, seed: u64) -> Self {
        let lines = (0..).zip(networks).flat_map(|(index, network)| {
            let rate = wire_rate(network.rate, mss);
            let limit = network.queue.size_for(rate, network.delay * 2);
            [(Hop::Right, network.loss), (Hop::Left, None)].map(|(hop, loss)| {
                let way = LinkDirection::new(rate, limit, network.delay, loss, stream(seed, Purpose::Losses, index)).with_tap(None);
                Line::new(way, hop, limit, network.queue.kind)
            })
        });
        Net::of(lines.collect())
    }

    fn of(lines: Vec<Line>) -> Self {
        let wakes = vec![NEVER; lines.len()];
        Net { now: 0, timers: Timers::default(), records: Vec::new(), lines, wakes, shares: Vec::new(), extra: Vec::new() }
    }

    /// Has what enters a link recorded, as what is said to carry `capacity`; returns the record's number.
    pub(crate) fn watch(&mut self, link: usize, capacity: Rate) -> usize {
        self.records.push(Record::new(capacity, false));
        let record = self.records.len() - 1;
        self.lines[forward(link)].record = Some(record);
        record
    }

    /// Puts a shaper before a link; returns its line, and its record's number.
    pub(crate) fn shape(&mut self, link: usize, capacity: Rate) -> (usize, usize) {
        self.records.push(Record::new(capacity, true));
        let record = self.records.len() - 1;
        // TCP itself bounds what waits here: there is room for the flows of a thousand that begin together, as the proxy has it.
        let limit = QueueSize::Bytes(Bytes((capacity.bits_per_s() / 16).max(4 << 20)));
        // It loses nothing, so that whatever numbers it would do so by are never drawn.
        let way = LinkDirection::new(capacity, limit, Span::ZERO, None, stream(0, Purpose::Losses, 0)).with_tap(None);
        let hop = Hop::Line(forward(link));
        self.lines.push(Line { way, hop, is_first: false, mark_above: None, record: Some(record), is_shaper: true });
        self.wakes.push(NEVER);
        (self.lines.len() - 1, record)
    }

    /// Microseconds since the beginning.
    pub(crate) fn now_us(&self) -> u64 {
        self.now / 1000
    }

    /// Which line something comes out of next, and when.
    #[inline]
    pub(crate) fn next(&self) -> (usize, u64) {
        let mut next = (0, NEVER);
        for (line, &at) in self.wakes.iter().enumerate() {
            if at < next.1 {
                next = (line, at);
            }
        }
        next
    }

    /// Puts the next packet that has come out of a line by now into a place for it, and tells where it goes; whoever asks must do so until there is none.
    #[inline(always)]
    pub(crate) fn take(&mut self, line: usize, place: &mut Packet) -> Option<Hop> {
        if self.wakes[line] > self.now { None } else { self.take_due(line, place) }
    }

    #[inline(never)]
    fn take_due(&mut self, line: usize, place: &mut Packet) -> Option<Hop> {
        let from = &mut self.lines[line];
        let arrived = from.way.poll_arrival_into(Time(self.now), place);
        self.wakes[line] = from.way.next_delivery().map_or(NEVER, |at| at.0);
        if !arrived {
            return None;
        }
        Some(if place.kind == Kind::Udp && !from.is_shaper { Hop::Right } else { from.hop })
    }

    /// A packet has left a shaper: the record hears of it.
    pub(crate) fn note_shaped(&mut self, line: usize, packet: &Packet) {
        let from = &mut self.lines[line];
        if let (true, Some(record)) = (from.is_shaper, from.record) {
            let backlog = from.way.queued(Time(self.now)).0;
            let drops = from.way.counts().queue_drops;
            self.records[record].let_go(self.now / 1000, bytes_of(packet), is_foreign(&self.shares, packet), backlog, drops);
        }
    }

    /// Whether a line is a proxy's shaper.
    pub(crate) fn is_shaper(&self, line: usize) -> bool {
        self.lines[line].is_shaper
    }

    /// Gives a packet to a line; false: it had no room.
    pub(crate) fn send(&mut self, line: usize, mut packet: Packet) -> bool {
        let to = &mut self.lines[line];
        if to.record.is_some() || to.mark_above.is_some() {
            self.enters(line, &mut packet);
        }
        let to = &mut self.lines[line];
        let has_extra = to.is_first && !self.extra.is_empty();
        // Cross traffic has none.
        packet.extra = if has_extra { self.extra.get(packet.conn as usize).copied().unwrap_or(0) } else { 0 };
        let taken = to.way.enqueue_lazy(Time(self.now), packet).is_ok();
        // What has an extra delay may be overtaken by what comes now; otherwise the first stays the first.
        if self.wakes[line] == NEVER || has_extra {
            self.wakes[line] = to.way.next_delivery().map_or(NEVER, |at| at.0);
        }
        taken
    }

    /// A packet comes to a line that is watched, or marks.
    fn enters(&mut self, line: usize, packet: &mut Packet) {
        let to = &mut self.lines[line];
        if let (Some(record), false) = (to.record, to.is_shaper) {
            self.records[record].offer(self.now / 1000, bytes_of(packet), is_foreign(&self.shares, packet));
        }
        if let Some(above) = to.mark_above
            && packet.has(ECT)
            && to.way.queued(Time(self.now)).0 > above
        {
            packet.flags |= CE;
        }
    }

    /// Sets a timer to fire after so many microseconds.
    pub(crate) fn set(&mut self, timer: &mut Timer, key: Key, after_us: u64) {
        self.timers.set(timer, key, self.now + after_us * 1000);
    }

    /// A line has another rate from now on.
    pub(crate) fn set_rate(&mut self, line: usize, rate: Rate) {
        let (now, way) = (Time(self.now), &mut self.lines[line].way);
        way.set_rate(now, rate);
        if let Some(router) = way.tap(now) {
            router.set_rate(now, rate);
        }
        self.wakes[line] = self.lines[line].way.next_delivery().map_or(NEVER, |at| at.0);
    }

    /// What a line has done until now.
    pub(crate) fn counts(&mut self, line: usize) -> link::LinkCounts {
        self.lines[line].way.counts_at(Time(self.now))
    }

    /// Bytes that have left a line until now.
    pub(crate) fn left_bytes(&mut self, line: usize) -> u64 {
        self.lines[line].way.departed_bytes(Time(self.now)).0
    }

    /// Bytes in a line's queue now.
    pub(crate) fn queued(&mut self, line: usize) -> u64 {
        self.lines[line].way.queued(Time(self.now)).0
    }
}

/// Whether a packet is not of a flow under `share`.
fn is_foreign(shares: &[bool], packet: &Packet) -> bool {
    !shares.get(packet.conn as usize).copied().unwrap_or(false)
}

/// IP bits a second that carry so much payload in full segments.
pub(crate) fn wire_rate(payload: Rate, mss: u32) -> Rate {
    let (rate, mss) = (u128::from(payload.bits_per_s()), u128::from(mss));
    Rate((rate * (mss + u128::from(HEADER))).div_ceil(mss) as u64)
}
