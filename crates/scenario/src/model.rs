//! A scenario: links in series, the places where connections are split, and the flows that cross them. What lies in parallel is in `parallel`.

use crate::{
    law::{Law, Shape, SizeLaw},
    parallel::{Bond, Foreground, Network},
    random::{Purpose, stream},
    sources::{Cross, Offer},
    tcp::Tcp,
    units::{Bytes, PKT, QueueLimit, Rate, Span, UnitError, impl_text},
};
use rand::RngExt;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::{fmt, str::FromStr};

/// What the network is and who sends what over it: a row of links, or networks in parallel. It is of one shape, never of both, which `check` sees
/// to; [`Scenario::parallel`] tells which, and is what an engine asks first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called in tables.
    pub name: String,
    /// What it is about, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// When it ends; absent: when every flow has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Span>,
    /// Seed of every random number.
    #[serde(default = "one")]
    pub seed: u64,
    /// The links from sender to receiver; none where networks lie in parallel.
    #[serde(rename = "link", default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Where connections are split; none: end to end.
    #[serde(rename = "split", default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<Split>,
    /// Who controls congestion how.
    #[serde(default)]
    pub control: Control,
    /// What TCP is to be like, where it is not the kernel's.
    #[serde(default, skip_serializing_if = "Tcp::is_linux")]
    pub tcp: Tcp,
    /// The connections, or, where networks lie in parallel, the transfers that are split over all of them.
    #[serde(rename = "flow", default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowGroup>,
    /// UDP traffic across single links.
    #[serde(rename = "cross", default, skip_serializing_if = "Vec::is_empty")]
    pub cross: Vec<Cross>,
    /// Networks in parallel; none where links lie in series.
    #[serde(rename = "network", default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// Transfers over these that come by chance, in place of flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreground: Option<Foreground>,
    /// How transfers are shared out among these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<Bond>,
}

fn one() -> u64 {
    1
}

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
    /// Its limit in bytes or packets, before a link of so many IP bits a second on a leg of this base RTT. One given in BDP or bytes holds at least
    /// two packets.
    pub fn limit_for(&self, rate: Rate, base_rtt: Span) -> QueueLimit {
        let least = 2 * PKT.0;
        match self.limit {
            QueueLimit::Bdp(times) => QueueLimit::Bytes(Bytes(((rate.bytes_in(base_rtt).0 as f64 * times) as u64).max(least))),
            QueueLimit::Bytes(bytes) => QueueLimit::Bytes(bytes.max(Bytes(least))),
            packets @ QueueLimit::Packets(_) => packets,
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

/// The text of an error in a nested value, without the position that a value has not got.
fn inner<E: serde::de::Error>(error: toml::de::Error) -> E {
    E::custom(error.message())
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

/// A proxy that splits every connection which crosses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// It stands after this link, counted from 1.
    pub after: usize,
    /// What it holds in each direction of a connection.
    #[serde(default)]
    pub buffer: Buffer,
    /// How it forwards.
    #[serde(default)]
    pub mode: SplitMode,
    /// How it holds a sender back.
    #[serde(default)]
    pub backpressure: Backpressure,
    /// What it is told that the link after it carries, where its controller shares that out (`share`, `xcp`, `mpcp`); absent: the truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Rate>,
    /// Whether it shapes what it sends to that capacity, so that the bottleneck's queue is its own; absent: it does not, and the queue is
    /// the next link's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shaper: bool,
    /// Whether the connections that it dials have TCP Fast Open (RFC 7413), with a cookie from earlier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fast_open: bool,
}

impl Split {
    /// One after this link, with all else as where a file says no more.
    pub fn at(after: usize) -> Self {
        Split {
            after,
            buffer: Buffer::default(),
            mode: SplitMode::default(),
            backpressure: Backpressure::default(),
            capacity: None,
            shaper: false,
            fast_open: false,
        }
    }
}

/// How much a proxy holds in each direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer {
    /// So many bytes of payload. Packets are counted at 1500 bytes.
    Bytes(Bytes),
    /// As much as comes.
    Unlimited,
    /// What the links ask for: the larger BDP of the legs beside it, at least 256 KiB.
    #[default]
    Auto,
}

impl FromStr for Buffer {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text {
            "unlimited" => Ok(Buffer::Unlimited),
            "auto" => Ok(Buffer::Auto),
            _ => text.parse().map(Buffer::Bytes),
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Bytes(bytes) => write!(f, "{bytes}"),
            Buffer::Unlimited => f.write_str("unlimited"),
            Buffer::Auto => f.write_str("auto"),
        }
    }
}
impl_text!(Buffer);

/// How a proxy forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum SplitMode {
    /// Bytes go on as they come.
    #[default]
    Stream,
    /// Receive all, then forward.
    Store,
    /// Forward as a stream, but acknowledge only what the far end has acknowledged: the sender's window follows what the proxy has, and its
    /// send buffer what was delivered (Semi-Split TCP, Xie, Jiang, Ho and Hua 2007).
    Semi,
}

/// How a proxy holds a sender back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Backpressure {
    /// The advertised window is the free space, as real sockets do.
    #[default]
    Window,
    /// The sender is held to the drain rate, only while the buffer is full (the paper's equations).
    Fluid,
}

/// Congestion controllers by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Of the first leg, or of the whole path when nothing is split.
    #[serde(default = "cubic")]
    pub sender: String,
    /// Of the following legs: one for all, or a list.
    #[serde(default = "cubics", deserialize_with = "one_or_many")]
    pub proxy: Vec<String>,
}

fn cubic() -> String {
    "cubic".into()
}

fn cubics() -> Vec<String> {
    vec![cubic()]
}

impl Default for Control {
    fn default() -> Self {
        Control { sender: cubic(), proxy: cubics() }
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let not_a_name = || D::Error::custom("expected a controller's name, or a list of names: one for each split");
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(name) => Ok(vec![name]),
        toml::Value::Array(names) if !names.is_empty() => {
            names.into_iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(not_a_name)).collect()
        }
        _ => Err(not_a_name()),
    }
}

/// Connections that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowGroup {
    /// How many.
    #[serde(default = "one_flow")]
    pub count: u32,
    /// What each sends; absent: as much as it can until the duration ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<SizeLaw>,
    /// When each starts.
    #[serde(default)]
    pub start: Draw,
    /// Who opens the connection; data goes from sender to receiver all the same.
    #[serde(default)]
    pub opens: Opens,
    /// Extra one-way delay of each on the first link, both ways.
    #[serde(default)]
    pub access_delay: Draw,
    /// The receiver's window, where it is to be a limit; absent: larger than any path here needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Bytes>,
    /// The sender's send buffer, where it is to be a limit: payload that was sent and not acknowledged yet; absent: larger than any path
    /// here needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<Bytes>,
    /// Whether the opener's connection has TCP Fast Open (RFC 7413), with a cookie from earlier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fast_open: bool,
    /// What the application offers, where it is that which limits the flow; absent: as much as the connection takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers: Option<Offer>,
}

fn one_flow() -> u32 {
    1
}

/// Who opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Opens {
    /// The one who sends the data: an upload.
    #[default]
    Sender,
    /// The one who receives it: a download.
    Receiver,
}

/// A time for each flow of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Draw {
    /// Uniform between two, from the seed.
    Uniform([Span; 2]),
    /// One after the other: 0, this, twice this …
    Every(Span),
    /// One after the other, as a Poisson process has them: this is the mean gap, before the first, too.
    Poisson(Span),
    /// The same for all.
    #[serde(untagged)]
    Fixed(Span),
}

impl Default for Draw {
    fn default() -> Self {
        Draw::Fixed(Span::ZERO)
    }
}

impl<'de> Deserialize<'de> for Draw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Table {
            Uniform([Span; 2]),
            Every(Span),
            Poisson(Span),
        }
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text.parse().map(Draw::Fixed).map_err(D::Error::custom),
            value @ toml::Value::Table(_) => match value.try_into().map_err(inner)? {
                Table::Uniform([low, high]) if low <= high => Ok(Draw::Uniform([low, high])),
                Table::Uniform([low, high]) => Err(D::Error::custom(format!("{low} is after {high}: write the earlier one first"))),
                Table::Every(step) => Ok(Draw::Every(step)),
                Table::Poisson(Span::ZERO) => Err(D::Error::custom("the mean gap is 0: write \"0s\" for all at once")),
                Table::Poisson(gap) => Ok(Draw::Poisson(gap)),
            },
            _ => {
                let laws = "{ uniform = [\"0s\", \"5s\"] }, { every = \"3s\" } or { poisson = \"2s\" }";
                Err(D::Error::custom(format!("expected a time like \"2s\", {laws}")))
            }
        }
    }
}

impl Draw {
    /// The times of `count` flows.
    fn draw(self, count: u32, rng: &mut rand_pcg::Pcg64) -> Vec<Span> {
        let mut last = Span::ZERO;
        (0..count)
            .map(|index| match self {
                Draw::Fixed(span) => span,
                Draw::Every(step) => Span(step.0 * u64::from(index)),
                Draw::Uniform([low, high]) => Span(rng.random_range(low.0..=high.0)),
                Draw::Poisson(mean) => {
                    last = Span(last.0.saturating_add(Law { shape: Shape::Exponential, mean }.draw(rng).0));
                    last
                }
            })
            .collect()
    }
}

/// One connection of a scenario, with its draws made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowSpec {
    /// Its number, from 0, over all groups.
    pub id: u32,
    /// What it sends; none: as much as it can.
    pub bytes: Option<Bytes>,
    /// When it starts.
    pub start: Span,
    /// Who opens it.
    pub opens: Opens,
    /// Its extra one-way delay on the first link.
    pub access_delay: Span,
    /// The receiver's window, where it is a limit.
    pub window: Option<Bytes>,
    /// The sender's send buffer, where it is a limit.
    pub send_buffer: Option<Bytes>,
    /// Whether its opener's connection has Fast Open.
    pub fast_open: bool,
    /// What its application offers, where that is a limit.
    pub offers: Option<Offer>,
}

/// A stretch of links between two ends of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// Its first link, from 0.
    pub first: usize,
    /// One past its last link.
    pub end: usize,
}

impl Scenario {
    /// The connections, numbered over all groups, their random times and sizes drawn from `seed`.
    pub fn flow_specs(&self, seed: u64) -> Vec<FlowSpec> {
        let mut specs = Vec::new();
        for (group_index, group) in (0..).zip(&self.flows) {
            let starts = group.start.draw(group.count, &mut stream(seed, Purpose::Starts, group_index));
            let delays = group.access_delay.draw(group.count, &mut stream(seed, Purpose::AccessDelays, group_index));
            let sizes = &mut stream(seed, Purpose::Sizes, group_index);
            for (start, access_delay) in starts.into_iter().zip(delays) {
                specs.push(FlowSpec {
                    id: specs.len() as u32,
                    bytes: group.bytes.map(|law| law.draw(sizes)),
                    start,
                    opens: group.opens,
                    access_delay,
                    window: group.window,
                    send_buffer: group.send_buffer,
                    fast_open: group.fast_open,
                    offers: group.offers,
                });
            }
        }
        specs
    }

    /// The legs from sender to receiver: one when nothing is split, one more for each split.
    pub fn legs(&self) -> Vec<Leg> {
        let mut ends: Vec<usize> = self.splits.iter().map(|split| split.after).collect();
        ends.push(self.links.len());
        let mut first = 0;
        ends.into_iter()
            .map(|end| {
                let leg = Leg { first, end };
                first = end;
                leg
            })
            .collect()
    }

    /// Whether the connection of `flow` on leg `number` (from 0) has Fast Open: the flow's own on the leg that its opener dials, each proxy's on
    /// the leg that this one dials.
    pub fn has_fast_open(&self, flow: &FlowSpec, number: usize) -> bool {
        let dialled_by = match flow.opens {
            Opens::Sender => number.checked_sub(1),
            Opens::Receiver => Some(number),
        };
        dialled_by.and_then(|split| self.splits.get(split)).map_or(flow.fast_open, |split| split.fast_open)
    }

    /// The controller of each leg.
    pub fn leg_controls(&self) -> Vec<&str> {
        let mut names = vec![self.control.sender.as_str()];
        for index in 0..self.splits.len() {
            names.push(self.control.proxy.get(index).unwrap_or(&self.control.proxy[self.control.proxy.len() - 1]));
        }
        names
    }

    /// Round trip of `leg` without queues: twice the delays of its links.
    pub fn base_rtt(&self, leg: Leg) -> Span {
        Span(2 * self.links[leg.first..leg.end].iter().map(|link| link.delay.0).sum::<u64>())
    }

    /// The least rate of `leg`'s links.
    pub fn bottleneck_rate(&self, leg: Leg) -> Rate {
        self.links[leg.first..leg.end].iter().map(|link| link.rate).min().unwrap_or(Rate(0))
    }

    /// Which link, from 0, is the bottleneck of the whole path: the slowest, the first of equals.
    pub fn bottleneck(&self) -> usize {
        (0..self.links.len()).min_by_key(|&index| self.links[index].rate).unwrap_or(0)
    }

    /// The leg on which link `index` (from 0) lies.
    pub fn leg_of_link(&self, index: usize) -> Leg {
        let legs = self.legs();
        *legs.iter().find(|leg| (leg.first..leg.end).contains(&index)).unwrap_or(&legs[0])
    }

    /// The limit of link `index`'s queue in bytes or packets, 1BDP being the link's rate × base RTT of its leg.
    pub fn queue_limit(&self, index: usize) -> QueueLimit {
        let link = &self.links[index];
        link.queue.limit_for(link.rate, self.base_rtt(self.leg_of_link(index)))
    }

    /// What split `index` holds in each direction of a connection; none: as much as comes.
    pub fn buffer_limit(&self, index: usize) -> Option<Bytes> {
        match self.splits[index].buffer {
            Buffer::Bytes(bytes) => Some(bytes),
            Buffer::Unlimited => None,
            Buffer::Auto => {
                let bdp = |leg: Leg| self.bottleneck_rate(leg).bytes_in(self.base_rtt(leg));
                let legs = self.legs();
                Some(bdp(legs[index]).max(bdp(legs[index + 1])).max(Bytes(256 * 1024)))
            }
        }
    }
}
