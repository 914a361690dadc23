//! What an engine found out. Field names are stable: they are the JSON that `--json` prints.

use scenario::Scenario;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};
use std::collections::BTreeMap;

/// The answer of one engine to one case of a scenario with one seed. Times in seconds from the start of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The scenario's name.
    pub scenario: String,
    /// The case's name; empty when the file has none.
    pub case: String,
    /// Who answered.
    pub engine: String,
    /// With which seed.
    pub seed: u64,
    /// False when the machine could not keep up with what was asked; then `warnings` says how.
    pub valid: bool,
    /// What a reader must know before using the numbers.
    pub warnings: Vec<String>,
    /// Payload read by all receivers, in bits a second, from the first SYN to the last byte.
    pub goodput_bps: f64,
    /// IP bytes that left the bottleneck over what it could have carried from the first SYN to the last byte.
    pub utilization: f64,
    /// Jain's index of what the receivers read while all flows were under way, from four round trips after the last start to the first
    /// end; absent when there was no such time, or one flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// The longest that it took after a flow's start until Jain's index of the flows under way, over half a second, was 0.99; absent when
    /// that never came about before the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converge_s: Option<f64>,
    /// What waited before the bottleneck over time, in bytes: before the link, or before a proxy's shaper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<Dist>,
    /// From a byte's first leaving the sender's TCP to its being read by the receiver, split or not, over the bytes of all flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<Dist>,
    /// Flow by flow.
    pub flows: Vec<FlowOutcome>,
    /// What happened in the proxy, all flows and proxies together; absent when nothing is split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyOutcome>,
    /// What was asked of each link, and what it delivered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkOutcome>,
    /// Mean time of a transfer in parallel networks: class 0 the foreground, class k the background of network k; none of a class that never
    /// comes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_s: Vec<Option<f64>>,
    /// How many transfers of each class that is the mean of; absent where it is none of transfers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_jobs: Vec<u64>,
    /// The same over what the CAN model makes of the very same transfers, the foreground split as a fluid (Hoekstra et al. §II): the ideal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_over_can: Vec<Option<f64>>,
    /// Networks in parallel, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkOutcome>,
    /// What the receiving end of a bond held until what comes before it had come; absent where nothing is split, or nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<ReorderOutcome>,
    /// Half widths of 95 % confidence intervals, by the name of the number: of the mean over seeds; of one seed alone, what the engine says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ci95: BTreeMap<String, f64>,
    /// Numbers over time (with `--series`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
}

/// One connection from end to end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowOutcome {
    /// Its number in the scenario.
    pub id: u32,
    /// What it was to send; absent for a flow that sends as much as it can, and so never ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_bytes: Option<u64>,
    /// Payload that the receiver read.
    pub bytes: u64,
    /// When its opener called connect.
    pub start_s: f64,
    /// When the receiver read the last byte; absent when it had not ended.
    pub end_s: Option<f64>,
    /// When the sender's application could know that its last byte was acknowledged: by the receiver, or by the first proxy that does not
    /// acknowledge end to end; absent when it could not, or the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked_s: Option<f64>,
    /// The most payload that the sender had sent and could not forget yet; absent where the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_max_bytes: Option<u64>,
    /// Payload read, in bits a second, from start to end (or to the end of the run).
    pub goodput_bps: f64,
    /// Why it failed; absent when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its TCP connections, from the sender on.
    pub legs: Vec<LegOutcome>,
}

/// The sending side of one TCP connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LegOutcome {
    /// Its congestion controller.
    pub control: String,
    /// Smoothed RTT, mean over the time it sent.
    pub mean_rtt_s: f64,
    /// Least RTT seen.
    pub min_rtt_s: f64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Congestion window in segments, mean over the time it sent.
    pub mean_cwnd_pkt: f64,
    /// Retransmission timeouts; absent where the engine or the kernel (before Linux 6.7) does not
    /// count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
}

/// What happened in the proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyOutcome {
    /// Payload held in the direction of the data: receive queue, pipe and unsent send queue, of all connections together.
    pub buffer_bytes: Dist,
    /// From a byte's leaving the sender's TCP to its being read by the receiver.
    pub delay_s: Dist,
    /// Shares of the time during which data flowed.
    pub phases: Phases,
    /// Where proxies shape what they send: the queues there, as a link's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperOutcome>,
    /// How often receive buffers on the proxies' hosts had no room for what their windows had
    /// admitted; absent where the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_overruns: Option<u64>,
}

/// The queue before a proxy's own shaper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ShaperOutcome {
    /// Packets that it dropped.
    pub queue_drops: u64,
    /// Largest queue.
    pub queue_max_bytes: u64,
}

/// A distribution over time (buffers) or over bytes (delays).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Dist {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Dist {
    /// Of `samples` that weigh alike; zero when there are none.
    pub fn of(samples: &mut [f64]) -> Self {
        if samples.is_empty() {
            return Dist::default();
        }
        samples.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| samples[((samples.len() - 1) as f64 * q).round() as usize];
        Dist { mean: samples.iter().sum::<f64>() / samples.len() as f64, p50: at(0.5), p99: at(0.99), max: samples[samples.len() - 1] }
    }
}

/// Shares of time (Baccelli et al. §19.2: the three phases of a split connection).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Neither.
    pub free: f64,
    /// The proxy has nothing to forward.
    pub starvation: f64,
    /// The proxy's buffer is full: the sender is held back.
    pub backpressure: f64,
}

/// A link as asked, and as it was, in the direction of the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkOutcome {
    /// Its number, from 1.
    pub link: usize,
    /// Rate asked for.
    pub rate_bps: f64,
    /// Rate delivered while it had a queue; absent when it never had one for long enough to tell.
    pub delivered_rate_bps: Option<f64>,
    /// One-way delay asked for.
    pub delay_s: f64,
    /// The same as delivered, median over packets, queueing left out; absent when nothing crossed.
    pub delivered_delay_s: Option<f64>,
    /// How much later than due packets were handed over, 99th percentile.
    pub late_p99_s: f64,
    /// Packets that came to the link.
    pub packets: u64,
    /// Packets that its queue dropped.
    pub queue_drops: u64,
    /// Packets that its loss process dropped.
    pub losses: u64,
    /// Share of packets asked to be lost; absent when it is not a share of packets.
    pub loss_asked: Option<f64>,
    /// Largest queue.
    pub queue_max_bytes: u64,
}

/// One of several networks in parallel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkOutcome {
    /// Its number, from 1.
    pub network: usize,
    /// What left it in the direction of the data over what it could have carried, in the time that was measured.
    pub utilization: f64,
    /// Of the payload that is split, the part that went over it; absent where it is not known.
    pub share: Option<f64>,
    /// Packets that its queue dropped in that direction; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_drops: Option<u64>,
}

/// Payload that waits at the receiving end of a bond, of a transfer at its most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ReorderOutcome {
    /// Mean over the transfers.
    pub mean_bytes: f64,
    /// The largest.
    pub max_bytes: u64,
}

/// A number over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What: `goodput`, `flow_goodput`, `cwnd`, `rtt`, `in_flight`, `retransmits`, `held`, `queue`; of a bond `carried`, `score`, `throughput`, `rtt`,
    /// `unsent`, `waited`, `waiting`.
    pub what: String,
    /// Of whom: `flow 0`, `flow 0 leg 2`, `link 2`, `network 2`, `all`.
    pub whose: String,
    /// Its unit: `bit/s`, `pkt`, `s`, `B`.
    pub unit: String,
    /// Times, in seconds from the start of the run.
    pub t: Vec<f64>,
    /// Values.
    pub v: Vec<f64>,
}

impl Series {
    /// One of these points; times and values are rounded to what looks can bear.
    pub fn of(what: &str, whose: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (t, v) = points.into_iter().map(|(t, v)| ((t * 1e4).round() / 1e4, (v * 1e6).round() / 1e6)).unzip();
        Series { what: what.into(), whose: whose.into(), unit: unit.into(), t, v }
    }
}

impl Outcome {
    /// When the last flow ended, in seconds from the first start; absent when one had not.
    pub fn completion_s(&self) -> Option<f64> {
        let first = self.flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
        let ends: Option<Vec<f64>> = self.flows.iter().map(|flow| flow.end_s).collect();
        let last = ends?.into_iter().fold(f64::NEG_INFINITY, f64::max);
        (last >= first).then_some(last - first)
    }

    /// Mean time from a flow's start to its last byte; absent when one had not ended.
    pub fn mean_flow_s(&self) -> Option<f64> {
        let times: Option<Vec<f64>> = self.flows.iter().map(|flow| Some(flow.end_s? - flow.start_s)).collect();
        let times = times?;
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    /// Mean time from a flow's start to its sender's knowing that its last byte was acknowledged; absent when one did not come to know.
    pub fn mean_acked_s(&self) -> Option<f64> {
        let times: Option<Vec<f64>> = self.flows.iter().map(|flow| Some(flow.acked_s? - flow.start_s)).collect();
        let times = times?;
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    /// Segments sent again, on all legs.
    pub fn retransmits(&self) -> u64 {
        self.flows.iter().flat_map(|flow| &flow.legs).map(|leg| leg.retransmits).sum()
    }

    /// Packets that the bottleneck's queue dropped, and those of proxies' shapers.
    pub fn queue_drops(&self) -> u64 {
        self.bottleneck().map(|link| link.queue_drops).into_iter().chain(self.shaper().map(|shaper| shaper.queue_drops)).sum()
    }

    /// The largest that the bottleneck's queue was, or a shaper's, in bytes.
    pub fn queue_max(&self) -> u64 {
        let queues = self.bottleneck().map(|link| link.queue_max_bytes).into_iter();
        queues.chain(self.shaper().map(|shaper| shaper.queue_max_bytes)).max().unwrap_or(0)
    }

    /// The slowest link, the first of equals.
    fn bottleneck(&self) -> Option<&LinkOutcome> {
        self.links.iter().min_by(|a, b| a.rate_bps.total_cmp(&b.rate_bps))
    }

    fn shaper(&self) -> Option<ShaperOutcome> {
        self.proxy.as_ref()?.shaper
    }

    /// The number of that name, one of [`NUMBERS`]; absent where this outcome has none.
    pub fn number(&self, name: &str) -> Option<f64> {
        match name {
            "goodput_bps" => Some(self.goodput_bps),
            "utilization" => Some(self.utilization),
            "completion_s" => self.completion_s(),
            "mean_flow_s" => self.mean_flow_s(),
            "mean_acked_s" => self.mean_acked_s(),
            "kept_max_bytes" => self.flows.iter().filter_map(|flow| flow.kept_max_bytes).max().map(|kept| kept as f64),
            "jain" => self.jain,
            "converge_s" => self.converge_s,
            "queue_p50_bytes" => self.queue_bytes.map(|queue| queue.p50),
            "retransmits" => Some(self.retransmits() as f64),
            "queue_drops" => Some(self.queue_drops() as f64),
            "queue_max_bytes" => Some(self.queue_max() as f64),
            "phase_free" => self.proxy.as_ref().map(|proxy| proxy.phases.free),
            "phase_starvation" => self.proxy.as_ref().map(|proxy| proxy.phases.starvation),
            "phase_backpressure" => self.proxy.as_ref().map(|proxy| proxy.phases.backpressure),
            "held_bytes" => self.proxy.as_ref().map(|proxy| proxy.buffer_bytes.mean),
            "delay_s" => self.delay_s.or(self.proxy.as_ref().map(|proxy| proxy.delay_s)).map(|delay| delay.mean),
            _ => {
                let of =
                    |names: &[&str], values: &[Option<f64>]| values.get(names.iter().position(|other| *other == name)?).copied().flatten();
                of(&SOJOURNS, &self.sojourn_s).or_else(|| of(&OVER_CAN, &self.sojourn_over_can))
            }
        }
    }
}

/// The name of each class's mean time among the [`NUMBERS`].
pub const SOJOURNS: [&str; Scenario::MOST_NETWORKS + 1] = ["sojourn_0_s", "sojourn_1_s", "sojourn_2_s", "sojourn_3_s", "sojourn_4_s"];

/// And of that time over the CAN model's.
pub const OVER_CAN: [&str; Scenario::MOST_NETWORKS + 1] = ["over_can_0", "over_can_1", "over_can_2", "over_can_3", "over_can_4"];

/// The numbers of an outcome that runs are compared by, and that have intervals over seeds.
pub const NUMBERS: [&str; 27] = [
    "goodput_bps",
    "utilization",
    "completion_s",
    "mean_flow_s",
    "mean_acked_s",
    "kept_max_bytes",
    "jain",
    "converge_s",
    "retransmits",
    "queue_drops",
    "queue_max_bytes",
    "queue_p50_bytes",
    "phase_free",
    "phase_starvation",
    "phase_backpressure",
    "held_bytes",
    "delay_s",
    SOJOURNS[0],
    SOJOURNS[1],
    SOJOURNS[2],
    SOJOURNS[3],
    SOJOURNS[4],
    OVER_CAN[0],
    OVER_CAN[1],
    OVER_CAN[2],
    OVER_CAN[3],
    OVER_CAN[4],
];

/// Jain's index of fairness, 1 when all are alike and 1/n when one has all; absent when there are fewer than two, or nothing to share.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (shares.len() > 1 && squares > 0.0).then(|| shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares))
}

/// Gives every outcome the intervals of the mean over the seeds of its scenario, engine and case. A number that some seed lacks gets none. Where
/// there is one seed, an outcome keeps the intervals that its engine gave it.
pub fn add_ci95(outcomes: &mut [Outcome]) {
    let key = |outcome: &Outcome| (outcome.scenario.clone(), outcome.engine.clone(), outcome.case.clone());
    let mut groups: BTreeMap<_, BTreeMap<&'static str, Vec<f64>>> = BTreeMap::new();
    let mut sizes: BTreeMap<_, usize> = BTreeMap::new();
    for outcome in outcomes.iter() {
        *sizes.entry(key(outcome)).or_default() += 1;
        for (name, value) in NUMBERS.into_iter().filter_map(|name| Some((name, outcome.number(name)?))) {
            groups.entry(key(outcome)).or_default().entry(name).or_default().push(value);
        }
    }
    for outcome in outcomes {
        let count = sizes[&key(outcome)];
        if count == 1 {
            continue;
        }
        outcome.ci95 = groups[&key(outcome)]
            .iter()
            .filter(|(_, values)| values.len() == count)
            .map(|(name, values)| ((*name).to_string(), half_width(values)))
            .collect();
    }
}

/// Half the width of the 95 % interval of the mean of `values`, by Student's t; of one value it is infinite.
pub fn half_width(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return f64::INFINITY;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975)) * (variance / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(case: &str, goodput: f64) -> Outcome {
        Outcome { case: case.into(), engine: "lab".into(), goodput_bps: goodput, ..Outcome::default() }
    }

    #[test]
    fn the_interval_is_students() {
        let mut outcomes = vec![outcome("a", 1.0), outcome("a", 2.0), outcome("a", 3.0), outcome("b", 5.0)];
        add_ci95(&mut outcomes);
        // s = 1, n = 3, t(2) = 4.3027
        assert!((outcomes[0].ci95["goodput_bps"] - 4.302_653 / 3f64.sqrt()).abs() < 1e-6);
        assert!(outcomes[3].ci95.is_empty(), "one seed has no interval");
        let own = [("sojourn_0_s".to_string(), 0.1)];
        let mut alone = [Outcome { ci95: own.clone().into(), ..outcome("c", 1.0) }];
        add_ci95(&mut alone);
        assert_eq!(alone[0].ci95, own.into(), "but that of its engine");
    }

    #[test]
    fn completion_counts_from_the_first_start_and_needs_every_end() {
        let flow = |start_s, end_s| FlowOutcome { start_s, end_s, ..FlowOutcome::default() };
        let mut outcome = Outcome { flows: vec![flow(1.0, Some(4.0)), flow(2.0, Some(9.0))], ..Outcome::default() };
        assert_eq!(outcome.completion_s(), Some(8.0));
        assert_eq!(outcome.mean_flow_s(), Some(5.0));
        outcome.flows[0].end_s = None;
        assert_eq!(outcome.completion_s(), None);
    }

    #[test]
    fn jains_index_of_known_shares() {
        assert_eq!(jain(&[2.0; 5]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!((jain(&[1.0]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn every_number_is_one_of_an_outcome() {
        let flow = |end_s| FlowOutcome { end_s: Some(end_s), acked_s: Some(end_s), kept_max_bytes: Some(1), ..FlowOutcome::default() };
        let flows = vec![flow(1.0), flow(2.0)];
        let (queue_bytes, proxy) = (Some(Dist::default()), Some(ProxyOutcome::default()));
        let (sojourn_s, sojourn_over_can) = (vec![Some(1.0); SOJOURNS.len()], vec![Some(1.0); OVER_CAN.len()]);
        let outcome = Outcome {
            flows,
            jain: Some(1.0),
            converge_s: Some(1.0),
            queue_bytes,
            proxy,
            sojourn_s,
            sojourn_over_can,
            ..Outcome::default()
        };
        assert!(NUMBERS.iter().all(|name| outcome.number(name).is_some()));
        assert_eq!(outcome.number("afct"), None);
    }

    #[test]
    fn percentiles_of_a_known_sample() {
        let dist = Dist::of(&mut (0..=100).rev().map(f64::from).collect::<Vec<_>>());
        assert_eq!((dist.mean, dist.p50, dist.p99, dist.max), (50.0, 50.0, 99.0, 100.0));
    }
}
