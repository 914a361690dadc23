//! What varies between the runs of the corpus besides the middlebox: direction, path and condition of
//! the network.

use serde::{Deserialize, Serialize};
use testbed::SplitMix64;

/// How long a receiver holds each ACK where ACKs are late, s.
pub(crate) const LATE: f64 = 1.0;

/// Who sends the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransferDirection {
    /// The client, whose link is the slow one.
    Up,
    /// The server.
    Down,
}

/// What is so on the network while a run is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NetworkCondition {
    /// Nothing in particular.
    Plain,
    /// 1 % of the data's packets are lost on the slow link.
    Loss,
    /// 3 % of the packets of the slow link take 8 ms longer.
    Reordering,
    /// Cards that put segments together at both ends.
    Offload,
    /// A NAT in the middle.
    Nat,
    /// The receiver's card waits for more segments: one ACK for many.
    StretchAcks,
    /// The receiver holds each ACK for [`LATE`].
    LateAcks,
}

/// The path and the size of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PathSpec {
    pub(crate) slow_kbit: u64,
    pub(crate) slow_delay_us: u64,
    pub(crate) queue_packets: u64,
    pub(crate) fast_kbit: u64,
    pub(crate) fast_delay_us: u64,
    pub(crate) bytes: u64,
}

/// The cellular link of Wei et al. (§IV-A): 128 kbit/s, a round trip of 0.8 s for a full packet, here with room for 3 s; 30 ms to the server.
pub(crate) const CELLULAR: PathSpec =
    PathSpec { slow_kbit: 128, slow_delay_us: 353_000, queue_packets: 32, fast_kbit: 20_000, fast_delay_us: 15_000, bytes: 1_500_000 };

impl PathSpec {
    /// A mobile's link of 2 to 8 Mbit/s and 15 to 60 ms, a wired one of 20 to 100 Mbit/s and 2 to 20 ms, a transfer of one to two seconds.
    pub(crate) fn draw(random: &mut SplitMix64, condition: NetworkCondition) -> Self {
        let slow_kbit = random.log_uniform(2_000, 8_000);
        let slow_delay_us = random.log_uniform(15_000, 60_000);
        let (fast_kbit, fast_delay_us) = (random.log_uniform(20_000, 100_000), random.log_uniform(2_000, 20_000));
        let seconds = match condition {
            // A window that is halved, or waits for its ACKs, carries less.
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

/// A value as its label has it.
pub(crate) fn label_text(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}
