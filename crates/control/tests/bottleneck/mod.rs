//! A bottleneck and the flows across it, in virtual time: enough to see what a controller does, no model of TCP.
//!
//! Every packet is acknowledged by itself, a loss is known when three later packets have arrived, what is lost is sent again first.

#![allow(dead_code)] // each test uses a part of it

use control::{Controller, Event, Flow, Kind, Link, State};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
};

pub(crate) const MSS: u32 = 1448;
/// Wire bytes of a packet beside IP's.
pub(crate) const OVERHEAD: u32 = 14;
const PACKET: u64 = (MSS + 52 + OVERHEAD) as u64;
const SECOND: u64 = 1_000_000;

/// What the flows cross.
#[derive(Clone)]
pub(crate) struct Path {
    /// Wire bytes/s of the bottleneck, from these times (µs) on.
    pub(crate) rate: Vec<(u64, u64)>,
    /// What the controllers are told of it; 0: nothing.
    pub(crate) capacity: u64,
    /// Round trip without a queue, µs.
    pub(crate) rtt_us: u64,
    /// Wire bytes that the queue holds.
    pub(crate) buffer: u64,
    /// Whether the queue is the sender's own (which holds each flow to what TCP small queues permit).
    pub(crate) local: bool,
    /// Random loss behind the bottleneck.
    pub(crate) loss: f64,
    /// By how much the sender's timers are late at most, µs.
    pub(crate) late_us: u64,
    /// For how long a receiver holds back the ACK of a segment that none follows, µs.
    pub(crate) held_us: u64,
    /// Other traffic: from, until (µs), wire bytes/s; it passes the sender's host.
    pub(crate) other: Option<(u64, u64, u64)>,
    pub(crate) seed: u64,
}

/// 10 Mbit/s and 800 ms: the link of Li and Yousefi'zadeh.
pub(crate) fn satellite() -> Path {
    let rate = 10_000_000 / 8;
    Path {
        rate: vec![(0, rate)],
        capacity: rate,
        rtt_us: 800_000,
        buffer: 600_000,
        local: false,
        loss: 0.0,
        late_us: 0,
        held_us: 0,
        other: None,
        seed: 1,
    }
}

/// What a flow has to send.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) start_us: u64,
    /// Segments; 2⁴⁰: without end.
    pub(crate) segments: u64,
    /// An application's pace: so many segments every so many µs.
    pub(crate) chunks: Option<(u64, u64)>,
    pub(crate) weight: u32,
}

/// A flow without end, from a time on.
pub(crate) fn greedy(start_us: u64) -> Job {
    Job { start_us, segments: 1 << 40, chunks: None, weight: 1 }
}

/// A file.
pub(crate) fn file(start_us: u64, bytes: u64) -> Job {
    Job { start_us, segments: bytes.div_ceil(u64::from(MSS)), chunks: None, weight: 1 }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Start(usize),
    Write(usize),
    Send(usize),
    Ack(usize, u64),
    Timer(usize, u64),
    Other,
    Sample,
}

struct Sent {
    segment: u64,
    at: u64,
    arrived: bool,
    /// Its ACK is held back.
    held: bool,
}

struct Sender {
    job: Job,
    flow: Flow,
    state: Option<State>,
    written: u64,
    next: u64,
    una: u64,
    beyond: BTreeSet<u64>,
    again: VecDeque<u64>,
    outstanding: VecDeque<Sent>,
    first: u64,
    in_flight: u32,
    in_queue: VecDeque<u64>,
    may_send: u64,
    wakes: u64,
    recover: Option<u64>,
    limited: bool,
    timer: u64,
    end: Option<u64>,
    cwnds: Vec<u32>,
    delivered: u64,
    samples: Vec<u64>,
}

/// What came of it.
pub(crate) struct Seen {
    /// When each flow's last segment arrived, s.
    pub(crate) ends: Vec<Option<f64>>,
    /// Segments of each flow that had arrived, every 100 ms.
    pub(crate) delivered: Vec<Vec<u64>>,
    /// Its window at those times.
    pub(crate) cwnds: Vec<Vec<u32>>,
    /// Wire bytes in the queue at those times.
    pub(crate) queue: Vec<u64>,
    pub(crate) drops: u64,
    pub(crate) peak_queue: u64,
    pub(crate) link: Link,
}

impl Seen {
    /// Payload bytes/s of each flow between two times, s.
    pub(crate) fn rates(&self, from: f64, until: f64) -> Vec<f64> {
        let (a, b) = ((from * 10.0) as usize, (until * 10.0) as usize);
        self.delivered.iter().map(|d| (d[b] - d[a]) as f64 * f64::from(MSS) / (until - from)).collect()
    }

    /// Jain's index of fairness of the rates between two times.
    pub(crate) fn jain(&self, from: f64, until: f64) -> f64 {
        let rates = self.rates(from, until);
        rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>())
    }

    /// Payload bytes/s of all flows over what the wire's rate leaves for payload.
    pub(crate) fn utilization(&self, from: f64, until: f64, rate: u64) -> f64 {
        self.rates(from, until).iter().sum::<f64>() / (rate as f64 * f64::from(MSS) / PACKET as f64)
    }

    /// The largest queue between two times, wire bytes.
    pub(crate) fn queue(&self, from: f64, until: f64) -> u64 {
        *self.queue[(from * 10.0) as usize..(until * 10.0) as usize].iter().max().unwrap()
    }
}

struct World<'a> {
    path: &'a Path,
    senders: Vec<Sender>,
    heap: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    serial: u64,
    now: u64,
    busy_until: u64,
    entered: u64,
    foreign: u64,
    link: Link,
    least: [u64; 2],
    least_since: u64,
    random: Pcg64Mcg,
    seen: Seen,
}

/// Lets the jobs run under a controller for so long, or until all are done.
pub(crate) fn run(controller: Controller, tunables: Option<Vec<u32>>, path: &Path, jobs: &[Job], seconds: f64) -> Seen {
    let senders = jobs
        .iter()
        .map(|job| Sender {
            job: *job,
            flow: Flow {
                mss: MSS,
                cwnd: 10,
                ssthresh: control::INFINITE,
                snd_wnd: 65_535,
                weight: job.weight,
                header: 52,
                ..Flow::default()
            },
            state: None,
            written: 0,
            next: 0,
            una: 0,
            beyond: BTreeSet::new(),
            again: VecDeque::new(),
            outstanding: VecDeque::new(),
            first: 0,
            in_flight: 0,
            in_queue: VecDeque::new(),
            may_send: 0,
            wakes: 0,
            recover: None,
            limited: false,
            timer: 0,
            end: None,
            cwnds: Vec::new(),
            delivered: 0,
            samples: Vec::new(),
        })
        .collect();
    let link = Link { capacity: path.capacity, overhead: OVERHEAD, local: path.local.into(), ..Link::default() };
    let seen =
        Seen { ends: vec![None; jobs.len()], delivered: Vec::new(), cwnds: Vec::new(), queue: Vec::new(), drops: 0, peak_queue: 0, link };
    let mut world = World {
        path,
        senders,
        heap: BinaryHeap::new(),
        serial: 0,
        now: 0,
        busy_until: 0,
        entered: 0,
        foreign: 0,
        link,
        least: [0; 2],
        least_since: 0,
        random: Pcg64Mcg::seed_from_u64(path.seed),
        seen,
    };
    for (index, job) in jobs.iter().enumerate() {
        // The handshake has measured the round trip by then.
        world.at(job.start_us + path.rtt_us, Happens::Start(index));
    }
    if let Some((from, ..)) = path.other {
        world.at(from, Happens::Other);
    }
    world.at(0, Happens::Sample);
    let end = (seconds * 1e6) as u64;
    while let Some(Reverse((time, _, what))) = world.heap.pop() {
        if time > end || world.seen.ends.iter().all(Option::is_some) {
            break;
        }
        world.now = time;
        world.happen(what, controller, tunables.as_ref());
    }
    let World { senders, mut seen, link, .. } = world;
    seen.link = link;
    for sender in senders {
        seen.delivered.push(sender.samples);
        seen.cwnds.push(sender.cwnds);
    }
    seen
}

impl World<'_> {
    fn at(&mut self, time: u64, what: Happens) {
        self.serial += 1;
        self.heap.push(Reverse((time, self.serial, what)));
    }

    fn rate(&self) -> u64 {
        self.path.rate.iter().rev().find(|(from, _)| *from <= self.now).unwrap().1
    }

    fn backlog(&self) -> u64 {
        self.busy_until.saturating_sub(self.now) * self.rate() / SECOND
    }

    /// A packet enters the queue; when it leaves, if it does.
    fn enter(&mut self) -> Option<u64> {
        let backlog = self.backlog();
        if backlog + PACKET > self.path.buffer {
            self.seen.drops += 1;
            return None;
        }
        self.entered += PACKET;
        self.seen.peak_queue = self.seen.peak_queue.max(backlog + PACKET);
        self.busy_until = self.busy_until.max(self.now) + PACKET * SECOND / self.rate();
        Some(self.busy_until)
    }

    fn happen(&mut self, what: Happens, controller: Controller, tunables: Option<&Vec<u32>>) {
        match what {
            Happens::Start(i) => {
                let sender = &mut self.senders[i];
                sender.flow.srtt_us = self.path.rtt_us as u32;
                sender.flow.min_rtt_us = self.path.rtt_us as u32;
                let tunables = tunables.cloned().unwrap_or_else(|| controller.tunables().map(|tunable| tunable.default).collect());
                sender.state = Some(controller.begin_tuned(tunables, &mut sender.flow, Some(&mut self.link), self.now));
                self.happen(Happens::Write(i), controller, None);
            }
            Happens::Write(i) => {
                let job = self.senders[i].job;
                let more = job.chunks.map_or(job.segments, |(segments, _)| segments);
                self.senders[i].written = self.senders[i].written.saturating_add(more).min(job.segments);
                if let Some((_, every)) = job.chunks.filter(|_| self.senders[i].written < job.segments) {
                    self.at(self.now + every, Happens::Write(i));
                }
                self.send(i);
            }
            Happens::Send(i) => {
                self.senders[i].wakes = 0;
                self.send(i);
            }
            Happens::Ack(i, packet) => self.ack(i, packet),
            Happens::Timer(i, timer) => {
                if self.senders[i].timer == timer && !self.senders[i].outstanding.is_empty() {
                    self.timeout(i);
                }
            }
            Happens::Other => {
                let (_, until, rate) = self.path.other.unwrap();
                if self.enter().is_some() {
                    self.foreign += PACKET;
                }
                if self.now < until {
                    self.at(self.now + PACKET * SECOND / rate, Happens::Other);
                }
            }
            Happens::Sample => {
                let backlog = self.backlog();
                self.seen.queue.push(backlog);
                for sender in &mut self.senders {
                    sender.samples.push(sender.delivered);
                    sender.cwnds.push(sender.flow.cwnd);
                }
                self.at(self.now + SECOND / 10, Happens::Sample);
            }
        }
    }

    /// The monitor: what has left this host, and the least that waited over the last half to whole round trip.
    fn monitor(&mut self) {
        let backlog = if self.path.local { self.backlog() } else { 0 };
        if self.now - self.least_since > self.path.rtt_us / 2 {
            self.least = [self.least[1], backlog];
            self.least_since = self.now;
        }
        self.least[1] = self.least[1].min(backlog);
        self.link.queue = self.least[0].min(self.least[1]);
        self.link.backlog = backlog;
        self.link.egress = self.entered - backlog;
        self.link.foreign = self.foreign;
        self.link.seen_us = self.now;
    }

    fn tell(&mut self, i: usize, event: Event) {
        self.monitor();
        let sender = &mut self.senders[i];
        sender.flow.in_flight = sender.in_flight;
        sender.flow.una = (sender.una * u64::from(MSS)) as u32;
        sender.flow.nxt = (sender.next * u64::from(MSS)) as u32;
        sender.flow.unsent = ((sender.written - sender.next) * u64::from(MSS)).min(1 << 30) as u32;
        let flags = if sender.limited { control::LIMITED } else { 0 };
        let last = if sender.written == sender.job.segments { control::LAST } else { 0 };
        let event = Event { now_us: self.now, flags: event.flags | flags | last, ..event };
        sender.state.as_mut().unwrap().step(&mut sender.flow, Some(&mut self.link), &event);
    }

    fn send(&mut self, i: usize) {
        loop {
            let now = self.now;
            let sender = &mut self.senders[i];
            let fresh = sender.next < sender.written;
            if sender.again.is_empty() && !fresh {
                sender.limited = false;
                return;
            }
            let window = sender.again.is_empty() && (sender.next + 1 - sender.una) * u64::from(MSS) > u64::from(sender.flow.snd_wnd);
            // In slow start half a window in use is use enough, as in Linux.
            let used = if sender.flow.cwnd < sender.flow.ssthresh { 2 * sender.in_flight } else { sender.in_flight };
            sender.limited = used >= sender.flow.cwnd;
            if sender.in_flight >= sender.flow.cwnd || window {
                return;
            }
            while sender.in_queue.front().is_some_and(|left| *left <= now) {
                sender.in_queue.pop_front();
            }
            let small = if sender.flow.pacing_rate == 0 { usize::MAX } else { (sender.flow.pacing_rate / 1024 / PACKET).max(2) as usize };
            let wait = if self.path.local && sender.in_queue.len() >= small { sender.in_queue[0] } else { sender.may_send };
            if wait > now {
                if sender.wakes == 0 {
                    let late = if self.path.late_us > 0 { self.random.random_range(0..self.path.late_us) } else { 0 };
                    sender.wakes = wait + late;
                    self.at(wait + late, Happens::Send(i));
                }
                return;
            }
            if sender.in_flight == 0 && sender.outstanding.is_empty() {
                self.tell(i, Event { kind: Kind::Restart, ..Event::default() });
            }
            let sender = &mut self.senders[i];
            let segment = sender.again.pop_front().unwrap_or(sender.next);
            sender.next = sender.next.max(segment + 1);
            sender.flow.sent += u64::from(MSS);
            sender.in_flight += 1;
            if let Some(gap) = (u64::from(MSS) * SECOND).checked_div(sender.flow.pacing_rate) {
                // A timer that was late is half made up for, as Linux does.
                sender.may_send = now + gap - (now - sender.may_send.min(now)).min(gap / 2);
            }
            let pace = (u64::from(MSS) * SECOND).checked_div(sender.flow.pacing_rate).unwrap_or(0);
            let held_us = if pace > self.path.held_us { self.path.held_us } else { 0 };
            sender.outstanding.push_back(Sent { segment, at: now, arrived: false, held: held_us > 0 });
            let packet = sender.first + sender.outstanding.len() as u64 - 1;
            let left = self.enter();
            if let Some(left) = left {
                if self.path.local {
                    self.senders[i].in_queue.push_back(left);
                }
                if !self.random.random_bool(self.path.loss) {
                    self.at(left + self.path.rtt_us + held_us, Happens::Ack(i, packet));
                }
            }
            self.arm(i);
        }
    }

    fn arm(&mut self, i: usize) {
        self.serial += 1;
        self.senders[i].timer = self.serial;
        let timeout = u64::from(self.senders[i].flow.srtt_us) + 200_000;
        self.at(self.now + timeout, Happens::Timer(i, self.serial));
    }

    fn ack(&mut self, i: usize, packet: u64) {
        let now = self.now;
        let sender = &mut self.senders[i];
        let Some(at) = packet.checked_sub(sender.first) else { return };
        let sent = &mut sender.outstanding[at as usize];
        if sent.arrived {
            return;
        }
        sent.arrived = true;
        let (segment, rtt, held) = (sent.segment, (now - sent.at) as u32, sent.held);
        sender.in_flight -= 1;
        sender.flow.snd_wnd = 6_000_000;
        let fresh = segment >= sender.una && sender.beyond.insert(segment);
        while sender.beyond.remove(&sender.una) {
            sender.una += 1;
        }
        sender.delivered += u64::from(fresh);
        sender.flow.srtt_us = (sender.flow.srtt_us * 7 + rtt) / 8;
        sender.flow.min_rtt_us = sender.flow.min_rtt_us.min(rtt);
        // What was sent three packets before one that arrived is lost.
        let mut lost = 0;
        let last = at as usize;
        for gone in sender.outstanding.iter_mut().take(last.saturating_sub(2)) {
            if !gone.arrived {
                gone.arrived = true;
                sender.again.push_back(gone.segment);
                lost += 1;
            }
        }
        sender.in_flight -= lost;
        while sender.outstanding.front().is_some_and(|sent| sent.arrived) {
            sender.outstanding.pop_front();
            sender.first += 1;
        }
        let whole = sender.state.as_ref().unwrap().controller().whole();
        let flags = if held { control::HELD } else { 0 };
        let event = Event { acked: u32::from(fresh), rtt_us: rtt, lost, flags, ..Event::default() };
        if lost > 0 && sender.recover.is_none() {
            sender.recover = Some(sender.next);
            sender.flow.prior_cwnd = sender.flow.cwnd;
            self.tell(i, Event { kind: Kind::Loss, ..event });
            if !whole {
                self.senders[i].flow.cwnd = self.senders[i].flow.ssthresh;
            }
        } else if self.senders[i].recover.is_some_and(|point| self.senders[i].una >= point) {
            self.senders[i].recover = None;
            self.tell(i, Event { kind: Kind::Recovered, ..event });
        }
        if !whole {
            self.tell(i, Event { kind: Kind::Sample, ..event });
        }
        if whole || self.senders[i].recover.is_none() {
            self.tell(i, Event { kind: Kind::Ack, ..event });
        }
        let sender = &mut self.senders[i];
        if sender.una == sender.job.segments {
            self.seen.ends[i] = Some((now - self.path.rtt_us / 2) as f64 / 1e6);
            self.tell(i, Event { kind: Kind::Close, ..Event::default() });
            return;
        }
        self.arm(i);
        self.send(i);
    }

    fn timeout(&mut self, i: usize) {
        let sender = &mut self.senders[i];
        for gone in sender.outstanding.drain(..) {
            if !gone.arrived {
                sender.again.push_back(gone.segment);
            }
            sender.first += 1;
        }
        sender.in_flight = 0;
        sender.recover = Some(sender.next);
        sender.flow.prior_cwnd = sender.flow.cwnd;
        self.tell(i, Event { kind: Kind::Timeout, ..Event::default() });
        self.senders[i].flow.cwnd = 1;
        self.senders[i].recover = None;
        self.arm(i);
        self.send(i);
    }
}
