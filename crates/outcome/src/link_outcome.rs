//! What a run tells of each link: what was asked, and what was delivered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A link: what was asked of it, and what it delivered in the direction of the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkOutcome {
    /// Number of the link, from 1.
    pub link: usize,
    /// The rate that was asked.
    pub rate_bps: f64,
    /// The rate that was delivered while the link had a queue, for at least 0.1 s; null: it never
    /// had, or the link follows a trace.
    pub delivered_rate_bps: Option<f64>,
    /// The one-way delay that was asked.
    pub delay_s: f64,
    /// The one-way delay that was delivered, without queueing, median over packets; null: no packet
    /// crossed.
    pub delivered_delay_s: Option<f64>,
    /// Lateness of packets at the end of the link, 99th percentile.
    pub late_p99_s: f64,
    /// Packets that arrived at the link.
    pub packets: u64,
    /// Packets that the queue dropped.
    pub queue_drops: u64,
    /// Packets that were lost behind the queue: by a loss process, a bit error or an outage.
    pub losses: u64,
    /// Packets that arrived twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duplicates: u64,
    /// Share of packets that was to be lost; null: the loss process is not a share of packets.
    pub loss_asked: Option<f64>,
    /// Largest length of the queue.
    pub queue_max_bytes: u64,
    /// From a packet's arrival at the queue until the end of its transmission, median over packets;
    /// null: no packet crossed. Absent: written by a version before 0.3.
    #[serde(default)]
    pub queue_delay_p50_s: Option<f64>,
    /// The same, 95th percentile.
    #[serde(default)]
    pub queue_delay_p95_s: Option<f64>,
    /// Packets against the direction of the data: acknowledgements, and the data of reverse flows,
    /// which share a queue. Absent: nothing sends data that way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<ReverseLinkOutcome>,
}

/// What a link carried against the direction of the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReverseLinkOutcome {
    /// Packets that arrived at the link.
    pub packets: u64,
    /// Packets that the queue dropped.
    pub queue_drops: u64,
    /// Packets that were lost behind the queue.
    pub losses: u64,
    /// Largest length of the queue.
    pub queue_max_bytes: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
