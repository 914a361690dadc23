//! Simulates both ends of a stream over paths that are slow, distant, stalled, lost and new, in
//! steps of a millisecond.

use bond::{BondSettings, Decoded, Frame, FrameReader, Inbound, Outbound, PathId, PathSample, StreamBuffer};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::collections::VecDeque;
use units::Span;

/// Properties of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Bytes per millisecond.
    pub(crate) rate: u64,
    /// One way, ms.
    pub(crate) delay: u64,
    pub(crate) tier: u8,
}

/// What happens to a path. Paths are numbered in the order in which they came.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PathEvent {
    /// A new path.
    Join(Link),
    /// The path is lost, with all that is in flight on it.
    Lose(usize),
    /// The path transmits nothing for so many ms.
    Stall(usize, u64),
    /// The path has these properties from now on.
    Change(usize, Link),
}

/// One direction of a path, in order.
#[derive(Default)]
struct Pipe {
    /// Unsent bytes.
    unsent: VecDeque<u8>,
    /// Bytes in flight, with their time of arrival, ms.
    in_flight: VecDeque<(u64, Vec<u8>)>,
    last_arrival: u64,
}

impl Pipe {
    /// Sends at most `most` bytes.
    fn transmit(&mut self, now: u64, most: u64, delay: u64) {
        let bytes: Vec<u8> = self.unsent.drain(..self.unsent.len().min(most as usize)).collect();
        if !bytes.is_empty() {
            self.last_arrival = self.last_arrival.max(now + delay);
            self.in_flight.push_back((self.last_arrival, bytes));
        }
    }

    /// What has arrived.
    fn arrived(&mut self, now: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.in_flight.front().is_some_and(|(at, _)| *at <= now) {
            bytes.extend(self.in_flight.pop_front().into_iter().flat_map(|(_, some)| some));
        }
        bytes
    }
}

struct SimulatedPath {
    id: PathId,
    link: Link,
    stalled_until: u64,
    /// From the sending end to the receiving one, and back.
    forward: Pipe,
    backward: Pipe,
    /// Of the sending end and of the receiving one.
    readers: [FrameReader; 2],
    /// Bytes that have arrived at the receiving end.
    delivered: u64,
}

pub(crate) struct Simulation {
    /// Milliseconds.
    pub(crate) now: u64,
    pub(crate) out: Outbound,
    pub(crate) inbound: Inbound,
    buffer: StreamBuffer,
    source: Vec<u8>,
    offered: usize,
    /// What the receiving application has read.
    pub(crate) read: Vec<u8>,
    /// When it last read something, ms.
    pub(crate) read_at: u64,
    /// The longest time without anything to read, ms.
    pub(crate) longest_wait: u64,
    /// The receiving application reads at most this many bytes per ms.
    pub(crate) reads_per_ms: usize,
    /// The sending application writes at most this many bytes per ms.
    pub(crate) writes_per_ms: usize,
    paths: Vec<Option<SimulatedPath>>,
    random: Pcg64,
    next_timeout: Span,
    /// Payload sent over all paths, bytes.
    pub(crate) sent: u64,
}

/// The sending end takes this much at a time, while it wants data.
const CHUNK: usize = 64 * 1024;

fn span(ms: u64) -> Span {
    Span(ms * 1_000_000)
}

impl Simulation {
    pub(crate) fn new(settings: BondSettings, window: usize, source: Vec<u8>, random: Pcg64) -> Self {
        Simulation {
            now: 0,
            out: Outbound::new(settings, window as u64),
            inbound: Inbound::new(window),
            buffer: StreamBuffer::new(window),
            source,
            offered: 0,
            read: Vec::new(),
            read_at: 0,
            longest_wait: 0,
            reads_per_ms: usize::MAX,
            writes_per_ms: usize::MAX,
            paths: Vec::new(),
            random,
            next_timeout: Span(u64::MAX),
            sent: 0,
        }
    }

    pub(crate) fn apply(&mut self, event: PathEvent) {
        match event {
            PathEvent::Join(link) => {
                let id = self.out.add_path(span(self.now), link.tier);
                self.inbound.add_path(id);
                self.paths.push(Some(SimulatedPath {
                    id,
                    link,
                    stalled_until: 0,
                    forward: Pipe::default(),
                    backward: Pipe::default(),
                    readers: Default::default(),
                    delivered: 0,
                }));
            }
            PathEvent::Lose(which) => {
                if let Some(path) = self.paths.get_mut(which).and_then(Option::take) {
                    self.out.remove_path(path.id);
                    self.inbound.remove_path(path.id);
                }
            }
            PathEvent::Stall(which, ms) => {
                if let Some(Some(path)) = self.paths.get_mut(which) {
                    path.stalled_until = self.now.saturating_add(ms);
                }
            }
            PathEvent::Change(which, link) => {
                if let Some(Some(path)) = self.paths.get_mut(which) {
                    path.link = link;
                }
            }
        }
    }

    /// Payload assigned to a path so far, bytes.
    pub(crate) fn assigned(&self, which: usize) -> u64 {
        self.paths[which].as_ref().and_then(|path| self.out.path_stats(path.id)).map_or(0, |stats| stats.assigned)
    }

    /// The sending end takes data and assigns pieces.
    fn send(&mut self) {
        let now = span(self.now);
        self.buffer.trim(self.out.acked());
        let mut writes = self.writes_per_ms;
        loop {
            let room = (self.out.acked() + self.buffer.window()) as usize - self.offered;
            let more = room.min(writes).min(CHUNK).min(self.source.len() - self.offered);
            if more == 0 || !self.out.wants_data(room as u64) {
                break;
            }
            writes -= more;
            self.buffer.put(self.offered as u64, &self.source[self.offered..self.offered + more]).unwrap();
            self.offered += more;
            self.out.offer(more as u64);
            if self.offered == self.source.len() {
                self.out.close();
            }
        }
        for path in self.paths.iter().flatten() {
            let Link { rate, delay, .. } = path.link;
            let srtt = span(2 * delay + 1);
            let (unsent, window) = (path.forward.unsent.len() as u64, rate * (2 * delay + 1) + 3000);
            self.out.update_path(
                now,
                path.id,
                PathSample { delivered: path.delivered, unsent, window, srtt, rto: span(2 * delay + 200), ..PathSample::default() },
            );
        }
        if self.next_timeout <= now {
            self.out.handle_timeout(now);
        }
        while let Some(piece) = self.out.next_piece(now) {
            let path = self.paths.iter_mut().flatten().find(|path| path.id == piece.path).expect("the path exists");
            path.forward.unsent.extend(Frame::Piece { offset: piece.offset, len: piece.len }.header().iter());
            for part in self.buffer.get(piece.offset, piece.len) {
                path.forward.unsent.extend(part);
            }
            self.sent += piece.len;
        }
        self.next_timeout = self.out.next_timeout(now).unwrap_or(Span(u64::MAX));
        for path in self.paths.iter_mut().flatten() {
            if let Some(end) = self.out.end_to_announce(path.id) {
                path.forward.unsent.extend(Frame::End(end).header().iter());
            }
        }
    }

    /// The receiving end takes what has arrived over a path.
    fn receive(&mut self, which: usize) {
        let now = span(self.now);
        let Some(path) = &mut self.paths[which] else { return };
        let bytes = path.forward.arrived(self.now);
        path.delivered += bytes.len() as u64;
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + self.random.random_range(1..5000));
            let (used, decoded) = path.readers[1].read(&bytes[at..end]).expect("frames are well-formed");
            at += used;
            match decoded {
                Decoded::Incomplete => {}
                Decoded::Frame(Frame::Piece { offset, len }) => {
                    self.inbound.begin_piece(offset, len).expect("the sender keeps to the window");
                }
                Decoded::Frame(Frame::End(end)) => self.inbound.on_end(end).expect("there is one end"),
                Decoded::Frame(other) => panic!("{other:?} goes to the sending end"),
                Decoded::Payload { offset, left } => {
                    let here = (end - at).min(left as usize);
                    self.inbound.receive(now, path.id, offset, &bytes[at..at + here]).expect("the peer keeps to the protocol");
                    path.readers[1].consume_payload(here as u64);
                    at += here;
                }
            }
        }
    }

    /// The receiving application reads, and acknowledgements are sent.
    fn read_and_acknowledge(&mut self) {
        let now = span(self.now);
        let readable: Vec<u8> = self.inbound.readable(u64::MAX).flatten().copied().take(self.reads_per_ms).collect();
        self.longest_wait = self.longest_wait.max(self.now - self.read_at);
        if !readable.is_empty() {
            self.inbound.consume(now, readable.len() as u64);
            self.read.extend(readable);
            self.read_at = self.now;
        }
        if self.inbound.is_fully_read() {
            self.inbound.mark_delivered();
        }
        for path in self.paths.iter_mut().flatten() {
            while let Some(frame) = self.inbound.next_frame(now, path.id) {
                path.backward.unsent.extend(frame.header().iter());
            }
        }
    }

    /// The sending end takes acknowledgements from a path.
    fn on_acks(&mut self, which: usize) {
        let now = span(self.now);
        let Some(path) = &mut self.paths[which] else { return };
        let bytes = path.backward.arrived(self.now);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (used, decoded) = path.readers[0].read(rest).expect("frames are well-formed");
            rest = &rest[used..];
            match decoded {
                Decoded::Incomplete => {}
                Decoded::Frame(Frame::Ack { path_received, acked, limit }) => {
                    self.out
                        .on_receipt(now, path.id, path_received)
                        .and(self.out.on_acked(acked, limit))
                        .expect("the peer keeps to the protocol");
                }
                Decoded::Frame(Frame::Delivered) => self.out.on_delivered().expect("everything was sent"),
                Decoded::Frame(other) => panic!("{other:?} goes to the receiving end"),
                Decoded::Payload { .. } => panic!("no payload goes back"),
            }
        }
    }

    /// A millisecond passes.
    pub(crate) fn tick(&mut self) {
        self.send();
        let now = self.now;
        for path in self.paths.iter_mut().flatten().filter(|path| path.stalled_until <= now) {
            path.forward.transmit(now, path.link.rate, path.link.delay);
            path.backward.transmit(now, u64::MAX >> 1, path.link.delay);
        }
        self.now += 1;
        for which in 0..self.paths.len() {
            // What was in flight when the path stalled arrives late.
            if self.paths[which].as_ref().is_some_and(|path| path.stalled_until <= self.now) {
                self.receive(which);
                self.on_acks(which);
            }
        }
        self.read_and_acknowledge();
        let waiting = self.inbound.out_of_order_bytes();
        assert!(waiting <= self.buffer.window(), "{waiting} bytes wait behind gaps");
    }

    /// Runs until the sending end knows that everything was delivered; `false` if that is not so at
    /// `deadline`, ms.
    pub(crate) fn finish(&mut self, deadline: u64) -> bool {
        while !self.out.is_delivered() && self.now < deadline {
            self.tick();
        }
        self.out.is_delivered()
    }
}
