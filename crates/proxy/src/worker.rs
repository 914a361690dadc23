//! A worker: a thread with its own event loop, listeners and connections. Workers share nothing.
//!
//! This file has the event loop and the commands of other threads. Each turn of the loop waits for
//! events and handles them, then does the work that earlier turns have left, then checks what has
//! become due. `connections` drives split connections, `greet` and `pending_clients` the clients
//! that have not named their destination, `carried` those of a bond; `admission` keeps the number
//! of connections within its limits.

mod admission;
mod carried;
mod dialling;
mod flow_reports;
mod greet;
mod mailbox;
mod pending_clients;
pub(crate) mod sys;

use crate::{
    carrier::{CarrierContext, OpenCarrier, StreamCarrier},
    config::{ListenMode, ProxyConfig},
    connection::{Connection, ConnectionStart, FollowUp, refuse_socks},
    error::ProxyStartError,
    flow_log::{self, Lines},
    gate::GateCommand,
    greeting::{RequestedServer, proxy_header},
    listeners::{self, WorkerListener},
    liveness::LoopProgress,
    meter::Totals,
    resolver::{LookupOrigin, LookupResult, NameLookup},
};
use intercept::{Arrival, Routes, listener::BACKLOG};
pub(crate) use mailbox::{Mailbox, WorkerCommand};
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

/// Callback for each flow that ends.
pub(crate) type OnEnd = Arc<dyn Fn(FlowRecord) + Send + Sync>;

/// What a worker needs of the rest of the proxy.
pub(crate) struct WorkerContext {
    pub(crate) number: usize,
    pub(crate) inbox: mpsc::Receiver<WorkerCommand>,
    pub(crate) progress: Arc<LoopProgress>,
    pub(crate) on_end: OnEnd,
    /// Channel to the gate; none: connections cannot pass unsplit, and wait while the worker is
    /// full.
    pub(crate) gate: Option<mpsc::Sender<GateCommand>>,
    pub(crate) log: Option<flow_log::Batches>,
    /// Channel for name lookups.
    pub(crate) lookups: mpsc::Sender<NameLookup>,
    pub(crate) open_carrier: OpenCarrier,
}

/// A report of all flows in progress: it continues from slot `next`.
struct FlowReport {
    next: usize,
    reply: mpsc::Sender<Vec<FlowStats>>,
}

/// How long a draining worker with a gate keeps its listeners open, for handshakes that began
/// before the gate was shut: the longest round-trip time that is provided for.
const DRAIN_GRACE: Duration = Duration::from_secs(1);
/// Interval of checking the connect timeouts of far legs.
const CONNECT_TICK: Duration = Duration::from_millis(200);
/// The longest interval of checking established connections.
const CONNECTIONS_CHECK: Duration = Duration::from_secs(5);
/// How long listeners pause after an error of accept.
const LISTENER_PAUSE: Duration = Duration::from_secs(1);
/// Interval of polling for connections that wait for something that raises no event.
const TICK: Duration = Duration::from_millis(2);

/// A connection of a worker.
// Not boxed: nearly all are split, and a box would cost each an allocation, and each event an
// indirection.
#[allow(clippy::large_enum_variant)]
enum WorkerSlot {
    /// The client's greeting is not complete yet.
    Pending(Box<PendingClient>),
    /// A split connection.
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

/// The state of a worker. The thread calls [`new`](Self::new), then [`run`](Self::run).
pub(crate) struct Worker {
    config: Arc<ProxyConfig>,
    context: WorkerContext,
    reactor: Rc<Reactor>,
    waker: OwnedFd,
    listeners: Vec<WorkerListener>,
    /// For rules and profiles by interface; none: they could not be opened.
    routes: Option<Routes>,
    flows: Slab<WorkerSlot>,
    /// The bond; none: the configuration has none.
    carrier: Option<Box<dyn StreamCarrier>>,
    /// Clients whose greeting is not complete yet, in the order of arrival.
    pending: PendingQueue,
    /// Serial number of the last pending client.
    serial: u64,
    /// Connections that have more to do than one turn allows.
    again: VecDeque<usize>,
    /// Connections that wait for something that raises no event.
    ticking: Vec<usize>,
    /// Time of their next turn.
    next_tick: Instant,
    /// Connections whose far leg is connecting, and since when, the oldest first.
    dialling: VecDeque<(Instant, usize)>,
    /// Those that have been connecting for at least [`CONNECT_TICK`].
    dialling_long: Vec<(Instant, usize)>,
    /// Time of the next check of `dialling_long`.
    next_dialling_check: Instant,
    next_connections_check: Instant,
    flow_reports: Vec<FlowReport>,
    totals: Totals,
    lines: Option<Lines>,
    scratch: Scratch,
    draining: bool,
    /// Time at which a draining worker closes its listeners.
    listeners_close_at: Option<Instant>,
    /// Number of connections at which it tells the gate that it is full.
    soft_limit: usize,
    /// Whether it is full.
    full: bool,
    /// The most connections: it has no descriptors for more.
    hard_limit: usize,
    /// Whether its listeners stop accepting: at the hard limit the kernel must complete no further
    /// handshake.
    accept_paused: bool,
    /// The backlog of each listener.
    backlog: usize,
    /// Whether listeners are unwatched until a connection ends: no descriptor is left, or the
    /// worker is full and connections cannot pass unsplit.
    listeners_paused: bool,
    /// Time at which they are watched again although no connection has ended: other processes may
    /// have freed descriptors.
    listeners_resume_at: Option<Instant>,
}

impl Worker {
    /// Opens the worker's listeners and its bond. `waker` is the eventfd by which other threads
    /// wake it.
    ///
    /// # Errors
    /// When a listener or the bond cannot be opened, or epoll cannot be set up.
    pub(crate) fn new(config: Arc<ProxyConfig>, waker: OwnedFd, context: WorkerContext) -> Result<Self, ProxyStartError> {
        let failed = |what| move |why| ProxyStartError::System { what, why };
        let listeners = listeners::open(&config, context.number)?;
        let mut worker = Self::watch(config, waker, listeners, context).map_err(failed("set up epoll for a worker"))?;
        let context =
            CarrierContext { reactor: worker.reactor.clone(), lookups: worker.context.lookups.clone(), worker: worker.context.number };
        let carrier = (worker.context.open_carrier)(&worker.config, context);
        worker.carrier = carrier.map_err(|why| failed("set up the bond")(io::Error::other(why)))?;
        Ok(worker)
    }

    fn watch(config: Arc<ProxyConfig>, waker: OwnedFd, listeners: Vec<WorkerListener>, context: WorkerContext) -> io::Result<Self> {
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
            next_dialling_check: now,
            next_connections_check: now,
            flow_reports: Vec::new(),
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

    /// Number of open connections, those of the carrier too.
    fn alive(&self) -> usize {
        self.flows.len() + self.carrier.as_ref().map_or(0, |carrier| carrier.count())
    }

    /// Runs the event loop until a command stops it, or it has drained.
    ///
    /// # Errors
    /// When epoll fails: the event loop cannot go on.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut events = EventBatch::with_capacity(256);
        while !(self.draining
            && self.alive() == 0
            && self.listeners_close_at.is_none()
            && self.carrier.as_ref().is_none_or(|carrier| carrier.is_over()))
        {
            self.reactor.wait(&mut events, self.timeout())?;
            self.context.progress.count_turn();
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
            self.run_carrier();
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
            self.continue_flow_reports();
            if let Some(lines) = &mut self.lines {
                lines.hand_over_old(self.scratch.now);
            }
            self.flows.end_turn();
        }
        Ok(())
    }

    /// How long to wait for events: not at all while work is left, else until the earliest
    /// deadline; none: without a limit. It is derived from the state in each turn, so that no
    /// deadline has to be registered or cancelled.
    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() || !self.flow_reports.is_empty() || self.carrier.as_ref().is_some_and(|carrier| carrier.is_busy()) {
            return Some(Duration::ZERO);
        }
        let connects = !self.dialling.is_empty() || !self.dialling_long.is_empty() || !self.pending.is_empty();
        let deadlines = [
            (!self.ticking.is_empty()).then(|| self.next_tick.saturating_duration_since(Instant::now())),
            self.lines.as_ref().filter(|lines| !lines.is_empty()).map(|_| flow_log::MAX_AGE),
            connects.then_some(CONNECT_TICK),
            (self.alive() > 0).then(|| self.next_connections_check.saturating_duration_since(Instant::now())),
            self.listeners_close_at.map(|at| at.saturating_duration_since(Instant::now())),
            self.listeners_resume_at.map(|at| at.saturating_duration_since(Instant::now())),
            self.carrier.as_ref().and_then(|carrier| carrier.wait()),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Carries out the commands in its inbox; false: the worker has to end.
    fn handle_commands(&mut self) -> bool {
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        while let Ok(command) = self.context.inbox.try_recv() {
            match command {
                WorkerCommand::Flows(reply) => self.flow_reports.push(FlowReport { next: 0, reply }),
                WorkerCommand::Totals(reply) => drop(reply.send(self.totals())),
                WorkerCommand::Reload(config) => {
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
                WorkerCommand::Resolved(LookupResult { origin, serial, addresses }) => match origin {
                    LookupOrigin::Client(slot) => self.on_resolved(slot, serial, addresses),
                    LookupOrigin::Stream(stream) => {
                        if let Some(carrier) = &mut self.carrier {
                            carrier.on_resolved(stream, serial, addresses);
                        }
                    }
                },
                WorkerCommand::Drain => {
                    self.draining = true;
                    if let Some(carrier) = &mut self.carrier {
                        carrier.drain();
                    }
                    match self.context.gate {
                        Some(_) => self.listeners_close_at = Some(self.scratch.now + DRAIN_GRACE),
                        None => self.listeners.clear(),
                    }
                }
                WorkerCommand::Stop => {
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
                    // The listener is level-triggered: without a pause the event loop would spin
                    // until a descriptor is free.
                    tracing::error!("cannot accept a connection: {why}; trying again when another ends, or in a second");
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
                let keep_source = listen.mode == ListenMode::Transparent;
                let (others, already_read) = (Vec::new(), Vec::new());
                let start = ConnectionStart { near: socket, client, server, others, keep_source, preface, already_read, socks: false };
                self.begin(start);
            }
            None => self.await_greeting(socket, client, listen.clone()),
        }
        self.update_full();
    }

    /// Whether a rule refuses a connection. Transparent connections that a rule refuses are reset
    /// by the proxy's firewall rules, if it has some, and do not get here.
    fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let routes = self.routes.as_ref();
        self.config.policy.is_refused(client, server, |address| routes?.interface_to(address))
    }

    /// Splits a connection, or hands it over to the carrier.
    fn begin(&mut self, start: ConnectionStart) {
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

    /// Checks all connections at intervals: switches keepalive on (short connections end before and
    /// save the system call), and ends those whose peer is silent or that have been idle for too
    /// long.
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

    /// Has epoll watch a leg. The first event reports its present state.
    fn watch_leg(&mut self, slot: usize, side: LegSide) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        connection.watches_near |= side == LegSide::Near;
        if let Err(errno) = self.reactor.watch(connection.socket(side), Token::Leg(slot, side), Readiness::INTEREST) {
            tracing::error!("cannot have epoll watch a connection: {errno}; it is reset");
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

    /// Calls a connection, then acts on its result.
    fn advance(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Scratch) -> Result<FollowUp, Ending>) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        match act(connection, &mut self.scratch) {
            Ok(follow_up) => {
                if follow_up.again && !mem::replace(&mut connection.in_again, true) {
                    self.again.push_back(slot);
                }
                if follow_up.tick && !mem::replace(&mut connection.in_ticking, true) {
                    if self.ticking.is_empty() {
                        self.next_tick = self.scratch.now + TICK;
                    }
                    self.ticking.push(slot);
                }
                if follow_up.watch_near {
                    self.watch_leg(slot, LegSide::Near);
                    return;
                }
                for (rearm, side) in [(follow_up.rearm_near, LegSide::Near), (follow_up.rearm_far, LegSide::Far)] {
                    if !rearm {
                        continue;
                    }
                    let rearmed = self.reactor.rearm(connection.socket(side), Token::Leg(slot, side), Readiness::INTEREST);
                    if let Err(errno) = rearmed {
                        // The flow would stall without this event.
                        tracing::error!("cannot have epoll watch a connection: {errno}; it is reset");
                        return self.end(slot, Ending::NoRoom);
                    }
                }
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    /// Ends a connection, unless its server was not reached and has another address to dial.
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
