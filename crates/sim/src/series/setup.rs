//! Builds the simulation of a series scenario: links, proxies, connections and the first events.

use super::{
    application::SourceApplication,
    controls::SeriesControls,
    cross_traffic::CrossTrafficSource,
    place::{ConnectionPlace, NO_SPLIT},
    simulation::{SeriesFlow, SeriesSimulation},
    split_node::SplitNode,
    web_traffic::{WebHalf, WebTraffic},
};
use crate::{
    agent::PathAgent,
    connection::TcpConnection,
    event_queue::{EventKey, ScheduledEventKind},
    network::{SimNetwork, backward, forward},
    receive_tuning::ReceiveTuning,
    receiver::{EcnEcho, MAX_WINDOW, TcpReceiver},
    sender::{CongestionControl, SenderConfig, TcpSender},
    settings::TcpSettings,
    varying_links::VaryingLinks,
};
use scenario::{FlowLeg, FlowSpec, LegLinks, LinkCapacity, Scenario, SplitMode};
use units::{Rate, Span};

impl<'a> SeriesSimulation<'a> {
    /// The simulation of a scenario at time zero.
    pub(crate) fn new(scenario: &'a Scenario, seed: u64, controls: &SeriesControls, settings: TcpSettings) -> Self {
        let specs = scenario.flow_specs(seed);
        let cross_specs = scenario.cross_flow_specs(seed, specs.len() as u32);
        let split_nodes = (0..scenario.splits.len()).map(|index| {
            let split = &scenario.splits[index];
            let buffer = scenario.buffer_limit(index).map_or(u64::MAX, |buffer| buffer.0);
            SplitNode { buffer, mode: split.mode, backpressure: split.backpressure }
        });
        let finite_flows = specs.iter().filter(|spec| spec.bytes.is_some()).count();
        let mut simulation = SeriesSimulation {
            scenario,
            net: SimNetwork::for_series(scenario, seed),
            connections: Vec::with_capacity((specs.len() + cross_specs.len()) * scenario.legs().len()),
            places: Vec::new(),
            flows: Vec::with_capacity(specs.len() + cross_specs.len()),
            web: None,
            split_nodes: split_nodes.collect(),
            agents: Vec::new(),
            shapers: Vec::new(),
            monitors: Vec::new(),
            applications: specs.iter().chain(&cross_specs).map(|spec| SourceApplication::new(spec, seed)).collect(),
            cross_traffic: (0..).zip(&scenario.cross).map(|(index, cross)| CrossTrafficSource::new(cross, seed, index)).collect(),
            varying_links: VaryingLinks::new(scenario.links.iter()),
            has_endless_flow: finite_flows < specs.len(),
            open_flows: finite_flows,
            unconfirmed_flows: finite_flows,
        };
        simulation.attach_monitors(&controls.legs);
        let max_window = unlimited_window(scenario, &specs);
        for spec in &specs {
            simulation.add_flow(spec, (true, None), &controls.legs, controls.flows[spec.group].clone(), (max_window, settings));
        }
        for spec in &cross_specs {
            simulation.add_flow(spec, (false, None), &controls.legs, controls.cross_flows[spec.group].clone(), (max_window, settings));
        }
        if specs.iter().any(|spec| spec.access_delay.0 > 0) {
            simulation.net.access_delays = simulation.access_delays();
        }
        simulation.web = WebTraffic::new(scenario.web_clients(seed), scenario.pages.len(), controls, (max_window, settings));
        if let Some(web) = &simulation.web {
            simulation.open_flows += web.awaited();
            simulation.has_endless_flow |= web.awaited() < web.clients.len();
        }
        simulation.agents = agents(scenario, simulation.connections.len() as u32, &settings);
        simulation.schedule_first_events();
        simulation.schedule_clients();
        simulation
    }

    /// Adds the proxies' shapers, and monitors for the controllers that need to know the capacity.
    fn attach_monitors(&mut self, controls: &[CongestionControl]) {
        for (index, split) in self.scenario.splits.iter().enumerate() {
            let is_estimated = split.capacity == Some(LinkCapacity::Auto);
            let capacity = split.capacity.and_then(LinkCapacity::rate).unwrap_or(self.scenario.links[split.after].rate);
            let (shaper, monitor) = if split.shaper {
                let (channel, monitor) = self.net.add_shaper(split.after, capacity);
                (Some(channel), Some(monitor))
            } else if is_estimated {
                (None, Some(self.net.estimate_link(split.after)))
            } else if controls[index + 1].needs_capacity() {
                (None, Some(self.net.monitor_link(split.after, capacity)))
            } else {
                (None, None)
            };
            self.shapers.push(shaper);
            self.monitors.push(monitor);
        }
    }

    /// Adds a flow with its connections, one for each leg.
    pub(super) fn add_flow(
        &mut self,
        spec: &FlowSpec,
        (is_awaited, web): (bool, Option<WebHalf>),
        controls: &[CongestionControl],
        sender: CongestionControl,
        limits: (u64, TcpSettings),
    ) {
        let legs = self.scenario.legs_of(spec.path);
        let first_connection = self.connections.len();
        for leg in &legs {
            let control = match leg.split_before {
                Some(split) => &controls[self.scenario.control_of_leg_behind(split, spec.path.is_reverse)],
                None => &sender,
            };
            self.net.uses_share.push(control.is("share"));
            let connection = self.new_connection(spec, leg, control.clone(), limits);
            self.connections.push(connection);
            self.places.push(ConnectionPlace {
                flow: self.flows.len() as u32,
                split_before: leg.split_before.map_or(NO_SPLIT, |split| split as u32),
                split_behind: leg.split_behind.map_or(NO_SPLIT, |split| split as u32),
                links: [leg.links.first as u16, leg.links.end as u16],
                is_reverse: spec.path.is_reverse,
            });
        }
        self.flows.push(SeriesFlow { spec: *spec, first_connection, legs: legs.len(), is_awaited, web, ended: None, acked: None });
    }

    /// The extra delay of each connection on the first link, ns.
    fn access_delays(&self) -> Vec<u32> {
        let delay = |place: &ConnectionPlace| {
            let of_flow = self.flows[place.flow as usize].spec.access_delay.0;
            if place.links[0] == 0 { u32::try_from(of_flow).unwrap_or(u32::MAX) } else { 0 }
        };
        self.places.iter().map(delay).collect()
    }

    /// The connection of a flow over a leg. `max_window` is the largest window of its ends, bytes.
    fn new_connection(
        &self,
        spec: &FlowSpec,
        leg: &FlowLeg,
        control: CongestionControl,
        (max_window, settings): (u64, TcpSettings),
    ) -> TcpConnection {
        let connection = self.connections.len() as u32;
        let (links, split_behind) = (leg.links, leg.split_behind.map(|split| self.split_nodes[split]));
        // Only what enters the link behind a proxy goes through its shaper: data, or the
        // acknowledgements of reverse data.
        let is_reverse = spec.path.is_reverse;
        let proxy_at_first_link = if is_reverse { leg.split_behind } else { leg.split_before };
        let shaper = proxy_at_first_link.and_then(|split| self.shapers[split]);
        let [into_first, into_last] = [shaper.unwrap_or(forward(links.first)), backward(links.end - 1)];
        let channels = if is_reverse { [into_last, into_first] } else { [into_first, into_last] };
        // A controller that routers send feedback to does not react to marks.
        let ecn = !control.is_router_assisted() && self.scenario.links[links.first..links.end].iter().any(|link| link.queue.marks());
        let config = SenderConfig {
            connection,
            channel: channels[0],
            monitor: leg.split_before.filter(|_| !is_reverse).and_then(|split| self.monitors[split]),
            ecn,
            behind_shaper: shaper.is_some() && !is_reverse,
            end_to_end_acks: split_behind.is_some_and(|node| node.mode == SplitMode::Semi),
            send_buffer: spec.send_buffer.filter(|_| leg.split_before.is_none()).map_or(u64::MAX, |buffer| buffer.0),
        };
        let receive_buffer = match split_behind {
            Some(node) => node.receive_buffer(),
            None => spec.window.map_or(u64::MAX, |window| window.0),
        };
        let echo = if control.is("dctcp") { EcnEcho::EachSegment } else { EcnEcho::UntilCwr };
        let mut receiver = TcpReceiver::new(connection, channels[1], [receive_buffer, max_window], echo, settings);
        // A window that the scenario sets is one that the application has fixed (SO_RCVBUF).
        let adapts = split_behind.is_none() && spec.window.is_none();
        if let Some(buffers) = self.scenario.tcp.receive_buffers.filter(|_| adapts) {
            receiver = receiver.with_tuning(ReceiveTuning::new(buffers, settings.mss));
        }
        let sender = TcpSender::new(config, control, settings);
        TcpConnection::new(sender, receiver, (spec.opens, self.scenario.has_fast_open(spec, leg)), channels, settings)
    }

    /// Schedules the starts of flows and cross traffic, and the changes of rates.
    fn schedule_first_events(&mut self) {
        for (number, flow) in (0..).zip(&self.flows) {
            self.net.events.schedule(EventKey { target: number, kind: ScheduledEventKind::FlowStart }, flow.spec.start.0);
        }
        for (number, source) in (0..).zip(&mut self.cross_traffic) {
            source.schedule_next(number, &mut self.net);
        }
        self.varying_links.schedule_first(&mut self.net);
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
