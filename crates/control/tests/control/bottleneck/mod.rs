//! Simulates flows across one bottleneck, in virtual time: enough to test a controller, not a model
//! of TCP.
//!
//! Each packet is acknowledged individually. A packet counts as lost once a packet has
//! arrived that was sent three or more later.
//! Retransmissions go first.

#![allow(dead_code)] // each test uses a part of it

use control::{Controller, ControllerState, Event, EventKind, FlowState, LinkRecord};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
};

pub(crate) const MSS: u32 = 1448;
/// Link-layer overhead of a packet, bytes.
pub(crate) const OVERHEAD: u32 = 14;
const PACKET: u64 = (MSS + 52 + OVERHEAD) as u64;
const SECOND: u64 = 1_000_000;

/// The bottleneck and the path of the flows.
#[derive(Clone)]
pub(crate) struct BottleneckPath {
    /// Rate of the bottleneck, wire bytes/s, from these times (µs) on.
    pub(crate) rate: Vec<(u64, u64)>,
    /// Capacity configured for the controllers, wire bytes/s; 0: unknown, or estimated.
    pub(crate) capacity: u64,
    /// Whether the capacity is estimated.
    pub(crate) estimated: bool,
    /// Hosts that send over the link, each with a link record of its own. Flow i starts at host
    /// i modulo this number.
    pub(crate) hosts: usize,
    /// Round-trip time without queueing, µs.
    pub(crate) rtt_us: u64,
    /// From this time (µs) on, another one.
    pub(crate) later_rtt_us: Option<(u64, u64)>,
    /// Flows whose ACKs have timestamps: the first ones. A later RTT is then one of the ACKs.
    pub(crate) timestamped: usize,
    /// Size of the queue, wire bytes.
    pub(crate) buffer: u64,
    /// Whether the queue is on the sender's host, which limits each flow by TCP small queues.
    pub(crate) local: bool,
    /// Probability of loss behind the bottleneck.
    pub(crate) loss: f64,
    /// Greatest lateness of the sender's timers, µs.
    pub(crate) late_us: u64,
    /// Delay of the ACK of a segment that no other follows, µs.
    pub(crate) ack_delay_us: u64,
    /// Cross traffic through the sender's host: from, until (µs), wire bytes/s.
    pub(crate) cross: Option<(u64, u64, u64)>,
    pub(crate) seed: u64,
}

impl BottleneckPath {
    /// RTT without queueing of a segment that is sent at this time.
    fn rtt_at(&self, sent_us: u64) -> u64 {
        self.later_rtt_us.filter(|(from, _)| *from <= sent_us).map_or(self.rtt_us, |(_, rtt_us)| rtt_us)
    }
}

/// 10 Mbit/s and 800 ms: the link of Li and Yousefi'zadeh.
pub(crate) fn satellite() -> BottleneckPath {
    let rate = 10_000_000 / 8;
    BottleneckPath {
        rate: vec![(0, rate)],
        capacity: rate,
        estimated: false,
        hosts: 1,
        rtt_us: 800_000,
        later_rtt_us: None,
        timestamped: 0,
        buffer: 600_000,
        local: false,
        loss: 0.0,
        late_us: 0,
        ack_delay_us: 0,
        cross: None,
        seed: 1,
    }
}

/// The data of a flow.
#[derive(Clone, Copy)]
pub(crate) struct FlowData {
    pub(crate) start_us: u64,
    /// Segments; 2⁴⁰: endless.
    pub(crate) segments: u64,
    /// Application-limited: this many segments per interval (µs).
    pub(crate) chunks: Option<(u64, u64)>,
    /// The receiver's window after the first acknowledgement, bytes.
    pub(crate) window: u32,
    pub(crate) weight: u32,
}

/// The window of a receiver that is no limit, bytes.
const WIDE: u32 = 6_000_000;

/// An endless flow.
pub(crate) fn greedy(start_us: u64) -> FlowData {
    FlowData { start_us, segments: 1 << 40, chunks: None, window: WIDE, weight: 1 }
}

/// A file transfer.
pub(crate) fn file(start_us: u64, bytes: u64) -> FlowData {
    FlowData { start_us, segments: bytes.div_ceil(u64::from(MSS)), chunks: None, window: WIDE, weight: 1 }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    Start(usize),
    Write(usize),
    Send(usize),
    Ack(usize, u64),
    Timer(usize, u64),
    Cross,
    Sample,
}

struct Transmission {
    segment: u64,
    sent_us: u64,
    /// Acknowledged, or taken for lost.
    done: bool,
    /// Its ACK is delayed.
    ack_delayed: bool,
}

struct Sender {
    job: FlowData,
    flow: FlowState,
    state: Option<ControllerState>,
    /// Segments that the application has written.
    written: u64,
    /// Next segment to send for the first time.
    next: u64,
    /// First segment that is not acknowledged.
    una: u64,
    /// Segments above `una` that are SACKed.
    sacked: BTreeSet<u64>,
    /// Segments to retransmit.
    retransmits: VecDeque<u64>,
    /// Transmissions from the oldest that is not done; `first` is the number of the first one.
    outstanding: VecDeque<Transmission>,
    first: u64,
    in_flight: u32,
    /// Departure times of its packets in the queue of this host, µs.
    in_queue: VecDeque<u64>,
    /// When pacing allows the next packet, µs.
    paced_until: u64,
    /// When the send timer expires; 0: not set.
    send_timer: u64,
    /// End of the current recovery.
    recover: Option<u64>,
    cwnd_limited: bool,
    /// Serial number of the current retransmission timer.
    timer: u64,
    end: Option<u64>,
    cwnds: Vec<u32>,
    delivered: u64,
    samples: Vec<u64>,
}

/// Measurements of a run.
pub(crate) struct RunResult {
    /// Arrival of each flow's last segment, s.
    pub(crate) ends: Vec<Option<f64>>,
    /// Segments of each flow delivered so far, every 100 ms.
    pub(crate) delivered: Vec<Vec<u64>>,
    /// cwnd of each flow at those times, segments.
    pub(crate) cwnds: Vec<Vec<u32>>,
    /// Queue at those times, wire bytes.
    pub(crate) queue: Vec<u64>,
    pub(crate) drops: u64,
    pub(crate) peak_queue: u64,
    pub(crate) link: LinkRecord,
}

impl RunResult {
    /// Rate of each flow between two times (s), payload bytes/s.
    pub(crate) fn rates(&self, from: f64, until: f64) -> Vec<f64> {
        let (a, b) = ((from * 10.0) as usize, (until * 10.0) as usize);
        self.delivered.iter().map(|d| (d[b] - d[a]) as f64 * f64::from(MSS) / (until - from)).collect()
    }

    /// Jain's fairness index of the rates between two times (s).
    pub(crate) fn jain(&self, from: f64, until: f64) -> f64 {
        let rates = self.rates(from, until);
        rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>())
    }

    /// Payload rate of all flows over the payload rate of a full link of `rate` wire bytes/s.
    pub(crate) fn utilization(&self, from: f64, until: f64, rate: u64) -> f64 {
        self.rates(from, until).iter().sum::<f64>() / (rate as f64 * f64::from(MSS) / PACKET as f64)
    }

    /// Largest queue between two times (s), wire bytes.
    pub(crate) fn queue(&self, from: f64, until: f64) -> u64 {
        *self.queue[(from * 10.0) as usize..(until * 10.0) as usize].iter().max().unwrap()
    }
}

struct BottleneckSimulation<'a> {
    path: &'a BottleneckPath,
    senders: Vec<Sender>,
    events: BinaryHeap<Reverse<(u64, u64, SimEvent)>>,
    serial: u64,
    now: u64,
    busy_until: u64,
    /// Wire bytes that have entered the queue, and those of cross traffic among them.
    entered: u64,
    foreign: u64,
    /// The record of each host.
    links: Vec<LinkRecord>,
    /// Minimum backlog of the last and the current monitor interval, and the start of that.
    min_backlog: [u64; 2],
    interval_start: u64,
    random: Pcg64Mcg,
    result: RunResult,
}

/// Runs the jobs under a controller for `seconds`, or until all have ended.
pub(crate) fn run(controller: Controller, path: &BottleneckPath, jobs: &[FlowData], seconds: f64) -> RunResult {
    let senders = jobs
        .iter()
        .map(|job| Sender {
            job: *job,
            flow: FlowState {
                mss: MSS,
                cwnd: 10,
                ssthresh: control::INFINITE,
                snd_wnd: 65_535,
                weight: job.weight,
                header: 52,
                ..FlowState::default()
            },
            state: None,
            written: 0,
            next: 0,
            una: 0,
            sacked: BTreeSet::new(),
            retransmits: VecDeque::new(),
            outstanding: VecDeque::new(),
            first: 0,
            in_flight: 0,
            in_queue: VecDeque::new(),
            paced_until: 0,
            send_timer: 0,
            recover: None,
            cwnd_limited: false,
            timer: 0,
            end: None,
            cwnds: Vec::new(),
            delivered: 0,
            samples: Vec::new(),
        })
        .collect();
    let mut link = LinkRecord { capacity: path.capacity, overhead: OVERHEAD, local: path.local.into(), ..LinkRecord::default() };
    link.estimate.enabled = path.estimated.into();
    let result = RunResult {
        ends: vec![None; jobs.len()],
        delivered: Vec::new(),
        cwnds: Vec::new(),
        queue: Vec::new(),
        drops: 0,
        peak_queue: 0,
        link,
    };
    let mut simulation = BottleneckSimulation {
        path,
        senders,
        events: BinaryHeap::new(),
        serial: 0,
        now: 0,
        busy_until: 0,
        entered: 0,
        foreign: 0,
        links: vec![link; path.hosts],
        min_backlog: [0; 2],
        interval_start: 0,
        random: Pcg64Mcg::seed_from_u64(path.seed),
        result,
    };
    for (index, job) in jobs.iter().enumerate() {
        // The flow starts after the handshake.
        simulation.schedule(job.start_us + path.rtt_us, SimEvent::Start(index));
    }
    if let Some((from, ..)) = path.cross {
        simulation.schedule(from, SimEvent::Cross);
    }
    simulation.schedule(0, SimEvent::Sample);
    let end = (seconds * 1e6) as u64;
    while let Some(Reverse((time, _, event))) = simulation.events.pop() {
        if time > end || simulation.result.ends.iter().all(Option::is_some) {
            break;
        }
        simulation.now = time;
        simulation.handle(event, controller);
    }
    let BottleneckSimulation { senders, mut result, links, .. } = simulation;
    result.link = links[0];
    for sender in senders {
        result.delivered.push(sender.samples);
        result.cwnds.push(sender.cwnds);
    }
    result
}

impl BottleneckSimulation<'_> {
    fn schedule(&mut self, time: u64, event: SimEvent) {
        self.serial += 1;
        self.events.push(Reverse((time, self.serial, event)));
    }

    fn rate(&self) -> u64 {
        self.path.rate.iter().rev().find(|(from, _)| *from <= self.now).unwrap().1
    }

    fn backlog(&self) -> u64 {
        self.busy_until.saturating_sub(self.now) * self.rate() / SECOND
    }

    /// A packet arrives at the queue. Returns its departure time, or `None` if it is dropped.
    fn enqueue(&mut self) -> Option<u64> {
        let backlog = self.backlog();
        if backlog + PACKET > self.path.buffer {
            self.result.drops += 1;
            return None;
        }
        self.entered += PACKET;
        self.result.peak_queue = self.result.peak_queue.max(backlog + PACKET);
        self.busy_until = self.busy_until.max(self.now) + PACKET * SECOND / self.rate();
        Some(self.busy_until)
    }

    fn handle(&mut self, event: SimEvent, controller: Controller) {
        match event {
            SimEvent::Start(i) => {
                // With an estimated capacity it matters that the handshake meets the queue, too.
                let waited = if self.path.estimated { self.backlog() * SECOND / self.rate() } else { 0 };
                let sender = &mut self.senders[i];
                sender.flow.srtt_us = (self.path.rtt_us + waited) as u32;
                sender.flow.min_rtt_us = sender.flow.srtt_us;
                sender.state = Some(controller.begin(&mut sender.flow, Some(&mut self.links[i % self.path.hosts]), self.now));
                self.handle(SimEvent::Write(i), controller);
            }
            SimEvent::Write(i) => {
                let job = self.senders[i].job;
                let more = job.chunks.map_or(job.segments, |(segments, _)| segments);
                self.senders[i].written = self.senders[i].written.saturating_add(more).min(job.segments);
                if let Some((_, every)) = job.chunks.filter(|_| self.senders[i].written < job.segments) {
                    self.schedule(self.now + every, SimEvent::Write(i));
                }
                self.send(i);
            }
            SimEvent::Send(i) => {
                self.senders[i].send_timer = 0;
                self.send(i);
            }
            SimEvent::Ack(i, packet) => self.ack(i, packet),
            SimEvent::Timer(i, timer) => {
                if self.senders[i].timer == timer && !self.senders[i].outstanding.is_empty() {
                    self.timeout(i);
                }
            }
            SimEvent::Cross => {
                let (_, until, rate) = self.path.cross.unwrap();
                if self.enqueue().is_some() {
                    self.foreign += PACKET;
                }
                if self.now < until {
                    self.schedule(self.now + PACKET * SECOND / rate, SimEvent::Cross);
                }
            }
            SimEvent::Sample => {
                let backlog = self.backlog();
                self.result.queue.push(backlog);
                for sender in &mut self.senders {
                    sender.samples.push(sender.delivered);
                    sender.cwnds.push(sender.flow.cwnd);
                }
                self.schedule(self.now + SECOND / 10, SimEvent::Sample);
            }
        }
    }

    /// The egress monitor: output of this host, and the minimum backlog over the last half to whole
    /// round trip.
    fn measure(&mut self) {
        let backlog = if self.path.local { self.backlog() } else { 0 };
        if self.now - self.interval_start > self.path.rtt_us / 2 {
            self.min_backlog = [self.min_backlog[1], backlog];
            self.interval_start = self.now;
        }
        self.min_backlog[1] = self.min_backlog[1].min(backlog);
        for link in &mut self.links {
            link.queue = self.min_backlog[0].min(self.min_backlog[1]);
            link.backlog = backlog;
            link.egress = self.entered - backlog;
            link.foreign = self.foreign;
            link.measured_us = self.now;
        }
    }

    fn step(&mut self, i: usize, event: Event) {
        self.measure();
        let sender = &mut self.senders[i];
        sender.flow.in_flight = sender.in_flight;
        sender.flow.una = (sender.una * u64::from(MSS)) as u32;
        sender.flow.nxt = (sender.next * u64::from(MSS)) as u32;
        sender.flow.unsent = ((sender.written - sender.next) * u64::from(MSS)).min(1 << 30) as u32;
        let flags = if sender.cwnd_limited { control::CWND_LIMITED } else { 0 };
        let last = if sender.written == sender.job.segments { control::NO_MORE_DATA } else { 0 };
        let event = Event { now_us: self.now, flags: event.flags | flags | last, ..event };
        let link = &mut self.links[i % self.path.hosts];
        sender.state.as_mut().unwrap().step(&mut sender.flow, Some(link), &event);
    }

    fn send(&mut self, i: usize) {
        loop {
            let now = self.now;
            let sender = &mut self.senders[i];
            let has_new = sender.next < sender.written;
            if sender.retransmits.is_empty() && !has_new {
                sender.cwnd_limited = false;
                return;
            }
            let receiver_limited =
                sender.retransmits.is_empty() && (sender.next + 1 - sender.una) * u64::from(MSS) > u64::from(sender.flow.snd_wnd);
            // In slow start half a window in flight suffices, as in Linux.
            let used = if sender.flow.cwnd < sender.flow.ssthresh { 2 * sender.in_flight } else { sender.in_flight };
            sender.cwnd_limited = used >= sender.flow.cwnd;
            if sender.in_flight >= sender.flow.cwnd || receiver_limited {
                return;
            }
            while sender.in_queue.front().is_some_and(|departure| *departure <= now) {
                sender.in_queue.pop_front();
            }
            let tsq_limit =
                if sender.flow.pacing_rate == 0 { usize::MAX } else { (sender.flow.pacing_rate / 1024 / PACKET).max(2) as usize };
            let wait = if self.path.local && sender.in_queue.len() >= tsq_limit { sender.in_queue[0] } else { sender.paced_until };
            if wait > now {
                if sender.send_timer == 0 {
                    let late = if self.path.late_us > 0 { self.random.random_range(0..self.path.late_us) } else { 0 };
                    sender.send_timer = wait + late;
                    self.schedule(wait + late, SimEvent::Send(i));
                }
                return;
            }
            if sender.in_flight == 0 && sender.outstanding.is_empty() {
                self.step(i, Event { kind: EventKind::Restart, ..Event::default() });
            }
            let sender = &mut self.senders[i];
            let segment = sender.retransmits.pop_front().unwrap_or(sender.next);
            sender.next = sender.next.max(segment + 1);
            sender.flow.sent += u64::from(MSS);
            sender.in_flight += 1;
            if let Some(gap) = (u64::from(MSS) * SECOND).checked_div(sender.flow.pacing_rate) {
                // Half of a late timer is made up for, as in Linux.
                sender.paced_until = now + gap - (now - sender.paced_until.min(now)).min(gap / 2);
            }
            let pace = (u64::from(MSS) * SECOND).checked_div(sender.flow.pacing_rate).unwrap_or(0);
            let ack_delay_us = if pace > self.path.ack_delay_us { self.path.ack_delay_us } else { 0 };
            sender.outstanding.push_back(Transmission { segment, sent_us: now, done: false, ack_delayed: ack_delay_us > 0 });
            let packet = sender.first + sender.outstanding.len() as u64 - 1;
            let departure = self.enqueue();
            if let Some(departure) = departure {
                if self.path.local {
                    self.senders[i].in_queue.push_back(departure);
                }
                if !self.random.random_bool(self.path.loss) {
                    self.schedule(departure + self.path.rtt_at(now) + ack_delay_us, SimEvent::Ack(i, packet));
                }
            }
            self.arm_timer(i);
        }
    }

    fn arm_timer(&mut self, i: usize) {
        self.serial += 1;
        self.senders[i].timer = self.serial;
        let timeout = u64::from(self.senders[i].flow.srtt_us) + 200_000;
        self.schedule(self.now + timeout, SimEvent::Timer(i, self.serial));
    }

    fn ack(&mut self, i: usize, packet: u64) {
        let now = self.now;
        let sender = &mut self.senders[i];
        let Some(index) = packet.checked_sub(sender.first) else { return };
        let sent = &mut sender.outstanding[index as usize];
        if sent.done {
            return;
        }
        sent.done = true;
        let (segment, rtt, ack_delayed) = (sent.segment, (now - sent.sent_us) as u32, sent.ack_delayed);
        let return_us = self.path.rtt_at(sent.sent_us).saturating_sub(self.path.rtt_us / 2);
        sender.in_flight -= 1;
        sender.flow.snd_wnd = sender.job.window;
        let is_new = segment >= sender.una && sender.sacked.insert(segment);
        while sender.sacked.remove(&sender.una) {
            sender.una += 1;
        }
        sender.delivered += u64::from(is_new);
        sender.flow.srtt_us = (sender.flow.srtt_us * 7 + rtt) / 8;
        sender.flow.min_rtt_us = sender.flow.min_rtt_us.min(rtt);
        // A packet sent three before one that arrived is lost.
        let mut lost = 0;
        let last = index as usize;
        for gone in sender.outstanding.iter_mut().take(last.saturating_sub(2)) {
            if !gone.done {
                gone.done = true;
                sender.retransmits.push_back(gone.segment);
                lost += 1;
            }
        }
        sender.in_flight -= lost;
        while sender.outstanding.front().is_some_and(|sent| sent.done) {
            sender.outstanding.pop_front();
            sender.first += 1;
        }
        let owns_window = sender.state.as_ref().unwrap().controller().owns_window();
        let delayed = if ack_delayed { control::DELAYED_ACK } else { 0 };
        let timestamp = if i < self.path.timestamped { control::TIMESTAMP } else { 0 };
        let return_ms = (return_us / 1000) as u32;
        let event = Event { acked: u32::from(is_new), rtt_us: rtt, lost, flags: delayed | timestamp, return_ms, ..Event::default() };
        if lost > 0 && sender.recover.is_none() {
            sender.recover = Some(sender.next);
            sender.flow.prior_cwnd = sender.flow.cwnd;
            self.step(i, Event { kind: EventKind::Loss, ..event });
            if !owns_window {
                self.senders[i].flow.cwnd = self.senders[i].flow.ssthresh;
            }
        } else if self.senders[i].recover.is_some_and(|point| self.senders[i].una >= point) {
            self.senders[i].recover = None;
            self.step(i, Event { kind: EventKind::Recovered, ..event });
        }
        if !owns_window {
            self.step(i, Event { kind: EventKind::Sample, ..event });
        }
        if owns_window || self.senders[i].recover.is_none() {
            self.step(i, Event { kind: EventKind::Ack, ..event });
        }
        let sender = &mut self.senders[i];
        if sender.una == sender.job.segments {
            self.result.ends[i] = Some((now - self.path.rtt_us / 2) as f64 / 1e6);
            self.step(i, Event { kind: EventKind::Close, ..Event::default() });
            return;
        }
        self.arm_timer(i);
        self.send(i);
    }

    fn timeout(&mut self, i: usize) {
        let sender = &mut self.senders[i];
        for gone in sender.outstanding.drain(..) {
            if !gone.done {
                sender.retransmits.push_back(gone.segment);
            }
            sender.first += 1;
        }
        sender.in_flight = 0;
        sender.recover = Some(sender.next);
        sender.flow.prior_cwnd = sender.flow.cwnd;
        self.step(i, Event { kind: EventKind::Timeout, ..Event::default() });
        self.senders[i].flow.cwnd = 1;
        self.senders[i].recover = None;
        self.arm_timer(i);
        self.send(i);
    }
}
