//! The state of a link with a capacity, for display and metrics.

use serde::{Deserialize, Serialize};

/// The state of a link, as last read from the monitor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// The interface.
    pub link: String,
    /// The capacity in use, bit/s of IP: configured, read from a file or estimated. 0: it is to be
    /// estimated, and nothing has been sent yet.
    pub capacity_bps: u64,
    /// The configured capacity while an estimate takes its place, because the link has another
    /// rate, bit/s of IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_bps: Option<u64>,
    /// Whether the capacity is estimated, as configured.
    #[serde(default)]
    pub estimated: bool,
    /// Bytes of all packets that have left since the link is watched, on the wire.
    #[serde(default)]
    pub egress_bytes: u64,
    /// When the file with the capacity was last modified, as far as it could be used: seconds since
    /// the Unix epoch. Absent: the capacity is in no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_time_s: Option<f64>,
    /// Mean rate of all packets that left in the last two seconds, bit/s of IP.
    pub egress_bps: f64,
    /// The part of it that does not belong to flows under `share`, bit/s of IP.
    pub other_bps: f64,
    /// Standing queue: the smallest recent backlog, bytes.
    pub queue_bytes: u64,
    /// Current backlog, bytes.
    pub backlog_bytes: u64,
    /// Whether the queue is the shaper's. If not, the queue is further on in the network. Flows
    /// under `share` then measure its delay, and queue and backlog are that at the capacity in use;
    /// without such flows both are computed for a bottleneck of the configured capacity.
    pub shaped: bool,
    /// Packets that the shaper dropped because its queue was full.
    pub drops: u64,
    /// Load factor as measured by MPCP; 0 before the first measurement.
    pub load: f64,
    /// Positive feedback that XCP gives in a control interval, bytes.
    pub give_bytes: u64,
    /// Negative feedback that XCP gives in a control interval, bytes.
    pub take_bytes: u64,
    /// Rate of a greedy flow of weight 1 under `share`, payload bit/s.
    pub share_bps: u64,
    /// Number of flows under `share` that have data to send.
    pub share_flows: u32,
    /// Fraction of the configured capacity that `share` estimates to be available.
    pub share_scale: f64,
}
