//! The link emulator: one thread that carries packets between TUN devices through the stages of `link`.
//!
//! Each scenario link is a pair of TUN devices, one in each host beside it. A packet is read from one, goes through queue,
//! rate, loss and delay in the virtual time of the stages, and is written to the other when it is due. Since stages work
//! with exact times, a late wake-up delays a packet but costs no rate; how late packets are is measured and reported.

use crate::{LabError, capture::Capture, sys};
use hdrhistogram::Histogram;
use link::{LinkCounts, LinkDirection, LinkPacket, LinkStage, Time};
use rand::RngExt as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    io::Errno,
};
use scenario::{Loss, RateChange};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};
use units::{PKT, QueueSize, Rate, Span};

/// Room for a packet: the TUN devices' MTU, rounded up.
const FRAME: usize = 1536;
/// Packets read from one device before the others get their turn.
const BATCH: usize = 64;
/// For how long a queue must stand before the rate behind it is a measurement, and how many packets must leave it: which of them has just left, and which
/// is about to, must not matter.
const RATE_WINDOW: Span = Span(100_000_000);
const RATE_PACKETS: u64 = 200;
/// The longest sleep: somebody may want the thread to end.
const LONGEST_SLEEP: Span = Span(50_000_000);

/// A link to emulate.
#[derive(Debug)]
pub(crate) struct LinkSpec {
    pub(crate) rate: Rate,
    /// Other rates, and from when on, counted from the run's beginning.
    pub(crate) changes: Vec<RateChange>,
    pub(crate) delay: Span,
    pub(crate) limit: QueueSize,
    pub(crate) loss: Option<Loss>,
    pub(crate) loss_rng: rand_pcg::Pcg64,
    /// The TUN devices on the sender's and on the receiver's side, and the numbers of the hosts that they are on.
    pub(crate) ends: [OwnedFd; 2],
    pub(crate) hosts: [usize; 2],
}

/// What the emulator shows while it runs.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    /// Bytes in the queue in the direction of the data.
    pub(crate) queued: AtomicU64,
    /// IP bytes that left the line in the direction of the data.
    pub(crate) left_bytes: AtomicU64,
}

/// What became of a link.
#[derive(Debug, Clone)]
pub(crate) struct LinkReport {
    /// In the direction of the data.
    pub(crate) counts: LinkCounts,
    /// The rate while there was a queue, as a share of what was asked for; none when there was no queue for long enough.
    pub(crate) rate_share: Option<f64>,
    /// How late packets were handed over; none when there were none.
    pub(crate) late: Option<Late>,
    /// Packets that a host could not be given.
    pub(crate) refused: u64,
}

/// How late packets were handed over, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Late {
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
}

impl Late {
    fn of(late: &Histogram<u64>) -> Option<Self> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let quantile = |q| seconds(late.value_at_quantile(q));
        (!late.is_empty()).then(|| Late { median: quantile(0.5), p99: quantile(0.99), most: seconds(late.max()) })
    }
}

/// A running emulator.
#[derive(Debug)]
pub(crate) struct Emulator {
    gauges: Arc<[Gauge]>,
    stop: Arc<AtomicBool>,
    epoch: Instant,
    began: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<Vec<LinkReport>>>,
}

/// What the emulator needs besides links.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The beginning of time.
    pub(crate) epoch: Instant,
    /// Extra one-way delay on the first link, by the server port of a flow.
    pub(crate) access_delays: HashMap<u16, Span>,
    /// Packets that others overtake, and what decides which they are.
    pub(crate) reordering: Option<(Reordering, rand_pcg::Pcg64)>,
    /// Where packets are noted as the hosts see them.
    pub(crate) capture: Option<Capture>,
}

/// Some packets of a link take longer than the others, both ways, and are overtaken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reordering {
    /// Which link, from 0.
    pub link: usize,
    /// The share of packets that do.
    pub share: f64,
    /// How much longer they take.
    pub by: Span,
}

impl Emulator {
    pub(crate) fn start(links: Vec<LinkSpec>, setting: Setting) -> Result<Self, LabError> {
        let gauges: Arc<[Gauge]> = links.iter().map(|_| Gauge::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (shown, stopped) = (gauges.clone(), stop.clone());
        let (epoch, began) = (setting.epoch, Arc::new(AtomicU64::new(u64::MAX)));
        let begins = began.clone();
        let thread = thread::Builder::new()
            .name("emulator".into())
            .spawn(move || Carrier::new(links, setting, shown, begins).run(&stopped))
            .map_err(|why| LabError::System { what: "start the emulator's thread", why })?;
        Ok(Emulator { gauges, stop, epoch, began, thread: Some(thread) })
    }

    /// The run begins now: changes of links are counted from here.
    pub(crate) fn begin(&self) {
        self.began.store(self.epoch.elapsed().as_nanos() as u64, Relaxed);
    }

    pub(crate) fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }

    /// Ends it, and returns what became of each link.
    pub(crate) fn finish(mut self) -> Result<Vec<LinkReport>, LabError> {
        self.stop.store(true, Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| LabError::Panicked),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A packet with its bytes.
struct Frame {
    bytes: Box<[u8; FRAME]>,
    length: u32,
    extra: Span,
}

impl LinkPacket for Frame {
    fn wire_bytes(&self) -> u32 {
        self.length
    }
    fn extra_delay(&self) -> Span {
        self.extra
    }
}

/// A link at work.
struct Line {
    ends: [OwnedFd; 2],
    hosts: [usize; 2],
    /// In the direction of the data, and against it.
    ways: [LinkDirection<Frame>; 2],
    /// What is asked for now, and what will be.
    asked: Rate,
    changes: VecDeque<RateChange>,
    rate: RateMeter,
    late: Histogram<u64>,
    refused: u64,
}

struct Carrier {
    lines: Vec<Line>,
    /// When the run began; far away until it has.
    began: Arc<AtomicU64>,
    gauges: Arc<[Gauge]>,
    setting: Setting,
    /// Rooms without a packet. They change hands without being copied, hence the boxes.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<[u8; FRAME]>>,
}

impl Carrier {
    fn new(links: Vec<LinkSpec>, setting: Setting, gauges: Arc<[Gauge]>, began: Arc<AtomicU64>) -> Self {
        let line = |spec: LinkSpec| Line {
            ends: spec.ends,
            hosts: spec.hosts,
            ways: [
                LinkDirection::new(spec.rate, spec.limit, spec.delay, spec.loss, spec.loss_rng.clone()),
                LinkDirection::new(spec.rate, spec.limit, spec.delay, None, spec.loss_rng),
            ],
            asked: spec.rate,
            changes: spec.changes.into(),
            rate: RateMeter::default(),
            // To a minute, in three digits: more than a clock read gives.
            late: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order"),
            refused: 0,
        };
        Carrier { lines: links.into_iter().map(line).collect(), began, gauges, setting, spare: Vec::new() }
    }

    fn now(&self) -> Time {
        Time(self.setting.epoch.elapsed().as_nanos() as u64)
    }

    fn run(mut self, stop: &AtomicBool) -> Vec<LinkReport> {
        sys::be_punctual();
        let mut readable = vec![[false; 2]; self.lines.len()];
        while !stop.load(Relaxed) {
            let next = self.deliver();
            let wait = next.map_or(LONGEST_SLEEP, |at| at - self.now()).min(LONGEST_SLEEP);
            self.wait(wait, &mut readable);
            self.collect(&readable);
        }
        let report = |line: Line| LinkReport {
            counts: line.ways[0].counts(),
            rate_share: line.rate.share(),
            late: Late::of(&line.late),
            refused: line.refused,
        };
        self.lines.into_iter().map(report).collect()
    }

    /// Hands over every packet that is due; returns when the next one is.
    fn deliver(&mut self) -> Option<Time> {
        let mut next: Option<Time> = None;
        for index in 0..self.lines.len() {
            next = next.into_iter().chain(self.change(index)).min();
            for way in 0..2 {
                let mut now = self.now();
                while let Some((due, frame)) = self.lines[index].ways[way].ready(now) {
                    let line = &mut self.lines[index];
                    let bytes = &frame.bytes[..frame.length as usize];
                    // A full backlog is the host's own loss, and makes the run invalid.
                    if rustix::io::write(&line.ends[1 - way], bytes).is_err() {
                        line.refused += 1;
                    }
                    now = Time(self.setting.epoch.elapsed().as_nanos() as u64);
                    line.late.saturating_record((now - due).0);
                    if let Some(capture) = &self.setting.capture {
                        capture.note(line.hosts[1 - way], index, now, bytes);
                    }
                    self.spare.push(frame.bytes);
                }
                next = next.into_iter().chain(self.lines[index].ways[way].next_wakeup()).min();
            }
            let now = self.now();
            let line = &mut self.lines[index];
            let (queued, left) = (line.ways[0].queued(now).0, line.ways[0].counts().departed_bytes.0);
            line.rate.look(now, left, queued > 0, line.asked);
            self.gauges[index].queued.store(queued, Relaxed);
            self.gauges[index].left_bytes.store(left, Relaxed);
        }
        next
    }

    /// Gives a link the rate that it is to have by now; returns when it next changes.
    fn change(&mut self, index: usize) -> Option<Time> {
        let began = self.began.load(Relaxed);
        let now = self.now();
        let line = &mut self.lines[index];
        while let Some(change) = line.changes.front() {
            let at = Time(began) + change.at;
            if at > now {
                return Some(at);
            }
            for way in &mut line.ways {
                way.set_rate(now, change.rate);
            }
            line.asked = change.rate;
            line.changes.pop_front();
        }
        None
    }

    /// Sleeps until a packet comes or `span` has passed.
    fn wait(&self, span: Span, readable: &mut [[bool; 2]]) {
        let mut fds: Vec<PollFd<'_>> = self.lines.iter().flat_map(|line| &line.ends).map(|end| PollFd::new(end, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: span.0 as i64 };
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&timeout));
        for (flags, pair) in readable.iter_mut().zip(fds.chunks(2)) {
            *flags = [!pair[0].revents().is_empty(), !pair[1].revents().is_empty()];
        }
    }

    /// Takes in what the hosts have sent.
    fn collect(&mut self, readable: &[[bool; 2]]) {
        for (index, flags) in readable.iter().enumerate() {
            for (way, readable) in flags.iter().enumerate() {
                for _ in 0..if *readable { BATCH } else { 0 } {
                    let mut bytes = self.spare.pop().unwrap_or_else(|| Box::new([0; FRAME]));
                    let length = match rustix::io::read(&self.lines[index].ends[way], &mut bytes[..]) {
                        Ok(length) => length,
                        Err(Errno::INTR) => continue,
                        Err(_) => {
                            self.spare.push(bytes);
                            break;
                        }
                    };
                    let now = self.now();
                    if !is_unicast(&bytes[..length]) {
                        self.spare.push(bytes);
                        continue;
                    }
                    if let Some(capture) = &self.setting.capture {
                        capture.note(self.lines[index].hosts[way], index, now, &bytes[..length]);
                    }
                    let access = if index == 0 { self.access_delay(&bytes[..length]) } else { Span::ZERO };
                    let extra = access + self.detour(index);
                    let frame = Frame { bytes, length: length as u32, extra };
                    if let Err(dropped) = self.lines[index].ways[way].enqueue(now, frame) {
                        self.spare.push(dropped.bytes);
                    }
                }
            }
        }
    }

    /// How much longer than others the next packet of a link takes.
    fn detour(&mut self, index: usize) -> Span {
        let Some((reordering, rng)) = &mut self.setting.reordering else { return Span::ZERO };
        let takes = reordering.link == index && rng.random::<f64>() < reordering.share;
        if takes { reordering.by } else { Span::ZERO }
    }

    /// The extra delay of the flow a packet belongs to.
    fn access_delay(&self, packet: &[u8]) -> Span {
        if self.setting.access_delays.is_empty() {
            return Span::ZERO;
        }
        let of = |port: u16| self.setting.access_delays.get(&port).copied();
        tcp_ports(packet).and_then(|[source, destination]| of(destination).or_else(|| of(source))).unwrap_or(Span::ZERO)
    }
}

/// Neighbour and group chatter of the kernel is no traffic of a scenario: it would shift every later draw of a loss process.
fn is_unicast(packet: &[u8]) -> bool {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => packet.get(16).is_some_and(|byte| *byte < 224),
        Some(6) => packet.get(24).is_some_and(|byte| *byte != 0xff),
        _ => false,
    }
}

/// Source and destination port of a TCP packet.
fn tcp_ports(packet: &[u8]) -> Option<[u16; 2]> {
    const TCP: u8 = 6;
    let start = match packet.first()? >> 4 {
        4 if packet.get(9)? == &TCP => usize::from(packet[0] & 0xf) * 4,
        6 if packet.get(6)? == &TCP => 40,
        _ => return None,
    };
    let ports = packet.get(start..start + 4)?;
    Some([u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])])
}

/// Measures the rate at which a line empties a queue that stands.
#[derive(Debug, Default)]
struct RateMeter {
    since: Option<(Time, u64, Rate)>,
    bytes: u64,
    asked: u64,
}

impl RateMeter {
    fn look(&mut self, now: Time, left_bytes: u64, queue_stands: bool, asked: Rate) {
        match self.since {
            _ if !queue_stands => self.since = None,
            Some((begun, bytes, rate)) if rate == asked && now - begun >= RATE_WINDOW.max(asked.time_for(PKT * RATE_PACKETS)) => {
                self.bytes += left_bytes - bytes;
                self.asked += asked.bytes_in(now - begun).0;
                self.since = Some((now, left_bytes, asked));
            }
            Some((.., rate)) if rate == asked => {}
            _ => self.since = Some((now, left_bytes, asked)),
        }
    }

    fn share(&self) -> Option<f64> {
        (self.asked > 0).then(|| self.bytes as f64 / self.asked as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_in_both_families() {
        let mut v4 = vec![0x46; 28];
        v4[9] = 6;
        v4[24..28].copy_from_slice(&[0x30, 0x39, 0, 80]);
        assert_eq!(tcp_ports(&v4), Some([12345, 80]));
        let mut v6 = vec![0x60; 44];
        v6[6] = 6;
        v6[40..44].copy_from_slice(&[0, 80, 0x30, 0x39]);
        assert_eq!(tcp_ports(&v6), Some([80, 12345]));
        assert_eq!(tcp_ports(&v6[..42]), None, "cut short");
        v6[6] = 17;
        assert_eq!(tcp_ports(&v6), None, "not TCP");
    }

    #[test]
    fn a_rate_is_measured_only_while_a_queue_stands() {
        let mut meter = RateMeter::default();
        let (asked, halved) = (Rate(100_000_000), Rate(50_000_000));
        meter.look(Time(0), 0, false, asked);
        meter.look(Time(200_000_000), 1000, false, asked);
        assert_eq!(meter.share(), None);
        meter.look(Time(300_000_000), 1000, true, asked);
        meter.look(Time(350_000_000), 2000, true, asked);
        meter.look(Time(400_000_000), 1_251_000, true, asked);
        assert_eq!(meter.share(), Some(1.0));
        // A window in which the rate changes is none.
        meter.look(Time(450_000_000), 1_282_000, true, halved);
        meter.look(Time(550_000_000), 1_907_000, true, halved);
        assert_eq!(meter.share(), Some((1_250_000.0 + 625_000.0) / (1_250_000.0 + 625_000.0)));
    }
}
