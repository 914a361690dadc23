//! The simulation of links in series: passes packets between links, connections, proxies and
//! applications.

use super::{
    application::SourceApplication,
    cross_traffic::CrossTrafficSource,
    place::ConnectionPlace,
    split_node::SplitNode,
    web_traffic::{WebHalf, WebTraffic},
};
use crate::{
    agent::PathAgent,
    connection::{ConnectionEnd, TcpConnection},
    event_loop::{self, RunEnd, Simulation},
    event_queue::{EventKey, ScheduledEventKind},
    network::{NextHop, SimNetwork, backward, forward},
    packet::{PacketKind, SimPacket},
    run_counters::RunCounters,
    varying_links::VaryingLinks,
};
use outcome::Progress;
use scenario::{FlowSpec, Opens, Scenario, SplitMode};

/// How long to wait, after the last byte has arrived, for the senders to learn of it, ns: as long
/// as Linux retransmits at most, 15 times (`tcp_retries2`) with timeouts of at most 120 s.
const CONFIRMATION_LIMIT: u64 = 15 * 120_000_000_000;

/// Takes samples of a run at regular intervals of simulated time.
pub(crate) trait RunObserver {
    /// Time to the next sample, ns.
    fn interval(&self) -> u64;

    /// Takes a sample of the whole simulation.
    fn sample(&mut self, simulation: &mut SeriesSimulation<'_>);
}

/// A flow from end to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeriesFlow {
    pub(crate) spec: FlowSpec,
    /// The number of its connection over its first leg. Those over its other legs follow.
    pub(crate) first_connection: usize,
    /// Number of its legs.
    pub(crate) legs: usize,
    /// Whether the run waits for its end: not for that of cross traffic.
    pub(super) is_awaited: bool,
    /// Of web traffic: its part in a connection with requests and responses.
    pub(super) web: Option<WebHalf>,
    /// When the receiving application had read the last byte, ns.
    pub(crate) ended: Option<u64>,
    /// When the sending application knew that its last byte was acknowledged, ns.
    pub(crate) acked: Option<u64>,
}

/// The state of a run.
///
/// The connections of a flow follow each other from its sender on.
#[derive(Debug)]
pub(crate) struct SeriesSimulation<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) net: SimNetwork,
    pub(crate) connections: Vec<TcpConnection>,
    /// The place of each connection.
    pub(super) places: Vec<ConnectionPlace>,
    /// The flows of the scenario, then the connections of TCP cross traffic, and then those of web
    /// traffic in the order in which they are opened.
    pub(crate) flows: Vec<SeriesFlow>,
    /// Web pages and request-response, if there are any.
    pub(crate) web: Option<Box<WebTraffic>>,
    /// The proxies, one after each leg but the last.
    pub(crate) split_nodes: Vec<SplitNode>,
    /// The agents, from the sender's side on.
    pub(crate) agents: Vec<PathAgent>,
    /// The channels of the proxies' shapers, by split.
    pub(crate) shapers: Vec<Option<usize>>,
    /// The monitors of the links behind the proxies, by split.
    pub(super) monitors: Vec<Option<usize>>,
    pub(super) applications: Vec<SourceApplication>,
    pub(super) cross_traffic: Vec<CrossTrafficSource>,
    pub(super) varying_links: VaryingLinks,
    /// A flow has no end, so the run lasts until its time limit.
    pub(super) has_endless_flow: bool,
    /// Finite flows whose last byte the receiver has not read.
    pub(super) open_flows: usize,
    /// Finite flows whose sender does not know yet that its last byte was acknowledged.
    pub(super) unconfirmed_flows: usize,
}

/// A run that is sampled.
struct ObservedRun<'s, 'a, O> {
    simulation: &'s mut SeriesSimulation<'a>,
    observer: &'s mut O,
}

impl<O: RunObserver> Simulation for ObservedRun<'_, '_, O> {
    fn net(&mut self) -> &mut SimNetwork {
        &mut self.simulation.net
    }

    fn is_over(&self) -> bool {
        self.simulation.open_flows == 0 && !self.simulation.has_endless_flow
    }

    fn deliver(&mut self, channel: usize) {
        self.simulation.deliver(channel);
    }

    fn handle_event(&mut self, at: u64, key: EventKey) {
        if key.kind == ScheduledEventKind::Sample {
            self.observer.sample(self.simulation);
            self.simulation.net.events.schedule(key, self.simulation.net.now + self.observer.interval());
        } else {
            self.simulation.handle_event(at, key);
        }
    }

    fn progress(&self, until: u64) -> f64 {
        self.simulation.progress(until)
    }
}

/// The time after a run in which senders learn that their last byte was acknowledged.
struct Confirmation<'s, 'a>(&'s mut SeriesSimulation<'a>);

impl Simulation for Confirmation<'_, '_> {
    fn net(&mut self) -> &mut SimNetwork {
        &mut self.0.net
    }

    fn is_over(&self) -> bool {
        self.0.open_flows > 0 || self.0.unconfirmed_flows == 0
    }

    fn deliver(&mut self, channel: usize) {
        self.0.deliver(channel);
    }

    fn handle_event(&mut self, at: u64, key: EventKey) {
        self.0.handle_event(at, key);
    }

    fn progress(&self, _: u64) -> f64 {
        1.0
    }
}

impl SeriesSimulation<'_> {
    /// Runs until all finite flows have ended if there are only such, or else until `until` ns.
    pub(crate) fn run(&mut self, until: u64, observer: &mut impl RunObserver, progress: &dyn Progress) -> RunEnd {
        self.net.events.schedule(EventKey { target: 0, kind: ScheduledEventKind::Sample }, 0);
        event_loop::run(&mut ObservedRun { simulation: self, observer }, until, progress)
    }

    /// After a run that has ended with its flows: goes on, without samples, until every sender
    /// knows that its last byte was acknowledged, at most until `until` ns.
    pub(crate) fn run_until_confirmed(&mut self, until: u64) {
        let until = until.min(self.net.now.saturating_add(CONFIRMATION_LIMIT));
        event_loop::run(&mut Confirmation(self), until, &());
    }

    /// Whether a flow, or a web client, that ends by itself has not ended.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.open_flows > 0
    }

    /// The internal counters of the run so far.
    pub(crate) fn counters(&self) -> RunCounters {
        let mut counters = RunCounters { events: self.net.events_processed, ..RunCounters::default() };
        for connection in &self.connections {
            counters.add(connection);
        }
        counters
    }

    /// The share of the run that is done, by payload or by time, whichever is more.
    fn progress(&self, until: u64) -> f64 {
        let (mut read, mut total) = (0, 0);
        for (number, flow) in self.flows.iter().enumerate() {
            if let Some(bytes) = flow.spec.bytes {
                read += self.read_bytes(number);
                total += bytes.0;
            }
        }
        let by_bytes = if total > 0 { read as f64 / total as f64 } else { 0.0 };
        by_bytes.max(if until == u64::MAX { 0.0 } else { self.net.now as f64 / until as f64 })
    }

    /// Payload that the receiving application of a flow has read, bytes.
    pub(crate) fn read_bytes(&self, flow: usize) -> u64 {
        let SeriesFlow { first_connection, legs, .. } = self.flows[flow];
        self.connections[first_connection + legs - 1].receiver.rcv_nxt
    }

    /// Payload that the proxy behind `connection` holds for the next connection, bytes.
    pub(crate) fn held_bytes(&self, connection: usize) -> u64 {
        self.connections[connection].receiver.rcv_nxt - self.connections[connection + 1].sender.snd_nxt
    }

    /// The proxy behind a connection, if the connection does not end at the flow's receiver.
    #[inline]
    fn proxy_behind(&self, connection: usize) -> Option<&SplitNode> {
        self.split_nodes.get(self.places[connection].split_behind as usize)
    }

    /// The proxy before a connection, if the connection does not begin at the flow's sender.
    #[inline]
    pub(super) fn proxy_before(&self, connection: usize) -> Option<&SplitNode> {
        self.split_nodes.get(self.places[connection].split_before as usize)
    }

    fn deliver(&mut self, channel: usize) {
        let mut packet = SimPacket::placeholder();
        while let Some(next_hop) = self.net.take_arrived(channel, &mut packet) {
            match next_hop {
                NextHop::Channel(_) if self.pass_agent(channel, &packet) => {}
                NextHop::Channel(next) => {
                    self.net.send(next, packet);
                    if self.net.is_shaper(channel) {
                        self.on_shaper_departure(channel, &packet);
                    }
                }
                _ if packet.kind == PacketKind::Udp => {}
                NextHop::Receiver => self.on_packet_at_receiver(&packet),
                NextHop::Sender => self.on_packet_at_sender(&packet),
                NextHop::ByConnection => self.forward_by_connection(channel, &packet),
            }
        }
    }

    /// Sends a packet that a channel has delivered into the next channel of its connection, or to
    /// the end of the connection that is there.
    fn forward_by_connection(&mut self, channel: usize, packet: &SimPacket) {
        let ConnectionPlace { links: [first, end], is_reverse, .. } = self.places[packet.connection as usize];
        let (link, goes_forward) = (channel / 2, channel == forward(channel / 2));
        let is_at_end = if goes_forward { link + 1 == usize::from(end) } else { link == usize::from(first) };
        match (is_at_end, goes_forward == is_reverse) {
            (false, _) if goes_forward => _ = self.net.send(forward(link + 1), *packet),
            (false, _) => _ = self.net.send(backward(link - 1), *packet),
            (true, false) => {
                self.on_packet_at_receiver(packet);
                if self.web.is_some() {
                    self.on_web_data(packet.connection as usize);
                }
            }
            (true, true) => self.on_packet_at_sender(packet),
        }
    }

    /// If an agent stands behind a channel, it passes the packet on.
    fn pass_agent(&mut self, channel: usize, packet: &SimPacket) -> bool {
        let agent = self.agents.iter_mut().find(|agent| agent.is_behind(channel));
        agent.map(|agent| agent.pass(channel, packet, &mut self.net)).is_some()
    }

    fn on_shaper_departure(&mut self, channel: usize, packet: &SimPacket) {
        self.net.record_departure(channel, packet);
        if packet.kind == PacketKind::Data {
            let connection = packet.connection as usize;
            self.connections[connection].sender.on_shaper_departure(&mut self.net);
            self.after_sending(connection);
        }
    }

    pub(super) fn on_packet_at_receiver(&mut self, packet: &SimPacket) {
        let index = packet.connection as usize;
        let connection = &mut self.connections[index];
        if (!connection.is_established(ConnectionEnd::Receiver) || packet.kind == PacketKind::SynAck)
            && connection.on_handshake_packet(ConnectionEnd::Receiver, packet, &mut self.net)
        {
            self.on_established(index, ConnectionEnd::Receiver);
            if self.connections[index].receiver.rcv_nxt > 0 {
                // The SYN had payload.
                self.on_in_order_data(index);
            }
        }
        if packet.kind == PacketKind::Data && self.is_dropped_by_proxy(index, packet) {
            return;
        }
        let connection = &mut self.connections[index];
        if !connection.is_established(ConnectionEnd::Receiver) {
            return;
        }
        match packet.kind {
            PacketKind::Data => {
                let before = connection.receiver.rcv_nxt;
                connection.receiver.on_data(packet, &mut self.net);
                if connection.receiver.rcv_nxt > before {
                    self.on_in_order_data(index);
                } else {
                    self.apply_fluid_backpressure(index);
                }
                self.connections[index].receiver.ack_if_due(&mut self.net);
            }
            PacketKind::Probe => {
                connection.receiver.send_ack(&mut self.net);
                connection.receiver.resend_receipt(&mut self.net);
            }
            _ => {}
        }
    }

    /// Whether the proxy behind a connection has no room for a segment and drops it.
    fn is_dropped_by_proxy(&self, connection: usize, packet: &SimPacket) -> bool {
        self.proxy_behind(connection).is_some_and(|node| node.drops(self.held_bytes(connection), packet.len_or_window.into()))
    }

    /// Data has arrived in order on a connection: the next leg may send it, or the application
    /// reads it.
    fn on_in_order_data(&mut self, connection: usize) {
        let place = self.places[connection];
        let receiver = &mut self.connections[connection].receiver;
        let (arrived, complete) = (receiver.rcv_nxt, receiver.is_complete());
        if place.is_last() {
            receiver.release(arrived, &mut self.net);
            if complete {
                self.on_flow_ended(place.flow as usize);
            }
            return;
        }
        let node = &self.split_nodes[place.split_behind as usize];
        debug_assert!(
            !node.is_bounded_by_window() || self.held_bytes(connection) <= node.buffer,
            "the window permits no more than the buffer"
        );
        let forwardable = node.forwardable(arrived, complete);
        let next = &mut self.connections[connection + 1];
        next.sender.write(forwardable, complete);
        if next.waits_for_data() && forwardable > 0 {
            next.open(&mut self.net);
        }
        next.sender.push(&mut self.net);
        self.after_sending(connection + 1);
        self.apply_fluid_backpressure(connection);
    }

    /// The receiver of a flow has read the last byte.
    fn on_flow_ended(&mut self, flow: usize) {
        let flow = &mut self.flows[flow];
        if flow.ended.is_none() {
            flow.ended = Some(self.net.now);
            self.open_flows -= usize::from(flow.is_awaited);
        }
    }

    /// To be called when the sender of a connection may have sent new data: that frees the buffer
    /// of the proxy before it.
    pub(super) fn after_sending(&mut self, connection: usize) {
        let Some(node) = self.proxy_before(connection) else { return };
        let sender = &self.connections[connection].sender;
        let released = node.released(self.connections[connection - 1].receiver.rcv_nxt, sender.snd_nxt, sender.snd_una);
        if self.connections[connection - 1].receiver.release(released, &mut self.net) > 0 {
            self.apply_fluid_backpressure(connection - 1);
        }
    }

    /// Limits the sender of a connection to what will find room in the fluid proxy behind it.
    fn apply_fluid_backpressure(&mut self, connection: usize) {
        let Some(node) = self.proxy_behind(connection).filter(|node| node.limits_fluidly()) else { return };
        let [this, next] = [&self.connections[connection], &self.connections[connection + 1]];
        // While data is on its way to the proxy, the next leg drains what its window permits.
        let drained = next.sender.sendable_within(this.sender.rtt.srtt_us()) / 2;
        let room = node.buffer.max(this.settings.mss.into()) + drained;
        let limit = next.sender.snd_nxt + this.receiver.out_of_order_bytes() + room;
        let sender = &mut self.connections[connection].sender;
        sender.fluid_limit = Some(limit);
        sender.push(&mut self.net);
        self.after_sending(connection);
    }

    pub(super) fn on_packet_at_sender(&mut self, packet: &SimPacket) {
        let index = packet.connection as usize;
        let connection = &mut self.connections[index];
        if !connection.is_established(ConnectionEnd::Sender) || packet.kind == PacketKind::SynAck {
            let was_early = connection.in_early_data(ConnectionEnd::Sender);
            if connection.on_handshake_packet(ConnectionEnd::Sender, packet, &mut self.net) {
                self.on_established(index, ConnectionEnd::Sender);
            }
            let connection = &mut self.connections[index];
            if was_early && connection.is_established(ConnectionEnd::Sender) {
                connection.sender.on_handshake_ack(packet, &mut self.net);
                self.after_sending(index);
                self.propagate_delivery(index);
            }
            return;
        }
        match packet.kind {
            PacketKind::Ack => connection.sender.on_ack(packet, &mut self.net),
            PacketKind::DeliveryReceipt => connection.sender.on_receipt(packet.seq, &mut self.net),
            _ => return,
        }
        self.after_sending(index);
        self.propagate_delivery(index);
    }

    /// To be called when the sender of a connection may have learned that more was delivered:
    /// informs its application, or the leg before a proxy in `semi` mode.
    fn propagate_delivery(&mut self, connection: usize) {
        let sender = &self.connections[connection].sender;
        if let Some(node) = self.proxy_before(connection) {
            if node.mode == SplitMode::Semi {
                let delivered = sender.released_up_to();
                self.connections[connection - 1].receiver.forward_receipt(delivered, &mut self.net);
            }
        } else if sender.all_delivered() {
            let flow = &mut self.flows[self.places[connection].flow as usize];
            if flow.acked.is_none() {
                flow.acked = Some(self.net.now);
                self.unconfirmed_flows -= usize::from(flow.is_awaited);
            }
        }
    }

    /// A connection has become established at one end: the proxy opens the next one, and the sender
    /// begins to send.
    fn on_established(&mut self, connection: usize, end: ConnectionEnd) {
        let place = self.places[connection];
        let flow = place.flow as usize;
        match (self.flows[flow].spec.opens, end) {
            (Opens::Sender, ConnectionEnd::Receiver) if !place.is_last() && !self.connections[connection + 1].waits_for_data() => {
                self.connections[connection + 1].open(&mut self.net);
            }
            (Opens::Receiver, ConnectionEnd::Sender) if !place.is_first() => self.connections[connection - 1].open(&mut self.net),
            _ => {}
        }
        if end == ConnectionEnd::Sender {
            if place.is_first() {
                self.application_write(flow);
            }
            let sender = &mut self.connections[connection].sender;
            sender.push(&mut self.net);
            // The SYN may have carried the whole stream.
            sender.end_if_done(&mut self.net);
            sender.arm_receipt_timer(&mut self.net);
            self.after_sending(connection);
            self.propagate_delivery(connection);
        }
        if let Some(half) = self.flows[flow].web {
            self.on_web_established(connection, end, half);
        }
    }

    /// The application of a flow writes what is due, and schedules its next write.
    fn application_write(&mut self, flow: usize) {
        let application = &mut self.applications[flow];
        let written = application.write(self.net.now);
        if let Some(at) = application.next_wakeup() {
            self.net.events.schedule(EventKey { target: flow as u32, kind: ScheduledEventKind::ApplicationWrite }, at.0);
        }
        self.connections[self.flows[flow].first_connection].sender.write(written, application.is_done());
    }

    fn handle_event(&mut self, at: u64, key: EventKey) {
        let target = key.target as usize;
        match key.kind {
            ScheduledEventKind::RateChange => self.change_link(key),
            // Samples are taken by `ObservedRun`. There is no bond.
            ScheduledEventKind::Sample | ScheduledEventKind::BondCheck => {}
            ScheduledEventKind::AgentTimer => {
                let connections = self.connections.len();
                self.agents[target / connections].on_timer(at, target % connections, &mut self.net);
            }
            ScheduledEventKind::FlowStart => self.start_flow(target),
            ScheduledEventKind::WebClient => self.wake_client(target),
            ScheduledEventKind::WebServer => self.respond(target),
            ScheduledEventKind::ApplicationWrite => {
                self.application_write(target);
                self.connections[self.flows[target].first_connection].sender.push(&mut self.net);
            }
            ScheduledEventKind::CrossTraffic => self.cross_traffic[target].send(key.target, &mut self.net),
            ScheduledEventKind::SenderTimer | ScheduledEventKind::Pacing | ScheduledEventKind::ReceiverTimer => {
                if self.connections[target].on_timer(at, key.kind, &mut self.net) {
                    self.after_sending(target);
                }
            }
        }
    }

    /// Opens the first connection of a flow.
    fn start_flow(&mut self, flow: usize) {
        let SeriesFlow { spec, first_connection, legs, .. } = self.flows[flow];
        let opening = match spec.opens {
            Opens::Sender => first_connection,
            Opens::Receiver => first_connection + legs - 1,
        };
        if spec.fast_open && spec.opens == Opens::Sender {
            // The SYN can carry what the application has written.
            self.application_write(flow);
        }
        self.connections[opening].open(&mut self.net);
    }
}
