//! A link: how fast it is and how far it goes, the queue before it, and what it loses.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use toml_file::inner;
use units::{Bytes, PKT, QueueLimit, QueueSize, Rate, Span};

/// A link; rate, delay and queue hold both ways, loss hits the direction of the data only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// IP bits a second.
    pub rate: Rate,
    /// Propagation, one way.
    pub delay: Span,
    /// The queue before the link.
    #[serde(default)]
    pub queue: Queue,
    /// Losses on the link, after the queue: a lost packet has used its time on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// When its rate changes, and to what (rain fade). A proxy that is told nothing else of its capacity is told of this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<RateChange>,
}

/// From some time on a link has another rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateChange {
    /// From when on.
    pub at: Span,
    /// IP bits a second.
    pub rate: Rate,
}

impl Link {
    /// IP bytes that it carries between two times, in seconds.
    pub fn capacity_between(&self, from: f64, to: f64) -> f64 {
        let starts = self.changes.iter().map(|change| (change.at.secs(), change.rate));
        let spells: Vec<(f64, Rate)> = std::iter::once((0.0, self.rate)).chain(starts).collect();
        let ends = spells.iter().skip(1).map(|(at, _)| *at).chain([f64::INFINITY]);
        let carried = |((since, rate), until): (&(f64, Rate), f64)| (to.min(until) - from.max(*since)).max(0.0) * rate.bits_per_s() as f64;
        spells.iter().zip(ends).map(carried).sum::<f64>() / 8.0
    }
}

/// A queue: its limit and how it behaves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Queue {
    /// How much it holds.
    pub limit: QueueLimit,
    /// What it does.
    pub kind: QueueKind,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { limit: QueueLimit::Bdp(1.0), kind: QueueKind::Droptail }
    }
}

impl Queue {
    /// Its size before a link of this rate (IP bits per second), on a leg of this base RTT. A limit
    /// given in BDP or bytes holds at least two packets.
    pub fn size_for(&self, rate: Rate, base_rtt: Span) -> QueueSize {
        let least = 2 * PKT.0;
        match self.limit {
            QueueLimit::Bdp(times) => QueueSize::Bytes(Bytes(((rate.bytes_in(base_rtt).0 as f64 * times) as u64).max(least))),
            QueueLimit::Bytes(bytes) => QueueSize::Bytes(bytes.max(Bytes(least))),
            QueueLimit::Packets(count) => QueueSize::Packets(count),
        }
    }
}

/// What a queue does to the packets it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// First in, first out; what does not fit is dropped.
    Droptail,
    /// Marks Congestion Experienced above a threshold.
    Ecn,
    /// An XCP router.
    Xcp,
    /// A VCP router.
    Vcp,
    /// An MPCP router.
    Mpcp,
}

/// A queue is a bare limit, or a table.
impl<'de> Deserialize<'de> for Queue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            limit: Option<QueueLimit>,
            kind: Option<QueueKind>,
        }
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Ok(Queue { limit: text.parse().map_err(D::Error::custom)?, kind: QueueKind::Droptail }),
            value @ toml::Value::Table(_) => {
                let table: Table = value.try_into().map_err(inner)?;
                let whole = Queue::default();
                Ok(Queue { limit: table.limit.unwrap_or(whole.limit), kind: table.kind.unwrap_or(whole.kind) })
            }
            _ => Err(D::Error::custom("a queue is a limit like \"64pkt\", \"256KiB\" or \"1BDP\", or { limit = …, kind = … }")),
        }
    }
}

/// What loses packets on a link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Each packet with this probability: rate dependent (RD).
    PerPacket(f64),
    /// A Poisson process of so many events a second, each of which drops the next packet: rate independent (RI).
    PerSecond(f64),
    /// Bursts: two states, each with its loss probability.
    Gilbert(Gilbert),
}

/// The Gilbert–Elliott channel; probabilities are per packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gilbert {
    /// From the good state to the bad one.
    pub good_to_bad: f64,
    /// Back again; 1 / this is the mean length of a bad period in packets.
    pub bad_to_good: f64,
    /// Loss in the good state.
    #[serde(default)]
    pub loss_good: f64,
    /// Loss in the bad state.
    #[serde(default = "certain")]
    pub loss_bad: f64,
}

fn certain() -> f64 {
    1.0
}
