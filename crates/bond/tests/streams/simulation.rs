//! Two ends of a bond, and connections between them that are slow, far, stalled, lost and new, a millisecond at a time.

use bond::{Buffer, ConnId, Frame, Inbound, Look, Outbound, Reader, Settings, Step};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::collections::VecDeque;
use units::Span;

/// What a connection is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nature {
    /// Bytes a millisecond, and ms one way.
    pub(crate) rate: u64,
    pub(crate) delay: u64,
    pub(crate) tier: u8,
}

/// What happens to connections.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// Another comes.
    Join(Nature),
    /// The n-th of those that came is lost, with all that is under way on it.
    Lose(usize),
    /// From now on it moves nothing, for so many ms.
    Stall(usize, u64),
    /// It is like this from now on.
    Change(usize, Nature),
}

/// One way of a connection: bytes that wait, and bytes on their way with the time at which they come. They come in order.
#[derive(Default)]
struct Pipe {
    waits: VecDeque<u8>,
    flies: VecDeque<(u64, Vec<u8>)>,
    last: u64,
}

impl Pipe {
    /// Lets so many bytes go.
    fn go(&mut self, now: u64, most: u64, delay: u64) {
        let bytes: Vec<u8> = self.waits.drain(..self.waits.len().min(most as usize)).collect();
        if !bytes.is_empty() {
            self.last = self.last.max(now + delay);
            self.flies.push_back((self.last, bytes));
        }
    }

    /// What has come.
    fn comes(&mut self, now: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.flies.front().is_some_and(|(at, _)| *at <= now) {
            bytes.extend(self.flies.pop_front().into_iter().flat_map(|(_, some)| some));
        }
        bytes
    }
}

struct Conn {
    id: ConnId,
    nature: Nature,
    stalled_until: u64,
    there: Pipe,
    back: Pipe,
    /// Readers of either end.
    hears: [Reader; 2],
    /// Bytes that the far end has taken.
    delivered: u64,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) out: Outbound,
    pub(crate) inbound: Inbound,
    buffer: Buffer,
    source: Vec<u8>,
    offered: usize,
    /// What the application at the end has read, and when it last read something.
    pub(crate) read: Vec<u8>,
    pub(crate) read_at: u64,
    /// The longest time it had to wait for something.
    pub(crate) longest_wait: u64,
    /// It reads no more than so many bytes a ms; the other one writes no more.
    pub(crate) reads: usize,
    pub(crate) writes: usize,
    conns: Vec<Option<Conn>>,
    random: Pcg64,
    next_check: Span,
    /// Payload written to connections.
    pub(crate) sent: u64,
}

/// The sender takes so much at a time, as long as that is wanted.
const AT_ONCE: usize = 64 * 1024;

fn span(ms: u64) -> Span {
    Span(ms * 1_000_000)
}

impl World {
    pub(crate) fn new(settings: Settings, window: usize, source: Vec<u8>, random: Pcg64) -> Self {
        World {
            now: 0,
            out: Outbound::new(settings, window as u64),
            inbound: Inbound::new(window),
            buffer: Buffer::new(window),
            source,
            offered: 0,
            read: Vec::new(),
            read_at: 0,
            longest_wait: 0,
            reads: usize::MAX,
            writes: usize::MAX,
            conns: Vec::new(),
            random,
            next_check: Span(u64::MAX),
            sent: 0,
        }
    }

    pub(crate) fn happen(&mut self, fate: Fate) {
        match fate {
            Fate::Join(nature) => {
                let id = self.out.add(span(self.now), nature.tier);
                self.inbound.add(id);
                let hears = [Reader::default(), Reader::default()];
                let (there, back) = (Pipe::default(), Pipe::default());
                self.conns.push(Some(Conn { id, nature, stalled_until: 0, there, back, hears, delivered: 0 }));
            }
            Fate::Lose(which) => {
                if let Some(conn) = self.conns.get_mut(which).and_then(Option::take) {
                    self.out.lose(conn.id);
                    self.inbound.lose(conn.id);
                }
            }
            Fate::Stall(which, ms) => {
                if let Some(Some(conn)) = self.conns.get_mut(which) {
                    conn.stalled_until = self.now.saturating_add(ms);
                }
            }
            Fate::Change(which, nature) => {
                if let Some(Some(conn)) = self.conns.get_mut(which) {
                    conn.nature = nature;
                }
            }
        }
    }

    /// What the n-th connection that came was given, payload.
    pub(crate) fn given(&self, which: usize) -> u64 {
        self.conns[which].as_ref().and_then(|conn| self.out.seen(conn.id)).map_or(0, |seen| seen.given)
    }

    /// The sending end does what it can.
    fn send(&mut self) {
        let now = span(self.now);
        self.buffer.trim(self.out.acked());
        let mut writes = self.writes;
        loop {
            let room = (self.out.acked() + self.buffer.window()) as usize - self.offered;
            let more = room.min(writes).min(AT_ONCE).min(self.source.len() - self.offered);
            if more == 0 || !self.out.wants(room as u64) {
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
        for conn in self.conns.iter().flatten() {
            let Nature { rate, delay, .. } = conn.nature;
            let srtt = span(2 * delay + 1);
            let (unsent, window) = (conn.there.waits.len() as u64, rate * (2 * delay + 1) + 3000);
            self.out.look(
                now,
                conn.id,
                Look { delivered: conn.delivered, unsent, window, srtt, rto: span(2 * delay + 200), ..Look::default() },
            );
        }
        if self.next_check <= now {
            self.out.check(now);
        }
        while let Some(piece) = self.out.give(now) {
            let conn = self.conns.iter_mut().flatten().find(|conn| conn.id == piece.conn).expect("who is given something is there");
            conn.there.waits.extend(Frame::Piece { offset: piece.offset, len: piece.len }.header().iter());
            for part in self.buffer.get(piece.offset, piece.len) {
                conn.there.waits.extend(part);
            }
            self.sent += piece.len;
        }
        self.next_check = self.out.next_check(now).unwrap_or(Span(u64::MAX));
        for conn in self.conns.iter_mut().flatten() {
            if let Some(end) = self.out.end_to_tell(conn.id) {
                conn.there.waits.extend(Frame::End(end).header().iter());
            }
        }
    }

    /// The receiving end takes what has come over a connection.
    fn receive(&mut self, which: usize) {
        let now = span(self.now);
        let Some(conn) = &mut self.conns[which] else { return };
        let bytes = conn.there.comes(self.now);
        conn.delivered += bytes.len() as u64;
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + self.random.random_range(1..5000));
            let (used, step) = conn.hears[1].read(&bytes[at..end]).expect("what was said is heard");
            at += used;
            match step {
                Step::More => {}
                Step::Said(Frame::Piece { offset, len }) => self.inbound.begin(offset, len).expect("it keeps to the window"),
                Step::Said(Frame::End(end)) => self.inbound.end(end).expect("it has one end"),
                Step::Said(other) => panic!("{other:?} is not for who receives"),
                Step::Payload { offset, left } => {
                    let here = (end - at).min(left as usize);
                    self.inbound.take(now, conn.id, offset, &bytes[at..at + here]).expect("it keeps the rules");
                    conn.hears[1].took(here as u64);
                    at += here;
                }
            }
        }
    }

    /// The application at the end reads, and all are told.
    fn read_on(&mut self) {
        let now = span(self.now);
        let readable: Vec<u8> = self.inbound.readable(u64::MAX).flatten().copied().take(self.reads).collect();
        self.longest_wait = self.longest_wait.max(self.now - self.read_at);
        if !readable.is_empty() {
            self.inbound.consume(now, readable.len() as u64);
            self.read.extend(readable);
            self.read_at = self.now;
        }
        if self.inbound.is_read() {
            self.inbound.deliver();
        }
        for conn in self.conns.iter_mut().flatten() {
            while let Some(frame) = self.inbound.say(now, conn.id) {
                conn.back.waits.extend(frame.header().iter());
            }
        }
    }

    /// The sending end hears.
    fn hear(&mut self, which: usize) {
        let now = span(self.now);
        let Some(conn) = &mut self.conns[which] else { return };
        let bytes = conn.back.comes(self.now);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (used, step) = conn.hears[0].read(rest).expect("what was said is heard");
            rest = &rest[used..];
            match step {
                Step::More => {}
                Step::Said(Frame::Ack { got, next, limit }) => {
                    self.out.receipt(now, conn.id, got).and(self.out.acknowledge(next, limit)).expect("it keeps the rules");
                }
                Step::Said(Frame::Done) => self.out.delivered().expect("all was sent"),
                Step::Said(other) => panic!("{other:?} is not for who sends"),
                Step::Payload { .. } => panic!("nothing goes back"),
            }
        }
    }

    /// A millisecond passes.
    pub(crate) fn tick(&mut self) {
        self.send();
        let now = self.now;
        for conn in self.conns.iter_mut().flatten().filter(|conn| conn.stalled_until <= now) {
            conn.there.go(now, conn.nature.rate, conn.nature.delay);
            conn.back.go(now, u64::MAX >> 1, conn.nature.delay);
        }
        self.now += 1;
        for which in 0..self.conns.len() {
            // What flew when it stalled comes late.
            if self.conns[which].as_ref().is_some_and(|conn| conn.stalled_until <= self.now) {
                self.receive(which);
                self.hear(which);
            }
        }
        self.read_on();
        let (_, held) = self.inbound.waiting();
        assert!(held <= self.buffer.window(), "{held} bytes wait");
    }

    /// Until all was delivered and the sender knows it; false: it took longer than so many ms.
    pub(crate) fn finish(&mut self, most: u64) -> bool {
        while !self.out.is_done() && self.now < most {
            self.tick();
        }
        self.out.is_done()
    }
}
