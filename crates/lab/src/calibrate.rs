//! Asked against delivered: measures an emulated link from outside, with UDP packets between two hosts and the kernel's own
//! time stamps, so that the emulator is not its own witness.

use crate::{
    LabError, Network,
    network::Extras,
    sys::{self, Stamped},
};
use scenario::{Loss, ScenarioFile};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};
use units::{PKT, Rate, Span};

const PORT: u16 = 9;
const HEADERS: u64 = 28;

/// What was asked of a link and what it delivered.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Rate asked for.
    pub rate: Rate,
    /// Rate delivered under more traffic than it can carry, in IP bits a second.
    pub delivered_rate_bps: f64,
    /// That traffic: what the sender came to, where the machine let it, 5 % more than asked.
    pub offered_rate_bps: f64,
    /// How late the emulator itself was meanwhile: 99th percentile, in seconds.
    pub late_p99_s: f64,
    /// One-way delay asked for.
    pub delay: Span,
    /// One-way delay of small packets on the idle link less their transmission time: median, in seconds.
    pub delivered_delay_s: f64,
    /// How much later than the median: 99th percentile, in seconds.
    pub jitter_p99_s: f64,
    /// Packets sent and packets lost by the loss process, on a link that is not full.
    pub sent: u64,
    /// See `sent`.
    pub lost: u64,
    /// Times at which lost packets had been sent, in seconds.
    pub lost_at_s: Vec<f64>,
    /// Packets that the machine lost outside of the link; with any the figures don't hold.
    pub refused: u64,
}

/// The longest that rate and delay are measured for; they need no more.
const CLEAN_SPAN: Duration = Duration::from_secs(2);

/// Measures a link of this rate, delay and loss: losses for about `span`, rate and delay for as long but no longer than they need.
pub fn calibrate(rate: Rate, delay: Span, loss: Option<Loss>, seed: u64, span: Duration) -> Result<Calibration, LabError> {
    let clean = build(rate, delay, None, seed)?;
    let clean_span = span.min(CLEAN_SPAN);
    // Idle: small packets, a few hundred a second, too sparse to queue.
    let probe = Plan { bytes: 100, gap: (clean_span / 400).max(Duration::from_micros(500)), count: 400 };
    let idle = exchange(&clean, probe)?;
    let transmission = rate.time_for(units::Bytes(100)).secs();
    let mut delays: Vec<f64> = idle.arrivals.iter().map(|arrival| arrival.delay_s() - transmission).collect();
    delays.sort_unstable_by(f64::total_cmp);
    let median = delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN);
    let p99 = delays.get(delays.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    // Full: a little more than it can carry.
    let gap = rate.time_for(PKT).duration().mul_f64(0.95);
    let full = exchange(&clean, Plan { bytes: PKT.0, gap, count: (clean_span.as_secs_f64() / gap.as_secs_f64()).max(100.0) as u64 })?;
    let (mut refused, late_p99_s) = end(clean)?;
    let (mut sent, mut lost_at_s) = (0, Vec::new());
    if loss.is_some() {
        let lossy = build(rate, delay, loss, seed)?;
        let gap = rate.time_for(PKT).duration().mul_f64(1.5).max(Duration::from_micros(50));
        let crossing = exchange(&lossy, Plan { bytes: PKT.0, gap, count: (span.as_secs_f64() / gap.as_secs_f64()) as u64 })?;
        sent = crossing.sent;
        refused += end(lossy)?.0;
        lost_at_s = crossing.lost().map(|number| number as f64 * gap.as_secs_f64()).collect();
    }
    Ok(Calibration {
        rate,
        delivered_rate_bps: full.rate_bps(),
        offered_rate_bps: full.offered_bps,
        late_p99_s,
        delay,
        delivered_delay_s: median,
        jitter_p99_s: p99 - median,
        sent,
        lost: lost_at_s.len() as u64,
        lost_at_s,
        refused,
    })
}

/// Ends a network; returns how many packets the machine lost outside of its links, and how late the emulator was.
fn end(network: Network) -> Result<(u64, f64), LabError> {
    let reports = network.finish()?;
    let late = reports.iter().filter_map(|report| report.late).map(|late| late.p99).fold(0.0, f64::max);
    Ok((reports.iter().map(|report| report.refused).sum(), late))
}

/// A single link. Where losses are counted, none may come from the queue, however long the sender sleeps and then catches up.
fn build(rate: Rate, delay: Span, loss: Option<Loss>, seed: u64) -> Result<Network, LabError> {
    let queue = if loss.is_some() { "100000pkt" } else { "100pkt" };
    let text = format!(
        "name = \"calibration\"\n[[link]]\nrate = \"{rate}\"\ndelay = \"{delay}\"\nqueue = \"{queue}\"\n[[flow]]\nbytes = \"1B\"\n"
    );
    let file = ScenarioFile::parse(&text, "calibration")
        .and_then(|file| file.variants(&[]))
        .map_err(|why| LabError::System { what: "describe the link to calibrate", why: io::Error::other(why) })?;
    let mut scenario = file[0].scenario.clone();
    scenario.links[0].loss = loss;
    Network::build(&scenario, seed, &Extras::default(), |_, _| {})
}

/// Packets to send: their IP size, the time between them, how many.
#[derive(Debug, Clone, Copy)]
struct Plan {
    bytes: u64,
    gap: Duration,
    count: u64,
}

/// A packet that arrived.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    number: u64,
    sent_ns: u64,
    received_ns: u64,
}

impl Arrival {
    fn delay_s(&self) -> f64 {
        (self.received_ns as f64 - self.sent_ns as f64) / 1e9
    }
}

#[derive(Debug)]
struct Crossing {
    sent: u64,
    bytes: u64,
    /// IP bits a second between the first and the last that was sent.
    offered_bps: f64,
    arrivals: Vec<Arrival>,
}

impl Crossing {
    /// IP bits a second between the first and the last arrival.
    fn rate_bps(&self) -> f64 {
        match (self.arrivals.first(), self.arrivals.last()) {
            (Some(first), Some(last)) if last.received_ns > first.received_ns => {
                (self.arrivals.len() - 1) as f64 * self.bytes as f64 * 8e9 / (last.received_ns - first.received_ns) as f64
            }
            _ => f64::NAN,
        }
    }

    fn lost(&self) -> impl Iterator<Item = u64> {
        let mut arrived = vec![false; self.sent as usize];
        for arrival in &self.arrivals {
            arrived[arrival.number as usize] = true;
        }
        (0..self.sent).filter(move |number| !arrived[*number as usize])
    }
}

/// Sends packets from the first host to the second and notes what arrives.
fn exchange(network: &Network, plan: Plan) -> Result<Crossing, LabError> {
    let failed = |what: &'static str| move |why: io::Error| LabError::System { what, why };
    let to = SocketAddr::new(network.receiver_addresses()[0], PORT);
    let sink = network.receiver().enter(|| UdpSocket::bind(to))?.map_err(failed("open a UDP socket"))?;
    intercept::force_receive_buffer(&sink, 256 << 20).map_err(failed("enlarge a receive buffer"))?;
    sys::stamp_arrivals(&sink).map_err(failed("ask for time stamps"))?;
    let source = network.sender().enter(|| UdpSocket::bind("0.0.0.0:0"))?.map_err(failed("open a UDP socket"))?;
    source.connect(to).map_err(failed("address a UDP socket"))?;
    let mut bytes = vec![0; (plan.bytes - HEADERS) as usize];
    let begun = Instant::now();
    for number in 0..plan.count {
        let due = plan.gap.mul_f64(number as f64);
        while let Some(left) = due.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            // A sleep is never exact: the last stretch is waited out.
            if left > Duration::from_micros(200) { thread::sleep(left - Duration::from_micros(100)) } else { std::hint::spin_loop() }
        }
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..16].copy_from_slice(&sys::now_realtime_ns().to_be_bytes());
        source.send(&bytes).map_err(failed("send a UDP packet"))?;
    }
    let offered_bps = (plan.count - 1) as f64 * plan.bytes as f64 * 8.0 / begun.elapsed().as_secs_f64();
    // The last packets are on their way for a delay and a full queue; then silence.
    sink.set_read_timeout(Some(Duration::from_millis(1500))).map_err(failed("set a time-out"))?;
    let mut arrivals = Vec::new();
    while let Ok(Stamped { bytes, at_ns }) = sys::receive_stamped(&sink) {
        let field = |at: usize| bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map(u64::from_be_bytes);
        if let (Some(number), Some(sent_ns)) = (field(0), field(8)) {
            arrivals.push(Arrival { number, sent_ns, received_ns: at_ns });
        }
        if arrivals.len() as u64 == plan.count {
            break;
        }
    }
    Ok(Crossing { sent: plan.count, bytes: plan.bytes, offered_bps, arrivals })
}
