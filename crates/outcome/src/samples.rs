//! The samples that an engine takes of a run over time.

use crate::{link_outcome::LinkOutcome, outcome::ShaperOutcome, web::WebSamples};
use account::SenderWait;
use units::Phase;

/// Most connections in the series, and most flows for which convergence and accounts are computed.
pub(crate) const MOST_CURVES: usize = 100;

/// A sample of the sending side of a connection, and of the proxy that sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LegSample {
    /// Time in seconds from the start of the run.
    pub t: f64,
    /// Payload sent at least once.
    pub sent: u64,
    /// Payload that the proxy held for it; 0 for the first leg.
    pub held: u64,
    /// Smoothed RTT, µs; 0 before the handshake.
    pub srtt_us: u32,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Payload that is not acknowledged.
    pub in_flight: u32,
    /// Segments retransmitted until now.
    pub retransmits: u32,
    /// Whether it was connected and had something to send.
    pub busy: bool,
    /// What its sender waits for.
    pub waits_for: SenderWait,
    /// Phase of the proxy; meaningless for the first leg.
    pub phase: Phase,
}

/// All samples of a connection.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LegSamples {
    /// The samples, in the order of time.
    pub samples: Vec<LegSample>,
    /// Lowest RTT, µs.
    pub min_rtt_us: u32,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Retransmission timeouts; none if they are not counted.
    pub timeouts: Option<u64>,
}

/// All samples of a flow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FlowSamples {
    /// Time at which its opener called `connect`.
    pub start_s: f64,
    /// Time at which the receiver read the last byte; none if the flow has not ended.
    pub end_s: Option<f64>,
    /// Most payload that the sender kept for retransmission; none if it was not sampled.
    pub kept_max_bytes: Option<u64>,
    /// Payload that the receiver has read.
    pub bytes: u64,
    /// Why it failed.
    pub error: Option<String>,
    /// Times, and the payload that the receiver had read by then.
    pub read: Vec<(f64, f64)>,
    /// Its connections, from the sender on.
    pub legs: Vec<LegSamples>,
}

/// A sample of the slowest link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkSample {
    /// Time in seconds from the start of the run.
    pub t: f64,
    /// IP bytes that had left it.
    pub left: u64,
    /// Bytes in its queue.
    pub queued: u64,
}

/// All samples of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSamples {
    /// Time at which the run ended.
    pub end_s: f64,
    /// The flows, in the scenario's order.
    pub flows: Vec<FlowSamples>,
    /// The connections of TCP cross traffic, in the scenario's order.
    pub cross_flows: Vec<FlowSamples>,
    /// The web clients, in the order of [`scenario::Scenario::web_clients`].
    pub web: Vec<WebSamples>,
    /// The slowest link.
    pub bottleneck: Vec<LinkSample>,
    /// Times, and the payload that all proxies held together.
    pub held: Vec<(f64, f64)>,
    /// Times, and the bytes in the queues of the proxies' shapers.
    pub shaped: Vec<(f64, f64)>,
    /// The shapers, if there are any.
    pub shaper: Option<ShaperOutcome>,
    /// Times that receive buffers on the proxies' hosts had no room for what they had admitted.
    pub receive_overruns: Option<u64>,
    /// The links, over the whole run.
    pub links: Vec<LinkOutcome>,
}
