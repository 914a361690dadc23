//! A scenario: links in series, the places where connections are split, and the flows that cross them. What lies in parallel is in `parallel`.

use crate::{
    flows::{FlowGroup, FlowSpec, Opens},
    links::Link,
    networks::{Bond, Foreground, Network},
    random::{Purpose, stream},
    sources::Cross,
    split::{Buffer, Split},
    tcp::Tcp,
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use units::{Bytes, QueueSize, Rate, Span};

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

    /// The size of link `index`'s queue, 1BDP being the link's rate × base RTT of its leg.
    pub fn queue_size(&self, index: usize) -> QueueSize {
        let link = &self.links[index];
        link.queue.size_for(link.rate, self.base_rtt(self.leg_of_link(index)))
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
