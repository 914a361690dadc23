//! Generates traces: a transfer over a path, captured at both ends, as one connection or split.
#![allow(dead_code, unused_imports)]

pub(crate) mod encapsulation;
mod writer;

pub(crate) use writer::{ACK, FIN, Linked, PSH, RST, Record, SYN, Segment, datagram, frame, pcap};

use detect::{CaptureFile, ConnectionFinding, Evidence, FindingOptions, Indication, Method, Strength, TraceConditions, findings};
use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

/// A pseudo-random number.
pub(crate) fn noise(of: u64) -> u64 {
    let mut x = of.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The middlebox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Middle {
    /// Rate of the far leg, bytes/s.
    pub(crate) far_rate: f64,
    /// Buffer, bytes. When it is full, the near leg waits.
    pub(crate) buffer: u64,
    /// Forwards only when it has everything.
    pub(crate) holds_all: bool,
    /// Answers the SYN before it connects to the server.
    pub(crate) accepts_first: bool,
    /// For an upload: connects to the server only when it has everything.
    pub(crate) calls_late: bool,
    /// Replaces the content, and reduces it by this factor.
    pub(crate) shrinks: Option<u64>,
    /// Payload of its segments, bytes.
    pub(crate) mss: usize,
    /// Window scale of its stack.
    pub(crate) scale: u8,
    /// TTL with which its packets arrive. Those of the other end arrive with 57.
    pub(crate) ttl: u8,
    /// Whether its stack uses timestamps.
    pub(crate) timestamps: bool,
    /// Of every twenty windows advertised to the sender, ten are closed.
    pub(crate) shuts: bool,
}

impl Default for Middle {
    fn default() -> Self {
        Middle {
            far_rate: 200e3,
            buffer: u64::MAX,
            holds_all: false,
            accepts_first: false,
            calls_late: false,
            shrinks: None,
            mss: 1448,
            scale: 7,
            ttl: 57,
            timestamps: true,
            shuts: false,
        }
    }
}

/// A transfer, and how it is captured.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    pub(crate) middle: Option<Middle>,
    /// Whether the client sends the data.
    pub(crate) uplink: bool,
    pub(crate) bytes: u64,
    pub(crate) mss: usize,
    /// Rate of the sender, bytes/s, and one-way delays of the two links, s.
    pub(crate) rate: f64,
    pub(crate) near: f64,
    pub(crate) far: f64,
    /// Offset of the receiver's clock, s, and its relative drift.
    pub(crate) offset: f64,
    pub(crate) drift: f64,
    pub(crate) timestamps: bool,
    /// Whether the receiver sees other addresses (NAT).
    pub(crate) nat: bool,
    /// Offset that a firewall adds to the client's sequence numbers.
    pub(crate) renumbers: u32,
    /// Whether an address translator assigns new IP IDs.
    pub(crate) new_ids: bool,
    /// With IPv6: whether the client's end uses IPv4, as behind a translator (RFC 7915).
    pub(crate) v4_inside: bool,
    /// Segments merged in the sender's and the receiver's capture.
    pub(crate) tso: usize,
    pub(crate) gro: usize,
    /// Each capture misses one record in this many.
    pub(crate) loses: u64,
    /// Records that each capture missed at the start.
    pub(crate) late: [usize; 2],
    /// When each capture ended, s after the start.
    pub(crate) ends: [f64; 2],
    pub(crate) snaplen: usize,
    pub(crate) links: [Linked; 2],
    pub(crate) v6: bool,
    /// Delay of the receiver's ACKs, s.
    pub(crate) ack_delay: f64,
    /// Content, and time of the transfer, s.
    pub(crate) content: u64,
    pub(crate) begin: f64,
    pub(crate) ports: [u16; 2],
}

impl Default for Transfer {
    fn default() -> Self {
        Transfer {
            middle: None,
            uplink: false,
            bytes: 1_000_000,
            mss: 1448,
            rate: 1e6,
            near: 0.005,
            far: 0.04,
            offset: 0.0,
            drift: 0.0,
            timestamps: true,
            nat: false,
            renumbers: 0,
            new_ids: false,
            v4_inside: false,
            tso: 1,
            gro: 1,
            loses: 0,
            late: [0, 0],
            ends: [f64::INFINITY; 2],
            snaplen: 65535,
            links: [Linked::Raw, Linked::Ethernet],
            v6: false,
            ack_delay: 0.0,
            content: 7,
            begin: 1.7e9,
            ports: [40000, 80],
        }
    }
}

/// One TCP connection between two hosts.
struct Leg {
    /// Sequence numbers, clocks and IP IDs of the data's sender and receiver.
    isn: [u32; 2],
    clock: [u32; 2],
    scale: [u8; 2],
    mss: usize,
    seed: u64,
    timestamps: bool,
}

impl Leg {
    fn new(seed: u64, mss: usize, scale: [u8; 2], timestamps: bool) -> Self {
        let word = |salt: u64| noise(seed ^ (salt << 40)) as u32;
        Leg { isn: [word(1), word(2)], clock: [word(3), word(4)], scale, mss, seed, timestamps }
    }

    fn ticks(&self, side: usize, at: f64) -> u32 {
        self.clock[side].wrapping_add((at * 1e3).rem_euclid(4e9) as u32)
    }

    /// A segment from `side` at the current positions of both streams. Position −1 is the SYN.
    fn segment(&self, side: usize, at: f64, places: [i64; 2], flags: u8, payload: Vec<u8>, window: u16) -> Segment {
        let number = |of: usize, place: i64| self.isn[of].wrapping_add(1).wrapping_add(place as u32);
        let mut options = Vec::new();
        if flags & SYN != 0 {
            options.extend([2, 4]);
            options.extend((self.mss as u16 + if self.timestamps { 12 } else { 0 }).to_be_bytes());
            options.extend([1, 3, 3, self.scale[side]]);
        }
        if self.timestamps {
            options.extend([1, 1, 8, 10]);
            options.extend(self.ticks(side, at).to_be_bytes());
            options.extend(self.ticks(1 - side, at - 0.04).to_be_bytes());
        }
        let id = (noise(self.seed ^ at.to_bits()) >> 7) as u16;
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let ack = if flags & ACK == 0 { 0 } else { number(1 - side, places[1 - side]) };
        Segment { from: nowhere, to: nowhere, seq: number(side, places[side]), ack, flags, window, ttl: 64, id, options, payload }
    }
}

/// A segment on a leg: side, time of departure, time of arrival.
struct Sent {
    side: usize,
    sent: f64,
    came: f64,
    segment: Segment,
}

fn content(transfer: &Transfer, from: u64, length: usize, other: bool) -> Vec<u8> {
    (from..from + length as u64).map(|place| noise(transfer.content.wrapping_add(u64::from(other) << 50) ^ (place << 9)) as u8).collect()
}

/// Sends a stream over a leg. `ready` gives the time at which each byte is available.
#[allow(clippy::too_many_arguments)]
fn stream(
    leg: &Leg,
    transfer: &Transfer,
    total: u64,
    other: bool,
    rate: f64,
    way: f64,
    delay: f64,
    ready: impl Fn(u64) -> f64,
) -> Vec<Sent> {
    let (mut sent, mut free, mut place, mut count) = (Vec::new(), 0.0f64, 0u64, 0);
    let mut last_came = 0.0f64;
    while place < total {
        let length = (leg.mss as u64).min(total - place) as usize;
        let at = free.max(ready(place + length as u64));
        free = at + length as f64 / rate;
        let jitter = (noise(leg.seed ^ place) % 1000) as f64 * 2e-6;
        let came = (at + way + jitter).max(last_came + 1e-6);
        last_came = came;
        let payload = content(transfer, place, length, other);
        place += length as u64;
        count += 1;
        sent.push(Sent {
            side: 0,
            sent: at,
            came,
            segment: leg.segment(0, at, [place as i64 - length as i64, 0], ACK | PSH, payload, 500),
        });
        if count % 2 == 0 || place == total {
            let answered = came + 50e-6 + delay;
            let window = 400 + (noise(place) % 100) as u16;
            sent.push(Sent {
                side: 1,
                sent: answered,
                came: answered + way,
                segment: leg.segment(1, answered, [place as i64, 0], ACK, vec![], window),
            });
        }
    }
    sent
}

fn handshake(leg: &Leg, client: usize, at: f64, way: f64, answer_after: f64) -> (Vec<Sent>, f64) {
    let server = 1 - client;
    let mut sent = Vec::new();
    let mut send = |side: usize, at: f64, places: [i64; 2], flags: u8| {
        let segment = leg.segment(side, at, places, flags, vec![], if flags & SYN != 0 { 64000 } else { 500 });
        sent.push(Sent { side, sent: at, came: at + way, segment });
    };
    let (mut first, mut second) = ([0, 0], [0, 0]);
    first[client] = -1;
    second[server] = -1;
    send(client, at, first, SYN);
    let answered = at + way + answer_after;
    send(server, answered, second, SYN | ACK);
    send(client, answered + way, [0, 0], ACK);
    (sent, answered + way)
}

fn finish(leg: &Leg, total: u64, at: f64, way: f64) -> Vec<Sent> {
    let end = total as i64;
    let mut sent = Vec::new();
    for (side, at, places, flags) in
        [(0, at, [end, 0], FIN | ACK), (1, at + way + 1e-4, [end + 1, 0], FIN | ACK), (0, at + 2.0 * way + 2e-4, [end + 1, 1], ACK)]
    {
        sent.push(Sent { side, sent: at, came: at + way, segment: leg.segment(side, at, places, flags, vec![], 500) });
    }
    sent
}

impl Transfer {
    pub(crate) fn split(middle: Middle) -> Self {
        Transfer { middle: Some(middle), ..Transfer::default() }
    }

    fn addresses(&self, end: usize, translated: bool) -> [SocketAddr; 2] {
        let v6 = self.v6 && !(self.v4_inside && end == usize::from(!self.uplink));
        // Ports of the data's sender and receiver. The client's port comes first.
        let client: IpAddr = match (v6, translated) {
            (true, _) => "2001:db8::1".parse().unwrap(),
            (false, false) => "10.0.0.2".parse().unwrap(),
            (false, true) => "203.0.113.9".parse().unwrap(),
        };
        let server: IpAddr = if v6 { "2001:db8:9::7".parse().unwrap() } else { "192.0.2.7".parse().unwrap() };
        let port = if translated { self.ports[0] ^ 0x1111 } else { self.ports[0] };
        let (client, server) = (SocketAddr::new(client, port), SocketAddr::new(server, self.ports[1]));
        if self.uplink { [client, server] } else { [server, client] }
    }

    /// The records at both ends.
    pub(crate) fn records(&self) -> [Vec<Record>; 2] {
        let client = usize::from(!self.uplink);
        let seed = noise(self.content ^ u64::from(self.ports[0]));
        let one = Leg::new(seed, self.mss, [7, 7], self.timestamps);
        let Some(middle) = self.middle else {
            let way = self.near + self.far;
            let (mut sent, begun) = handshake(&one, client, self.begin, way, 30e-6);
            sent.extend(stream(&one, self, self.bytes, false, self.rate, way, self.ack_delay, |_| begun + way));
            let last = sent.iter().map(|sent| sent.came).fold(0.0, f64::max);
            sent.extend(finish(&one, self.bytes, last + 0.01, way));
            return [self.seen(&sent, 0, self.nat, 0), self.seen(&sent, 1, false, self.renumbers)];
        };
        let near = Leg::new(seed ^ 77, self.mss, [7, middle.scale], self.timestamps);
        let far = Leg::new(seed ^ 99, middle.mss, [middle.scale, 7], self.timestamps && middle.timestamps);
        // The client, and the link that its request takes first.
        let (first, first_way, second, second_way) =
            if client == 0 { (&near, self.near, &far, self.far) } else { (&far, self.far, &near, self.near) };
        let asked = self.begin + first_way + if middle.accepts_first { 2.0 * first_way } else { 0.0 };
        let late = middle.calls_late && client == 0;
        let (mut second_sent, mut second_begun) = handshake(second, client, asked, second_way, 30e-6);
        let wait = if middle.accepts_first || late { 30e-6 } else { 2.0 * second_way + 60e-6 };
        let (first_sent, first_begun) = handshake(first, client, self.begin, first_way, wait);
        let begun = if late { first_begun } else { first_begun.max(second_begun) } + first_way.max(second_way);
        // With a buffer of B, byte b leaves the sender when byte b − B has left the middlebox at
        // the far leg's rate.
        let room = |place: u64| begun + place.saturating_sub(middle.buffer) as f64 / middle.far_rate;
        let mut near_sent = stream(&near, self, self.bytes, false, self.rate, self.near, 0.0, room);
        let offers = near_sent.iter_mut().filter(|sent| sent.side == 1);
        offers.enumerate().filter(|(index, _)| middle.shuts && index % 20 >= 10).for_each(|(_, sent)| sent.segment.window = 0);
        let mut arrivals: Vec<(u64, f64)> = Vec::new();
        let mut place = 0;
        for sent in near_sent.iter().filter(|sent| sent.side == 0) {
            place += sent.segment.payload.len() as u64;
            arrivals.push((place, sent.came));
        }
        let complete = arrivals.last().unwrap().1;
        if late {
            (second_sent, second_begun) = handshake(second, client, complete + 0.001, second_way, 30e-6);
        }
        let total = self.bytes / middle.shrinks.unwrap_or(1);
        let ready = |place: u64| {
            let index = arrivals.partition_point(|(there, _)| *there < place).min(arrivals.len() - 1);
            let held = middle.holds_all || middle.shrinks.is_some();
            (if held { complete + 0.002 } else { arrivals[index].1 + 1e-4 }).max(second_begun)
        };
        let mut far_sent = stream(&far, self, total, middle.shrinks.is_some(), middle.far_rate, self.far, self.ack_delay, ready);
        let (near_last, far_last) = (complete, far_sent.iter().map(|sent| sent.came).fold(0.0, f64::max));
        near_sent.extend(finish(&near, self.bytes, near_last + 0.05, self.near));
        far_sent.extend(finish(&far, total, far_last + 0.05, self.far));
        if client == 0 {
            near_sent.extend(first_sent);
            far_sent.extend(second_sent);
        } else {
            far_sent.extend(first_sent);
            near_sent.extend(second_sent);
        }
        [self.seen(&near_sent, 0, self.nat, 0), self.seen(&far_sent, 1, false, self.renumbers)]
    }

    /// What the capture at `end` contains of its leg.
    fn seen(&self, sent: &[Sent], end: usize, translated: bool, renumbered: u32) -> Vec<Record> {
        let (addresses, client) = (self.addresses(end, translated), usize::from(!self.uplink));
        let mut seen: Vec<(f64, usize, Segment)> = sent
            .iter()
            .map(|packet| {
                let mut segment = packet.segment.clone();
                (segment.from, segment.to) = (addresses[packet.side], addresses[1 - packet.side]);
                let own = packet.side == end;
                segment.ttl = if own { 64 } else { self.middle.map_or(57, |middle| middle.ttl) };
                segment.id ^= if self.new_ids && !own { 0x5a5a } else { 0 };
                if packet.side == client {
                    segment.seq = segment.seq.wrapping_add(renumbered);
                } else if segment.flags & ACK != 0 {
                    segment.ack = segment.ack.wrapping_add(renumbered);
                }
                (if own { packet.sent } else { packet.came }, packet.side, segment)
            })
            .collect();
        seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        let seen = together(seen, if end == 0 { self.tso } else { self.gro });
        let clock = |at: f64| if end == 0 { at } else { at + self.offset + self.drift * (at - self.begin) };
        let records = seen.into_iter().enumerate().filter(|(index, (at, ..))| {
            *at <= self.begin + self.ends[end]
                && *index >= self.late[end]
                && (self.loses == 0 || !noise(*index as u64 ^ ((end as u64 + 3) << 33)).is_multiple_of(self.loses))
        });
        records
            .map(|(_, (at, _, segment))| Record { at: (clock(at) * 1e6) as i64 * 1000, bytes: frame(&segment, self.links[end]) })
            .collect()
    }

    /// The two captures as files.
    pub(crate) fn files(&self) -> [Vec<u8>; 2] {
        let records = self.records();
        [0, 1].map(|end| pcap(&records[end], self.links[end].number(), self.snaplen, end == 0))
    }

    pub(crate) fn captures(&self) -> [CaptureFile; 2] {
        let [one, two] = self.files();
        [read(&one), read(&two)]
    }

    /// The finding about the transfer.
    pub(crate) fn finding(&self, known: TraceConditions) -> ConnectionFinding {
        let [one, two] = self.captures();
        let mut found = findings(Some(&one), Some(&two), &FindingOptions { known, series: false });
        assert!(found[0].matched_by.is_some(), "{found:#?}");
        found.remove(0)
    }
}

/// Merges up to `most` consecutive data segments, as a network card or the kernel does, with the
/// time of the first.
fn together(seen: Vec<(f64, usize, Segment)>, most: usize) -> Vec<(f64, usize, Segment)> {
    let mut out: Vec<(f64, usize, Segment)> = Vec::new();
    let mut count = 0;
    for (at, side, segment) in seen {
        let fits = out.last().is_some_and(|(_, last_side, last)| {
            let next = last.seq.wrapping_add(last.payload.len() as u32) == segment.seq;
            *last_side == side && next && !last.payload.is_empty() && !segment.payload.is_empty() && count < most
        });
        if fits {
            count += 1;
            out.last_mut().unwrap().2.payload.extend(segment.payload);
        } else {
            count = 1;
            out.push((at, side, segment));
        }
    }
    out
}

pub(crate) fn read(file: &[u8]) -> CaptureFile {
    CaptureFile::read_from(file, Path::new("made.pcap")).unwrap()
}

/// The evidence of a method, if any.
pub(crate) fn of(finding: &ConnectionFinding, method: Method) -> Option<&Evidence> {
    finding.evidence.iter().find(|piece| piece.method == method)
}

/// Whether a method gives strong evidence of a split.
pub(crate) fn fires(finding: &ConnectionFinding, method: Method) -> bool {
    finding.evidence.iter().any(|piece| piece.method == method && piece.says == Indication::Split && piece.strength == Strength::Strong)
}

/// A short form of a finding for failing tests.
pub(crate) fn told(finding: &ConnectionFinding) -> String {
    let mut text = format!("{}: {}\n", finding.verdict, finding.reason);
    for piece in &finding.evidence {
        text += &format!("  {:?} {:?} {:?} {}: {}\n", piece.says, piece.strength, piece.method, piece.value, piece.text);
    }
    text
}
