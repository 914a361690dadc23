//! The result of a run. Field names are stable: they are those of the JSON that `--json` prints,
//! and the comments here are the descriptions in its schema.

use crate::{
    link_outcome::LinkOutcome,
    web::{ExchangeOutcome, PageOutcome, TimePercentiles},
};
use scenario::Scenario;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};
use std::collections::BTreeMap;

/// The answer of one engine to one case of a scenario with one seed. Times are in seconds from the
/// start of the run, sizes in bytes, rates in bits a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the case, with the swept values; empty if the file has no cases.
    pub case: String,
    /// Name of the engine: `lab`, `sim`, `theory`, `bound` or `compose`.
    pub engine: String,
    /// Seed of the run.
    pub seed: u64,
    /// Whether the machine kept up with the scenario. If not, `warnings` tells how: it lost packets
    /// outside of the emulated links; 1 % of a link's packets were late by more than 0.5 ms + 2 %
    /// of the path's round trip; one was late by more than 200 ms (the machine stalled, and
    /// retransmission timers have fired); a link's rate was off by more than 1 %; or the kernel's
    /// memory for TCP ran short.
    pub valid: bool,
    /// What to know before using the numbers, and which flows failed.
    pub warnings: Vec<String>,
    /// Payload read by the receivers of all flows, in either direction, from the first SYN to the
    /// last byte. With a `[foreground]`: of all classes while they are measured.
    pub goodput_bps: f64,
    /// IP bytes that left the bottleneck (the slowest link, the first of equals) over what it could
    /// have carried in that time, from 0 to 1. For networks in parallel: of all together.
    pub utilization: f64,
    /// The goodput in each interval of the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalOutcome>,
    /// Jain's fairness index of what the receivers read while all flows were in progress, from four
    /// round trips after the last start to the first end. Absent: there was no such time, or one
    /// flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// Mean of Jain's index over windows of 5 s, one after the other from the first start on, each
    /// over the rates of the flows that were in progress from the begin of the window for at least
    /// 1 s, if these were at least two. A flow that ends within the window has the rate until its
    /// end. Unlike `jain` it exists for every run in which two flows share a window, and the start
    /// of flows counts. Absent: there was no such window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jain_window: Option<f64>,
    /// Longest time after a flow's start until Jain's index of the flows in progress, over half a
    /// second, reached 0.99. Absent: it never did before the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converge_s: Option<f64>,
    /// Length of the bottleneck's queue over time: before the link, or before a proxy's shaper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<Dist>,
    /// Delay from a byte's first transmission by the sender's TCP until the receiver reads it, over
    /// the bytes of all flows, split or not. Absent: none was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<Dist>,
    /// The flows, in the order of their numbers.
    pub flows: Vec<FlowOutcome>,
    /// The connections of TCP cross traffic, numbered after the flows. The other numbers do not
    /// include them, except those of links and of what proxies hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cross_flows: Vec<FlowOutcome>,
    /// Page load time, over all loads of all pages. Absent: none was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_load_s: Option<TimePercentiles>,
    /// Response time, over all objects of pages and all responses of exchanges. Absent: there was
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_s: Option<TimePercentiles>,
    /// The pages, in the order of the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageOutcome>,
    /// The exchanges, in the order of the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<ExchangeOutcome>,
    /// The proxy; all connections and proxies together. Absent: nothing is split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyOutcome>,
    /// The agents on the path, in the order of the scenario, over all connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentOutcome>,
    /// The links: what was asked of each, and what it delivered in the direction of the data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkOutcome>,
    /// Networks in parallel: mean sojourn time of the transfers of each class. Class 0 is the
    /// foreground, class k the background of network k; null: the class has no transfers. In `sim`
    /// from the opening of a transfer's connections until the last byte can be read in order; in
    /// `lab` from its scheduled start until its receiver has read the last byte.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_s: Vec<Option<f64>>,
    /// Number of transfers of each class that `sojourn_s` is the mean of. Absent: it is not a mean
    /// of transfers (`theory`). A tenth as many foreground transfers as `jobs` come first and do
    /// not count, since the networks begin empty; every transfer between the first and the last
    /// that count does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_jobs: Vec<u64>,
    /// `sojourn_s` over the sojourn times of the same transfers in the CAN model, with the
    /// foreground split as a fluid (Hoekstra et al. §II): the ideal. Since both have the same
    /// arrivals and sizes, the ratio is far less uncertain than either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sojourn_over_can: Vec<Option<f64>>,
    /// The networks in parallel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkOutcome>,
    /// Payload that the receiving end of a bond held out of order. Absent: nothing is split, or it
    /// is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<ReorderOutcome>,
    /// Half widths of 95 % confidence intervals, by the name of the number. With `--seeds`: of the
    /// mean over the seeds of this case (Student's t). With one seed: of the engine's own means
    /// (`sojourn_0_s` …), in `sim` from twenty consecutive batches of the run, in `theory` from
    /// independent runs or from the error bound of the chain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ci95: BTreeMap<String, f64>,
    /// Numbers over time, with `--series`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
}

/// A flow: one connection from end to end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowOutcome {
    /// Number of the flow in the scenario, from 0.
    pub id: u32,
    /// Whether its data goes from the last link to the first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reverse: bool,
    /// Payload that it was to send. Absent: as much as it can until the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_bytes: Option<u64>,
    /// Payload that the receiver has read.
    pub bytes: u64,
    /// Time at which its opener called `connect`.
    pub start_s: f64,
    /// Time at which the receiver read the last byte; null: the flow had not ended.
    pub end_s: Option<f64>,
    /// Time at which the sender's application could know that its last byte was acknowledged: by
    /// the receiver, or by the first proxy that is not `semi`. Absent: it could not, or the engine
    /// does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked_s: Option<f64>,
    /// Most payload that the sender had sent and had to keep for retransmission. Absent: the engine
    /// does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_max_bytes: Option<u64>,
    /// Payload read from the flow's start to its end, or to the end of the run.
    pub goodput_bps: f64,
    /// Why the flow failed. Absent: it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The flow's TCP connections, from the sender on.
    pub legs: Vec<LegOutcome>,
}

/// What all receivers read in an interval of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IntervalOutcome {
    /// Begin of the interval.
    pub from_s: f64,
    /// End of the interval.
    pub to_s: f64,
    /// Payload read by all receivers in this time.
    pub goodput_bps: f64,
}

/// A leg: the sending side of one TCP connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LegOutcome {
    /// Congestion controller.
    pub control: String,
    /// Smoothed round-trip time, mean over the time in which it had something to send.
    pub mean_rtt_s: f64,
    /// Lowest round-trip time.
    pub min_rtt_s: f64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Congestion window in segments, mean over the time in which it had something to send.
    pub mean_cwnd_pkt: f64,
    /// Retransmission timeouts. Absent: the engine or the kernel (before Linux 6.7) does not count
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<u64>,
}

/// The proxy's buffers and delays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProxyOutcome {
    /// Payload held in the direction of the data, over time: receive queue, pipe and unsent send
    /// queue of all connections together, those of cross flows and web traffic too.
    pub buffer_bytes: Dist,
    /// Delay from a byte's first transmission by the sender's TCP until the receiver reads it, over
    /// the bytes of all flows.
    pub delay_s: Dist,
    /// Shares of the time in which data of flows went through it; all zero without flows.
    pub phases: Phases,
    /// The queue of the proxies' own shaper. Absent: they do not shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<ShaperOutcome>,
    /// Times that a receive buffer on a proxy's host had no room for what its window had admitted
    /// (`TcpExtRcvPruned` + `TcpExtTCPRcvQDrop`). Absent: the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_overruns: Option<u64>,
}

/// What an agent on the path did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentOutcome {
    /// The link after which it stands, from 1.
    pub after: usize,
    /// Segments that it sent again.
    pub local_retransmits: u64,
    /// Acknowledgements of the receiver that it did not forward.
    pub suppressed_acks: u64,
    /// Acknowledgements that it forwarded with a notice of loss.
    pub loss_notices: u64,
    /// Most payload that it held of a connection.
    pub cache_max_bytes: u64,
}

/// The queue before a proxy's own shaper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShaperOutcome {
    /// Packets that the queue dropped.
    pub queue_drops: u64,
    /// Largest length of the queue.
    pub queue_max_bytes: u64,
}

/// A distribution over time (buffers) or over bytes (delays).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// The distribution of `samples` with equal weights; all zero if there are none.
    pub fn of(samples: &mut [f64]) -> Self {
        if samples.is_empty() {
            return Dist::default();
        }
        samples.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| samples[((samples.len() - 1) as f64 * q).round() as usize];
        Dist { mean: samples.iter().sum::<f64>() / samples.len() as f64, p50: at(0.5), p99: at(0.99), max: samples[samples.len() - 1] }
    }
}

/// Shares of time of the three phases of a split connection (Baccelli et al. §19.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Phases {
    /// Bytes wait in the proxy, and there is room for more.
    pub free: f64,
    /// The proxy has nothing to forward.
    pub starvation: f64,
    /// The proxy's buffer is full: the sender is held back.
    pub backpressure: f64,
}

/// One of the networks in parallel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkOutcome {
    /// Number of the network, from 1.
    pub network: usize,
    /// What left the network in the direction of the data over what it could have carried, from the
    /// first transfer that counts to the last.
    pub utilization: f64,
    /// Share of the split payload that went over it; null: not known.
    pub share: Option<f64>,
    /// Packets that its queue dropped in that direction and time. Absent: the engine has no
    /// packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_drops: Option<u64>,
}

/// Payload held out of order at the receiving end of a bond, of each transfer its maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReorderOutcome {
    /// Mean over transfers.
    pub mean_bytes: f64,
    /// Largest of all transfers.
    pub max_bytes: u64,
}

/// A quantity over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// The quantity: `goodput`, `flow_goodput`, `cwnd`, `rtt`, `in_flight`, `retransmits`, `held`
    /// and `queue` (of the bottleneck). For each network of a bond, in `lab`: `carried`, `score`,
    /// `throughput` (G), `rtt`, `unsent` (Q), `waited`, and `waiting`, the payload held out of
    /// order.
    pub what: String,
    /// The object: `all`, `flow 0`, `flow 0 leg 2`, `link 2` or `network 2`.
    pub whose: String,
    /// The unit: `bit/s`, `pkt`, `s` or `B`.
    pub unit: String,
    /// Times, in seconds from the start of the run.
    pub t: Vec<f64>,
    /// Values.
    pub v: Vec<f64>,
}

impl Series {
    /// A series of `points`, with times and values rounded to the precision of the measurement.
    pub fn of(what: &str, whose: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (t, v) = points.into_iter().map(|(t, v)| ((t * 1e4).round() / 1e4, (v * 1e6).round() / 1e6)).unzip();
        Series { what: what.into(), whose: whose.into(), unit: unit.into(), t, v }
    }
}

impl Outcome {
    /// End of the last flow, in seconds from the first start; none if one has not ended.
    pub fn completion_s(&self) -> Option<f64> {
        let first = self.flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
        let ends: Option<Vec<f64>> = self.flows.iter().map(|flow| flow.end_s).collect();
        let last = ends?.into_iter().fold(f64::NEG_INFINITY, f64::max);
        (last >= first).then_some(last - first)
    }

    /// Mean time from a flow's start to its last byte; none if one has not ended.
    pub fn mean_flow_s(&self) -> Option<f64> {
        let times: Option<Vec<f64>> = self.flows.iter().map(|flow| Some(flow.end_s? - flow.start_s)).collect();
        let times = times?;
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    /// Mean time from a flow's start until its sender knew that its last byte was acknowledged;
    /// none if one did not.
    pub fn mean_acked_s(&self) -> Option<f64> {
        let times: Option<Vec<f64>> = self.flows.iter().map(|flow| Some(flow.acked_s? - flow.start_s)).collect();
        let times = times?;
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }

    /// Longest time from a flow's start until its sender knew that its last byte was acknowledged,
    /// by the first proxy if there is one; none if one did not.
    pub fn last_acked_s(&self) -> Option<f64> {
        let times: Option<Vec<f64>> = self.flows.iter().map(|flow| Some(flow.acked_s? - flow.start_s)).collect();
        times?.into_iter().reduce(f64::max)
    }

    /// Retransmitted segments on all legs.
    pub fn retransmits(&self) -> u64 {
        self.flows.iter().flat_map(|flow| &flow.legs).map(|leg| leg.retransmits).sum()
    }

    /// Packets that the bottleneck's queue and the proxies' shapers dropped.
    pub fn queue_drops(&self) -> u64 {
        self.bottleneck().map(|link| link.queue_drops).into_iter().chain(self.shaper().map(|shaper| shaper.queue_drops)).sum()
    }

    /// Largest length of the bottleneck's queue or of a shaper's, in bytes.
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

    /// The sum of a counter over the agents; none without agents.
    fn of_agents(&self, counter: impl Fn(&AgentOutcome) -> u64) -> Option<f64> {
        (!self.agents.is_empty()).then(|| self.agents.iter().map(counter).sum::<u64>() as f64)
    }

    /// The goodput between two times, s: from [`Self::intervals`], else from the series; none if
    /// this outcome has neither.
    pub fn goodput_between(&self, from_s: f64, to_s: f64) -> Option<f64> {
        let asked = |interval: &&IntervalOutcome| (interval.from_s - from_s).abs() < 1e-9 && (interval.to_s - to_s).abs() < 1e-9;
        self.intervals.iter().find(asked).map(|interval| interval.goodput_bps).or_else(|| {
            let goodput = self.series.iter().find(|series| series.what == "goodput" && series.whose == "all")?;
            let within = goodput.t.iter().zip(&goodput.v).filter(|(t, _)| (from_s..=to_s).contains(*t));
            let (sum, count) = within.fold((0.0, 0.0), |(sum, count), (_, value)| (sum + value, count + 1.0));
            (count > 0.0).then_some(sum / count)
        })
    }

    /// The number of this name, one of [`NUMBERS`]; none if this outcome lacks it.
    pub fn number(&self, name: &str) -> Option<f64> {
        match name {
            "goodput_bps" => Some(self.goodput_bps),
            "utilization" => Some(self.utilization),
            "completion_s" => self.completion_s(),
            "mean_flow_s" => self.mean_flow_s(),
            "mean_acked_s" => self.mean_acked_s(),
            "kept_max_bytes" => self.flows.iter().filter_map(|flow| flow.kept_max_bytes).max().map(|kept| kept as f64),
            "last_acked_s" => self.last_acked_s(),
            "jain" => self.jain,
            "jain_window" => self.jain_window,
            "converge_s" => self.converge_s,
            "queue_p50_bytes" => self.queue_bytes.map(|queue| queue.p50),
            "retransmits" => Some(self.retransmits() as f64),
            "local_retransmits" => self.of_agents(|agent| agent.local_retransmits),
            "suppressed_acks" => self.of_agents(|agent| agent.suppressed_acks),
            "loss_notices" => self.of_agents(|agent| agent.loss_notices),
            "queue_drops" => Some(self.queue_drops() as f64),
            "queue_max_bytes" => Some(self.queue_max() as f64),
            "queue_delay_p50_s" => self.bottleneck()?.queue_delay_p50_s,
            "queue_delay_p95_s" => self.bottleneck()?.queue_delay_p95_s,
            "page_load_s" => self.page_load_s.map(|time| time.mean),
            "page_load_p50_s" => self.page_load_s.map(|time| time.p50),
            "page_load_p95_s" => self.page_load_s.map(|time| time.p95),
            "page_load_p99_s" => self.page_load_s.map(|time| time.p99),
            "response_s" => self.response_s.map(|time| time.mean),
            "response_p50_s" => self.response_s.map(|time| time.p50),
            "response_p95_s" => self.response_s.map(|time| time.p95),
            "response_p99_s" => self.response_s.map(|time| time.p99),
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

/// The JSON Schema of a list of outcomes, which is what `--json` prints.
pub fn schema() -> schemars::Schema {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<Vec<Outcome>>();
    schema.insert("title".into(), "Outcomes".into());
    schema
}

/// The names among [`NUMBERS`] of the mean sojourn time of each class.
pub const SOJOURNS: [&str; Scenario::MOST_NETWORKS + 1] = ["sojourn_0_s", "sojourn_1_s", "sojourn_2_s", "sojourn_3_s", "sojourn_4_s"];

/// The names of that time over the CAN model's, class by class.
pub const OVER_CAN: [&str; Scenario::MOST_NETWORKS + 1] = ["over_can_0", "over_can_1", "over_can_2", "over_can_3", "over_can_4"];

/// The numbers by which outcomes are compared, and which have intervals over seeds.
pub const NUMBERS: [&str; 42] = [
    "goodput_bps",
    "utilization",
    "completion_s",
    "mean_flow_s",
    "mean_acked_s",
    "kept_max_bytes",
    "last_acked_s",
    "jain",
    "jain_window",
    "converge_s",
    "retransmits",
    "local_retransmits",
    "suppressed_acks",
    "loss_notices",
    "queue_drops",
    "queue_max_bytes",
    "queue_p50_bytes",
    "queue_delay_p50_s",
    "queue_delay_p95_s",
    "phase_free",
    "phase_starvation",
    "phase_backpressure",
    "held_bytes",
    "delay_s",
    "page_load_s",
    "page_load_p50_s",
    "page_load_p95_s",
    "page_load_p99_s",
    "response_s",
    "response_p50_s",
    "response_p95_s",
    "response_p99_s",
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

/// Jain's index of fairness: 1 if all shares are equal, 1/n if one has all. None for fewer than two
/// shares, or if all are 0.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (shares.len() > 1 && squares > 0.0).then(|| shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares))
}

/// Sets the intervals of every outcome to those of the mean over the seeds of its scenario, engine
/// and case. A number that some seed lacks gets none. With a single seed an outcome keeps the
/// intervals of its engine.
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

/// Half the width of the 95 % confidence interval of the mean of `values`, by Student's t; infinite
/// for a single value.
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
            links: vec![LinkOutcome { queue_delay_p50_s: Some(0.1), queue_delay_p95_s: Some(0.2), ..LinkOutcome::default() }],
            jain: Some(1.0),
            jain_window: Some(1.0),
            converge_s: Some(1.0),
            queue_bytes,
            proxy,
            agents: vec![AgentOutcome::default()],
            page_load_s: Some(TimePercentiles::default()),
            response_s: Some(TimePercentiles::default()),
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
