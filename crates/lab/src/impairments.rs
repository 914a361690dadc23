//! What an emulated link does to packets besides its rate and delay, as it was asked and as it was
//! delivered: measured from outside, by probes.

use crate::{
    LabError, ParallelNetworks, SeriesNetwork,
    network::NetworkOptions,
    probes::{ProbePlan, ProbeRun, ProbedHosts, send_probes, trouble},
};
use scenario::{Scenario, ScenarioFile};
use std::{
    collections::BTreeSet,
    io::{self, BufRead},
    sync::Arc,
    time::Duration,
};
use units::PKT;

/// An impairment of a link, as it was asked and as it was delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct ImpairmentMeasurement {
    /// What was measured, with its unit: "jitter, mean, ms".
    pub what: &'static str,
    /// The keys of the link.
    pub link: &'static str,
    /// What was asked.
    pub asked: f64,
    /// What was delivered.
    pub delivered: f64,
    /// How far the two may be apart: four standard deviations of what is random, and what the
    /// measurement cannot resolve.
    pub tolerance: f64,
    /// Packets that were sent.
    pub packets: u64,
    /// Packets that the machine lost outside of the link. If there are any, the measurement is
    /// invalid.
    pub refused: u64,
}

impl ImpairmentMeasurement {
    /// Whether what was delivered is what was asked.
    pub fn holds(&self) -> bool {
        self.refused == 0 && (self.delivered - self.asked).abs() <= self.tolerance
    }
}

/// Time between two probes, which take 0.6 ms on the link.
const GAP: Duration = Duration::from_millis(1);
/// Delay of a probe without impairments: propagation and transmission, ms.
const PLAIN_MS: f64 = 20.6;
/// How far a mean of delays on an idle machine may be off, ms.
const LATENESS_MS: f64 = 0.3;

/// A trace of 200 ms: a burst, a gap, a packet each 2 ms. 5.1 Mbit/s.
fn trace() -> String {
    let burst = std::iter::repeat_n(10u32, 20);
    burst.chain((72..=200).step_by(2)).map(|at| format!("{at}\n")).collect()
}
/// Opportunities of that trace, and its period, ms.
const TRACE: (f64, f64) = (85.0, 200.0);

/// An impairment to measure.
struct Check {
    what: &'static str,
    link: &'static str,
    asked: f64,
    /// The standard deviation of the measurement with one packet.
    deviation: f64,
    resolution: f64,
    plan: fn(ProbePlan) -> ProbePlan,
    measure: fn(&ProbeRun) -> f64,
}

const CHECKS: [Check; 8] = [
    Check {
        what: "jitter, mean, ms",
        link: "jitter = { delay = { law = \"exponential\", mean = \"3ms\" }, reorders = true }",
        asked: 3.0,
        deviation: 3.0,
        resolution: LATENESS_MS,
        plan: |plan| plan,
        measure: |run| mean_delay_ms(run) - PLAIN_MS,
    },
    Check {
        what: "packets that are overtaken, %",
        link: "reordering = { share = \"5%\", by = \"4ms\" }",
        asked: 5.0,
        deviation: 21.8,
        resolution: 0.0,
        plan: |plan| plan,
        measure: |run| share(run.arrivals.iter().filter(|arrival| arrival.delay_s() * 1e3 > PLAIN_MS + 3.0).count(), run.sent),
    },
    Check {
        what: "packets that arrive twice, %",
        link: "duplication = \"2%\"",
        asked: 2.0,
        deviation: 14.0,
        resolution: 0.0,
        plan: |plan| ProbePlan { may_arrive_twice: true, ..plan },
        measure: |run| {
            let numbers: BTreeSet<u64> = run.arrivals.iter().map(|arrival| arrival.number).collect();
            share(run.arrivals.len() - numbers.len(), run.sent)
        },
    },
    Check {
        what: "losses by bit errors, %",
        link: "bit_errors = 1e-6",
        // 1 − (1 − 10⁻⁶)^12000
        asked: 1.1928,
        deviation: 10.9,
        resolution: 0.0,
        plan: |plan| plan,
        measure: lost_share,
    },
    Check {
        what: "losses by outages, %",
        link: "outages = { every = \"400ms\", last = \"100ms\" }",
        asked: 20.0,
        deviation: 0.0,
        // An outage may be cut off at either end of the measurement.
        resolution: 4.0,
        plan: |plan| plan,
        measure: lost_share,
    },
    Check {
        what: "losses of the other direction, %",
        link: "loss = { reverse = { per_packet = 0.02 } }",
        asked: 2.0,
        deviation: 14.0,
        resolution: 0.0,
        plan: |plan| ProbePlan { is_reverse: true, ..plan },
        measure: lost_share,
    },
    Check {
        what: "delay after a step, ms",
        link: "changes = [{ at = \"1ms\", delay = \"35ms\" }]",
        asked: 35.6,
        deviation: 0.0,
        resolution: LATENESS_MS,
        plan: |plan| plan,
        measure: |run| {
            let mut delays: Vec<f64> = run.arrivals.iter().map(|arrival| arrival.delay_s() * 1e3).collect();
            delays.sort_unstable_by(f64::total_cmp);
            delays.get(delays.len() / 2).copied().unwrap_or(f64::NAN)
        },
    },
    Check {
        what: "packets of a period of a trace",
        link: "trace = { down = \"trace\", up = \"trace\" }",
        asked: TRACE.0,
        deviation: 0.0,
        // One that is late at an end of the measurement.
        resolution: 0.25,
        plan: |plan| plan,
        measure: |run| {
            let (Some(first), Some(last)) = (run.arrivals.first(), run.arrivals.last()) else { return f64::NAN };
            // From the middle of the gap behind the first burst, over whole periods.
            let period_ns = TRACE.1 * 1e6;
            let from = first.received_ns as f64 + 30e6;
            let periods = ((last.received_ns as f64 - from) / period_ns).floor();
            let within = |at: u64| (from..from + periods * period_ns).contains(&(at as f64));
            run.arrivals.iter().filter(|arrival| within(arrival.received_ns)).count() as f64 / periods
        },
    },
];

fn mean_delay_ms(run: &ProbeRun) -> f64 {
    run.arrivals.iter().map(|arrival| arrival.delay_s() * 1e3).sum::<f64>() / run.arrivals.len() as f64
}

/// A count in percent of what was sent.
fn share(count: usize, sent: u64) -> f64 {
    count as f64 / sent as f64 * 100.0
}

fn lost_share(run: &ProbeRun) -> f64 {
    share(run.lost().count(), run.sent)
}

/// Measures each impairment for `span`, on a link of 20 Mbit/s and 20 ms.
///
/// # Errors
/// If hosts, devices or sockets cannot be made, or a packet cannot be sent.
pub fn measure_impairments(span: Duration) -> Result<Vec<ImpairmentMeasurement>, LabError> {
    CHECKS.iter().map(|check| measure(check, "20Mbit", span, probe_link)).collect()
}

/// Measures each impairment for `span` as [`measure_impairments`] does, on a network in parallel to
/// another that is plain.
///
/// # Errors
/// As [`measure_impairments`].
pub fn measure_network_impairments(span: Duration) -> Result<Vec<ImpairmentMeasurement>, LabError> {
    // Payload: 1448 of 1500 bytes.
    CHECKS.iter().map(|check| measure(check, "19306666bit", span, probe_network)).collect()
}

/// Sends probes over a link with the given keys.
type LinkProbe = fn(&str, ProbePlan) -> Result<(ProbeRun, u64), LabError>;

/// Sends probes over a link with these keys. Also returns how many packets the machine lost outside
/// of it.
fn probe_link(keys: &str, plan: ProbePlan) -> Result<(ProbeRun, u64), LabError> {
    let network = SeriesNetwork::build(&described(&format!("[[link]]\n{keys}"))?, 1, &NetworkOptions::default(), |_, _| {})?;
    network.start_clock();
    let run = send_probes(ProbedHosts::of_series(&network), plan)?;
    Ok((run, trouble(&network.finish()?).0))
}

/// As [`probe_link`], over a network in parallel to another.
fn probe_network(keys: &str, plan: ProbePlan) -> Result<(ProbeRun, u64), LabError> {
    let other = "[[network]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n[bond]\nscheduler = \"single\"\n";
    let networks = ParallelNetworks::build(&described(&format!("[[network]]\n{keys}{other}"))?, 1, &NetworkOptions::default())?;
    networks.start_clock();
    let run = send_probes(ProbedHosts::of_parallel(&networks), plan)?;
    Ok((run, trouble(&networks.finish()?).0))
}

/// The scenario with this network. The files that it names are traces.
fn described(network: &str) -> Result<Scenario, LabError> {
    let text = format!("name = \"impairments\"\n[[flow]]\nbytes = \"1B\"\n{network}");
    let open = |_: &str| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(io::Cursor::new(trace()))) };
    let file = ScenarioFile::parse_with(&text, "impairments", Arc::new(open)).and_then(|file| file.variants(&[]));
    let variants = file.map_err(|why| LabError::System { what: "describe the link to measure", why: io::Error::other(why) })?;
    Ok(variants[0].scenario.clone())
}

/// Measures an impairment. `probe` is [`probe_link`] or [`probe_network`].
fn measure(check: &Check, rate: &str, span: Duration, probe: LinkProbe) -> Result<ImpairmentMeasurement, LabError> {
    let rate = if check.link.starts_with("trace") { String::new() } else { format!("rate = \"{rate}\"\n") };
    let keys = format!("{rate}delay = \"20ms\"\nqueue = \"20000pkt\"\n{}\n", check.link);
    let (run, refused) = probe(&keys, (check.plan)(ProbePlan::lasting(span, PKT.0, GAP)))?;
    Ok(ImpairmentMeasurement {
        what: check.what,
        link: check.link,
        asked: check.asked,
        delivered: (check.measure)(&run),
        tolerance: 4.0 * check.deviation / (run.sent as f64).sqrt() + check.resolution,
        packets: run.sent,
        refused,
    })
}
