//! Builds the simulation of a series scenario: links, proxies, connections and the first events.

use super::{
    application::SourceApplication,
    cross_traffic::CrossTrafficSource,
    simulation::{SeriesFlow, SeriesSimulation, VaryingLink},
    split_node::SplitNode,
};
use crate::{
    agent::PathAgent,
    connection::TcpConnection,
    event_queue::{EventKey, ScheduledEventKind},
    network::{SimNetwork, backward, forward},
    receiver::{EcnEcho, MAX_WINDOW, TcpReceiver},
    sender::{CongestionControl, SenderConfig, TcpSender},
    settings::TcpSettings,
};
use scenario::{FlowSpec, LegLinks, Scenario, SplitMode};
use units::{Rate, Span};

impl<'a> SeriesSimulation<'a> {
    /// The simulation of a scenario at time zero. `controls` has the congestion control of each
    /// leg, `senders` that of the first leg for each group of flows.
    pub(crate) fn new(scenario: &'a Scenario, seed: u64, [controls, senders]: [&[CongestionControl]; 2], settings: TcpSettings) -> Self {
        let specs = scenario.flow_specs(seed);
        let legs = scenario.legs().len();
        let split_nodes = (0..scenario.splits.len()).map(|index| {
            let split = &scenario.splits[index];
            let buffer = scenario.buffer_limit(index).map_or(u64::MAX, |buffer| buffer.0);
            SplitNode { buffer, mode: split.mode, backpressure: split.backpressure }
        });
        let finite_flows = specs.iter().filter(|spec| spec.bytes.is_some()).count();
        let mut simulation = SeriesSimulation {
            scenario,
            net: SimNetwork::for_series(scenario, seed),
            connections: Vec::with_capacity(specs.len() * legs),
            flows: specs.iter().map(|spec| SeriesFlow { spec: *spec, ended: None, acked: None }).collect(),
            split_nodes: split_nodes.collect(),
            agents: agents(scenario, (specs.len() * legs) as u32, &settings),
            legs,
            shapers: Vec::new(),
            monitors: Vec::new(),
            applications: specs.iter().map(|spec| SourceApplication::new(spec, seed)).collect(),
            cross_traffic: (0..).zip(&scenario.cross).map(|(index, cross)| CrossTrafficSource::new(cross, seed, index)).collect(),
            varying_links: varying_links(scenario),
            demand_links: (0..scenario.links.len()).filter(|link| scenario.links[*link].demand.is_some()).collect(),
            has_endless_flow: finite_flows < specs.len(),
            open_flows: finite_flows,
            unconfirmed_flows: finite_flows,
        };
        simulation.attach_monitors(controls);
        simulation.create_connections(&specs, [controls, senders], settings);
        simulation.schedule_first_events();
        simulation
    }

    /// Adds the proxies' shapers, and monitors for the controllers that need to know the capacity.
    fn attach_monitors(&mut self, controls: &[CongestionControl]) {
        for (index, split) in self.scenario.splits.iter().enumerate() {
            let capacity = split.capacity.unwrap_or(self.scenario.links[split.after].rate);
            let (shaper, monitor) = if split.shaper {
                let (channel, monitor) = self.net.add_shaper(split.after, capacity);
                (Some(channel), Some(monitor))
            } else if controls[index + 1].needs_capacity() {
                (None, Some(self.net.monitor_link(split.after, capacity)))
            } else {
                (None, None)
            };
            self.shapers.push(shaper);
            self.monitors.push(monitor);
        }
    }

    /// Creates the connections of all flows, one for each leg.
    fn create_connections(&mut self, specs: &[FlowSpec], [controls, senders]: [&[CongestionControl]; 2], settings: TcpSettings) {
        let max_window = unlimited_window(self.scenario, specs);
        let legs = self.scenario.legs();
        let any_access_delay = specs.iter().any(|spec| spec.access_delay.0 > 0);
        for spec in specs {
            for (number, leg) in legs.iter().enumerate() {
                let control = if number == 0 { senders[spec.group] } else { controls[number] };
                let connection = self.new_connection(spec, number, *leg, control, max_window, settings);
                self.connections.push(connection);
                self.net.uses_share.push(control.is("share"));
                if any_access_delay {
                    self.net.access_delays.push(if leg.first == 0 { spec.access_delay.0 } else { 0 });
                }
            }
        }
    }

    /// The connection of a flow over leg `number`.
    fn new_connection(
        &self,
        spec: &FlowSpec,
        number: usize,
        leg: LegLinks,
        control: CongestionControl,
        max_window: u64,
        settings: TcpSettings,
    ) -> TcpConnection {
        let connection = self.connections.len() as u32;
        let split_before = number.checked_sub(1);
        let split_behind = self.split_nodes.get(number);
        let shaper = split_before.and_then(|split| self.shapers[split]);
        let channels = [shaper.unwrap_or(forward(leg.first)), backward(leg.end - 1)];
        // A controller that routers send feedback to does not react to marks.
        let ecn = control.native().is_some() && self.scenario.links[leg.first..leg.end].iter().any(|link| link.queue.marks());
        let config = SenderConfig {
            connection,
            channel: channels[0],
            monitor: split_before.and_then(|split| self.monitors[split]),
            ecn,
            behind_shaper: shaper.is_some(),
            end_to_end_acks: split_behind.is_some_and(|node| node.mode == SplitMode::Semi),
            send_buffer: spec.send_buffer.filter(|_| number == 0).map_or(u64::MAX, |buffer| buffer.0),
        };
        let receive_buffer = match split_behind {
            Some(node) => node.receive_buffer(),
            None => spec.window.map_or(u64::MAX, |window| window.0),
        };
        let echo = if control.is("dctcp") { EcnEcho::EachSegment } else { EcnEcho::UntilCwr };
        let receiver = TcpReceiver::new(connection, channels[1], [receive_buffer, max_window], echo, settings);
        let sender = TcpSender::new(config, control, settings);
        TcpConnection::new(sender, receiver, (spec.opens, self.scenario.has_fast_open(spec, number)), channels, settings)
    }

    /// Schedules the starts of flows and cross traffic, and the changes of rates.
    fn schedule_first_events(&mut self) {
        for (number, flow) in (0..).zip(&self.flows) {
            self.net.events.schedule(EventKey { target: number, kind: ScheduledEventKind::FlowStart }, flow.spec.start.0);
        }
        for (number, source) in (0..).zip(&mut self.cross_traffic) {
            source.schedule_next(number, &mut self.net);
        }
        for (number, link) in (0..).zip(&mut self.varying_links) {
            if let Some(change) = link.changes.peek() {
                self.net.events.schedule(EventKey { target: number, kind: ScheduledEventKind::RateChange }, change.at.0);
            }
        }
        // Looks at queues have the numbers after those of the changes.
        for number in self.varying_links.len()..self.varying_links.len() + self.demand_links.len() {
            self.net.events.schedule(EventKey { target: number as u32, kind: ScheduledEventKind::RateChange }, 0);
        }
    }
}

/// The agents, each of which sees all of `connections` connections.
fn agents(scenario: &Scenario, connections: u32, settings: &TcpSettings) -> Vec<PathAgent> {
    let agent = |index: usize| {
        let agent = &scenario.agents[index];
        let (before, behind) = (agent.after - 1, agent.after);
        let channels = [[forward(before), backward(behind)], [forward(behind), backward(before)]];
        let cache = scenario.cache_limit(index).map_or(u64::MAX, |cache| cache.0);
        PathAgent::new(agent.kind, cache, channels, connections, index as u32 * connections, settings)
    };
    (0..scenario.agents.len()).map(agent).collect()
}

fn varying_links(scenario: &Scenario) -> Vec<VaryingLink> {
    let links = scenario.links.iter().enumerate().filter(|(_, spec)| !spec.changes.is_empty());
    links.map(|(link, spec)| VaryingLink { link, changes: spec.all_changes().peekable() }).collect()
}

/// The largest window of ends that are not to limit a flow, bytes: half of the buffers that the lab
/// gives its hosts. That is twice what can be in flight and queued on the whole path, up to TCP's
/// largest window.
fn unlimited_window(scenario: &Scenario, specs: &[FlowSpec]) -> u64 {
    let queued = |index: usize| scenario.queue_size(index).bytes().0;
    let queues = (0..scenario.links.len()).map(queued).fold(0, u64::saturating_add);
    let whole = LegLinks { first: 0, end: scenario.links.len() };
    let extra = specs.iter().map(|flow| 2 * flow.access_delay.0).max().unwrap_or(0);
    let rtt = scenario.base_rtt(whole) + Span(extra);
    let fastest = scenario.links.iter().map(|link| link.rate).max().unwrap_or(Rate(0));
    let in_flight = scenario.bottleneck_rate(whole).bytes_in(rtt).0;
    let burst = fastest.bytes_in(rtt).0;
    (in_flight + queues.min(burst.saturating_mul(4))).saturating_mul(2).clamp(2 << 20, MAX_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;

    /// The path between data centres of Joshi et al.: 500 MB in flight and as much in the first
    /// queue.
    #[test]
    fn an_unlimited_window_covers_what_is_in_flight_and_queued() {
        let text = "name = \"x\"\nduration = \"1s\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"2s\"\nqueue = \"500MB\"\n[[flow]]\n";
        let scenario = ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert!(unlimited_window(&scenario, &scenario.flow_specs(1)) > 1_000_000_000);
    }
}
