//! The simulation of parallel networks. Each network has one link in each direction, with a queue,
//! and carries transfers of its own beside those that are striped over all networks.
//!
//! Connections are kept in slots. A connection that has nothing left to send gives up its slot for
//! the next one, so memory is proportional to the transfers in progress. The number of a connection
//! is its slot and a generation: packets and timers of a former connection in the slot carry an old
//! number and are ignored.

use super::{bonded_transfer::path_state, limits::MAX_CONNECTIONS, measurement::TransferMeasurement, striping::StripedTransfer};
use crate::{
    connection::{ConnectionEnd, TcpConnection},
    event_loop::{self, RunEnd, Simulation},
    event_queue::{EventKey, ScheduledEventKind, Timer},
    network::{NextHop, SimNetwork, forward},
    packet::{PacketKind, SimPacket},
    run_counters::RunCounters,
    settings::TcpSettings,
    varying_links::VaryingLinks,
};
use control::TunedController;
use outcome::{EngineError, Progress};
use scenario::{FlowSpec, Link, Opens, Parallel, PlannedTransfer, Scenario, TransferSchedule, TransferScheduler};
use std::collections::VecDeque;

/// A transfer in progress.
#[derive(Debug)]
pub(super) struct ActiveTransfer {
    pub(super) planned: PlannedTransfer,
    pub(super) striped: StripedTransfer,
    /// The slots of its connections over the networks. Connection c runs over network c modulo the
    /// number of networks.
    pub(super) slots: [Option<u32>; MAX_CONNECTIONS],
    /// The slot of its connection to the proxy before the networks, while it has one.
    pub(super) to_proxy: Option<u32>,
    /// The part of the run in whose means it counts.
    part: Option<usize>,
    pub(super) ended: bool,
    /// When its bond checks for overdue data.
    bond_timer: Timer,
}

/// The owner of a connection's slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotOwner {
    /// The connection's number; of a free slot, the number of the next connection.
    pub(super) number: u32,
    pub(super) transfer: u32,
    pub(super) carries: Carries,
}

/// What of a transfer a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    /// The share of one of its connections over the networks.
    Share {
        /// The number of the connection within the transfer.
        connection: usize,
        network: usize,
    },
    /// All of it, over the links from the sender to the proxy before the networks.
    ToProxy,
}

/// A flow that the scenario lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParallelFlow {
    pub(super) spec: FlowSpec,
    /// Payload that its receiver could read, bytes.
    pub(super) read: u64,
    /// When it could read the last byte, ns.
    pub(super) ended: Option<u64>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct ParallelSimulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) parallel: Parallel<'a>,
    pub(super) settings: TcpSettings,
    /// Of the connections to the proxy before the networks, and of those over the networks.
    pub(super) controllers: [TunedController; 2],
    pub(super) net: SimNetwork,
    /// The links of the networks, and then those before the networks, with rates in IP bits a
    /// second.
    pub(super) links: Vec<Link>,
    varying_links: VaryingLinks,
    /// The connections by slot, and the owners of the slots.
    pub(super) connections: Vec<TcpConnection>,
    pub(super) owners: Vec<SlotOwner>,
    pub(super) free_slots: VecDeque<u32>,
    pub(super) transfers: Vec<ActiveTransfer>,
    pub(super) free_transfers: Vec<u32>,
    schedule: TransferSchedule,
    /// The transfer that arrives next.
    next_transfer: Option<PlannedTransfer>,
    pub(super) flows: Vec<ParallelFlow>,
    /// Finite flows that have not ended.
    open_flows: usize,
    has_endless_flow: bool,
    pub(super) measurement: TransferMeasurement,
    /// Counters of the connections that have given up their slots.
    pub(super) retired_counters: RunCounters,
    pub(super) out_of_slots: bool,
}

impl Simulation for ParallelSimulation<'_> {
    fn net(&mut self) -> &mut SimNetwork {
        &mut self.net
    }

    fn is_over(&self) -> bool {
        if self.out_of_slots {
            return true;
        }
        match self.parallel.foreground {
            Some(_) => self.measurement.jobs.is_over(),
            None => self.open_flows == 0 && !self.has_endless_flow,
        }
    }

    fn deliver(&mut self, channel: usize) {
        let mut packet = SimPacket::placeholder();
        while let Some(next_hop) = self.net.take_arrived(channel, &mut packet) {
            let slot = self.slot_of(packet.connection);
            match (next_hop, slot) {
                (NextHop::Channel(next), _) => {
                    self.net.send(next, packet);
                }
                // From the last link before the networks to the connection's network.
                (NextHop::ByConnection, Some(slot)) => {
                    if let Carries::Share { network, .. } = self.owners[slot].carries {
                        self.net.send(forward(network), packet);
                    }
                }
                (NextHop::Receiver, Some(slot)) => self.on_packet_at_receiver(slot, &packet),
                (NextHop::Sender, Some(slot)) => self.on_packet_at_sender(slot, &packet),
                (_, None) => {}
            }
        }
    }

    fn handle_event(&mut self, at: u64, key: EventKey) {
        match key.kind {
            ScheduledEventKind::RateChange => {
                self.varying_links.handle(key, &mut self.net);
            }
            ScheduledEventKind::FlowStart => self.start_transfer(),
            ScheduledEventKind::BondCheck => {
                if self.transfers[key.target as usize].bond_timer.expired(at, key, &mut self.net.events) {
                    self.run_bond(key.target);
                }
            }
            kind => {
                let Some(slot) = self.slot_of(key.target) else { return };
                if self.connections[slot].on_timer(at, kind, &mut self.net) {
                    self.after_sending(slot);
                }
            }
        }
    }

    fn progress(&self, until: u64) -> f64 {
        if self.parallel.foreground.is_some() {
            return self.measurement.jobs.progress();
        }
        let ended = self.flows.len() - self.open_flows;
        (ended as f64 / self.flows.len().max(1) as f64).max(self.net.now as f64 / until as f64)
    }
}

impl<'a> ParallelSimulation<'a> {
    /// The simulation of a scenario at time zero.
    pub(crate) fn new(
        scenario: &'a Scenario,
        parallel: Parallel<'a>,
        seed: u64,
        controllers: [TunedController; 2],
        settings: TcpSettings,
    ) -> Self {
        let specs = scenario.flow_specs(seed);
        let finite_flows = specs.iter().filter(|spec| spec.bytes.is_some()).count();
        let networks: Vec<Link> = parallel.networks.iter().map(|network| network.ip_link(settings.mss)).collect();
        let net = SimNetwork::for_parallel(&networks, parallel.links, parallel.split.is_some(), seed);
        let links = [&networks[..], parallel.links].concat();
        let mut simulation = ParallelSimulation {
            scenario,
            parallel,
            settings,
            controllers,
            net,
            varying_links: VaryingLinks::new(links.iter()),
            links,
            connections: Vec::new(),
            owners: Vec::new(),
            free_slots: VecDeque::new(),
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            schedule: TransferSchedule::new(&parallel, &specs, seed),
            next_transfer: None,
            flows: specs.iter().map(|spec| ParallelFlow { spec: *spec, read: 0, ended: None }).collect(),
            open_flows: finite_flows,
            has_endless_flow: finite_flows < specs.len(),
            measurement: TransferMeasurement::new(&parallel),
            retired_counters: RunCounters::default(),
            out_of_slots: false,
        };
        simulation.varying_links.schedule_first(&mut simulation.net);
        simulation.schedule_next_transfer();
        simulation
    }

    /// Schedules the arrival of the next transfer.
    fn schedule_next_transfer(&mut self) {
        self.next_transfer = self.schedule.next();
        if let Some(planned) = &self.next_transfer {
            self.net.events.schedule(EventKey { target: 0, kind: ScheduledEventKind::FlowStart }, planned.job.at.0);
        }
    }

    /// Runs until everything that is measured has ended, or until `until` ns.
    pub(crate) fn run(&mut self, until: u64, progress: &dyn Progress) -> RunEnd {
        let end = event_loop::run(self, until, progress);
        if !matches!(end, RunEnd::Cancelled | RunEnd::Failed) {
            self.finish();
        }
        end
    }

    /// As [`SimNetwork::check_controllers`].
    pub(crate) fn check_controllers(&self) -> Result<(), EngineError> {
        self.net.check_controllers()
    }

    /// Whether the run ended because more connections were open at once than there are slots.
    pub(crate) fn is_out_of_slots(&self) -> bool {
        self.out_of_slots
    }

    /// Measures the flows that have not ended, and stops the measurement.
    fn finish(&mut self) {
        for transfer in self.transfers.iter().filter(|transfer| !transfer.ended) {
            if let Some(flow) = transfer.planned.flow {
                self.flows[flow].read = transfer.striped.readable();
                self.measurement.add_striped(&transfer.striped);
            }
        }
        self.measurement.stop(&mut self.net);
    }

    /// The internal counters of the run so far.
    pub(crate) fn counters(&self) -> RunCounters {
        let mut counters = RunCounters { events: self.net.events_processed, ..self.retired_counters };
        for slot in self.transfers.iter().flat_map(|transfer| transfer.slots.into_iter().chain([transfer.to_proxy])).flatten() {
            counters.add(&self.connections[slot as usize]);
        }
        counters
    }

    /// Starts the transfer that arrives now.
    fn start_transfer(&mut self) {
        let Some(planned) = self.next_transfer.take() else { return };
        self.schedule_next_transfer();
        let bytes = planned.job.bytes.0;
        let striped = match planned.job.class.checked_sub(1) {
            Some(network) => StripedTransfer::single(bytes, network),
            None if self.parallel.bond.scheduler == TransferScheduler::Static => {
                StripedTransfer::in_parts(bytes, &self.parallel.parts().unwrap_or_default())
            }
            None => {
                let (bond, connections) = (self.parallel.bond, self.parallel.networks.len() * self.weight());
                StripedTransfer::over(bytes, &bond, connections, self.parallel.best())
            }
        };
        let striped = if self.parallel.split.is_some() { striped.fed() } else { striped };
        let part = self.measurement.on_arrival(&planned.job, &mut self.net);
        let slots = [None; MAX_CONNECTIONS];
        let transfer = ActiveTransfer { planned, striped, slots, to_proxy: None, part, ended: false, bond_timer: Timer::default() };
        let number = match self.free_transfers.pop() {
            Some(number) => {
                self.transfers[number as usize] = transfer;
                number
            }
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        };
        // The leg of the end that opens is opened first.
        match (self.parallel.split, planned.opens) {
            (Some(_), Opens::Sender) => self.open_to_proxy(number),
            _ => self.open_over_networks(number),
        }
    }

    /// Connections of a transfer of the foreground over each network: TCP shares a network equally
    /// among connections, so this is the transfer's weight.
    pub(super) fn weight(&self) -> usize {
        self.parallel.foreground.map_or(1, |foreground| foreground.weight as usize)
    }

    fn on_packet_at_receiver(&mut self, slot: usize, packet: &SimPacket) {
        let connection = &mut self.connections[slot];
        if !connection.is_established(ConnectionEnd::Receiver) || packet.kind == PacketKind::SynAck {
            let is_new = connection.on_handshake_packet(ConnectionEnd::Receiver, packet, &mut self.net);
            if is_new && self.owners[slot].carries == Carries::ToProxy {
                self.on_proxy_reached(self.owners[slot].transfer);
            }
        }
        let connection = &mut self.connections[slot];
        if !connection.is_established(ConnectionEnd::Receiver) {
            return;
        }
        match packet.kind {
            PacketKind::Data => {
                let before = connection.receiver.rcv_nxt;
                connection.receiver.on_data(packet, &mut self.net);
                let next = connection.receiver.rcv_nxt;
                if next > before && self.owners[slot].carries == Carries::ToProxy {
                    self.on_data_at_proxy(slot);
                } else if next > before {
                    // The transfer holds what is out of order, so the connection's own window never
                    // closes.
                    connection.receiver.release(next, &mut self.net);
                    self.on_delivered(slot);
                }
                self.connections[slot].receiver.ack_if_due(&mut self.net);
                self.retire_connections(slot);
            }
            PacketKind::Probe => connection.receiver.send_ack(&mut self.net),
            _ => {}
        }
    }

    /// A connection has delivered more of its transfer.
    fn on_delivered(&mut self, slot: usize) {
        let SlotOwner { transfer, carries: Carries::Share { connection, .. }, .. } = self.owners[slot] else { return };
        let transfer = &mut self.transfers[transfer as usize];
        let new = transfer.striped.on_delivered(connection, self.connections[slot].receiver.rcv_nxt);
        self.measurement.on_received(new);
        if transfer.ended || !transfer.planned.ends || !transfer.striped.is_complete() {
            return;
        }
        let bytes = transfer.planned.job.bytes.0;
        debug_assert_eq!(transfer.striped.delivered().iter().sum::<u64>(), bytes, "every byte was delivered once");
        transfer.ended = true;
        if let Some(flow) = transfer.planned.flow {
            self.flows[flow].ended = Some(self.net.now);
            self.flows[flow].read = bytes;
            self.open_flows -= 1;
        }
        self.measurement.on_end(&transfer.planned.job, transfer.part, &transfer.striped, self.net.now);
    }

    fn on_packet_at_sender(&mut self, slot: usize, packet: &SimPacket) {
        let connection = &mut self.connections[slot];
        if !connection.is_established(ConnectionEnd::Sender) || packet.kind == PacketKind::SynAck {
            if connection.on_handshake_packet(ConnectionEnd::Sender, packet, &mut self.net) {
                let owner = self.owners[slot];
                if let Carries::Share { connection, network } = owner.carries {
                    if let Some(bonded) = self.transfers[owner.transfer as usize].striped.bonded() {
                        bonded.connection_established(self.net.now, connection, network);
                    }
                    self.on_network_reached(owner.transfer);
                    self.offer_unassigned(slot);
                }
                self.connections[slot].sender.push(&mut self.net);
                self.after_sending(slot);
            }
            return;
        }
        if packet.kind == PacketKind::Ack {
            connection.sender.on_ack(packet, &mut self.net);
            self.after_sending(slot);
            self.retire_connections(slot);
        }
    }

    /// Offers the unassigned rest of a pulled transfer to a connection.
    pub(super) fn offer_unassigned(&mut self, slot: usize) {
        let transfer = &self.transfers[self.owners[slot].transfer as usize];
        if transfer.striped.is_pulled() {
            let ends = transfer.planned.ends && transfer.striped.is_all_available();
            let sender = &mut self.connections[slot].sender;
            sender.set_write_end(sender.snd_nxt + transfer.striped.unassigned(), ends);
        }
    }

    /// To be called when a connection may have sent new data: updates the bond, and what the other
    /// connections may take.
    pub(super) fn after_sending(&mut self, slot: usize) {
        let SlotOwner { transfer: number, carries: Carries::Share { connection, .. }, .. } = self.owners[slot] else { return };
        self.run_bond(number);
        let transfer = &mut self.transfers[number as usize];
        if transfer.striped.on_sent(connection, self.connections[slot].sender.snd_nxt) {
            for other in transfer.slots.into_iter().flatten() {
                self.offer_unassigned(other as usize);
            }
        }
        self.free_proxy_buffer(number);
    }

    /// Writes the pieces that the bond of a transfer assigns now, if it has one.
    pub(super) fn run_bond(&mut self, number: u32) {
        let transfer = &mut self.transfers[number as usize];
        let (now, ends) = (self.net.now, transfer.planned.ends);
        let Some(bonded) = transfer.striped.bonded().filter(|_| !transfer.ended) else {
            transfer.bond_timer.stop();
            return;
        };
        for (connection, slot) in transfer.slots.iter().enumerate() {
            if let Some(slot) = slot {
                bonded.update_path(now, connection, path_state(&self.connections[*slot as usize].sender));
            }
        }
        while let Some(write) = bonded.next_write(now) {
            let Some(slot) = transfer.slots[write.connection] else { return };
            let sender = &mut self.connections[slot as usize].sender;
            sender.write(write.end, write.last && ends);
            sender.push(&mut self.net);
            bonded.update_path(now, write.connection, path_state(sender));
        }
        let due = bonded.next_check(now);
        self.net.events.set_timer(&mut transfer.bond_timer, EventKey { target: number, kind: ScheduledEventKind::BondCheck }, due);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::connections::SLOT_BITS, *};
    use scenario::ScenarioFile;

    fn parse(text: &str) -> Scenario {
        ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    fn simulation<'a>(scenario: &'a Scenario, controller: &str) -> ParallelSimulation<'a> {
        let controller = control::Controller::named(controller).expect("it exists").untuned();
        ParallelSimulation::new(scenario, scenario.parallel().unwrap(), 1, [controller; 2], TcpSettings::default())
    }

    /// The number of slots of connections and of transfers, and of transfers that were counted.
    fn slots(jobs: u64) -> [usize; 3] {
        let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\nqueue = \"100pkt\"\nload = 0.4\n";
        let rest = "size = { law = \"exponential\", mean = \"20kB\" }\n[bond]\nscheduler = \"fluid\"\n";
        let scenario = parse(&format!("name = \"x\"\n{network}{network}[foreground]\nload = 0.6\njobs = {jobs}\n{rest}"));
        let mut simulation = simulation(&scenario, "cubic");
        assert_eq!(simulation.run(u64::MAX, &()), RunEnd::Finished);
        let open = simulation.transfers.iter().flat_map(|transfer| transfer.slots).flatten().count();
        assert_eq!(open + simulation.free_slots.len(), simulation.connections.len(), "each slot is free or in use");
        let counted = simulation.measurement.jobs.means().jobs.iter().sum::<u64>();
        [simulation.connections.len(), simulation.transfers.len(), counted as usize]
    }

    #[test]
    fn memory_is_proportional_to_transfers_in_progress() {
        let (few, many) = (slots(500), slots(8000));
        assert!(many[2] > 12 * few[2] && many[2] > 15_000, "{many:?}");
        // The largest number in progress grows with the logarithm of the length of the run.
        assert!(many[0] < 3 * few[0] && many[0] < 300 && many[1] < 200, "{few:?} {many:?}");
    }

    #[test]
    fn a_retired_connection_number_has_no_slot() {
        let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\n";
        let scenario = parse(&format!("name = \"x\"\n{network}[[flow]]\nbytes = \"10kB\"\n[bond]\nscheduler = \"single\"\n"));
        let mut simulation = simulation(&scenario, "reno");
        simulation.start_transfer();
        let number = simulation.owners[0].number;
        assert_eq!(simulation.slot_of(number), Some(0));
        simulation.transfers[0].ended = true;
        simulation.retire_connections(0);
        assert_eq!((simulation.slot_of(number), simulation.free_slots.len(), simulation.free_transfers.len()), (None, 1, 1));
        simulation.transfers[0].ended = false;
        simulation.open_over_networks(0);
        assert_eq!((simulation.slot_of(number), simulation.slot_of(number + (1 << SLOT_BITS))), (None, Some(0)));
    }
}
