//! A scenario: links in series, the places where connections are split, and the flows that cross
//! them. The keys of networks in parallel are in `networks`.

use crate::{
    agent::Agent,
    control::{Control, ControllerSetting, bare},
    cross_flows::CrossFlow,
    flows::{FlowDirection, FlowGroup, FlowSpec, Opens},
    link::Link,
    networks::{Bond, Foreground, ParallelNetwork},
    pages::{Exchange, WebPage},
    path::{FlowLeg, FlowPath, LegLinks, legs_over},
    queue::QueueParameters,
    random::{Purpose, stream},
    sources::Cross,
    split::{Buffer, Split},
    tcp::Tcp,
    web_client::WebClient,
};
use control::Controller;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, QueueSize, Rate, Span};

/// A network and the traffic over it. The network is links in series, or networks in parallel,
/// which may have links before them; [`Scenario::parallel`] tells which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario in tables.
    pub name: String,
    /// A few sentences on what it is about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Length of a run. Absent: until every flow has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Span>,
    /// Seed of all random numbers; `--seed` replaces it.
    #[serde(default = "one")]
    pub seed: u64,
    /// Links in series, from the sender's side to the receiver's. With networks in parallel: those
    /// between the sender and the networks.
    #[serde(rename = "link", default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Proxies that split every connection, from the sender's side on; several make a chain. None:
    /// the connections are end to end. With networks in parallel: one at most, behind the last
    /// link; the connections over the networks begin there.
    #[serde(rename = "split", default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<Split>,
    /// Agents that help TCP over the links behind them without splitting it, from the sender's side
    /// on.
    #[serde(rename = "agent", default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<Agent>,
    /// Congestion controllers.
    #[serde(default)]
    pub control: Control,
    /// Settings of TCP that differ from Linux.
    #[serde(default, skip_serializing_if = "Tcp::is_linux")]
    pub tcp: Tcp,
    /// Groups of connections. With networks in parallel: transfers, each split over all of them,
    /// with the keys `count`, `bytes`, `start`, `opens` and `window`.
    #[serde(rename = "flow", default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowGroup>,
    /// Sources of UDP packets, each across one link.
    #[serde(rename = "cross", default, skip_serializing_if = "Vec::is_empty")]
    pub cross: Vec<Cross>,
    /// Groups of TCP connections over some of the links, as traffic beside the flows.
    #[serde(rename = "cross_flow", default, skip_serializing_if = "Vec::is_empty")]
    pub cross_flows: Vec<CrossFlow>,
    /// Browsers that load web pages.
    #[serde(rename = "page", default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<WebPage>,
    /// Clients that send requests and get responses.
    #[serde(rename = "exchange", default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
    /// Intervals of the run for which an outcome has the goodput, beside that of the whole run.
    /// They end before the duration. If `--set` shortens the run, an outcome leaves later intervals
    /// out, with a warning.
    #[serde(rename = "interval", default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
    /// Networks in parallel, one to four, from the sender or from the last link on to the receiver.
    #[serde(rename = "network", default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<ParallelNetwork>,
    /// Random transfers over the networks in parallel, in place of `[[flow]]`s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreground: Option<Foreground>,
    /// How a transfer is divided among the networks in parallel; required with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<Bond>,
}

/// An interval of a run. Times count from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Its begin.
    pub from: Span,
    /// Its end.
    pub to: Span,
}

fn one() -> u64 {
    1
}

impl Scenario {
    /// Whether the run lasts until the end of an interval.
    pub fn lasts_for(&self, interval: &Interval) -> bool {
        self.duration.is_none_or(|duration| interval.to <= duration)
    }

    /// About how many bytes of memory this takes.
    pub(crate) fn memory(&self) -> u64 {
        const OF_A_TABLE: usize = 512;
        let links = || self.links.iter().chain(self.networks.iter().map(|network| &network.link));
        let changes: usize =
            links().map(|link| size_of_val(&link.changes[..]) + link.steps.as_ref().map_or(0, |steps| size_of_val(&steps.lines[..]))).sum();
        let objects: usize = self.pages.iter().map(|page| page.objects.len()).sum();
        let traffic = self.flows.len() + self.cross.len() + self.cross_flows.len() + self.exchanges.len() + objects;
        let tables = links().count() + self.splits.len() + self.agents.len() + self.intervals.len() + traffic;
        (changes + OF_A_TABLE * (1 + tables)) as u64
    }

    /// The connections, numbered over all groups, with random times and sizes drawn from `seed`.
    pub fn flow_specs(&self, seed: u64) -> Vec<FlowSpec> {
        let mut specs = Vec::new();
        for (group_index, group) in (0_u64..).zip(&self.flows) {
            let starts = group.start.draw(group.count, &mut stream(seed, Purpose::Starts, group_index));
            let delays = group.access_delay.draw(group.count, &mut stream(seed, Purpose::AccessDelays, group_index));
            let sizes = &mut stream(seed, Purpose::Sizes, group_index);
            let connections = starts.into_iter().zip(delays).flat_map(|times| group.direction.each().iter().map(move |way| (times, way)));
            for ((start, access_delay), &is_reverse) in connections {
                specs.push(FlowSpec {
                    id: specs.len() as u32,
                    group: group_index as usize,
                    bytes: group.bytes.map(|law| law.draw(sizes)),
                    start,
                    opens: group.opens,
                    path: FlowPath { links: self.whole_path(), is_reverse },
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

    /// The connections of TCP cross traffic, numbered from `first_id` on, with random values drawn
    /// from `seed`.
    pub fn cross_flow_specs(&self, seed: u64, first_id: u32) -> Vec<FlowSpec> {
        let mut specs = Vec::new();
        for (group, cross) in self.cross_flows.iter().enumerate() {
            cross.add_specs(seed, group, first_id, &mut specs);
        }
        specs
    }

    /// The browsers of all pages, and then the clients of all exchanges, with random start times
    /// drawn from `seed`.
    pub fn web_clients(&self, seed: u64) -> Vec<WebClient> {
        let mut clients = Vec::new();
        let path = |direction| FlowPath { links: self.whole_path(), is_reverse: direction == FlowDirection::Reverse };
        for (table, page) in self.pages.iter().enumerate() {
            for start in page.start.draw(page.count, &mut stream(seed, Purpose::PageStarts, table as u64)) {
                clients.push(WebClient::of_page(page, table, clients.len() as u64, seed, path(page.direction), start));
            }
        }
        for (table, exchange) in self.exchanges.iter().enumerate() {
            for start in exchange.start.draw(exchange.count, &mut stream(seed, Purpose::ExchangeStarts, table as u64)) {
                clients.push(WebClient::of_exchange(exchange, table, clients.len() as u64, seed, path(exchange.direction), start));
            }
        }
        clients
    }

    /// The controller of both ends of each table of web traffic with its tunables, and its key:
    /// pages, and then exchanges.
    pub fn web_settings(&self) -> Vec<(String, ControllerSetting)> {
        let pages = (1..).zip(&self.pages).map(|(number, page)| (format!("page[{number}].control"), &page.control));
        let exchanges = (1..).zip(&self.exchanges).map(|(number, exchange)| (format!("exchange[{number}].control"), &exchange.control));
        let setting = |(key, control): (String, &Option<String>)| match control {
            Some(control) => (key, self.control.setting(control)),
            None => ("control.sender".into(), self.control.setting(&self.control.sender)),
        };
        pages.chain(exchanges).map(setting).collect()
    }

    /// The key of the first table of web pages or of request-response; none if there is none.
    pub fn web_key(&self) -> Option<&'static str> {
        [("page", self.pages.is_empty()), ("exchange", self.exchanges.is_empty())].into_iter().find(|(_, none)| !none).map(|(key, _)| key)
    }

    /// All links.
    pub fn whole_path(&self) -> LegLinks {
        LegLinks { first: 0, end: self.links.len() }
    }

    /// The key of the first traffic with data that goes against the links; none if there is none.
    /// Requests do.
    pub fn reverse_key(&self) -> Option<String> {
        let flow = self.flows.iter().position(FlowGroup::has_reverse);
        let cross = self.cross_flows.iter().position(|cross| cross.direction != FlowDirection::Forward);
        let key = |name: &str, index: usize| format!("{name}[{}].direction", index + 1);
        flow.map(|index| key("flow", index))
            .or_else(|| cross.map(|index| key("cross_flow", index)))
            .or_else(|| self.web_key().map(Into::into))
    }

    /// Whether data goes over links in both directions, or only against them.
    pub fn has_two_way_data(&self) -> bool {
        self.reverse_key().is_some()
    }

    /// The first key of traffic that is not flows from the first link to the last, or UDP; none if
    /// there is no such traffic.
    pub fn beyond_forward_flows(&self) -> Option<String> {
        self.reverse_key().or_else(|| (!self.cross_flows.is_empty()).then(|| "cross_flow".into()))
    }

    /// The legs of a flow, from its sender on.
    pub fn legs_of(&self, path: FlowPath) -> Vec<FlowLeg> {
        legs_over(path, self.splits.iter().map(|split| split.after))
    }

    /// The controller of each leg of a flow over `path`, with its tunables. `sender` is that of its
    /// sender, if it is not `control.sender`.
    pub fn flow_leg_settings(&self, path: FlowPath, sender: Option<&str>) -> Vec<ControllerSetting> {
        let texts = self.leg_texts();
        let proxy = |split: usize| texts[self.control_of_leg_behind(split, path.is_reverse)];
        let control = |leg: FlowLeg| leg.split_before.map_or(sender.unwrap_or(texts[0]), proxy);
        self.legs_of(path).into_iter().map(|leg| self.control.setting(control(leg))).collect()
    }

    /// Which of [`leg_controls`](Self::leg_controls) split `split` sends with, towards the receiver
    /// or in `reverse`: there the sender's if its own divides a capacity, since it is told that of
    /// the link towards the receiver only.
    pub fn control_of_leg_behind(&self, split: usize, reverse: bool) -> usize {
        let number = split + 1;
        let divides_capacity = || Controller::named(bare(self.leg_texts()[number])).is_some_and(Controller::needs_capacity);
        if reverse && divides_capacity() { 0 } else { number }
    }

    /// The legs from sender to receiver: one if nothing is split, and one more for each split.
    pub fn legs(&self) -> Vec<LegLinks> {
        let mut ends: Vec<usize> = self.splits.iter().map(|split| split.after).collect();
        ends.push(self.links.len());
        let mut first = 0;
        ends.into_iter()
            .map(|end| {
                let leg = LegLinks { first, end };
                first = end;
                leg
            })
            .collect()
    }

    /// Whether the connection of `flow` on a leg has Fast Open. The flow's setting holds on the leg
    /// that its opener dials, a proxy's on the leg that the proxy dials.
    pub fn has_fast_open(&self, flow: &FlowSpec, leg: &FlowLeg) -> bool {
        let dialled_by = match flow.opens {
            Opens::Sender => leg.split_before,
            Opens::Receiver => leg.split_behind,
        };
        dialled_by.and_then(|split| self.splits.get(split)).map_or(flow.fast_open, |split| split.fast_open)
    }

    /// The name of each leg's controller.
    pub fn leg_controls(&self) -> Vec<&str> {
        self.leg_texts().into_iter().map(bare).collect()
    }

    /// The controller of each leg with its tunables.
    pub fn leg_settings(&self) -> Vec<ControllerSetting> {
        self.leg_texts().into_iter().map(|text| self.control.setting(text)).collect()
    }

    /// The sender's controller of each group of flows with its tunables.
    pub fn sender_settings(&self) -> Vec<ControllerSetting> {
        let text = |group: &FlowGroup| group.control.clone().unwrap_or_else(|| self.control.sender.clone());
        self.flows.iter().map(|group| self.control.setting(&text(group))).collect()
    }

    /// The sender's controller of each group of TCP cross traffic with its tunables.
    pub fn cross_sender_settings(&self) -> Vec<ControllerSetting> {
        let text = |group: &CrossFlow| group.control.clone().unwrap_or_else(|| self.control.sender.clone());
        self.cross_flows.iter().map(|group| self.control.setting(&text(group))).collect()
    }

    fn leg_texts(&self) -> Vec<&str> {
        let mut texts = vec![self.control.sender.as_str()];
        for index in 0..self.splits.len() {
            texts.push(self.control.proxy.get(index).unwrap_or(&self.control.proxy[self.control.proxy.len() - 1]));
        }
        texts
    }

    /// Base round trip of `leg`, without queues: twice the delays of its links.
    pub fn base_rtt(&self, leg: LegLinks) -> Span {
        Span(2 * self.links[leg.first..leg.end].iter().map(|link| link.delay.0).sum::<u64>())
    }

    /// The lowest rate of `leg`'s links.
    pub fn bottleneck_rate(&self, leg: LegLinks) -> Rate {
        self.links[leg.first..leg.end].iter().map(|link| link.rate).min().unwrap_or(Rate(0))
    }

    /// Index of the bottleneck of the whole path, from 0: the slowest link, the first of equals.
    pub fn bottleneck(&self) -> usize {
        (0..self.links.len()).min_by_key(|&index| self.links[index].rate).unwrap_or(0)
    }

    /// The leg on which link `index` (from 0) lies.
    pub fn leg_of_link(&self, index: usize) -> LegLinks {
        let legs = self.legs();
        *legs.iter().find(|leg| (leg.first..leg.end).contains(&index)).unwrap_or(&legs[0])
    }

    /// The size of the queue of link `index`. 1 BDP is the link's rate × base RTT of its leg.
    pub fn queue_size(&self, index: usize) -> QueueSize {
        let link = &self.links[index];
        link.queue.size_for(link.rate, self.base_rtt(self.leg_of_link(index)))
    }

    /// The parameters of the discipline of the queue of link `index`.
    pub fn queue_parameters(&self, index: usize) -> QueueParameters {
        let link = &self.links[index];
        link.queue.parameters_for(link.rate, self.base_rtt(self.leg_of_link(index)))
    }

    /// Payload that split `index` holds at most in each direction of a connection; none: no limit.
    pub fn buffer_limit(&self, index: usize) -> Option<Bytes> {
        let split = &self.splits[index];
        self.limit_at(split.buffer, split.after, [self.leg_of_link(split.after - 1).first, self.leg_of_link(split.after).end])
    }

    /// Payload that agent `index` holds at most of a connection; none: no limit.
    pub fn cache_limit(&self, index: usize) -> Option<Bytes> {
        let agent = &self.agents[index];
        let leg = self.leg_of_link(agent.after);
        self.limit_at(agent.cache, agent.after, [leg.first, leg.end])
    }

    /// The size of a buffer behind link `after`, between the parts of the path that begin and end
    /// at these links.
    fn limit_at(&self, buffer: Buffer, after: usize, [first, end]: [usize; 2]) -> Option<Bytes> {
        match buffer {
            Buffer::Bytes(bytes) => Some(bytes),
            Buffer::Unlimited => None,
            Buffer::Adaptive => Some(Buffer::MOST_ADAPTIVE),
            Buffer::Auto => {
                let bdp = |part: LegLinks| self.bottleneck_rate(part).bytes_in(self.base_rtt(part));
                let parts = [LegLinks { first, end: after }, LegLinks { first: after, end }];
                Some(bdp(parts[0]).max(bdp(parts[1])).max(Bytes(256 * 1024)))
            }
        }
    }
}
