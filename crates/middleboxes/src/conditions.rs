//! What varies between the runs of the corpus besides the middlebox: direction, path and condition
//! of the network.

use serde::{Deserialize, Serialize};
use testbed::SplitMix64;

/// How long the receiver delays each ACK under [`NetworkCondition::LateAcks`], s.
pub const LATE: f64 = 1.0;

/// Direction of the bulk data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BulkDirection {
    /// From the client, whose link is the slow one.
    Up,
    /// From the server.
    Down,
}

/// Impairment or setting of the network during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkCondition {
    /// None.
    Plain,
    /// Loss of 1 % of the data packets on the slow link.
    Loss,
    /// Extra delay of 8 ms for 3 % of the packets on the slow link.
    Reordering,
    /// Segmentation and receive offload (TSO, GRO) at both ends.
    Offload,
    /// NAT on the middle host.
    Nat,
    /// Receive offload that waits for further segments: one ACK for many.
    StretchAcks,
    /// A delay of [`LATE`] for each ACK.
    LateAcks,
}

/// Path and size of a run: the client's link (slow), the server's link (fast), and the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PathSpec {
    /// Rate of the client's link, kbit/s.
    pub slow_kbit: u64,
    /// Its propagation delay, µs.
    pub slow_delay_us: u64,
    /// The limit of its queue, packets.
    pub queue_packets: u64,
    /// Rate of the server's link, kbit/s.
    pub fast_kbit: u64,
    /// Its propagation delay, µs.
    pub fast_delay_us: u64,
    /// The size of the transfer.
    pub bytes: u64,
}

/// The cellular link of Wei et al. (§IV-A): 128 kbit/s, RTT of 0.8 s for a full packet, here with a
/// queue of 3 s; 30 ms to the server.
pub(crate) const CELLULAR: PathSpec =
    PathSpec { slow_kbit: 128, slow_delay_us: 353_000, queue_packets: 32, fast_kbit: 20_000, fast_delay_us: 15_000, bytes: 1_500_000 };

impl PathSpec {
    /// A random path: mobile link of 2 to 8 Mbit/s and 15 to 60 ms, wired link of 20 to 100 Mbit/s
    /// and 2 to 20 ms, and a transfer of one to two seconds.
    pub fn draw(random: &mut SplitMix64, condition: NetworkCondition) -> Self {
        let slow_kbit = random.log_uniform(2_000, 8_000);
        let slow_delay_us = random.log_uniform(15_000, 60_000);
        let (fast_kbit, fast_delay_us) = (random.log_uniform(20_000, 100_000), random.log_uniform(2_000, 20_000));
        let seconds = match condition {
            // A window that is halved, or waits for late ACKs, carries less.
            NetworkCondition::Loss | NetworkCondition::Reordering => random.uniform(500, 900),
            NetworkCondition::LateAcks => random.uniform(300, 700),
            _ => random.uniform(900, 1900),
        };
        PathSpec {
            slow_kbit,
            slow_delay_us,
            queue_packets: random.uniform(40, 150),
            fast_kbit,
            fast_delay_us,
            bytes: slow_kbit * seconds / 8,
        }
    }
}

/// A value as labels and file names have it.
pub fn label_text(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}
