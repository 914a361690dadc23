//! A link: its rate and delay, the queue before it, and what it loses.

use crate::{
    fraction::{self, Fraction},
    law::SpanLaw,
    trace::{LinkTrace, OPPORTUNITY},
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use toml_file::text_or_table;
use units::{Bytes, PKT, QueueLimit, QueueSize, Rate, Span};

/// A link. Everything holds in both directions, each by itself, except losses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Rate in IP bits a second, in both directions. Absent: with a `trace`, whose mean rate it is.
    #[serde(default = "no_rate")]
    pub rate: Rate,
    /// Propagation delay of one direction; both have it.
    pub delay: Span,
    /// The queue before the link, in both directions.
    #[serde(default)]
    pub queue: Queue,
    /// Losses on the link, behind the queue: a lost packet has used its time on the link. Absent:
    /// none.
    #[serde(default, skip_serializing_if = "Losses::is_none")]
    pub loss: Losses,
    /// Probability that a bit is received wrongly. A packet with a wrong bit is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bit_errors: Option<Fraction>,
    /// Times in which everything is lost, in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outages: Option<Outages>,
    /// A random extra delay of each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,
    /// Packets that later ones overtake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reordering: Option<LinkReordering>,
    /// Probability that a packet arrives twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplication: Option<Fraction>,
    /// Other rates, delays or losses from certain times on (rain fade, handovers, outages), in the
    /// order of time. A proxy without a `capacity` of its own is told of the rates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<LinkChange>,
    /// File with such changes, in place of `changes`: CSV with a column `time`, and one or several
    /// of `rate`, `delay` and `loss`. An empty cell changes nothing. A relative path starts at the
    /// scenario file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepsFile>,
    /// After this time the changes come again, and so on: the cycle of a satellite network. Absent:
    /// they come once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Span>,
    /// A recorded link in place of a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<LinkTrace>,
    /// A lower rate while little waits for the link, as a cellular scheduler assigns it. Absent:
    /// the rate does not depend on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<RateDemand>,
}

/// How the rate of a link follows demand. A scheduler looks at the queues before the link from time
/// to time. It assigns the link's `rate` once `above` waits in one direction, and `least` once
/// nothing does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateDemand {
    /// Rate without demand, and at the start, in IP bits a second.
    pub least: Rate,
    /// What must wait for the link's whole rate.
    pub above: Bytes,
    /// Time between two looks at the queues.
    pub every: Span,
}

/// Another rate, delay or loss of a link from some time on. What is absent stays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// Time from which on it holds, from the start of the run.
    pub at: Span,
    /// Rate of both directions from then on, in IP bits a second. 0: nothing leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Propagation delay of one direction from then on. A packet does not overtake one that was
    /// sent before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// Probability from then on that a packet is lost, in the direction of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Fraction>,
}

/// The rate of a link for which none is given; `Scenario::check` refuses it.
pub(crate) const NO_RATE: Rate = Rate(u64::MAX);

fn no_rate() -> Rate {
    NO_RATE
}

impl Link {
    /// IP bytes that the link carries between two times, in seconds from the start of the run.
    pub fn capacity_between(&self, from: f64, to: f64) -> f64 {
        if let Some(trace) = &self.trace {
            let count = trace.down.trace().count_between(Span::from_secs_f64(from), Span::from_secs_f64(to));
            return (count * OPPORTUNITY.0) as f64;
        }
        let starts = self.all_changes().take_while(|change| change.at.secs() < to);
        let starts = starts.filter_map(|change| Some((change.at.secs(), change.rate?)));
        let spells: Vec<(f64, Rate)> = std::iter::once((0.0, self.rate)).chain(starts).collect();
        let ends = spells.iter().skip(1).map(|(at, _)| *at).chain([f64::INFINITY]);
        let carried = |((since, rate), until): (&(f64, Rate), f64)| (to.min(until) - from.max(*since)).max(0.0) * rate.bits_per_s() as f64;
        spells.iter().zip(ends).map(carried).sum::<f64>() / 8.0
    }

    /// The first key that an engine lacks whose links have a constant rate, a delay and losses of
    /// data.
    pub fn beyond_rate_and_loss(&self) -> Option<&'static str> {
        let keys = [
            ("trace", self.trace.is_some()),
            ("loss.reverse", self.loss.reverse.is_some()),
            ("bit_errors", self.bit_errors.is_some()),
            ("outages", self.outages.is_some()),
            ("jitter", self.jitter.is_some()),
            ("reordering", self.reordering.is_some()),
            ("duplication", self.duplication.is_some()),
        ];
        keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
    }

    /// All changes in the order of time, without an end if they repeat.
    pub fn all_changes(&self) -> LinkChanges {
        LinkChanges { changes: self.changes.clone(), repeat: self.repeat, number: 0 }
    }
}

/// A file of changes: its name, and the line of each change once it is read. In a scenario file it
/// is the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String", inline)]
pub struct StepsFile {
    /// The file's name.
    pub name: String,
    pub(crate) lines: Vec<u64>,
}

impl From<String> for StepsFile {
    fn from(name: String) -> Self {
        StepsFile { name, lines: Vec::new() }
    }
}

impl From<StepsFile> for String {
    fn from(file: StepsFile) -> String {
        file.name
    }
}

/// The changes of a link in the order of time, without an end if they repeat.
#[derive(Debug, Clone, Default)]
pub struct LinkChanges {
    changes: Vec<LinkChange>,
    repeat: Option<Span>,
    /// The number of the next change, over all repetitions.
    number: usize,
}

impl Iterator for LinkChanges {
    type Item = LinkChange;

    fn next(&mut self) -> Option<LinkChange> {
        let round = self.number.checked_div(self.changes.len())?;
        let later = match (round, self.repeat) {
            (0, _) => 0,
            (_, None) => return None,
            (round, Some(repeat)) => repeat.0.checked_mul(round as u64)?,
        };
        let change = self.changes[self.number % self.changes.len()];
        self.number += 1;
        Some(LinkChange { at: Span(change.at.0.checked_add(later)?), ..change })
    }
}

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

/// What loses packets on a link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Each packet with this probability: rate dependent (RD).
    PerPacket(f64),
    /// A Poisson process of so many events a second, each of which drops the next packet: rate
    /// independent (RI).
    PerSecond(f64),
    /// Bursts: two states, each with its loss probability.
    Gilbert(Gilbert),
}

/// The losses of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(into = "LossesKeys")]
pub struct Losses {
    /// In the direction of the data.
    pub forward: Option<Loss>,
    /// In the other direction: of SYN-ACKs and ACKs.
    pub reverse: Option<Loss>,
}

impl Losses {
    /// Whether nothing is lost.
    pub fn is_none(&self) -> bool {
        self.forward.is_none() && self.reverse.is_none()
    }
}

/// Losses. At most one process for each direction.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LossesKeys {
    /// Each packet is lost with this probability, independently of the others (rate dependent, RD).
    per_packet: Option<Fraction>,
    /// So many events a second, a Poisson process, each of which drops the next packet; an event
    /// without a packet lapses after 0.1 s (rate independent, RI).
    per_second: Option<f64>,
    /// Bursts of losses: the Gilbert–Elliott channel.
    gilbert: Option<Gilbert>,
    /// Losses in the other direction, of SYN-ACKs and ACKs, with the same keys.
    reverse: Option<Loss>,
}

impl From<Losses> for LossesKeys {
    fn from(Losses { forward, reverse }: Losses) -> Self {
        let mut keys = LossesKeys { per_packet: None, per_second: None, gilbert: None, reverse };
        match forward {
            None => {}
            Some(Loss::PerPacket(probability)) => keys.per_packet = Some(Fraction(probability)),
            Some(Loss::PerSecond(events)) => keys.per_second = Some(events),
            Some(Loss::Gilbert(gilbert)) => keys.gilbert = Some(gilbert),
        }
        keys
    }
}

impl TryFrom<LossesKeys> for Losses {
    type Error = String;

    fn try_from(keys: LossesKeys) -> Result<Self, String> {
        let LossesKeys { per_packet, per_second, gilbert, reverse } = keys;
        if per_packet.is_none() && per_second.is_none() && gilbert.is_none() && reverse.is_some() {
            return Ok(Losses { forward: None, reverse });
        }
        Ok(Losses { forward: Some(LossKeys { per_packet, per_second, gilbert }.try_into()?), reverse })
    }
}

impl<'de> Deserialize<'de> for Losses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_table::<D, Losses, LossesKeys>(deserializer, EXPECTED_LOSS, |text| Err(no_loss(text)))
    }
}

impl JsonSchema for Losses {
    fn schema_name() -> Cow<'static, str> {
        "Losses".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        LossesKeys::json_schema(generator)
    }
}

/// Outages: times in which everything is lost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outages {
    /// Time from the end of an outage, or the start of the run, to the next outage.
    pub every: SpanLaw,
    /// Length of an outage.
    pub last: SpanLaw,
}

/// A random extra delay of each packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// The extra delay.
    pub delay: SpanLaw,
    /// Whether a packet with a smaller one overtakes those before it. If not, it waits for them, as
    /// on a link layer that retransmits.
    #[serde(default)]
    pub reorders: bool,
}

/// Packets that later ones overtake.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkReordering {
    /// Probability that a packet is delayed.
    pub share: Fraction,
    /// Extra delay of such a packet.
    pub by: Span,
}

/// A loss process. Exactly one of the keys is given.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LossKeys {
    /// Each packet is lost with this probability, independently of the others (rate dependent, RD).
    per_packet: Option<Fraction>,
    /// So many events a second, a Poisson process, each of which drops the next packet; an event
    /// without a packet lapses after 0.1 s (rate independent, RI).
    per_second: Option<f64>,
    /// Bursts of losses: the Gilbert–Elliott channel.
    gilbert: Option<Gilbert>,
}

impl TryFrom<LossKeys> for Loss {
    type Error = String;

    fn try_from(keys: LossKeys) -> Result<Self, String> {
        match (keys.per_packet, keys.per_second, keys.gilbert) {
            (Some(Fraction(probability)), None, None) => Ok(Loss::PerPacket(probability)),
            (None, Some(events), None) => Ok(Loss::PerSecond(events)),
            (None, None, Some(gilbert)) => Ok(Loss::Gilbert(gilbert)),
            (None, None, None) => Err("is empty: write loss = { per_packet = 0.001 }, or leave it out for no loss".into()),
            _ => Err("has several loss processes: a link has one of per_packet, per_second and gilbert".into()),
        }
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_table::<D, Loss, LossKeys>(deserializer, EXPECTED_LOSS, |text| Err(no_loss(text)))
    }
}

const EXPECTED_LOSS: &str = "a loss process such as { per_packet = 0.001 }";

/// Why a text or a bare number is no loss process.
fn no_loss(text: &str) -> String {
    match text.parse() {
        Ok(Fraction(lost)) => format!(
            "does not say how packets are lost: write loss = {{ per_packet = {lost} }} for this share of the packets, or {{ \
             per_second = … }} for events a second"
        ),
        Err(_) => format!("cannot be {text:?}: write loss = {{ per_packet = 0.001 }}, or leave it out for no loss"),
    }
}

impl JsonSchema for Loss {
    fn schema_name() -> Cow<'static, str> {
        "Loss".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        LossKeys::json_schema(generator)
    }
}

/// The Gilbert–Elliott channel. Probabilities are per packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gilbert {
    /// Probability of the transition from the good state to the bad one.
    #[serde(deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub good_to_bad: f64,
    /// Probability of the transition back; its inverse is the mean length of a bad period in
    /// packets.
    #[serde(deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub bad_to_good: f64,
    /// Probability of a loss in the good state.
    #[serde(default, deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub loss_good: f64,
    /// Probability of a loss in the bad state.
    #[serde(default = "certain", deserialize_with = "fraction::deserialize")]
    #[schemars(with = "Fraction")]
    pub loss_bad: f64,
}

fn certain() -> f64 {
    1.0
}
