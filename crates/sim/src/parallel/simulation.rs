//! Networks in parallel: transfers come, each is shared out among its own connections, one in each network, and leaves. A network has a queue and
//! a line each way, and transfers of its own beside those that are split.
//!
//! A connection's place is taken by another when it has nothing more to say, so that memory is that of the transfers under way. Its number has a
//! count of those who had the place before: what is still on its way to one of them, packets and timers, finds nobody.

use super::{
    bonded_transfer::look,
    measurement::Tally,
    striping::{MOST, Stripe},
};
use crate::{
    connection::{Conn, Side},
    event_queue::{Key, Timer, What},
    network::{Hop, Net, backward, forward, wire_rate},
    packet::{Kind, Packet},
    receiver::{Echo, LARGEST_WINDOW, Receiver},
    run_counters::Effort,
    sender::{Law, Place, Sender},
    settings::Settings,
};
use control::Controller;
use outcome::Progress;
use scenario::{FlowSpec, Network, Parallel, PlannedTransfer, QueueKind, Scenario, TransferSchedule};
use std::collections::VecDeque;

/// How many events there are between two reports of progress.
const REPORT: u32 = 1 << 20;
/// A connection's number is its place, in so many bits, below the count of those who had it before.
const PLACE_BITS: u32 = 20;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As it should, or because its time was over.
    Well,
    /// Somebody asked for the end.
    Cancelled,
    /// There are more connections at once than can be numbered.
    Crowded,
}

/// A transfer under way.
#[derive(Debug)]
pub(super) struct Transfer {
    coming: PlannedTransfer,
    stripe: Stripe,
    /// The places of its connections, by network.
    conns: [Option<u32>; MOST],
    /// The part of the run whose means it counts in.
    part: Option<usize>,
    ended: bool,
    /// When its bond looks for what is late.
    late: Timer,
}

/// Who has a connection's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    /// The connection's number; of a place that is free, that of the next.
    id: u32,
    transfer: u32,
    network: usize,
}

/// A flow that is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) spec: FlowSpec,
    /// Payload that its receiver could read, and when it could read the last of it, ns.
    pub(super) read: u64,
    pub(super) ended: Option<u64>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) parallel: Parallel<'a>,
    pub(super) settings: Settings,
    pub(super) controller: Controller,
    pub(super) net: Net,
    pub(super) conns: Vec<Conn>,
    pub(super) owners: Vec<Owner>,
    pub(super) free_conns: VecDeque<u32>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) free_transfers: Vec<u32>,
    /// What is to come, and which is next.
    pub(super) schedule: TransferSchedule,
    pub(super) next: Option<PlannedTransfer>,
    pub(super) flows: Vec<Flow>,
    /// Given flows that have an end and have not come to it.
    pub(super) open: usize,
    pub(super) tally: Tally,
    pub(super) events: u64,
    /// What the connections that are gone did.
    pub(super) done: Effort,
    pub(super) crowded: bool,
    /// Its time was over before all had ended that end by themselves.
    pub(super) gave_up: bool,
}

impl<'a> World<'a> {
    /// All that a scenario has, before its beginning.
    pub(crate) fn new(scenario: &'a Scenario, parallel: Parallel<'a>, seed: u64, controller: Controller, settings: Settings) -> Self {
        let specs = scenario.flow_specs(seed);
        let flow = |spec: &FlowSpec| Flow { spec: *spec, read: 0, ended: None };
        let mut world = World {
            scenario,
            parallel,
            settings,
            controller,
            net: Net::parallel(parallel.networks, settings.mss, seed),
            conns: Vec::new(),
            owners: Vec::new(),
            free_conns: VecDeque::new(),
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            schedule: TransferSchedule::new(&parallel, &specs, seed),
            next: None,
            flows: specs.iter().map(flow).collect(),
            open: specs.iter().filter(|spec| spec.bytes.is_some()).count(),
            tally: Tally::new(&parallel),
            events: 0,
            done: Effort::default(),
            crowded: false,
            gave_up: false,
        };
        world.wait();
        world
    }

    /// Waits for the transfer that comes next.
    fn wait(&mut self) {
        self.next = self.schedule.next();
        if let Some(coming) = &self.next {
            self.net.timers.once(Key { who: 0, what: What::Open }, coming.job.at.0);
        }
    }

    /// Lets it run until all that is measured has ended, or until `until`.
    pub(crate) fn run(&mut self, until: u64, progress: &dyn Progress) -> Ended {
        let mut quiet = REPORT;
        while !self.is_over() {
            let (line, arrives) = self.net.next();
            let timer = self.net.timers.next();
            let next = arrives.min(timer);
            if next > until {
                self.net.now = until;
                self.gave_up = self.scenario.duration.is_none();
                break;
            }
            self.net.now = next;
            if arrives <= timer {
                self.deliver(line);
            } else if let Some((at, key)) = self.net.timers.pop() {
                self.happen(at, key);
            }
            if self.crowded {
                return Ended::Crowded;
            }
            self.events += 1;
            quiet -= 1;
            if quiet == 0 {
                quiet = REPORT;
                progress.at(self.share_done(until), "simulating");
                if progress.cancelled() {
                    return Ended::Cancelled;
                }
            }
        }
        self.close();
        Ended::Well
    }

    fn is_over(&self) -> bool {
        if self.parallel.foreground.is_some() {
            return self.tally.jobs.is_over();
        }
        self.open == 0 && self.flows.iter().all(|flow| flow.spec.bytes.is_some())
    }

    /// Whether its time was over before all had ended that end by themselves.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Of flows that have not ended it is told how far they came.
    fn close(&mut self) {
        for transfer in self.transfers.iter().filter(|transfer| !transfer.ended) {
            if let Some(flow) = transfer.coming.flow {
                self.flows[flow].read = transfer.stripe.read();
                self.tally.share(&transfer.stripe);
            }
        }
        self.tally.stop(&mut self.net);
    }

    fn share_done(&self, until: u64) -> f64 {
        if self.parallel.foreground.is_some() {
            return self.tally.jobs.progress();
        }
        let ended = self.flows.len() - self.open;
        (ended as f64 / self.flows.len().max(1) as f64).max(self.net.now as f64 / until as f64)
    }

    /// What it took until now.
    pub(crate) fn effort(&self) -> Effort {
        let mut effort = Effort { events: self.events, ..self.done };
        for place in self.transfers.iter().flat_map(|transfer| transfer.conns).flatten() {
            effort.add(&self.conns[place as usize]);
        }
        effort
    }

    /// The transfer that was waited for begins.
    fn begin(&mut self) {
        let Some(coming) = self.next.take() else { return };
        self.wait();
        let bytes = coming.job.bytes.0;
        let stripe = match coming.job.class.checked_sub(1) {
            Some(network) => Stripe::whole(bytes, network),
            None => {
                let (bond, count) = (self.parallel.bond, self.parallel.networks.len());
                Stripe::over(bytes, &bond, count, self.parallel.best())
            }
        };
        let part = self.tally.arrives(&coming.job, &mut self.net);
        let transfer = Transfer { coming, stripe, conns: [None; MOST], part, ended: false, late: Timer::default() };
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
        for network in 0..self.parallel.networks.len() {
            if self.transfers[number as usize].stripe.uses(network) {
                self.connect(number, network);
            }
        }
    }

    /// Opens a transfer's connection over a network.
    fn connect(&mut self, transfer: u32, network: usize) {
        let place = self.free_conns.pop_front().unwrap_or(self.conns.len() as u32);
        if place >> PLACE_BITS > 0 {
            self.crowded = true;
            return;
        }
        let id = self.owners.get(place as usize).map_or(place, |free| free.id);
        let owner = Owner { id, transfer, network };
        let mut conn = self.conn(owner);
        let whose = &mut self.transfers[transfer as usize];
        whose.conns[network] = Some(place);
        if whose.stripe.is_settled() {
            conn.sender.write(whose.stripe.given(network), whose.coming.ends);
        }
        conn.open(&mut self.net);
        if place as usize == self.conns.len() {
            self.conns.push(conn);
            self.owners.push(owner);
        } else {
            self.conns[place as usize] = conn;
            self.owners[place as usize] = owner;
        }
    }

    /// A connection that nobody has opened.
    fn conn(&self, owner: Owner) -> Conn {
        let network = &self.parallel.networks[owner.network];
        let coming = &self.transfers[owner.transfer as usize].coming;
        let lines = [forward(owner.network), backward(owner.network)];
        let ecn = network.queue.kind == QueueKind::Ecn;
        let place = Place { conn: owner.id, line: lines[0], record: None, ecn, shaped: false, semi: false, room: u64::MAX };
        let room = coming.window.map_or(u64::MAX, |window| window.0);
        let echo = if self.controller.name() == "dctcp" { Echo::Each } else { Echo::UntilAnswered };
        let receiver = Receiver::new(owner.id, lines[1], [room, endless_window(network, self.settings.mss)], echo, self.settings);
        Conn::new(Sender::new(place, Law::Own(self.controller), self.settings), receiver, (coming.opens, false), lines, self.settings)
    }

    /// The place of the connection of this number, if it still has one.
    fn place_of(&self, id: u32) -> Option<usize> {
        let place = (id & ((1 << PLACE_BITS) - 1)) as usize;
        self.owners.get(place).filter(|owner| owner.id == id).map(|_| place)
    }

    fn deliver(&mut self, line: usize) {
        let mut packet = Packet::none();
        while let Some(hop) = self.net.take(line, &mut packet) {
            match self.place_of(packet.conn) {
                Some(place) if hop == Hop::Right => self.arrive_right(place, &packet),
                Some(place) => self.arrive_left(place, &packet),
                None => {}
            }
        }
    }

    /// A packet comes to the receiving end of its connection.
    fn arrive_right(&mut self, place: usize, packet: &Packet) {
        let conn = &mut self.conns[place];
        if !conn.is_up(Side::Right) || packet.kind == Kind::SynAck {
            conn.shake(Side::Right, packet, &mut self.net);
        }
        if !conn.is_up(Side::Right) {
            return;
        }
        match packet.kind {
            Kind::Data => {
                let before = conn.receiver.next;
                conn.receiver.on_data(packet, &mut self.net);
                let next = conn.receiver.next;
                if next > before {
                    // What is out of order for the transfer is held elsewhere: the connection's own window never closes.
                    conn.receiver.release(next, &mut self.net);
                    self.came(place);
                }
                self.conns[place].receiver.answer(&mut self.net);
                self.leave(place);
            }
            Kind::Probe => conn.receiver.acknowledge(&mut self.net),
            _ => {}
        }
    }

    /// A connection has delivered some more of its transfer.
    fn came(&mut self, place: usize) {
        let owner = self.owners[place];
        let transfer = &mut self.transfers[owner.transfer as usize];
        let new = transfer.stripe.arrive(owner.network, self.conns[place].receiver.next);
        self.tally.came(new);
        if transfer.ended || !transfer.coming.ends || !transfer.stripe.is_complete() {
            return;
        }
        debug_assert_eq!(transfer.stripe.came().iter().sum::<u64>(), transfer.coming.job.bytes.0, "all of it came, once");
        transfer.ended = true;
        if let Some(flow) = transfer.coming.flow {
            self.flows[flow].ended = Some(self.net.now);
            self.flows[flow].read = transfer.coming.job.bytes.0;
            self.open -= 1;
        }
        self.tally.ends(&transfer.coming.job, transfer.part, &transfer.stripe, self.net.now);
    }

    /// A packet comes to the sending end of its connection.
    fn arrive_left(&mut self, place: usize, packet: &Packet) {
        let conn = &mut self.conns[place];
        if !conn.is_up(Side::Left) || packet.kind == Kind::SynAck {
            if conn.shake(Side::Left, packet, &mut self.net) {
                let owner = self.owners[place];
                if let Some(steered) = self.transfers[owner.transfer as usize].stripe.steered() {
                    steered.up(self.net.now, owner.network);
                }
                self.offer(place);
                self.conns[place].sender.push(&mut self.net);
                self.after_sending(place);
            }
            return;
        }
        if packet.kind == Kind::Ack {
            conn.sender.on_ack(packet, &mut self.net);
            self.after_sending(place);
            self.leave(place);
        }
    }

    /// What is left of a transfer is any connection's to send.
    fn offer(&mut self, place: usize) {
        let transfer = &self.transfers[self.owners[place].transfer as usize];
        if transfer.stripe.is_pulled() {
            let sender = &mut self.conns[place].sender;
            sender.rewrite(sender.nxt + transfer.stripe.left(), transfer.coming.ends);
        }
    }

    /// What a connection has sent for the first time is not left for the others.
    fn after_sending(&mut self, place: usize) {
        let owner = self.owners[place];
        self.steer(owner.transfer);
        let transfer = &mut self.transfers[owner.transfer as usize];
        if transfer.stripe.take(owner.network, self.conns[place].sender.nxt) {
            for other in transfer.conns.into_iter().flatten() {
                self.offer(other as usize);
            }
        }
    }

    /// Where a transfer has ended, those of its connections leave that have nothing unacknowledged.
    fn leave(&mut self, place: usize) {
        let number = self.owners[place].transfer;
        let transfer = &mut self.transfers[number as usize];
        if !transfer.ended {
            return;
        }
        // What a bond wrote to a socket is sent, whether it is of use still or not.
        let is_steered = transfer.stripe.steered().is_some();
        for of in &mut transfer.conns {
            let Some(place) = *of else { continue };
            let conn = &self.conns[place as usize];
            if conn.sender.una == conn.sender.nxt && !(is_steered && conn.sender.unsent() > 0) {
                *of = None;
                self.done.add(conn);
                let free = &mut self.owners[place as usize];
                free.id = free.id.wrapping_add(1 << PLACE_BITS);
                self.free_conns.push_back(place);
            }
        }
        if transfer.conns.iter().all(Option::is_none) {
            self.free_transfers.push(number);
        }
    }

    /// What a bond gives out now, if one steers the transfer.
    pub(super) fn steer(&mut self, number: u32) {
        let transfer = &mut self.transfers[number as usize];
        let (now, ends) = (self.net.now, transfer.coming.ends);
        let Some(steered) = transfer.stripe.steered().filter(|_| !transfer.ended) else {
            transfer.late.stop();
            return;
        };
        for (network, place) in transfer.conns.iter().enumerate().filter_map(|(network, place)| Some((network, (*place)? as usize))) {
            steered.look(now, network, look(&self.conns[place].sender));
        }
        while let Some(writes) = steered.give(now) {
            let Some(place) = transfer.conns[writes.connection] else { return };
            let sender = &mut self.conns[place as usize].sender;
            sender.write(writes.end, writes.last && ends);
            sender.push(&mut self.net);
            steered.look(now, writes.connection, look(sender));
        }
        let due = steered.next_check(now);
        self.net.timers.set(&mut transfer.late, Key { who: number, what: What::Steer }, due);
    }

    /// Something happens by itself.
    fn happen(&mut self, at: u64, key: Key) {
        if key.what == What::Open {
            self.begin();
            return;
        }
        if key.what == What::Steer {
            if self.transfers[key.who as usize].late.fires(at, key, &mut self.net.timers) {
                self.steer(key.who);
            }
            return;
        }
        let Some(place) = self.place_of(key.who) else { return };
        let conn = &mut self.conns[place];
        match key.what {
            What::Retransmit if conn.sender.timer_fires(at, &mut self.net) => {
                if conn.is_up(Side::Left) {
                    conn.sender.on_timer(&mut self.net);
                    self.after_sending(place);
                } else {
                    conn.repeat(Side::Left, &mut self.net);
                }
            }
            What::Pace if conn.sender.pace_fires(at, &mut self.net) => {
                conn.sender.go_on(&mut self.net);
                self.after_sending(place);
            }
            What::Acknowledge if conn.receiver.timer_fires(at, &mut self.net) => {
                if conn.is_up(Side::Right) {
                    conn.receiver.on_timer(&mut self.net);
                } else {
                    conn.repeat(Side::Right, &mut self.net);
                }
            }
            _ => {}
        }
    }
}

/// The largest window of ends that are not to be what limits a transfer: what is in flight and queued, twice over, as for links in series.
fn endless_window(network: &Network, mss: u32) -> u64 {
    let (rate, rtt) = (wire_rate(network.rate, mss), network.delay * 2);
    let queued = network.queue.size_for(rate, rtt).bytes().0;
    let flight = rate.bytes_in(rtt).0;
    (flight + queued.min(flight.saturating_mul(4))).saturating_mul(2).clamp(2 << 20, LARGEST_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;

    /// The most connections and transfers that there were places for, and how many transfers came.
    fn places(jobs: u64) -> [usize; 3] {
        let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\nqueue = \"100pkt\"\nload = 0.4\n";
        let rest = "size = { law = \"exponential\", mean = \"20kB\" }\n[bond]\nscheduler = \"fluid\"\n";
        let text = format!("name = \"x\"\n{network}{network}[foreground]\nload = 0.6\njobs = {jobs}\n{rest}");
        let scenario = ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let Some(controller) = Controller::named("cubic") else { panic!("cubic is there") };
        let mut world = World::new(&scenario, scenario.parallel().unwrap(), 1, controller, Settings::default());
        assert_eq!(world.run(u64::MAX, &()), Ended::Well);
        let open = world.transfers.iter().flat_map(|transfer| transfer.conns).flatten().count();
        assert_eq!(open + world.free_conns.len(), world.conns.len(), "a place is free or taken");
        let came = world.tally.jobs.means().jobs.iter().sum::<u64>();
        [world.conns.len(), world.transfers.len(), came as usize]
    }

    #[test]
    fn memory_is_that_of_the_transfers_under_way() {
        let (few, many) = (places(500), places(8000));
        assert!(many[2] > 12 * few[2] && many[2] > 15_000, "{many:?}");
        // Rare crowds are larger in a longer run, by the logarithm of its length.
        assert!(many[0] < 3 * few[0] && many[0] < 300 && many[1] < 200, "{few:?} {many:?}");
    }

    #[test]
    fn what_is_under_way_to_a_connection_that_is_gone_finds_nobody() {
        let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"5ms\"\n";
        let text = format!("name = \"x\"\n{network}[[flow]]\nbytes = \"10kB\"\n[bond]\nscheduler = \"single\"\n");
        let scenario = ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let Some(controller) = Controller::named("reno") else { panic!("reno is there") };
        let mut world = World::new(&scenario, scenario.parallel().unwrap(), 1, controller, Settings::default());
        world.begin();
        let id = world.owners[0].id;
        assert_eq!(world.place_of(id), Some(0));
        world.transfers[0].ended = true;
        world.leave(0);
        assert_eq!((world.place_of(id), world.free_conns.len(), world.free_transfers.len()), (None, 1, 1));
        world.transfers[0].ended = false;
        world.connect(0, 0);
        assert_eq!((world.place_of(id), world.place_of(id + (1 << PLACE_BITS))), (None, Some(0)));
    }
}
