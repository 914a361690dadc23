//! Everything at once: what happens next, and to whom.

use super::{application::App, cross_traffic::Source, split_node::Relay};
use crate::{
    connection::{Conn, Side},
    event_queue::{Key, What},
    network::{Hop, Net, backward, forward},
    packet::{Kind, Packet},
    receiver::{Echo, LARGEST_WINDOW, Receiver},
    run_counters::Effort,
    sender::{Law, Place, Sender},
    settings::Settings,
};
use outcome::Progress;
use scenario::{Backpressure, FlowSpec, Opens, QueueKind, Scenario, SplitMode};
use units::{Rate, Span};

/// What looks at a run, at equal distances of simulated time.
pub(crate) trait Observer {
    /// From one look to the next, ns.
    fn interval(&self) -> u64;

    /// Looks once at everything.
    fn look(&mut self, world: &mut World<'_>);
}

/// For how long after the last byte has arrived senders' hearing of it is waited for, ns.
const HEARING: u64 = 600_000_000_000;
/// How many events there are between two reports of progress.
const REPORT: u32 = 1 << 20;

/// A flow from end to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) spec: FlowSpec,
    /// When the receiver had read the last byte, ns.
    pub(crate) ended: Option<u64>,
    /// When the sender's application knew that its last byte was acknowledged, ns.
    pub(crate) acked: Option<u64>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) net: Net,
    /// The connections of a flow lie side by side, from the sender on.
    pub(crate) conns: Vec<Conn>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) relays: Vec<Relay>,
    /// Connections of a flow.
    pub(crate) legs: usize,
    /// The lines of the proxies' shapers, by split.
    pub(crate) shapers: Vec<Option<usize>>,
    /// The records of the links behind the proxies.
    records: Vec<Option<usize>>,
    apps: Vec<App>,
    sources: Vec<Source>,
    /// When rates change, of which link.
    changes: Vec<(usize, Span, Rate)>,
    open: usize,
    /// Flows whose sender does not know yet that it is done.
    unheard: usize,
    events: u64,
}

impl<'a> World<'a> {
    /// All that a scenario has, before its beginning. There must be a law for each leg.
    pub(crate) fn new(scenario: &'a Scenario, seed: u64, laws: &[Law], settings: Settings) -> Self {
        let specs = scenario.flow_specs(seed);
        let legs = scenario.legs().len();
        let relays = (0..scenario.splits.len()).map(|index| {
            let split = &scenario.splits[index];
            let buffer = scenario.buffer_limit(index).map_or(u64::MAX, |buffer| buffer.0);
            Relay { buffer, mode: split.mode, backpressure: split.backpressure }
        });
        let mut world = World {
            scenario,
            net: Net::new(scenario, seed),
            conns: Vec::with_capacity(specs.len() * legs),
            flows: specs.iter().map(|spec| Flow { spec: *spec, ended: None, acked: None }).collect(),
            relays: relays.collect(),
            legs,
            shapers: Vec::new(),
            records: Vec::new(),
            apps: specs.iter().map(|spec| App::new(spec, seed)).collect(),
            sources: (0..).zip(&scenario.cross).map(|(index, cross)| Source::new(cross, seed, index)).collect(),
            changes: changes(scenario),
            open: specs.iter().filter(|spec| spec.bytes.is_some()).count(),
            unheard: specs.iter().filter(|spec| spec.bytes.is_some()).count(),
            events: 0,
        };
        world.set_up_proxies(laws);
        world.connect(&specs, laws, settings);
        world.begin();
        world
    }

    /// The links behind proxies, where these know what they carry.
    fn set_up_proxies(&mut self, laws: &[Law]) {
        for (index, split) in self.scenario.splits.iter().enumerate() {
            let capacity = split.capacity.unwrap_or(self.scenario.links[split.after].rate);
            let (shaper, record) = if split.shaper {
                let (line, record) = self.net.shape(split.after, capacity);
                (Some(line), Some(record))
            } else if laws[index + 1].needs_capacity() {
                (None, Some(self.net.watch(split.after, capacity)))
            } else {
                (None, None)
            };
            self.shapers.push(shaper);
            self.records.push(record);
        }
    }

    fn connect(&mut self, specs: &[FlowSpec], laws: &[Law], settings: Settings) {
        let endless = endless_window(self.scenario, specs);
        let legs = self.scenario.legs();
        let delayed = specs.iter().any(|spec| spec.access_delay.0 > 0);
        for spec in specs {
            for (number, leg) in legs.iter().enumerate() {
                let conn = self.conns.len() as u32;
                let shaper = number.checked_sub(1).and_then(|split| self.shapers[split]);
                let record = number.checked_sub(1).and_then(|split| self.records[split]);
                let law = laws[number];
                // Who is told by routers has no use for a mark.
                let ecn =
                    law.own().is_some() && self.scenario.links[leg.first..leg.end].iter().any(|link| link.queue.kind == QueueKind::Ecn);
                let lines = [shaper.unwrap_or(forward(leg.first)), backward(leg.end - 1)];
                let semi = self.relays.get(number).is_some_and(|relay| relay.mode == SplitMode::Semi);
                let send_buffer = spec.send_buffer.filter(|_| number == 0).map_or(u64::MAX, |buffer| buffer.0);
                let place = Place { conn, line: lines[0], record, ecn, shaped: shaper.is_some(), semi, room: send_buffer };
                let room = match self.relays.get(number) {
                    Some(relay) => relay.room(),
                    None => spec.window.map_or(u64::MAX, |window| window.0),
                };
                let echo = if law.is("dctcp") { Echo::Each } else { Echo::UntilAnswered };
                let receiver = Receiver::new(conn, lines[1], [room, endless], echo, settings);
                let sender = Sender::new(place, law, settings);
                let opens = (spec.opens, self.scenario.has_fast_open(spec, number));
                self.conns.push(Conn::new(sender, receiver, opens, lines, settings));
                self.net.shares.push(law.is("share"));
                if delayed {
                    self.net.extra.push(if leg.first == 0 { spec.access_delay.0 } else { 0 });
                }
            }
        }
    }

    /// Sets down what is to happen by itself.
    fn begin(&mut self) {
        for (number, flow) in (0..).zip(&self.flows) {
            self.net.timers.once(Key { who: number, what: What::Open }, flow.spec.start.0);
        }
        for (number, source) in (0..).zip(&mut self.sources) {
            source.wait(number, &mut self.net);
        }
        for (number, (_, at, _)) in (0..).zip(&self.changes) {
            self.net.timers.once(Key { who: number, what: What::Change }, at.0);
        }
    }

    /// Lets it run until all flows have ended that do so by themselves, or until `until`; false: somebody asked for the end.
    pub(crate) fn run(&mut self, until: u64, looks: &mut impl Observer, progress: &dyn Progress) -> bool {
        let endless = self.flows.iter().any(|flow| flow.spec.bytes.is_none());
        self.net.timers.once(Key { who: 0, what: What::Look }, 0);
        let mut quiet = REPORT;
        loop {
            let (line, arrives) = self.net.next();
            let timer = self.net.timers.next();
            let next = arrives.min(timer);
            if next > until || (self.open == 0 && !endless) {
                break;
            }
            self.net.now = next;
            if arrives <= timer {
                self.deliver(line);
            } else if let Some((at, key)) = self.net.timers.pop() {
                if key.what == What::Look {
                    looks.look(self);
                    self.net.timers.once(key, self.net.now + looks.interval());
                } else {
                    self.happen(at, key);
                }
            }
            self.events += 1;
            quiet -= 1;
            if quiet == 0 {
                quiet = REPORT;
                progress.at(self.share_done(until), "simulating");
                if progress.cancelled() {
                    return false;
                }
            }
        }
        if self.open > 0 || endless {
            self.net.now = until;
        }
        true
    }

    /// Lets it run on, after all flows have ended, until every sender knows that its own has; nobody looks any more.
    pub(crate) fn let_senders_hear(&mut self, until: u64) {
        let until = until.min(self.net.now.saturating_add(HEARING));
        while self.open == 0 && self.unheard > 0 {
            let (line, arrives) = self.net.next();
            let timer = self.net.timers.next();
            if arrives.min(timer) > until {
                break;
            }
            self.net.now = arrives.min(timer);
            if arrives <= timer {
                self.deliver(line);
            } else if let Some((at, key)) = self.net.timers.pop().filter(|(_, key)| key.what != What::Look) {
                self.happen(at, key);
            }
        }
    }

    /// What it took until now.
    pub(crate) fn effort(&self) -> Effort {
        let mut effort = Effort { events: self.events, ..Effort::default() };
        for conn in &self.conns {
            effort.add(conn);
        }
        effort
    }

    /// How much of the run is done, as far as can be told.
    fn share_done(&self, until: u64) -> f64 {
        let (mut read, mut asked) = (0, 0);
        for (number, flow) in self.flows.iter().enumerate() {
            if let Some(bytes) = flow.spec.bytes {
                read += self.read(number);
                asked += bytes.0;
            }
        }
        let bytes = if asked > 0 { read as f64 / asked as f64 } else { 0.0 };
        bytes.max(if until == u64::MAX { 0.0 } else { self.net.now as f64 / until as f64 })
    }

    /// Payload that the receiver of a flow has read.
    pub(crate) fn read(&self, flow: usize) -> u64 {
        self.conns[(flow + 1) * self.legs - 1].receiver.next
    }

    /// Whose connection it is, and over which leg.
    #[inline]
    fn flow_and_leg(&self, conn: usize) -> (usize, usize) {
        // Nobody waits for a division who has one leg.
        if self.legs == 1 { (conn, 0) } else { (conn / self.legs, conn % self.legs) }
    }

    /// What proxy `split` holds of a flow.
    pub(crate) fn held(&self, flow: usize, split: usize) -> u64 {
        let conn = flow * self.legs + split;
        self.conns[conn].receiver.next - self.conns[conn + 1].sender.nxt
    }

    fn deliver(&mut self, line: usize) {
        let mut packet = Packet::none();
        while let Some(hop) = self.net.take(line, &mut packet) {
            match hop {
                Hop::Line(next) => {
                    self.net.send(next, packet);
                    if self.net.is_shaper(line) {
                        self.left_shaper(line, &packet);
                    }
                }
                _ if packet.kind == Kind::Udp => {}
                Hop::Right => self.arrive_right(&packet),
                Hop::Left => self.arrive_left(&packet),
            }
        }
    }

    fn left_shaper(&mut self, line: usize, packet: &Packet) {
        self.net.note_shaped(line, packet);
        if packet.kind == Kind::Data {
            let conn = packet.conn as usize;
            self.conns[conn].sender.left_shaper(&mut self.net);
            self.after_sending(conn);
        }
    }

    /// A packet comes to the receiving end of its connection.
    fn arrive_right(&mut self, packet: &Packet) {
        let index = packet.conn as usize;
        let conn = &mut self.conns[index];
        if (!conn.is_up(Side::Right) || packet.kind == Kind::SynAck) && conn.shake(Side::Right, packet, &mut self.net) {
            self.established(index, Side::Right);
            if self.conns[index].receiver.next > 0 {
                // It came with the SYN.
                self.pass_on(index);
            }
        }
        let conn = &mut self.conns[index];
        if !conn.is_up(Side::Right) {
            return;
        }
        match packet.kind {
            Kind::Data => {
                let before = conn.receiver.next;
                conn.receiver.on_data(packet, &mut self.net);
                if conn.receiver.next > before {
                    self.pass_on(index);
                } else {
                    self.hold_back(index);
                }
                self.conns[index].receiver.answer(&mut self.net);
            }
            Kind::Probe => {
                conn.receiver.acknowledge(&mut self.net);
                conn.receiver.repeat_receipt(&mut self.net);
            }
            _ => {}
        }
    }

    /// Something has arrived in order: the next leg may send it, or the application reads it.
    fn pass_on(&mut self, conn: usize) {
        let (flow, leg) = self.flow_and_leg(conn);
        let (arrived, complete) = (self.conns[conn].receiver.next, self.conns[conn].receiver.is_complete());
        if leg + 1 == self.legs {
            self.conns[conn].receiver.release(arrived, &mut self.net);
            if complete && self.flows[flow].ended.is_none() {
                self.flows[flow].ended = Some(self.net.now);
                self.open -= 1;
            }
            return;
        }
        let relay = &self.relays[leg];
        debug_assert!(relay.backpressure == Backpressure::Fluid || self.held(flow, leg) <= relay.buffer, "the window permits no more");
        let end = relay.passes(arrived, complete);
        let next = &mut self.conns[conn + 1];
        next.sender.write(end, complete);
        if next.waits_for_data() && end > 0 {
            next.open(&mut self.net);
        }
        next.sender.push(&mut self.net);
        self.after_sending(conn + 1);
        self.hold_back(conn);
    }

    /// A leg has sent something for the first time: the proxy before it holds less.
    fn after_sending(&mut self, conn: usize) {
        if self.flow_and_leg(conn).1 == 0 {
            return;
        }
        let sent = self.conns[conn].sender.nxt;
        if self.conns[conn - 1].receiver.release(sent, &mut self.net) > 0 {
            self.hold_back(conn - 1);
        }
    }

    /// Holds the sender of a leg to what the fluid proxy behind it will have room for when it comes.
    fn hold_back(&mut self, conn: usize) {
        let (_, leg) = self.flow_and_leg(conn);
        let Some(relay) = self.relays.get(leg).filter(|relay| relay.holds_by_rate()) else { return };
        let [before, next] = [&self.conns[conn], &self.conns[conn + 1]];
        // While it comes the next leg sends on what its window permits.
        let leaves = next.sender.lets_go(before.sender.rtt.smoothed()) / 2;
        let room = relay.buffer.max(before.settings.mss.into()) + leaves;
        let most = next.sender.nxt + before.receiver.out_of_order() + room;
        let sender = &mut self.conns[conn].sender;
        sender.held_at = Some(most);
        sender.push(&mut self.net);
        self.after_sending(conn);
    }

    /// A packet comes to the sending end of its connection.
    fn arrive_left(&mut self, packet: &Packet) {
        let index = packet.conn as usize;
        let conn = &mut self.conns[index];
        if !conn.is_up(Side::Left) || packet.kind == Kind::SynAck {
            let was_early = conn.is_early(Side::Left);
            if conn.shake(Side::Left, packet, &mut self.net) {
                self.established(index, Side::Left);
            }
            let conn = &mut self.conns[index];
            if was_early && conn.is_up(Side::Left) {
                conn.sender.on_last_word(packet, &mut self.net);
                self.after_sending(index);
                self.after_hearing(index);
            }
            return;
        }
        match packet.kind {
            Kind::Ack => conn.sender.on_ack(packet, &mut self.net),
            Kind::Receipt => conn.sender.on_receipt(packet.seq, &mut self.net),
            _ => return,
        }
        self.after_sending(index);
        self.after_hearing(index);
    }

    /// A leg's sender may have heard that more was delivered: that concerns its application, or the proxy before the leg, where that
    /// acknowledges end to end.
    fn after_hearing(&mut self, conn: usize) {
        let (flow, leg) = self.flow_and_leg(conn);
        let sender = &self.conns[conn].sender;
        if leg > 0 {
            if self.relays[leg - 1].mode == SplitMode::Semi {
                let delivered = sender.forgotten();
                self.conns[conn - 1].receiver.pass_receipt(delivered, &mut self.net);
            }
        } else if sender.knows_all() && self.flows[flow].acked.is_none() {
            self.flows[flow].acked = Some(self.net.now);
            self.unheard -= 1;
        }
    }

    /// An end has its connection: a proxy dials on, and the sender's application begins.
    fn established(&mut self, conn: usize, side: Side) {
        let (flow, leg) = self.flow_and_leg(conn);
        match (self.flows[flow].spec.opens, side) {
            (Opens::Sender, Side::Right) if leg + 1 < self.legs && !self.conns[conn + 1].waits_for_data() => {
                self.conns[conn + 1].open(&mut self.net);
            }
            (Opens::Receiver, Side::Left) if leg > 0 => self.conns[conn - 1].open(&mut self.net),
            _ => {}
        }
        if side == Side::Left {
            if leg == 0 {
                self.offer(flow);
            }
            let sender = &mut self.conns[conn].sender;
            sender.push(&mut self.net);
            // All may have gone with the SYN.
            sender.end_if_done(&mut self.net);
            sender.wait_for_receipt(&mut self.net);
            self.after_sending(conn);
            self.after_hearing(conn);
        }
    }

    /// The application writes what it has to offer by now, and waits for the next time.
    fn offer(&mut self, flow: usize) {
        let app = &mut self.apps[flow];
        let offered = app.write(self.net.now);
        if let Some(at) = app.wake() {
            self.net.timers.once(Key { who: flow as u32, what: What::Offer }, at.0);
        }
        self.conns[flow * self.legs].sender.write(offered, app.is_over());
    }

    /// Something happens by itself.
    fn happen(&mut self, at: u64, key: Key) {
        let who = key.who as usize;
        match key.what {
            What::Change => self.change(who),
            // It is not for the world to look at itself.
            What::Look | What::Steer => {}
            What::Open => {
                let spec = &self.flows[who].spec;
                let leg = match spec.opens {
                    Opens::Sender => 0,
                    Opens::Receiver => self.legs - 1,
                };
                if spec.fast_open && spec.opens == Opens::Sender {
                    // What its SYN may carry.
                    self.offer(who);
                }
                self.conns[who * self.legs + leg].open(&mut self.net);
            }
            What::Offer => {
                self.offer(who);
                self.conns[who * self.legs].sender.push(&mut self.net);
            }
            What::Cross => self.sources[who].send(key.who, &mut self.net),
            What::Retransmit => {
                if self.conns[who].sender.timer_fires(at, &mut self.net) {
                    if self.conns[who].is_up(Side::Left) {
                        self.conns[who].sender.on_timer(&mut self.net);
                        self.after_sending(who);
                    } else {
                        self.conns[who].repeat(Side::Left, &mut self.net);
                    }
                }
            }
            What::Pace => {
                if self.conns[who].sender.pace_fires(at, &mut self.net) {
                    self.conns[who].sender.go_on(&mut self.net);
                    self.after_sending(who);
                }
            }
            What::Acknowledge => {
                if self.conns[who].receiver.timer_fires(at, &mut self.net) {
                    if self.conns[who].is_up(Side::Right) {
                        self.conns[who].receiver.on_timer(&mut self.net);
                    } else {
                        self.conns[who].repeat(Side::Right, &mut self.net);
                    }
                }
            }
        }
    }

    /// A link has another rate from now on, and the proxy before it is told, unless it was told something else.
    fn change(&mut self, number: usize) {
        let (link, _, rate) = self.changes[number];
        self.net.set_rate(forward(link), rate);
        self.net.set_rate(backward(link), rate);
        for (index, split) in self.scenario.splits.iter().enumerate() {
            if split.after == link && split.capacity.is_none() {
                if let Some(record) = self.records[index] {
                    self.net.records[record].set_capacity(rate);
                }
                if let Some(line) = self.shapers[index] {
                    self.net.set_rate(line, rate);
                }
            }
        }
    }
}

/// When rates change, of which link (from 0).
fn changes(scenario: &Scenario) -> Vec<(usize, Span, Rate)> {
    let all = scenario.links.iter().enumerate();
    all.flat_map(|(index, link)| link.changes.iter().map(move |change| (index, change.at, change.rate))).collect()
}

/// The largest window of ends that are not to be what limits a flow: half of the buffers that the lab gives its hosts, which is what is in
/// flight and queued on the whole path, twice over, as far as TCP has windows.
fn endless_window(scenario: &Scenario, specs: &[FlowSpec]) -> u64 {
    let queued = |index: usize| scenario.queue_size(index).bytes().0;
    let queues = (0..scenario.links.len()).map(queued).fold(0, u64::saturating_add);
    let whole = scenario::Leg { first: 0, end: scenario.links.len() };
    let extra = specs.iter().map(|flow| 2 * flow.access_delay.0).max().unwrap_or(0);
    let rtt = scenario.base_rtt(whole) + Span(extra);
    let fastest = scenario.links.iter().map(|link| link.rate).max().unwrap_or(Rate(0));
    let (flight, burst) = (scenario.bottleneck_rate(whole).bytes_in(rtt).0, fastest.bytes_in(rtt).0);
    (flight + queues.min(burst.saturating_mul(4))).saturating_mul(2).clamp(2 << 20, LARGEST_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;

    /// Joshi et al.'s path between data centres: 500 MB under way and as much in the first queue.
    #[test]
    fn a_window_that_is_no_limit_covers_what_is_under_way_and_queued() {
        let text = "name = \"x\"\nduration = \"1s\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"2s\"\nqueue = \"500MB\"\n[[flow]]\n";
        let scenario = ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert!(endless_window(&scenario, &scenario.flow_specs(1)) > 1_000_000_000);
    }
}
