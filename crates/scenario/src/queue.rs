//! The queue before a link: its limit and its discipline.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use toml_file::text_or_table;
use units::{Bytes, PKT, QueueLimit, QueueSize, Rate, Span};

/// A queue: its limit, and its discipline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Queue {
    /// Most that it holds.
    pub limit: QueueLimit,
    /// Its discipline.
    pub kind: QueueKind,
    /// The delay that it controls to; absent: the default of the discipline.
    pub target: Option<Span>,
    /// CoDel's interval; absent: 100 ms.
    pub interval: Option<Span>,
    /// Whether it marks ECN-capable packets in place of dropping them; absent: the default of the
    /// discipline.
    pub ecn: Option<bool>,
    /// Above this `ecn` marks; absent: a fifth of the limit, and at least 3 packets.
    pub mark_above: Option<QueueLimit>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue::droptail(QueueLimit::Bdp(1.0))
    }
}

/// The parameters of a discipline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueParameters {
    /// The delay that it controls to; absent: its default.
    pub target: Option<Span>,
    /// CoDel's interval; absent: its default.
    pub interval: Option<Span>,
    /// Whether it marks ECN-capable packets in place of dropping them.
    pub marks: bool,
    /// Above this a threshold queue marks; absent: its default.
    pub mark_above: Option<QueueSize>,
}

impl Queue {
    /// A drop-tail queue.
    pub fn droptail(limit: QueueLimit) -> Self {
        Queue { limit, kind: QueueKind::Droptail, target: None, interval: None, ecn: None, mark_above: None }
    }

    /// Its size before a link of this rate, on a leg of this base RTT. A limit in BDP or bytes
    /// holds at least two packets.
    pub fn size_for(&self, rate: Rate, base_rtt: Span) -> QueueSize {
        size_of(self.limit, rate, base_rtt)
    }

    /// Whether it marks ECN-capable packets.
    pub fn marks(&self) -> bool {
        match self.kind {
            QueueKind::Ecn => true,
            QueueKind::FqCodel | QueueKind::Dualpi2 => self.ecn.unwrap_or(true),
            QueueKind::Codel | QueueKind::Pie => self.ecn.unwrap_or(false),
            QueueKind::Droptail | QueueKind::Xcp | QueueKind::Vcp | QueueKind::Mpcp => false,
        }
    }

    /// The parameters of its discipline before a link of this rate, on a leg of this base RTT.
    pub fn parameters_for(&self, rate: Rate, base_rtt: Span) -> QueueParameters {
        QueueParameters {
            target: self.target,
            interval: self.interval,
            marks: self.marks(),
            mark_above: self.mark_above.map(|limit| size_of(limit, rate, base_rtt)),
        }
    }
}

fn size_of(limit: QueueLimit, rate: Rate, base_rtt: Span) -> QueueSize {
    let least = 2 * PKT.0;
    match limit {
        QueueLimit::Bdp(times) => QueueSize::Bytes(Bytes(((rate.bytes_in(base_rtt).0 as f64 * times) as u64).max(least))),
        QueueLimit::Bytes(bytes) => QueueSize::Bytes(bytes.max(Bytes(least))),
        QueueLimit::Packets(count) => QueueSize::Packets(count),
    }
}

/// The discipline of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueKind {
    /// First in, first out; packets that do not fit are dropped
    Droptail,
    /// Marks Congestion Experienced above `mark_above`
    Ecn,
    /// CoDel (RFC 8289): drops once the delay has been above `target` for `interval`
    Codel,
    /// FQ-CoDel (RFC 8290): flows take turns, each with a CoDel of its own
    FqCodel,
    /// PIE (RFC 8033): drops at random, so that the delay is `target`
    Pie,
    /// DualPI2 (RFC 9332): a queue of low latency for L4S (ECT(1)), coupled to one with the delay
    /// `target`
    Dualpi2,
    /// An XCP router: tells senders of its kind what to send, in the direction of the data
    Xcp,
    /// A VCP router, in the same way
    Vcp,
    /// An MPCP router, in the same way
    Mpcp,
}

/// A queue with its discipline, in place of a bare limit.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct QueueKeys {
    /// Most that the queue holds. 1 BDP is the link's rate × the base round trip of the leg on
    /// which it lies. Default: 1 BDP; of `codel`, `pie` and `dualpi2` 1000, 1000 and 10000 packets,
    /// of `fq_codel` 10240, as in Linux.
    limit: Option<QueueLimit>,
    /// Discipline of the queue.
    #[schemars(extend("default" = "droptail"))]
    kind: Option<QueueKind>,
    /// Delay that it controls to. Default: 5 ms of `codel` and `fq_codel`, 15 ms of `pie` and
    /// `dualpi2`.
    target: Option<Span>,
    /// Interval of `codel` and `fq_codel`. Default: 100 ms.
    interval: Option<Span>,
    /// Whether ECN-capable packets are marked and not dropped. Default: `true` of `fq_codel` and
    /// `dualpi2`, `false` of `codel` and `pie`.
    ecn: Option<bool>,
    /// `ecn` marks packets that arrive when more than this waits. Default: a fifth of the limit,
    /// and at least 3 packets.
    mark_above: Option<QueueLimit>,
}

impl TryFrom<QueueKeys> for Queue {
    type Error = String;

    fn try_from(keys: QueueKeys) -> Result<Self, String> {
        let QueueKeys { limit, kind, target, interval, ecn, mark_above } = keys;
        let kind = kind.unwrap_or(QueueKind::Droptail);
        let codel = matches!(kind, QueueKind::Codel | QueueKind::FqCodel);
        let managed = codel || matches!(kind, QueueKind::Pie | QueueKind::Dualpi2);
        for (key, is_given, kinds, fits) in [
            ("target", target.is_some(), "codel, fq_codel, pie and dualpi2", managed),
            ("interval", interval.is_some(), "codel and fq_codel", codel),
            ("ecn", ecn.is_some(), "codel, fq_codel, pie and dualpi2", managed),
            ("mark_above", mark_above.is_some(), "ecn", kind == QueueKind::Ecn),
        ] {
            if is_given && !fits {
                return Err(format!("has {key}, which is for queues of kind {kinds}: leave it out, or give the kind"));
            }
        }
        for (key, value) in [("target", target), ("interval", interval)] {
            if value == Some(Span::ZERO) {
                return Err(format!("has {key} = 0: give a time above 0"));
            }
        }
        let linux = match kind {
            QueueKind::Codel | QueueKind::Pie => QueueLimit::Packets(1000),
            QueueKind::FqCodel => QueueLimit::Packets(10_240),
            QueueKind::Dualpi2 => QueueLimit::Packets(10_000),
            _ => QueueLimit::Bdp(1.0),
        };
        Ok(Queue { limit: limit.unwrap_or(linux), kind, target, interval, ecn, mark_above })
    }
}

impl<'de> Deserialize<'de> for Queue {
    /// A bare limit, or a table.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a limit such as \"64pkt\", \"256KiB\" or \"1BDP\", or { limit = \"64pkt\", kind = \"ecn\" }";
        text_or_table::<D, Queue, QueueKeys>(deserializer, expected, |text| {
            let limit = text.parse::<QueueLimit>().map_err(|error| error.to_string())?;
            Ok(Queue::droptail(limit))
        })
    }
}

impl JsonSchema for Queue {
    fn schema_name() -> Cow<'static, str> {
        "Queue".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::schema::either::<QueueLimit, QueueKeys>(generator)
    }
}
