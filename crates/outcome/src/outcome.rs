//! The result of a run. Field names are stable: they are those of the JSON that `--json` prints,
//! and the comments here are the descriptions in its schema.

use crate::{
    link_outcome::LinkOutcome,
    statistics::Dist,
    web::{ExchangeOutcome, PageOutcome, TimePercentiles, WebResults, WebSamples},
};
use account::AccountShares;
use scenario::{Scenario, SetValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The answer of one engine to one case of a scenario with one seed. Times are in seconds from the
/// start of the run, sizes in bytes, rates in bits a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the case, with the swept values; empty if the file has no cases.
    pub case: String,
    /// The keys that `--set` changed, with their values: numbers where they are quantities, rates
    /// in bit/s, times in s, sizes in bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, SetValue>,
    /// Name of the engine: `lab`, `sim`, `theory`, `bound` or `compose`.
    pub engine: String,
    /// Seed of the run.
    pub seed: u64,
    /// Whether the machine kept up with the scenario. If not, `warnings` tells how: it lost packets
    /// outside of the emulated links; 1 % of a link's packets were late by more than 0.5 ms + 2 %
    /// of the path's round trip; one was late by more than 200 ms (the machine stalled, and
    /// retransmission timers have fired); a flow started more than 200 ms late; a link's rate was
    /// off by more than 1 %; or the kernel's memory for TCP ran short.
    pub valid: bool,
    /// What to know before using the numbers, and which flows failed.
    pub warnings: Vec<String>,
    /// Payload read by the receivers of all flows, in either direction, from the first SYN to the
    /// last byte. With a `[foreground]`: of all classes while they are measured.
    pub goodput_bps: f64,
    /// IP bytes that left the bottleneck (the slowest link, the first of equals) over what it could
    /// have carried in that time, from 0 to 1. For networks in parallel: of all together.
    pub utilization: f64,
    /// How much of what the bottleneck allows all flows and web clients used while at least one of
    /// them was in progress, in the direction of the data, and what the rest was lost to. Absent:
    /// there was none, or the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountShares>,
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
    /// How much of what the bottleneck allows it used from its start to its end, and what the rest
    /// was lost to. Absent: it is a reverse flow, the run has more than 100 flows and clients, or
    /// the engine does not compute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountShares>,
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

impl Outcome {
    /// The same with the results of web clients.
    #[must_use]
    pub fn with_web(self, scenario: &Scenario, samples: &[WebSamples]) -> Self {
        let WebResults { pages, exchanges, page_load_s, response_s } = WebResults::of(scenario, samples, &[]);
        Outcome { pages, exchanges, page_load_s, response_s, ..self }
    }
}

impl Series {
    /// A series of `points`, with times and values rounded to the precision of the measurement.
    pub fn of(what: &str, whose: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (t, v) = points.into_iter().map(|(t, v)| ((t * 1e4).round() / 1e4, (v * 1e6).round() / 1e6)).unzip();
        Series { what: what.into(), whose: whose.into(), unit: unit.into(), t, v }
    }
}

/// The JSON Schema of a list of outcomes, which is what `--json` prints.
pub fn schema() -> schemars::Schema {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<Vec<Outcome>>();
    schema.insert("title".into(), "Outcomes".into());
    schema
}
