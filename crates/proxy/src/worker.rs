//! A worker: one thread, its listeners, its epoll, its connections. It shares nothing with the others.

mod carried;
mod greet;
mod pending_clients;
mod room;
pub(crate) mod sys;

use crate::{
    carrier::{Carrier, CarrierContext, OpenCarrier},
    config::{Config, Way},
    connection::{Connection, Side, Start, Wants, refuse_socks},
    error::StartError,
    flow_log::{self, Lines},
    gate::Note,
    greeting::{RequestedServer, proxy_header},
    listeners::{self, WorkerListener},
    liveness::Turns,
    meter::Totals,
    resolver::{Answer, Asker, Question},
};
use intercept::{Arrival, Routes, listener::BACKLOG};
use pending_clients::PendingClients;
use relay::{Ending, FlowRecord, FlowStats, Readiness, Scratch};
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    fd::OwnedFd,
    io::Errno,
};
use std::{
    collections::VecDeque,
    io, mem,
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// What a worker may be told.
#[derive(Debug)]
pub(crate) enum Command {
    /// Tell every flow, some at a time.
    Flows(mpsc::Sender<Vec<FlowStats>>),
    /// Tell what all flows came to, those that are not over too.
    Totals(mpsc::Sender<Totals>),
    /// New flows by this from now on.
    Reload(Arc<Config>),
    /// A name has been looked up.
    Resolved(Answer),
    /// Take no new connections; end when the last one has.
    Drain,
    /// Reset every connection and end.
    Stop,
}

/// Where a worker is told things.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    pub(crate) commands: mpsc::Sender<Command>,
    /// Owned by threads of the main descriptor table: a worker must never hold one.
    pub(crate) waker: Arc<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn send(&self, command: Command) {
        // A worker that is gone has nothing left to be told.
        let _ = self.commands.send(command);
        sys::signal(&self.waker);
    }
}

/// Who hears of each flow that ends.
pub(crate) type OnEnd = Arc<dyn Fn(FlowRecord) + Send + Sync>;

/// What ties a worker to the rest of the proxy.
pub(crate) struct Ties {
    pub(crate) number: usize,
    pub(crate) inbox: mpsc::Receiver<Command>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) on_end: OnEnd,
    /// Where it says that it is full; none when connections can't pass unsplit, so that they must wait.
    pub(crate) gate: Option<mpsc::Sender<Note>>,
    pub(crate) log: Option<flow_log::Batches>,
    pub(crate) names: mpsc::Sender<Question>,
    pub(crate) open_carrier: OpenCarrier,
}

/// Flows that are being told, from this slot on.
struct Survey {
    next: usize,
    reply: mpsc::Sender<Vec<FlowStats>>,
}

/// How long a worker whose gate is shut still takes those who had begun to connect before: a handshake of this round trip time.
const LATE: Duration = Duration::from_secs(1);
/// How many slots a survey looks at before traffic has its turn again.
const SURVEYED: usize = 128;
/// How often connects are checked against their limit.
const CONNECT_TICK: Duration = Duration::from_millis(200);
/// How often connections are looked after that have been here for a while, at least.
const CARE: Duration = Duration::from_secs(5);
/// How long listeners rest that could not accept.
const REST: Duration = Duration::from_secs(1);
/// How often connections that wait for something without an event get a turn.
const TICK: Duration = Duration::from_millis(2);

/// What an event belongs to. Connections come two tokens each, after the waker and the listeners.
#[derive(Debug, Clone, Copy)]
enum Token {
    Waker,
    Listener(usize),
    Connection(usize, Side),
    Carrier(usize),
}

impl Token {
    const LISTENER: u64 = 1 << 62;
    const CARRIER: u64 = 1 << 61;

    fn pack(self) -> EventData {
        EventData::new_u64(match self {
            Token::Waker => u64::MAX,
            Token::Listener(index) => Self::LISTENER | index as u64,
            Token::Carrier(index) => Self::CARRIER | index as u64,
            Token::Connection(slot, side) => (slot as u64) << 1 | u64::from(side == Side::Far),
        })
    }

    fn unpack(data: EventData) -> Self {
        match data.u64() {
            u64::MAX => Token::Waker,
            value if value & Self::LISTENER != 0 => Token::Listener((value & !Self::LISTENER) as usize),
            value if value & Self::CARRIER != 0 => Token::Carrier((value & !Self::CARRIER) as usize),
            value => Token::Connection((value >> 1) as usize, if value & 1 == 1 { Side::Far } else { Side::Near }),
        }
    }
}

/// One thread's share of the proxy.
pub(crate) struct Worker {
    config: Arc<Config>,
    ties: Ties,
    epoll: OwnedFd,
    waker: OwnedFd,
    listeners: Vec<WorkerListener>,
    /// Asked only where the policy speaks of interfaces.
    routes: Option<Routes>,
    connections: Vec<Option<Connection>>,
    /// Has the connections of which one leg consists of several, where there can be any.
    carrier: Option<Box<dyn Carrier>>,
    /// Clients that have not said yet where they go, by slot.
    clients: PendingClients,
    serial: u64,
    free: Vec<usize>,
    /// Slots that ended in this round: events already fetched may still name them, so they are reused only in the next.
    ended: Vec<usize>,
    /// Connections that have more to do than one turn allows.
    again: VecDeque<usize>,
    /// Connections that wait for something without an event, and when they get their next turn.
    ticking: Vec<usize>,
    next_tick: Instant,
    /// When connects were begun, oldest first.
    dialling: VecDeque<(Instant, usize)>,
    /// Those that take their time, and when to look at them next.
    dialling_long: Vec<(Instant, usize)>,
    next_check: Instant,
    next_care: Instant,
    surveys: Vec<Survey>,
    totals: Totals,
    lines: Option<Lines>,
    scratch: Scratch,
    draining: bool,
    /// When listeners are closed, while they wait for those who come late.
    closes: Option<Instant>,
    /// How many flows there is room for, and whether there are as many.
    room: usize,
    full: bool,
    /// How many it can have at all.
    brim: usize,
    /// It is so full that new calls must not even be granted.
    not_heard: bool,
    /// How many may wait to be accepted at a listener.
    backlog: usize,
    /// Listeners are deaf until something ends: for want of descriptors, or because it is full and nothing can pass unsplit.
    resting: bool,
    /// When they listen again though nothing has ended: it may have been others' descriptors that they wanted.
    wakes: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(config: Arc<Config>, waker: OwnedFd, ties: Ties) -> Result<Self, StartError> {
        let failed = |what| move |why| StartError::System { what, why };
        let listeners = listeners::open(&config, ties.number)?;
        let mut worker = Self::watch(config, waker, listeners, ties).map_err(failed("set up epoll for a worker"))?;
        let epoll = worker.epoll.try_clone().map_err(failed("share epoll with the bond"))?;
        let (names, number) = (worker.ties.names.clone(), worker.ties.number);
        let context = CarrierContext { epoll, mark: Token::CARRIER, names, worker: number };
        let carrier = (worker.ties.open_carrier)(&worker.config, context);
        worker.carrier = carrier.map_err(|why| failed("set the bond up")(io::Error::other(why)))?;
        Ok(worker)
    }

    fn watch(config: Arc<Config>, waker: OwnedFd, listeners: Vec<WorkerListener>, ties: Ties) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &waker, Token::Waker.pack(), EventFlags::IN)?;
        for (index, listener) in listeners.iter().enumerate() {
            epoll::add(&epoll, &listener.socket.socket, Token::Listener(index).pack(), EventFlags::IN)?;
        }
        let (now, brim) = (Instant::now(), config.brim_of_a_worker());
        Ok(Worker {
            routes: Routes::open().ok(),
            lines: ties.log.clone().map(Lines::new),
            room: config.room_of_a_worker(),
            config,
            ties,
            epoll,
            waker,
            listeners,
            connections: Vec::new(),
            carrier: None,
            clients: PendingClients::default(),
            serial: 0,
            free: Vec::new(),
            ended: Vec::new(),
            again: VecDeque::new(),
            ticking: Vec::new(),
            next_tick: now,
            dialling: VecDeque::new(),
            dialling_long: Vec::new(),
            next_check: now,
            next_care: now,
            surveys: Vec::new(),
            totals: Totals::default(),
            scratch: Scratch::new(),
            draining: false,
            closes: None,
            full: false,
            not_heard: false,
            backlog: BACKLOG.min(brim),
            brim,
            resting: false,
            wakes: None,
        })
    }

    fn alive(&self) -> usize {
        self.connections.len() - self.free.len() - self.ended.len() + self.carrier.as_ref().map_or(0, |carrier| carrier.count())
    }

    /// Runs until told to stop, or drained.
    ///
    /// # Errors
    /// When epoll fails: nothing more can be heard of any connection.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(256);
        while !(self.draining
            && self.alive() == 0
            && self.closes.is_none()
            && self.carrier.as_ref().is_none_or(|carrier| carrier.is_over()))
        {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            self.ties.turns.turn();
            self.scratch.now = Instant::now();
            for event in &events {
                match Token::unpack(event.data) {
                    Token::Waker => {
                        if !self.obey() {
                            return Ok(());
                        }
                    }
                    Token::Listener(index) => self.accept(index),
                    Token::Connection(slot, side) => self.on_events(slot, side, event.flags),
                    Token::Carrier(index) => self.on_carrier_event(index, event.flags),
                }
            }
            for _ in 0..self.again.len() {
                if let Some(slot) = self.again.pop_front() {
                    self.advance(slot, |connection, scratch| {
                        connection.in_again = false;
                        connection.proceed(scratch)
                    });
                }
            }
            if !self.ticking.is_empty() && self.scratch.now >= self.next_tick {
                self.next_tick = self.scratch.now + TICK;
                for slot in mem::take(&mut self.ticking) {
                    self.advance(slot, |connection, scratch| {
                        connection.in_ticking = false;
                        connection.tick(scratch)
                    });
                }
            }
            self.turn_of_carrier();
            self.check_dialling();
            self.check_clients();
            self.take_care();
            if self.closes.is_some_and(|at| self.scratch.now >= at) {
                self.closes = None;
                self.listeners.clear();
            }
            if self.wakes.is_some_and(|at| self.scratch.now >= at) {
                self.wakes = None;
                self.after_end();
            }
            self.survey();
            if let Some(lines) = &mut self.lines {
                lines.hand_over_old(self.scratch.now);
            }
            self.free.append(&mut self.ended);
        }
        Ok(())
    }

    /// How long to wait: not at all while somebody has more to do, a tick while somebody waits for the clock.
    fn timeout(&self) -> Option<Timespec> {
        if !self.again.is_empty() || !self.surveys.is_empty() || self.carrier.as_ref().is_some_and(|carrier| carrier.is_busy()) {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let connects = !self.dialling.is_empty() || !self.dialling_long.is_empty() || !self.clients.is_empty();
        let reasons = [
            (!self.ticking.is_empty()).then(|| self.next_tick.saturating_duration_since(Instant::now())),
            self.lines.as_ref().filter(|lines| !lines.is_empty()).map(|_| flow_log::AGE),
            connects.then_some(CONNECT_TICK),
            (self.alive() > 0).then(|| self.next_care.saturating_duration_since(Instant::now())),
            self.closes.map(|at| at.saturating_duration_since(Instant::now())),
            self.wakes.map(|at| at.saturating_duration_since(Instant::now())),
            self.carrier.as_ref().and_then(|carrier| carrier.wait()),
        ];
        let wait = reasons.into_iter().flatten().min()?;
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) })
    }

    /// Does what it was told; false when that was to end.
    fn obey(&mut self) -> bool {
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        while let Ok(command) = self.ties.inbox.try_recv() {
            match command {
                Command::Flows(reply) => self.surveys.push(Survey { next: 0, reply }),
                Command::Totals(reply) => drop(reply.send(self.totals())),
                Command::Reload(config) => {
                    self.room = config.room_of_a_worker();
                    self.config = config;
                    for listener in &mut self.listeners {
                        listener.take_users(&self.config);
                    }
                    if let Some(carrier) = &mut self.carrier {
                        carrier.reload(&self.config);
                    }
                    self.look_for_room();
                }
                Command::Resolved(Answer { asker, serial, addresses }) => match asker {
                    Asker::Client(slot) => self.on_resolved(slot, serial, addresses),
                    Asker::Stream(stream) => {
                        if let Some(carrier) = &mut self.carrier {
                            carrier.on_resolved(stream, serial, addresses);
                        }
                    }
                },
                Command::Drain => {
                    self.draining = true;
                    if let Some(carrier) = &mut self.carrier {
                        carrier.drain();
                    }
                    match self.ties.gate {
                        Some(_) => self.closes = Some(self.scratch.now + LATE),
                        None => self.listeners.clear(),
                    }
                }
                Command::Stop => {
                    for slot in 0..self.connections.len() {
                        self.end(slot, Ending::Stopped);
                    }
                    if let Some(carrier) = &mut self.carrier {
                        carrier.stop();
                    }
                    self.record_carried();
                    return false;
                }
            }
        }
        true
    }

    /// What all flows came to, those that are not over too.
    fn totals(&self) -> Totals {
        let mut totals = self.totals.clone();
        totals.flows = self.alive() as u64;
        for connection in self.connections.iter().flatten() {
            let (up, down) = connection.carried();
            totals.up += up;
            totals.down += down;
        }
        if let Some(carrier) = &self.carrier {
            carrier.add_to(&mut totals);
        }
        totals
    }

    /// Tells some more of the flows to whoever asked.
    fn survey(&mut self) {
        for mut survey in mem::take(&mut self.surveys) {
            if let Some(carrier) = self.carrier.as_ref().filter(|_| survey.next == 0) {
                // Who asked may have gone away.
                let _ = survey.reply.send(carrier.stats());
            }
            let end = self.connections.len().min(survey.next + SURVEYED);
            let flows = self.connections.get(survey.next..end).unwrap_or_default();
            let flows = flows.iter().flatten().map(|connection| connection.stats(self.scratch.now)).collect();
            survey.next = end;
            if survey.reply.send(flows).is_ok() && end < self.connections.len() {
                self.surveys.push(survey);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        // A bounded batch, so that a flood of connections does not stall those there are.
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok(Some(arrival)) => self.on_arrival(index, arrival),
                Ok(None) => return,
                Err(why) => {
                    // Level-triggered, a listener that can't accept would spin: it rests until a descriptor is free.
                    tracing::error!("cannot accept a connection: {why}; it waits until another ends, or for a second");
                    self.rest(true);
                    self.wakes = Some(self.scratch.now + REST);
                    return;
                }
            }
            if self.resting {
                return;
            }
        }
    }

    fn on_arrival(&mut self, index: usize, arrival: Arrival) {
        let Arrival { socket, client, server } = arrival;
        let listen = &self.listeners[index].listen;
        if listen.takes_streams() {
            if let Some(carrier) = &mut self.carrier {
                carrier.accept(socket, listen);
            }
            return;
        }
        match server.filter(|_| !listen.accept_proxy) {
            Some(server) => {
                let preface = listen.send_proxy.map_or(Vec::new(), |version| proxy_header(version, client, server));
                let keep_source = listen.way == Way::Transparent;
                let (others, heard) = (Vec::new(), Vec::new());
                let start = Start { near: socket, client, server, others, keep_source, preface, heard, socks: false };
                let slot = self.slot();
                self.begin(slot, start);
            }
            None => self.listen_to(socket, client, listen.clone()),
        }
        self.look_for_room();
    }

    fn slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        })
    }

    /// Whether a rule refuses a connection; where the firewall's rules are the proxy's own, they have
    /// already reset the transparent ones.
    fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let routes = self.routes.as_ref();
        self.config.policy.is_refused(client, server, |address| routes?.interface_to(address))
    }

    /// Begins to split a connection, in a slot that is its own, or gives it to the carrier.
    fn begin(&mut self, slot: usize, start: Start) {
        let (client, server) = (start.client, start.server);
        if self.is_refused(client, server) {
            let ending = Ending::FarNotReached(io::ErrorKind::PermissionDenied);
            tracing::info!(%client, %server, "not split: a rule refuses it");
            if start.socks {
                refuse_socks(&start.near, ending);
            }
            self.ended.push(slot);
            return self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        }
        if self.is_carried(client, Some(server)) {
            return self.begin_carried(slot, start, RequestedServer::Address(server));
        }
        let routes = self.routes.as_ref();
        match Connection::begin(&self.config, start, |address| routes?.interface_to(address), self.scratch.now) {
            Ok(connection) => {
                self.dialling.push_back((connection.born(), slot));
                if let Some(interval) = connection.silence_interval() {
                    self.next_care = self.next_care.min(self.scratch.now + interval);
                }
                self.connections[slot] = Some(connection);
                self.watch_leg(slot, Side::Far);
            }
            Err((ending, socks)) => {
                if let Some(near) = socks {
                    refuse_socks(&near, ending);
                }
                self.ended.push(slot);
                self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
            }
        }
    }

    /// Now and then: has lasting connections kept alive, which short ones are spared, and ends those whose peer has gone silent or in
    /// which nothing has moved for too long.
    fn take_care(&mut self) {
        let now = self.scratch.now;
        if now < self.next_care {
            return;
        }
        let limit = self.config.idle_timeout;
        let mut pause = limit.map_or(CARE, |limit| CARE.min(limit / 4));
        let mut over = Vec::new();
        for (slot, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection.as_mut().filter(|connection| !connection.is_dialling()) else { continue };
            connection.keep_alive();
            pause = pause.min(connection.silence_interval().unwrap_or(CARE));
            if let Some(ending) = connection.ended_in_silence(now) {
                over.push((slot, ending));
            } else if limit.is_some_and(|limit| connection.idle(now) >= limit) {
                over.push((slot, Ending::Idle));
            }
        }
        self.next_care = now + pause;
        for (slot, ending) in over {
            self.end(slot, ending);
        }
    }

    /// Lets epoll watch a leg; its first event tells how things stand.
    fn watch_leg(&mut self, slot: usize, side: Side) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        connection.watches_near |= side == Side::Near;
        if let Err(errno) = epoll::add(&self.epoll, connection.socket(side), Token::Connection(slot, side).pack(), Readiness::INTEREST) {
            tracing::error!("cannot watch a connection: {errno}");
            self.end(slot, Ending::NoRoom);
        }
    }

    fn on_events(&mut self, slot: usize, side: Side, flags: EventFlags) {
        if self.clients.has(slot) {
            return self.on_client(slot);
        }
        let events = Readiness::of(flags);
        self.advance(slot, |connection, scratch| connection.on_events(side, events, scratch));
    }

    /// Lets a connection act, then does what it wants.
    fn advance(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Scratch) -> Result<Wants, Ending>) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        match act(connection, &mut self.scratch) {
            Ok(wants) => {
                if wants.again && !mem::replace(&mut connection.in_again, true) {
                    self.again.push_back(slot);
                }
                if wants.tick && !mem::replace(&mut connection.in_ticking, true) {
                    if self.ticking.is_empty() {
                        self.next_tick = self.scratch.now + TICK;
                    }
                    self.ticking.push(slot);
                }
                if wants.watch_near {
                    self.watch_leg(slot, Side::Near);
                    return;
                }
                for (look, side) in [(wants.look_near, Side::Near), (wants.look_far, Side::Far)] {
                    if !look {
                        continue;
                    }
                    let token = Token::Connection(slot, side).pack();
                    if let Err(errno) = epoll::modify(&self.epoll, connection.socket(side), token, Readiness::INTEREST) {
                        // No event would tell of room any more: the flow would stand still.
                        tracing::error!("cannot watch a connection: {errno}");
                        return self.end(slot, Ending::NoRoom);
                    }
                }
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    fn end(&mut self, slot: usize, ending: Ending) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        let routes = self.routes.as_ref();
        if matches!(ending, Ending::FarNotReached(_)) && connection.dial_another(&self.config, |address| routes?.interface_to(address)) {
            return self.watch_leg(slot, Side::Far);
        }
        connection.release(ending, &mut self.scratch);
        let record = FlowRecord { last: connection.last_stats(self.scratch.now), ending };
        self.connections[slot] = None;
        self.ended.push(slot);
        self.record(record);
        self.after_end();
    }

    /// Tells of a flow that has ended whoever wants to know.
    fn record(&mut self, record: FlowRecord) {
        self.totals.add(&record);
        if let Some(lines) = self.lines.as_mut().filter(|_| self.config.log_flows) {
            lines.add(&record, self.scratch.now);
        }
        (self.ties.on_end)(record);
    }

    /// Gives up far legs that have been connecting for too long. Of those that have been at it for a while the near leg is
    /// watched too: its end may have gone.
    fn check_dialling(&mut self) {
        let now = self.scratch.now;
        while let Some(&(begun, slot)) = self.dialling.front() {
            if self.still_dials(begun, slot).is_some() {
                if now - begun < CONNECT_TICK {
                    break;
                }
                // One that takes data before it is connected is watched already.
                if self.connections.get(slot).is_some_and(|it| it.as_ref().is_some_and(|it| !it.watches_near)) {
                    self.watch_leg(slot, Side::Near);
                }
                self.dialling_long.push((begun, slot));
            }
            self.dialling.pop_front();
        }
        if self.dialling_long.is_empty() || now < self.next_check {
            return;
        }
        self.next_check = now + CONNECT_TICK;
        for (begun, slot) in mem::take(&mut self.dialling_long) {
            let Some(limit) = self.still_dials(begun, slot) else { continue };
            if now - begun < limit {
                self.dialling_long.push((begun, slot));
            } else {
                self.end(slot, Ending::FarNotReached(io::ErrorKind::TimedOut));
            }
        }
    }

    /// How long a connection may take that has been dialling since then; none when it no longer is.
    fn still_dials(&self, begun: Instant, slot: usize) -> Option<Duration> {
        let connection = self.connections.get(slot)?.as_ref()?;
        (connection.is_dialling() && connection.born() == begun).then(|| connection.connect_timeout())
    }
}
