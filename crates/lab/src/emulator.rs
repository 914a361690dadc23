//! The link emulator: one thread that moves packets between TUN devices through the stages of the
//! crate `link`.
//!
//! Each link of a scenario is a pair of TUN devices, one in each of its two hosts. The emulator
//! reads a packet from one device, passes it through queue, rate, loss and delay, and writes it to
//! the other device when it is due. The stages compute with exact times, so a late wake-up delays a
//! packet but does not lower the rate. How late packets are written is measured and reported.

use crate::{LabError, capture::Capture, ip_packet, least_sleep::LeastSleep, rate_meter::RateMeter, sys};
use hdrhistogram::Histogram;
use link::{DelayHistogram, DirectionSpec, Ecn, LinkCounts, LinkDirection, LinkPacket, LinkStage, Time, Transmission};
use outcome::EngineError;
use rand::RngExt as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    io::Errno,
};
use scenario::{Link, LinkChanges, Loss, Medium, QueueKind};
use std::{
    collections::HashMap,
    iter::Peekable,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};
use units::{Rate, Span};

/// Size of a packet buffer, bytes: the MTU of the TUN devices, rounded up.
const MAX_PACKET: usize = 1536;
/// Maximum number of packets read from one device before the others are read.
const BATCH: usize = 64;
/// Maximum sleep, since only an awake thread sees the stop flag.
const LONGEST_SLEEP: Span = Span(50_000_000);

/// Checks whether the emulator has all that the link at `path` does.
///
/// # Errors
/// [`EngineError::CannotAnswer`], with the key that it lacks.
pub(crate) fn can_emulate(path: &str, link: &Link) -> Result<(), EngineError> {
    if matches!(link.queue.kind, QueueKind::Xcp | QueueKind::Vcp | QueueKind::Mpcp) {
        let why = "its links have no routers that tell senders what to send; the simulator has them: --on sim";
        return EngineError::cannot("lab", format!("{path}.queue.kind"), why);
    }
    if link.demand.is_some() {
        let why = "the rates of its links follow time alone; the simulator has rates that follow demand: --on sim";
        return EngineError::cannot("lab", format!("{path}.demand"), why);
    }
    Ok(())
}

/// A link to emulate.
#[derive(Debug)]
pub(crate) struct LinkSpec {
    /// In the direction of the data, and in the opposite direction.
    pub(crate) directions: [DirectionSpec; 2],
    /// Changes, in order; their times count from the start of the run.
    pub(crate) changes: LinkChanges,
    /// The TUN devices on the sender's and on the receiver's side.
    pub(crate) ends: [OwnedFd; 2],
    /// The hosts of these devices, by index.
    pub(crate) hosts: [usize; 2],
}

/// Counters of a link that can be read while the emulator runs.
#[derive(Debug, Default)]
pub(crate) struct LinkGauge {
    /// Bytes in the queue in the direction of the data.
    pub(crate) queued: AtomicU64,
    /// IP bytes that have left the queue in the direction of the data.
    pub(crate) left_bytes: AtomicU64,
}

/// Report on a link after a run.
#[derive(Debug, Clone)]
pub(crate) struct LinkReport {
    /// Packet counts in the direction of the data.
    pub(crate) counts: LinkCounts,
    /// From arrival at the queue until the end of the transmission, in the same direction.
    pub(crate) queue_delays: DelayHistogram,
    /// Packet counts in the opposite direction.
    pub(crate) reverse_counts: LinkCounts,
    /// The rate while the link was busy, divided by the configured rate; `None` if it was never
    /// busy for long enough.
    pub(crate) rate_share: Option<f64>,
    /// How late packets were written to their device; `None` without packets.
    pub(crate) late: Option<Lateness>,
    /// Packets that a host's device did not accept, or dropped before the emulator read them.
    pub(crate) refused: u64,
}

/// How much later than due packets were written to their device, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lateness {
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
}

impl Lateness {
    fn of(late: &Histogram<u64>) -> Option<Self> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let quantile = |q| seconds(late.value_at_quantile(q));
        (!late.is_empty()).then(|| Lateness { median: quantile(0.5), p99: quantile(0.99), most: seconds(late.max()) })
    }
}

/// A running emulator. Its thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Emulator {
    gauges: Arc<[LinkGauge]>,
    epoch: Instant,
    control: Arc<EmulatorControl>,
    thread: Option<thread::JoinHandle<Vec<LinkReport>>>,
}

/// What the owner of an emulator tells its thread.
#[derive(Debug)]
struct EmulatorControl {
    /// Start of the run, in nanoseconds since the epoch; `u64::MAX` before.
    began: AtomicU64,
    /// Whether packets cross the links at once, see [`Emulator::bypass_links`].
    bypassed: AtomicBool,
    /// Set when the thread is to end.
    stop: AtomicBool,
}

/// Parameters of an emulator besides its links.
#[derive(Debug)]
pub(crate) struct EmulatorSettings {
    /// Zero of the virtual time of the stages.
    pub(crate) epoch: Instant,
    /// Extra one-way delay on the first link, by the server port of a flow.
    pub(crate) access_delays: HashMap<u16, Span>,
    /// Which packets are delayed so that later ones overtake them, and the generator that draws
    /// them.
    pub(crate) reordering: Option<(Reordering, rand_pcg::Pcg64)>,
    /// Records packets as the hosts see them.
    pub(crate) capture: Option<Capture>,
}

/// Delays randomly chosen packets of a link, in both directions, so that later ones overtake them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reordering {
    /// Index of the link, from 0.
    pub link: usize,
    /// Probability that a packet is delayed.
    pub share: f64,
    /// Extra one-way delay of such a packet.
    pub by: Span,
}

impl Emulator {
    /// Starts the emulator's thread.
    pub(crate) fn start(links: Vec<LinkSpec>, settings: EmulatorSettings) -> Result<Self, LabError> {
        let gauges: Arc<[LinkGauge]> = links.iter().map(|_| LinkGauge::default()).collect();
        let control = EmulatorControl { began: AtomicU64::new(u64::MAX), bypassed: AtomicBool::new(false), stop: AtomicBool::new(false) };
        let (epoch, control) = (settings.epoch, Arc::new(control));
        let (thread_gauges, thread_control) = (gauges.clone(), control.clone());
        let thread = thread::Builder::new()
            .name("emulator".into())
            .spawn(move || EmulatorThread::new(links, settings, thread_gauges, thread_control).run())
            .map_err(|why| LabError::System { what: "start the emulator's thread", why })?;
        Ok(Emulator { gauges, epoch, control, thread: Some(thread) })
    }

    /// Starts the clock of the run: rate changes of links are due relative to this moment. Before,
    /// none is applied.
    pub(crate) fn start_clock(&self) {
        self.control.began.store(self.epoch.elapsed().as_nanos() as u64, Relaxed);
    }

    /// While `bypassed`, packets cross the links at once, without queue, rate, loss and delay. They
    /// are neither counted nor captured, and draw no random numbers.
    pub(crate) fn bypass_links(&self, bypassed: bool) {
        self.control.bypassed.store(bypassed, Relaxed);
    }

    pub(crate) fn gauges(&self) -> &[LinkGauge] {
        &self.gauges
    }

    /// Stops the thread, and returns a report for each link.
    pub(crate) fn finish(mut self) -> Result<Vec<LinkReport>, LabError> {
        self.control.stop.store(true, Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| LabError::Panicked),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.control.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A packet and its buffer.
#[derive(Debug, Clone)]
struct EmulatedPacket {
    bytes: Box<[u8; MAX_PACKET]>,
    length: u32,
    extra: Span,
}

impl LinkPacket for EmulatedPacket {
    fn wire_bytes(&self) -> u32 {
        self.length
    }
    fn extra_delay(&self) -> Span {
        self.extra
    }
    fn ecn(&self) -> Ecn {
        ip_packet::ecn(self.contents())
    }
    fn mark_congestion(&mut self) {
        let length = self.length as usize;
        ip_packet::mark_congestion(&mut self.bytes[..length]);
    }
    fn flow(&self) -> u64 {
        ip_packet::flow(self.contents())
    }
}

impl EmulatedPacket {
    fn contents(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

/// The state of a link.
struct EmulatedLink {
    ends: [OwnedFd; 2],
    hosts: [usize; 2],
    /// In the direction of the data, and in the opposite direction.
    directions: [LinkDirection<EmulatedPacket>; 2],
    /// The configured rate at present; absent with a trace and with a shared medium.
    asked: Option<Rate>,
    /// Whether its clock has started.
    has_begun: bool,
    /// What is to change.
    changes: Peekable<LinkChanges>,
    rate_meter: RateMeter,
    late: Histogram<u64>,
    refused: u64,
}

/// What the emulator's thread works on.
struct EmulatorThread {
    links: Vec<EmulatedLink>,
    control: Arc<EmulatorControl>,
    gauges: Arc<[LinkGauge]>,
    settings: EmulatorSettings,
    /// Unused packet buffers. They are boxed so that a packet moves without being copied.
    #[allow(clippy::vec_box)]
    free_buffers: Vec<Box<[u8; MAX_PACKET]>>,
}

impl EmulatorThread {
    fn new(links: Vec<LinkSpec>, settings: EmulatorSettings, gauges: Arc<[LinkGauge]>, control: Arc<EmulatorControl>) -> Self {
        let link = |spec: LinkSpec| EmulatedLink {
            ends: spec.ends,
            hosts: spec.hosts,
            asked: match (&spec.directions[0].transmission, spec.directions[0].medium) {
                (Transmission::Rate(rate), Medium::FullDuplex) => Some(*rate),
                _ => None,
            },
            directions: LinkDirection::pair(spec.directions, [(), ()]),
            has_begun: false,
            changes: spec.changes.peekable(),
            rate_meter: RateMeter::default(),
            // From a nanosecond to a minute, with three significant digits.
            late: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order"),
            refused: 0,
        };
        EmulatorThread { links: links.into_iter().map(link).collect(), control, gauges, settings, free_buffers: Vec::new() }
    }

    fn now(&self) -> Time {
        Time(self.settings.epoch.elapsed().as_nanos() as u64)
    }

    /// Moves packets until it is told to stop.
    fn run(mut self) -> Vec<LinkReport> {
        sys::request_realtime_scheduling();
        let mut readable = vec![[false; 2]; self.links.len()];
        let mut least_sleep = LeastSleep::new();
        while !self.control.stop.load(Relaxed) {
            let next = self.deliver();
            let wait = next.map_or(LONGEST_SLEEP, |at| at - self.now()).min(LONGEST_SLEEP);
            self.wait(Span(wait.0.saturating_sub(least_sleep.sleep().as_nanos() as u64)), &mut readable);
            self.read_devices(&readable);
        }
        let report = |link: EmulatedLink| LinkReport {
            counts: link.directions[0].counts(),
            queue_delays: link.directions[0].queue_delays().cloned().unwrap_or_default(),
            reverse_counts: link.directions[1].counts(),
            rate_share: link.rate_meter.share(),
            late: Lateness::of(&link.late),
            refused: link.refused,
        };
        self.links.into_iter().map(report).collect()
    }

    /// Writes every packet that is due to its device, and applies rate changes. Returns when it
    /// must be called again.
    fn deliver(&mut self) -> Option<Time> {
        let mut next: Option<Time> = None;
        for index in 0..self.links.len() {
            next = next.into_iter().chain(self.apply_changes(index)).min();
            for direction in 0..2 {
                let mut now = self.now();
                while let Some((due, packet)) = self.links[index].directions[direction].ready(now) {
                    let link = &mut self.links[index];
                    let bytes = packet.contents();
                    // The host's backlog is full: a loss outside of the link, which makes the run
                    // invalid.
                    if rustix::io::write(&link.ends[1 - direction], bytes).is_err() {
                        link.refused += 1;
                    }
                    now = Time(self.settings.epoch.elapsed().as_nanos() as u64);
                    link.late.saturating_record((now - due).0);
                    if let Some(capture) = &self.settings.capture {
                        capture.record(link.hosts[1 - direction], index, now, bytes);
                    }
                    self.free_buffers.push(packet.bytes);
                }
                next = next.into_iter().chain(self.links[index].directions[direction].next_wakeup()).min();
            }
            let now = self.now();
            let link = &mut self.links[index];
            let (queued, left) = (link.directions[0].queued(now).0, link.directions[0].counts().departed_bytes.0);
            if let Some(asked) = link.asked {
                link.rate_meter.sample(now, left, link.directions[0].busy_time(now), asked);
            }
            self.gauges[index].queued.store(queued, Relaxed);
            self.gauges[index].left_bytes.store(left, Relaxed);
        }
        next
    }

    /// Starts the clock of a link with the run, and applies the changes that are due. Returns
    /// when the next one is.
    fn apply_changes(&mut self, index: usize) -> Option<Time> {
        let began = self.control.began.load(Relaxed);
        let now = self.now();
        let link = &mut self.links[index];
        if began <= now.0 && !link.has_begun {
            link.has_begun = true;
            link.directions.iter_mut().for_each(|direction| direction.start(now, Time(began)));
        }
        while let Some(change) = link.changes.peek() {
            let at = Time(began) + change.at;
            if at > now {
                return Some(at);
            }
            if let Some(rate) = change.rate {
                link.directions.iter_mut().for_each(|direction| direction.set_rate(now, rate));
                link.asked = Some(rate);
            }
            if let Some(delay) = change.delay {
                link.directions.iter_mut().for_each(|direction| direction.set_delay(now, delay));
            }
            if let Some(loss) = change.loss {
                link.directions[0].set_loss(now, Some(Loss::PerPacket(loss.0)));
            }
            link.changes.next();
        }
        None
    }

    /// Sleeps until a device is readable or `span` has passed; sets which devices are readable.
    fn wait(&self, span: Span, readable: &mut [[bool; 2]]) {
        let mut fds: Vec<PollFd<'_>> = self.links.iter().flat_map(|link| &link.ends).map(|end| PollFd::new(end, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: span.0 as i64 };
        // An interrupted poll ends the sleep early, which is harmless.
        let _ = poll(&mut fds, Some(&timeout));
        for (flags, pair) in readable.iter_mut().zip(fds.chunks(2)) {
            *flags = [!pair[0].revents().is_empty(), !pair[1].revents().is_empty()];
        }
    }

    /// Reads packets from the devices and enqueues them.
    fn read_devices(&mut self, readable: &[[bool; 2]]) {
        for (index, flags) in readable.iter().enumerate() {
            for (direction, readable) in flags.iter().enumerate() {
                for _ in 0..if *readable { BATCH } else { 0 } {
                    let mut bytes = self.free_buffers.pop().unwrap_or_else(|| Box::new([0; MAX_PACKET]));
                    let length = match rustix::io::read(&self.links[index].ends[direction], &mut bytes[..]) {
                        Ok(length) => length,
                        Err(Errno::INTR) => continue,
                        Err(_) => {
                            self.free_buffers.push(bytes);
                            break;
                        }
                    };
                    let now = self.now();
                    if !ip_packet::is_unicast(&bytes[..length]) {
                        self.free_buffers.push(bytes);
                        continue;
                    }
                    if self.control.bypassed.load(Relaxed) {
                        // A host that does not accept the packet has it retransmitted.
                        let _ = rustix::io::write(&self.links[index].ends[1 - direction], &bytes[..length]);
                        self.free_buffers.push(bytes);
                        continue;
                    }
                    if let Some(capture) = &self.settings.capture {
                        capture.record(self.links[index].hosts[direction], index, now, &bytes[..length]);
                    }
                    let access = if index == 0 { self.access_delay(&bytes[..length]) } else { Span::ZERO };
                    let extra = access + self.reordering_delay(index);
                    let packet = EmulatedPacket { bytes, length: length as u32, extra };
                    if let Err(dropped) = self.links[index].directions[direction].enqueue(now, packet) {
                        self.free_buffers.push(dropped.bytes);
                    }
                }
            }
        }
    }

    /// Extra delay of the next packet of a link because of reordering.
    fn reordering_delay(&mut self, index: usize) -> Span {
        let Some((reordering, rng)) = &mut self.settings.reordering else { return Span::ZERO };
        let takes = reordering.link == index && rng.random::<f64>() < reordering.share;
        if takes { reordering.by } else { Span::ZERO }
    }

    /// Access delay of the flow to which a packet belongs.
    fn access_delay(&self, packet: &[u8]) -> Span {
        if self.settings.access_delays.is_empty() {
            return Span::ZERO;
        }
        let of = |port: u16| self.settings.access_delays.get(&port).copied();
        ip_packet::tcp_ports(packet).and_then(|[source, destination]| of(destination).or_else(|| of(source))).unwrap_or(Span::ZERO)
    }
}
