//! A link: its rate and delay, how they change, and what it does to packets besides.

use crate::{
    fraction::Fraction,
    law::SpanLaw,
    losses::LinkLosses,
    queue::Queue,
    trace::{LinkTrace, OPPORTUNITY},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, Rate, Span};

/// A link. Everything holds in both directions, each by itself, except losses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Rate in both directions, in IP bits a second; of a `[[network]]` in bits of payload. Absent:
    /// with a `trace`, whose mean rate it is.
    #[serde(default = "no_rate", skip_serializing_if = "is_no_rate")]
    pub rate: Rate,
    /// Propagation delay of one direction; both have it.
    pub delay: Span,
    /// The queue before the link, in both directions.
    #[serde(default)]
    pub queue: Queue,
    /// Losses on the link, behind the queue: a lost packet has used its time on the link. Absent:
    /// none.
    #[serde(default, skip_serializing_if = "LinkLosses::is_none")]
    pub loss: LinkLosses,
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
    /// Whether the directions share the link, one packet at a time.
    #[serde(default, skip_serializing_if = "Medium::is_full_duplex")]
    pub medium: Medium,
    /// Another rate and queue of the direction from the last link to the first. Absent: both
    /// directions have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<ReverseDirection>,
}

/// What the direction of a link from the last link to the first has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReverseDirection {
    /// Its rate, in IP bits a second.
    pub rate: Rate,
    /// The queue before it. Absent: as before the other direction; `BDP` counts by this rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
}

/// How the two directions of a link share its medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// They do not: each has the link's rate
    #[default]
    FullDuplex,
    /// One packet at a time crosses the link; hosts that have packets take turns
    HalfDuplex,
    /// A network of two stations by IEEE 802.11b at 11 Mbit/s, which contend for it frame by frame, with
    /// the parameters of Table IV of Hoekstra et al. The link's `rate` is what a long download gets of it
    /// (the paper's effective throughput); loads and `BDP` count by it
    #[serde(rename = "802.11b")]
    Wifi80211b,
}

impl Medium {
    fn is_full_duplex(&self) -> bool {
        *self == Medium::FullDuplex
    }
}

/// How the rate of a link follows demand. A scheduler looks at the queues before the link from time
/// to time. It assigns the link's `rate` once `above` waits in one direction, and `least` once
/// nothing does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateDemand {
    /// Rate without demand, and at the start, counted as the link's rate.
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
    /// Rate of both directions from then on, counted as the link's rate. 0: nothing leaves.
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

fn is_no_rate(rate: &Rate) -> bool {
    *rate == NO_RATE
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

    /// Rate and queue of a direction.
    pub fn direction(&self, is_reverse: bool) -> (Rate, Queue) {
        match self.reverse.filter(|_| is_reverse) {
            Some(reverse) => (reverse.rate, reverse.queue.unwrap_or(self.queue)),
            None => (self.rate, self.queue),
        }
    }

    /// The keys that are set beyond a constant rate, a delay and losses of data: an engine that
    /// models only these does not support them.
    pub fn beyond_rate_and_loss(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("trace", self.trace.is_some()),
            ("loss.reverse", self.loss.reverse.is_some()),
            ("bit_errors", self.bit_errors.is_some()),
            ("outages", self.outages.is_some()),
            ("jitter", self.jitter.is_some()),
            ("reordering", self.reordering.is_some()),
            ("duplication", self.duplication.is_some()),
            ("medium", !self.medium.is_full_duplex()),
            ("reverse", self.reverse.is_some()),
        ];
        keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key)
    }

    /// The key of what changes the link in the course of a run; none if nothing does.
    pub fn varying_key(&self) -> Option<&'static str> {
        let keys = [("steps", self.steps.is_some()), ("changes", !self.changes.is_empty()), ("demand", self.demand.is_some())];
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
