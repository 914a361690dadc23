//! Measures what an emulated link delivers, independently of the emulator: with UDP packets between
//! two hosts and the kernel's receive timestamps.

use crate::{
    LabError, SeriesNetwork,
    network::NetworkOptions,
    sys::{self, TimestampedDatagram},
};
use scenario::{Loss, ScenarioFile};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};
use units::{PKT, Rate, Span};

/// Destination port of probes.
const PORT: u16 = 9;
/// Length of IPv4 and UDP headers, bytes.
const HEADERS: u64 = 28;

/// Configured and measured properties of an emulated link.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Configured rate.
    pub rate: Rate,
    /// Rate delivered under overload, in IP bits per second.
    pub delivered_rate_bps: f64,
    /// Rate sent during that measurement, in IP bits per second: 5 % above the configured rate,
    /// unless the machine is too slow.
    pub offered_rate_bps: f64,
    /// Lateness that the emulator reports for that time: 99th percentile, in seconds.
    pub late_p99_s: f64,
    /// Configured one-way delay.
    pub delay: Span,
    /// One-way delay of small packets on the idle link, minus their transmission time: median, in
    /// seconds.
    pub delivered_delay_s: f64,
    /// 99th percentile of that delay minus its median, in seconds.
    pub jitter_p99_s: f64,
    /// Packets sent to measure losses, below the link's rate.
    pub sent: u64,
    /// Packets of these that were lost.
    pub lost: u64,
    /// When lost packets were sent, in seconds.
    pub lost_at_s: Vec<f64>,
    /// Packets that the machine lost outside of the link. If there are any, the measurement is
    /// invalid.
    pub refused: u64,
}

/// Maximum duration of the measurements of rate and delay; longer ones are not more accurate.
const MAX_CLEAN_SPAN: Duration = Duration::from_secs(2);

/// Measures a link with this rate, one-way delay and loss process. Losses are measured for about
/// `span`; rate and delay for at most two seconds each.
///
/// # Errors
/// If hosts, devices or sockets cannot be made, or a packet cannot be sent.
pub fn calibrate(rate: Rate, delay: Span, loss: Option<Loss>, seed: u64, span: Duration) -> Result<Calibration, LabError> {
    let clean = build_link(rate, delay, None, seed)?;
    let clean_span = span.min(MAX_CLEAN_SPAN);
    // Idle link: 400 small packets, spaced so that they do not queue.
    let probe = ProbePlan { bytes: 100, gap: (clean_span / 400).max(Duration::from_micros(500)), count: 400 };
    let idle = send_probes(&clean, probe)?;
    let transmission = rate.time_for(units::Bytes(100)).secs();
    let mut delays: Vec<f64> = idle.arrivals.iter().map(|arrival| arrival.delay_s() - transmission).collect();
    delays.sort_unstable_by(f64::total_cmp);
    let median = delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN);
    let p99 = delays.get(delays.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    // Overload: slightly more than the link can carry.
    let gap = rate.time_for(PKT).duration().mul_f64(0.95);
    let full =
        send_probes(&clean, ProbePlan { bytes: PKT.0, gap, count: (clean_span.as_secs_f64() / gap.as_secs_f64()).max(100.0) as u64 })?;
    let (mut refused, late_p99_s) = finish(clean)?;
    let (mut sent, mut lost_at_s) = (0, Vec::new());
    if loss.is_some() {
        let lossy = build_link(rate, delay, loss, seed)?;
        let gap = rate.time_for(PKT).duration().mul_f64(1.5).max(Duration::from_micros(50));
        let lossy_run = send_probes(&lossy, ProbePlan { bytes: PKT.0, gap, count: (span.as_secs_f64() / gap.as_secs_f64()) as u64 })?;
        sent = lossy_run.sent;
        refused += finish(lossy)?.0;
        lost_at_s = lossy_run.lost().map(|number| number as f64 * gap.as_secs_f64()).collect();
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

/// Stops a network. Returns the number of packets that the machine lost outside of its links, and
/// the 99th percentile of the emulator's lateness, in seconds.
fn finish(network: SeriesNetwork) -> Result<(u64, f64), LabError> {
    let reports = network.finish()?;
    let late = reports.iter().filter_map(|report| report.late).map(|late| late.p99).fold(0.0, f64::max);
    Ok((reports.iter().map(|report| report.refused).sum(), late))
}

/// Builds a single link. For a loss process its queue is large enough never to drop a packet, even
/// if the sender sleeps too long and then sends a burst.
fn build_link(rate: Rate, delay: Span, loss: Option<Loss>, seed: u64) -> Result<SeriesNetwork, LabError> {
    let queue = if loss.is_some() { "100000pkt" } else { "100pkt" };
    let text = format!(
        "name = \"calibration\"\n[[link]]\nrate = \"{rate}\"\ndelay = \"{delay}\"\nqueue = \"{queue}\"\n[[flow]]\nbytes = \"1B\"\n"
    );
    let file = ScenarioFile::parse(&text, "calibration")
        .and_then(|file| file.variants(&[]))
        .map_err(|why| LabError::System { what: "describe the link to calibrate", why: io::Error::other(why) })?;
    let mut scenario = file[0].scenario.clone();
    scenario.links[0].loss.forward = loss;
    SeriesNetwork::build(&scenario, seed, &NetworkOptions::default(), |_, _| {})
}

/// Probes to send.
#[derive(Debug, Clone, Copy)]
struct ProbePlan {
    /// IP bytes of each.
    bytes: u64,
    /// Time between two of them.
    gap: Duration,
    count: u64,
}

/// A probe that arrived. Times are in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct ReceivedProbe {
    number: u64,
    sent_ns: u64,
    received_ns: u64,
}

impl ReceivedProbe {
    fn delay_s(&self) -> f64 {
        (self.received_ns as f64 - self.sent_ns as f64) / 1e9
    }
}

/// Probes that were sent, and those that arrived.
#[derive(Debug)]
struct ProbeRun {
    /// Number of probes sent.
    sent: u64,
    /// IP bytes of each.
    bytes: u64,
    /// Sending rate, in IP bits per second.
    offered_bps: f64,
    arrivals: Vec<ReceivedProbe>,
}

impl ProbeRun {
    /// Rate between the first and the last arrival, in IP bits per second.
    fn rate_bps(&self) -> f64 {
        match (self.arrivals.first(), self.arrivals.last()) {
            (Some(first), Some(last)) if last.received_ns > first.received_ns => {
                (self.arrivals.len() - 1) as f64 * self.bytes as f64 * 8e9 / (last.received_ns - first.received_ns) as f64
            }
            _ => f64::NAN,
        }
    }

    /// Numbers of the probes that did not arrive.
    fn lost(&self) -> impl Iterator<Item = u64> {
        let mut arrived = vec![false; self.sent as usize];
        for arrival in &self.arrivals {
            arrived[arrival.number as usize] = true;
        }
        (0..self.sent).filter(move |number| !arrived[*number as usize])
    }
}

/// Sends probes from the first host to the second and records which arrive.
fn send_probes(network: &SeriesNetwork, plan: ProbePlan) -> Result<ProbeRun, LabError> {
    let failed = |what: &'static str| move |why: io::Error| LabError::System { what, why };
    let to = SocketAddr::new(network.receiver_addresses()[0], PORT);
    let sink = network.receiver().enter(|| UdpSocket::bind(to))?.map_err(failed("open a UDP socket"))?;
    intercept::force_receive_buffer(&sink, 256 << 20).map_err(failed("enlarge a receive buffer"))?;
    sys::enable_receive_timestamps(&sink).map_err(failed("enable receive timestamps"))?;
    let source = network.sender().enter(|| UdpSocket::bind("0.0.0.0:0"))?.map_err(failed("open a UDP socket"))?;
    source.connect(to).map_err(failed("address a UDP socket"))?;
    let mut bytes = vec![0; (plan.bytes - HEADERS) as usize];
    let begun = Instant::now();
    for number in 0..plan.count {
        let due = plan.gap.mul_f64(number as f64);
        while let Some(left) = due.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            // Sleeps are inexact: the thread spins during the last 100 to 200 µs.
            if left > Duration::from_micros(200) { thread::sleep(left - Duration::from_micros(100)) } else { std::hint::spin_loop() }
        }
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..16].copy_from_slice(&sys::now_realtime_ns().to_be_bytes());
        source.send(&bytes).map_err(failed("send a UDP packet"))?;
    }
    let offered_bps = (plan.count - 1) as f64 * plan.bytes as f64 * 8.0 / begun.elapsed().as_secs_f64();
    // The last packets take at most the delay and the time to drain a full queue.
    sink.set_read_timeout(Some(Duration::from_millis(1500))).map_err(failed("set a time-out"))?;
    let mut arrivals = Vec::new();
    while let Ok(TimestampedDatagram { bytes, at_ns }) = sys::receive_timestamped(&sink) {
        let field = |at: usize| bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map(u64::from_be_bytes);
        if let (Some(number), Some(sent_ns)) = (field(0), field(8)) {
            arrivals.push(ReceivedProbe { number, sent_ns, received_ns: at_ns });
        }
        if arrivals.len() as u64 == plan.count {
            break;
        }
    }
    Ok(ProbeRun { sent: plan.count, bytes: plan.bytes, offered_bps, arrivals })
}
