//! A worker: one thread, its listeners, its epoll, its connections. It shares nothing with the
//! others.

mod admission;
mod carried;
mod dialling;
mod greet;
mod mailbox;
mod pending_clients;
mod survey;
pub(crate) mod sys;

use crate::{
    carrier::{CarrierContext, OpenCarrier, StreamCarrier},
    config::{Config, ListenMode},
    connection::{Connection, Start, Wants, refuse_socks},
    flow_log::{self, Lines},
    gate::GateCommand,
    greeting::{RequestedServer, proxy_header},
    listeners::{self, WorkerListener},
    liveness::Turns,
    meter::Totals,
    resolver::{Answer, Asker, Question},
};
use intercept::{AcceptedConnection, OpenError, Routes, listener::BACKLOG};
pub(crate) use mailbox::{Command, Mailbox};
use pending_clients::{PendingClient, PendingQueue};
use relay::{Ending, EventBatch, FlowRecord, FlowStats, LegSide, Reactor, Readiness, Scratch, Slab, Token};
use rustix::{event::epoll::EventFlags, fd::OwnedFd, io::Errno};
use std::{
    collections::VecDeque,
    io, mem,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// Called for each flow that ends.
pub(crate) type OnEnd = Arc<dyn Fn(FlowRecord) + Send + Sync>;

/// What connects a worker to the rest of the proxy.
pub(crate) struct WorkerContext {
    pub(crate) number: usize,
    pub(crate) inbox: mpsc::Receiver<Command>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) on_end: OnEnd,
    /// Where it says that it is full; none: connections can't pass unsplit and must wait.
    pub(crate) gate: Option<mpsc::Sender<GateCommand>>,
    pub(crate) log: Option<flow_log::Batches>,
    pub(crate) names: mpsc::Sender<Question>,
    pub(crate) open_carrier: OpenCarrier,
}

/// An answer in progress to the question for all flows: it goes on from slot `next`.
struct Survey {
    next: usize,
    reply: mpsc::Sender<Vec<FlowStats>>,
}

/// How long a draining worker whose gate is shut still accepts connections whose handshake had
/// begun before: a handshake at this round trip time.
const DRAIN_GRACE: Duration = Duration::from_secs(1);
/// How often connecting far legs are checked against their timeouts.
const CONNECT_TICK: Duration = Duration::from_millis(200);
/// The longest time between two checks of the established connections.
const CONNECTIONS_CHECK: Duration = Duration::from_secs(5);
/// How long listeners are paused that could not accept.
const LISTENER_PAUSE: Duration = Duration::from_secs(1);
/// How often connections that wait for something without an event get a turn.
const TICK: Duration = Duration::from_millis(2);

/// A connection of a worker.
// Nearly all are split: a box would cost each of them an allocation, and each event an indirection.
#[allow(clippy::large_enum_variant)]
enum WorkerSlot {
    /// Its client has not said yet where it goes.
    Pending(Box<PendingClient>),
    /// It is split.
    Split(Connection),
}

impl WorkerSlot {
    fn pending(&self) -> Option<&PendingClient> {
        if let WorkerSlot::Pending(pending) = self { Some(pending) } else { None }
    }

    fn pending_mut(&mut self) -> Option<&mut PendingClient> {
        if let WorkerSlot::Pending(pending) = self { Some(pending) } else { None }
    }

    fn split(&self) -> Option<&Connection> {
        if let WorkerSlot::Split(connection) = self { Some(connection) } else { None }
    }

    fn split_mut(&mut self) -> Option<&mut Connection> {
        if let WorkerSlot::Split(connection) = self { Some(connection) } else { None }
    }
}

/// One thread's share of the proxy.
pub(crate) struct Worker {
    config: Arc<Config>,
    context: WorkerContext,
    reactor: Rc<Reactor>,
    waker: OwnedFd,
    listeners: Vec<WorkerListener>,
    /// Needed only where the policy has interfaces.
    routes: Option<Routes>,
    flows: Slab<WorkerSlot>,
    /// Carries the connections of which one leg consists of several; none: there are none.
    carrier: Option<Box<dyn StreamCarrier>>,
    /// Clients that have not said yet where they go, in the order of arrival.
    pending: PendingQueue,
    serial: u64,
    /// Connections that have more to do than one turn allows.
    again: VecDeque<usize>,
    /// Connections that wait for something that raises no event, and when they get their next turn.
    ticking: Vec<usize>,
    next_tick: Instant,
    /// Far legs that are connecting, and since when, the oldest first.
    dialling: VecDeque<(Instant, usize)>,
    /// Those that have been connecting for at least [`CONNECT_TICK`], and when they are checked
    /// next.
    dialling_long: Vec<(Instant, usize)>,
    next_check: Instant,
    next_connections_check: Instant,
    surveys: Vec<Survey>,
    totals: Totals,
    lines: Option<Lines>,
    scratch: Scratch,
    draining: bool,
    /// When a draining worker closes its listeners.
    listeners_close_at: Option<Instant>,
    /// How many flows it takes before it is full, and whether it is.
    soft_limit: usize,
    full: bool,
    /// How many flows it can have at all.
    hard_limit: usize,
    /// At the hard limit the kernel must complete no further handshakes.
    accept_paused: bool,
    /// The backlog of each listener.
    backlog: usize,
    /// Listeners are not watched until a connection ends: for want of descriptors, or because the
    /// worker is full and nothing can pass unsplit.
    listeners_paused: bool,
    /// When they are watched again though no connection has ended: other processes may have freed
    /// descriptors.
    listeners_resume_at: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(config: Arc<Config>, waker: OwnedFd, context: WorkerContext) -> Result<Self, OpenError> {
        let listeners = listeners::open(&config, context.number)?;
        let mut worker = Self::watch(config, waker, listeners, context).map_err(OpenError::system("set up epoll for a worker"))?;
        let (reactor, names, number) = (worker.reactor.clone(), worker.context.names.clone(), worker.context.number);
        let context = CarrierContext { reactor, names, worker: number };
        let carrier = (worker.context.open_carrier)(&worker.config, context);
        worker.carrier = carrier.map_err(|why| OpenError::system("set the bond up")(io::Error::other(why)))?;
        Ok(worker)
    }

    fn watch(config: Arc<Config>, waker: OwnedFd, listeners: Vec<WorkerListener>, context: WorkerContext) -> io::Result<Self> {
        let reactor = Rc::new(Reactor::new()?);
        reactor.watch(&waker, Token::Waker, EventFlags::IN)?;
        for (index, listener) in listeners.iter().enumerate() {
            reactor.watch(&listener.socket.socket, Token::Listener(index), EventFlags::IN)?;
        }
        let (now, hard_limit) = (Instant::now(), config.hard_limit_of_a_worker());
        Ok(Worker {
            routes: Routes::open().ok(),
            lines: context.log.clone().map(Lines::new),
            soft_limit: config.soft_limit_of_a_worker(),
            config,
            context,
            reactor,
            waker,
            listeners,
            flows: Slab::default(),
            carrier: None,
            pending: PendingQueue::default(),
            serial: 0,
            again: VecDeque::new(),
            ticking: Vec::new(),
            next_tick: now,
            dialling: VecDeque::new(),
            dialling_long: Vec::new(),
            next_check: now,
            next_connections_check: now,
            surveys: Vec::new(),
            totals: Totals::default(),
            scratch: Scratch::new(),
            draining: false,
            listeners_close_at: None,
            full: false,
            accept_paused: false,
            backlog: BACKLOG.min(hard_limit),
            hard_limit,
            listeners_paused: false,
            listeners_resume_at: None,
        })
    }

    fn alive(&self) -> usize {
        self.flows.len() + self.carrier.as_ref().map_or(0, |carrier| carrier.count())
    }

    /// Runs until told to stop, or drained.
    ///
    /// # Errors
    /// When epoll fails: nothing more can be heard of any connection.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut events = EventBatch::with_capacity(256);
        while !(self.draining
            && self.alive() == 0
            && self.listeners_close_at.is_none()
            && self.carrier.as_ref().is_none_or(|carrier| carrier.is_over()))
        {
            self.reactor.wait(&mut events, self.timeout())?;
            self.context.turns.turn();
            self.scratch.now = Instant::now();
            for (token, flags) in events.iter() {
                match token {
                    Token::Waker => {
                        if !self.handle_commands() {
                            return Ok(());
                        }
                    }
                    Token::Listener(index) => self.accept(index),
                    Token::Leg(slot, side) => self.on_events(slot, side, flags),
                    Token::Carrier(index) => self.on_carrier_event(index, flags),
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
            self.check_connections();
            if self.listeners_close_at.is_some_and(|at| self.scratch.now >= at) {
                self.listeners_close_at = None;
                self.listeners.clear();
            }
            if self.listeners_resume_at.is_some_and(|at| self.scratch.now >= at) {
                self.listeners_resume_at = None;
                self.after_end();
            }
            self.survey();
            if let Some(lines) = &mut self.lines {
                lines.hand_over_old(self.scratch.now);
            }
            self.flows.end_turn();
        }
        Ok(())
    }

    /// How long to wait for events: not at all while a connection has more to do, until the next
    /// tick while one waits for something that raises no event.
    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() || !self.surveys.is_empty() || self.carrier.as_ref().is_some_and(|carrier| carrier.is_busy()) {
            return Some(Duration::ZERO);
        }
        let connects = !self.dialling.is_empty() || !self.dialling_long.is_empty() || !self.pending.is_empty();
        let reasons = [
            (!self.ticking.is_empty()).then(|| self.next_tick.saturating_duration_since(Instant::now())),
            self.lines.as_ref().filter(|lines| !lines.is_empty()).map(|_| flow_log::AGE),
            connects.then_some(CONNECT_TICK),
            (self.alive() > 0).then(|| self.next_connections_check.saturating_duration_since(Instant::now())),
            self.listeners_close_at.map(|at| at.saturating_duration_since(Instant::now())),
            self.listeners_resume_at.map(|at| at.saturating_duration_since(Instant::now())),
            self.carrier.as_ref().and_then(|carrier| carrier.wait()),
        ];
        reasons.into_iter().flatten().min()
    }

    /// Carries out the commands in its inbox; false: it is to end.
    fn handle_commands(&mut self) -> bool {
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        while let Ok(command) = self.context.inbox.try_recv() {
            match command {
                Command::Flows(reply) => self.surveys.push(Survey { next: 0, reply }),
                Command::Totals(reply) => drop(reply.send(self.totals())),
                Command::Reload(config) => {
                    self.soft_limit = config.soft_limit_of_a_worker();
                    self.config = config;
                    for listener in &mut self.listeners {
                        listener.take_users(&self.config);
                    }
                    if let Some(carrier) = &mut self.carrier {
                        carrier.reload(&self.config);
                    }
                    self.update_full();
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
                    match self.context.gate {
                        Some(_) => self.listeners_close_at = Some(self.scratch.now + DRAIN_GRACE),
                        None => self.listeners.clear(),
                    }
                }
                Command::Stop => {
                    for slot in 0..self.flows.bound() {
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

    fn accept(&mut self, index: usize) {
        // A bounded batch, so that a flood of new connections does not stall the established ones.
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok(Some(arrival)) => self.on_arrival(index, arrival),
                Ok(None) => return,
                Err(why) => {
                    // The listener is level-triggered: unless it is paused, the loop would spin
                    // until a descriptor is free.
                    tracing::error!("cannot accept a connection: {why}; it waits until another ends, or for a second");
                    self.pause_listeners(true);
                    self.listeners_resume_at = Some(self.scratch.now + LISTENER_PAUSE);
                    return;
                }
            }
            if self.listeners_paused {
                return;
            }
        }
    }

    fn on_arrival(&mut self, index: usize, arrival: AcceptedConnection) {
        let AcceptedConnection { socket, client, server } = arrival;
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
                let keep_source = listen.mode == ListenMode::Transparent;
                let (others, heard) = (Vec::new(), Vec::new());
                let start = Start { near: socket, client, server, others, keep_source, preface, heard, socks: false };
                self.begin(start);
            }
            None => self.await_greeting(socket, client, listen.clone()),
        }
        self.update_full();
    }

    /// Whether a rule refuses a connection; where the firewall's rules are the proxy's own, they
    /// have already reset the transparent ones.
    fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let routes = self.routes.as_ref();
        self.config.policy.is_refused(client, server, |address| routes?.interface_to(address))
    }

    /// Begins to split a connection, or gives it to the carrier.
    fn begin(&mut self, start: Start) {
        let (client, server) = (start.client, start.server);
        if self.is_refused(client, server) {
            let ending = Ending::FarNotReached(io::ErrorKind::PermissionDenied);
            tracing::info!(%client, %server, "not split: a rule refuses it");
            if start.socks {
                refuse_socks(&start.near, ending);
            }
            return self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        }
        if self.is_carried(client, Some(server)) {
            return self.begin_carried(start, RequestedServer::Address(server));
        }
        let routes = self.routes.as_ref();
        match Connection::begin(&self.config, start, |address| routes?.interface_to(address), self.scratch.now) {
            Ok(connection) => {
                if let Some(interval) = connection.silence_interval() {
                    self.next_connections_check = self.next_connections_check.min(self.scratch.now + interval);
                }
                let born = connection.born();
                let slot = self.flows.insert(WorkerSlot::Split(connection));
                self.dialling.push_back((born, slot));
                self.watch_leg(slot, LegSide::Far);
            }
            Err((ending, socks)) => {
                if let Some(near) = socks {
                    refuse_socks(&near, ending);
                }
                self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
            }
        }
    }

    /// Checks all connections from time to time: switches keepalive on, which short connections are
    /// spared, and ends those whose peer has gone silent or that have been idle for too long.
    fn check_connections(&mut self) {
        let now = self.scratch.now;
        if now < self.next_connections_check {
            return;
        }
        let limit = self.config.idle_timeout;
        let mut pause = limit.map_or(CONNECTIONS_CHECK, |limit| CONNECTIONS_CHECK.min(limit / 4));
        let mut over = Vec::new();
        for (slot, flow) in self.flows.iter_mut() {
            let Some(connection) = flow.split_mut().filter(|connection| !connection.is_dialling()) else { continue };
            connection.keep_alive();
            pause = pause.min(connection.silence_interval().unwrap_or(CONNECTIONS_CHECK));
            if let Some(ending) = connection.ended_in_silence(now) {
                over.push((slot, ending));
            } else if limit.is_some_and(|limit| connection.idle(now) >= limit) {
                over.push((slot, Ending::Idle));
            }
        }
        self.next_connections_check = now + pause;
        for (slot, ending) in over {
            self.end(slot, ending);
        }
    }

    /// Lets epoll watch a leg; its first event tells how things stand.
    fn watch_leg(&mut self, slot: usize, side: LegSide) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        connection.watches_near |= side == LegSide::Near;
        if let Err(errno) = self.reactor.watch(connection.socket(side), Token::Leg(slot, side), Readiness::INTEREST) {
            tracing::error!("cannot watch a connection: {errno}");
            self.end(slot, Ending::NoRoom);
        }
    }

    fn on_events(&mut self, slot: usize, side: LegSide, flags: EventFlags) {
        if let Some(WorkerSlot::Pending(_)) = self.flows.get(slot) {
            return self.on_client(slot);
        }
        let events = Readiness::of(flags);
        self.advance(slot, |connection, scratch| connection.on_events(side, events, scratch));
    }

    /// Lets a connection act, then does what it wants.
    fn advance(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Scratch) -> Result<Wants, Ending>) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
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
                    self.watch_leg(slot, LegSide::Near);
                    return;
                }
                for (look, side) in [(wants.look_near, LegSide::Near), (wants.look_far, LegSide::Far)] {
                    if !look {
                        continue;
                    }
                    let rearmed = self.reactor.rearm(connection.socket(side), Token::Leg(slot, side), Readiness::INTEREST);
                    if let Err(errno) = rearmed {
                        // Without this event the flow would stall.
                        tracing::error!("cannot watch a connection: {errno}");
                        return self.end(slot, Ending::NoRoom);
                    }
                }
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    fn end(&mut self, slot: usize, ending: Ending) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        let routes = self.routes.as_ref();
        if matches!(ending, Ending::FarNotReached(_)) && connection.dial_another(&self.config, |address| routes?.interface_to(address)) {
            return self.watch_leg(slot, LegSide::Far);
        }
        connection.release(ending, &mut self.scratch);
        let record = FlowRecord { last: connection.last_stats(self.scratch.now), ending };
        self.flows.remove(slot);
        self.record(record);
        self.after_end();
    }

    /// Counts, logs and reports a flow that has ended.
    fn record(&mut self, record: FlowRecord) {
        self.totals.add(&record);
        if let Some(lines) = self.lines.as_mut().filter(|_| self.config.log_flows) {
            lines.add(&record, self.scratch.now);
        }
        (self.context.on_end)(record);
    }
}
