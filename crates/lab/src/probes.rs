//! Probes of an emulated link: UDP packets between two hosts, with the kernel's receive timestamps.

use crate::{
    Host, LabError, ParallelNetworks, SeriesNetwork,
    emulator::LinkReport,
    sys::{self, TimestampedDatagram},
};
use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// Destination port of probes.
const PORT: u16 = 9;
/// Length of IPv4 and UDP headers, bytes.
const HEADERS: u64 = 28;

/// From the reports of all links: the number of packets that the machine lost outside of the links,
/// and the 99th percentile of the emulator's lateness, in seconds.
pub(crate) fn trouble(reports: &[LinkReport]) -> (u64, f64) {
    let late = reports.iter().filter_map(|report| report.late).map(|late| late.p99).fold(0.0, f64::max);
    (reports.iter().map(|report| report.refused).sum(), late)
}

/// Probes to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbePlan {
    /// IP bytes of each.
    pub(crate) bytes: u64,
    /// Time between two of them.
    pub(crate) gap: Duration,
    pub(crate) count: u64,
    /// Whether they go from the receiver to the sender.
    pub(crate) is_reverse: bool,
    /// Whether some may arrive twice, so that their number does not tell when all have arrived.
    pub(crate) may_arrive_twice: bool,
}

impl ProbePlan {
    pub(crate) fn new(bytes: u64, gap: Duration) -> Self {
        ProbePlan { bytes, gap, count: 0, is_reverse: false, may_arrive_twice: false }
    }

    /// As many as are sent in `span`.
    pub(crate) fn lasting(span: Duration, bytes: u64, gap: Duration) -> Self {
        ProbePlan { count: (span.as_secs_f64() / gap.as_secs_f64()) as u64, ..ProbePlan::new(bytes, gap) }
    }
}

/// A probe that arrived. Times are in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedProbe {
    pub(crate) number: u64,
    pub(crate) sent_ns: u64,
    pub(crate) received_ns: u64,
}

impl ReceivedProbe {
    pub(crate) fn delay_s(&self) -> f64 {
        (self.received_ns as f64 - self.sent_ns as f64) / 1e9
    }
}

/// Probes that were sent, and those that arrived.
#[derive(Debug)]
pub(crate) struct ProbeRun {
    /// Number of probes sent.
    pub(crate) sent: u64,
    /// IP bytes of each.
    bytes: u64,
    /// Sending rate, in IP bits per second.
    pub(crate) offered_bps: f64,
    pub(crate) arrivals: Vec<ReceivedProbe>,
}

impl ProbeRun {
    /// Rate between the first and the last arrival, in IP bits per second.
    pub(crate) fn rate_bps(&self) -> f64 {
        match (self.arrivals.first(), self.arrivals.last()) {
            (Some(first), Some(last)) if last.received_ns > first.received_ns => {
                (self.arrivals.len() - 1) as f64 * self.bytes as f64 * 8e9 / (last.received_ns - first.received_ns) as f64
            }
            _ => f64::NAN,
        }
    }

    /// Numbers of the probes that did not arrive.
    pub(crate) fn lost(&self) -> impl Iterator<Item = u64> {
        let mut arrived = vec![false; self.sent as usize];
        for arrival in &self.arrivals {
            arrived[arrival.number as usize] = true;
        }
        (0..self.sent).filter(move |number| !arrived[*number as usize])
    }
}

/// Two hosts between which probes are sent, each with its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbedHosts<'a> {
    pub(crate) sender: (&'a Host, IpAddr),
    pub(crate) receiver: (&'a Host, IpAddr),
}

impl<'a> ProbedHosts<'a> {
    /// The first host of links in series and the last.
    pub(crate) fn of_series(network: &'a SeriesNetwork) -> Self {
        ProbedHosts {
            sender: (network.sender(), network.sender_addresses()[0]),
            receiver: (network.receiver(), network.receiver_addresses()[0]),
        }
    }

    /// The hosts of networks in parallel, by their addresses in the first network.
    pub(crate) fn of_parallel(networks: &'a ParallelNetworks) -> Self {
        let [sender, receiver] = networks.hosts();
        ProbedHosts { sender: (sender, networks.sender_addresses()[0]), receiver: (receiver, networks.receiver_addresses()[0]) }
    }
}

/// Sends probes from one host to the other, and records which arrive.
pub(crate) fn send_probes(hosts: ProbedHosts<'_>, plan: ProbePlan) -> Result<ProbeRun, LabError> {
    let failed = |what: &'static str| move |why: io::Error| LabError::System { what, why };
    let ((from, _), (receiver, address)) = if plan.is_reverse { (hosts.receiver, hosts.sender) } else { (hosts.sender, hosts.receiver) };
    let to = SocketAddr::new(address, PORT);
    let sink = receiver.enter(|| UdpSocket::bind(to))?.map_err(failed("open a UDP socket"))?;
    intercept::force_receive_buffer(&sink, 256 << 20).map_err(failed("enlarge a receive buffer"))?;
    sys::enable_receive_timestamps(&sink).map_err(failed("enable receive timestamps"))?;
    let source = from.enter(|| UdpSocket::bind("0.0.0.0:0"))?.map_err(failed("open a UDP socket"))?;
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
        if !plan.may_arrive_twice && arrivals.len() as u64 == plan.count {
            break;
        }
    }
    Ok(ProbeRun { sent: plan.count, bytes: plan.bytes, offered_bps, arrivals })
}
