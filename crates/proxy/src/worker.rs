//! A worker: a thread with its own event loop, listeners and connections. Workers share nothing.
//!
//! This file has the event loop and the commands of other threads. Each turn of the loop waits for
//! events and handles them, then does the work that earlier turns have left, then checks what has
//! become due. `accepting` accepts connections, `connections` drives split ones, `greet` and
//! `pending_clients` clients that have not named their destination, `carried` those of a bond.
//! `reach` tries the addresses of a name. `dialling` checks connect timeouts, `admission` limits the
//! number of connections, `memory` what they take.

mod accepting;
mod admission;
mod carried;
mod client_shares;
mod connections;
mod dialling;
mod flow_reports;
mod greet;
mod mailbox;
mod memory;
mod pending_clients;
mod reach;
mod reaching_client;
mod samples;
mod slot;
pub(crate) mod sys;

use crate::{
    carrier::{CarrierContext, OpenCarrier, StreamCarrier},
    config::ProxyConfig,
    flow_log::LogSink,
    flow_records::RecordSink,
    gate::GateCommand,
    line_batches::{LineBatches, MAX_AGE},
    listeners::WorkerListener,
    liveness::LoopProgress,
    measure::WorkerMeasurements,
    memory::MemoryWatch,
    meter::Totals,
    resolver::{LookupOrigin, LookupResult, NameLookup},
};
use flow_reports::FlowReport;
pub(crate) use flow_reports::FlowRequest;
use intercept::{AddressHistory, Carried, LinkUses, OpenError, Routes, listener::BACKLOG};
pub(crate) use mailbox::{ANSWER_TIMEOUT, Mailbox, WorkerCommand};
use pending_clients::PendingQueue;
use relay::{Ending, EventBatch, FlowRecord, Reactor, Scratch, Slab, Token};
use rustix::{event::epoll::EventFlags, fd::OwnedFd, io::Errno};
use slot::WorkerSlot;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    io,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

/// Callback for each flow that ends.
pub(crate) type OnEnd = Arc<dyn Fn(FlowRecord) + Send + Sync>;

/// What a worker needs of the rest of the proxy.
pub(crate) struct WorkerContext {
    pub(crate) number: usize,
    pub(crate) inbox: mpsc::Receiver<WorkerCommand>,
    pub(crate) progress: Arc<LoopProgress>,
    /// The totals of its flows, once it has ended.
    pub(crate) last_totals: Arc<Mutex<Option<Totals>>>,
    /// Whether it accepts connections from the start. Otherwise this process takes over from
    /// another one, and the command `Accept` follows.
    pub(crate) accepts: bool,
    pub(crate) on_end: OnEnd,
    /// Channel to the gate; none: connections cannot pass unsplit, and wait while the worker is
    /// full.
    pub(crate) gate: Option<mpsc::Sender<GateCommand>>,
    pub(crate) memory: Arc<MemoryWatch>,
    /// How the links of profiles are used.
    pub(crate) link_uses: LinkUses,
    pub(crate) log: Option<LogSink>,
    pub(crate) records: Option<RecordSink>,
    /// Channel for name lookups.
    pub(crate) lookups: mpsc::Sender<NameLookup>,
    /// Which addresses of names were reached lately.
    pub(crate) history: Arc<AddressHistory>,
    pub(crate) open_carrier: OpenCarrier,
}

/// How long a draining worker with a gate keeps its listeners open, for handshakes that began
/// before the gate was shut: the longest round-trip time that is provided for.
const DRAIN_GRACE: Duration = Duration::from_secs(1);
/// Interval of checking the connect timeouts of far legs.
const CONNECT_TICK: Duration = Duration::from_millis(200);
/// How long listeners pause after an error of accept.
const LISTENER_PAUSE: Duration = Duration::from_secs(1);

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
    /// What the carrier could carry as of the last turn.
    carried: Carried,
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
    /// When clients whose server has several addresses are continued, by slot. Entries of clients
    /// that wait no more are ignored.
    reaching: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Connections whose far leg is connecting, and since when, the oldest first.
    dialling: VecDeque<(Instant, usize)>,
    /// Those that have been connecting for at least [`CONNECT_TICK`].
    dialling_long: Vec<(Instant, usize)>,
    /// Time of the next check of `dialling_long`.
    next_dialling_check: Instant,
    next_connections_check: Instant,
    flow_reports: Vec<FlowReport>,
    totals: Totals,
    lines: Option<LineBatches<LogSink>>,
    /// Flow records, if the configuration has them.
    records: Option<LineBatches<RecordSink>>,
    measurements: WorkerMeasurements,
    /// Time of the next samples, and the slot that is sampled first.
    next_samples: Instant,
    next_sampled: usize,
    /// The slot from which flows are asked next for what is acknowledged.
    next_asked: usize,
    scratch: Scratch,
    memory: memory::MemoryTurns,
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
    /// Opens the worker's bond. `waker` is the eventfd by which other threads wake it.
    ///
    /// # Errors
    /// When the bond cannot be opened, or epoll cannot be set up.
    pub(crate) fn new(
        config: Arc<ProxyConfig>,
        waker: OwnedFd,
        listeners: Vec<WorkerListener>,
        context: WorkerContext,
    ) -> Result<Self, OpenError> {
        let mut worker = Self::watch(config, waker, listeners, context).map_err(OpenError::system("set up epoll for a worker"))?;
        let context = CarrierContext {
            reactor: worker.reactor.clone(),
            lookups: worker.context.lookups.clone(),
            history: worker.context.history.clone(),
            memory: worker.context.memory.clone(),
            worker: worker.context.number,
            took_over: !worker.context.accepts,
        };
        let carrier = (worker.context.open_carrier)(&worker.config, context);
        worker.carrier = carrier.map_err(|why| OpenError::system("set up the bond")(io::Error::other(why)))?;
        Ok(worker)
    }

    fn watch(config: Arc<ProxyConfig>, waker: OwnedFd, listeners: Vec<WorkerListener>, context: WorkerContext) -> io::Result<Self> {
        let reactor = Rc::new(Reactor::new()?);
        reactor.watch(&waker, Token::Waker, EventFlags::IN)?;
        for (index, listener) in listeners.iter().enumerate() {
            let flags = if context.accepts { EventFlags::IN } else { EventFlags::empty() };
            reactor.watch(&listener.socket.socket, Token::Listener(index), flags)?;
        }
        let (now, hard_limit) = (Instant::now(), config.hard_limit_of_a_worker());
        let memory = memory::MemoryTurns::new(&config, now);
        let worker = Worker {
            routes: Routes::open().ok(),
            lines: context.log.clone().map(LineBatches::new),
            records: context.records.clone().map(LineBatches::new),
            measurements: WorkerMeasurements::new(context.number, config.policy.profiles().map(|(name, ..)| name)),
            next_samples: now,
            next_sampled: 0,
            next_asked: 0,
            soft_limit: config.soft_limit_of_a_worker(),
            config,
            context,
            reactor,
            waker,
            listeners,
            flows: Slab::default(),
            carrier: None,
            carried: Carried::ALL,
            pending: PendingQueue::default(),
            serial: 0,
            again: VecDeque::new(),
            ticking: Vec::new(),
            next_tick: now,
            reaching: BinaryHeap::new(),
            dialling: VecDeque::new(),
            dialling_long: Vec::new(),
            next_dialling_check: now,
            next_connections_check: now,
            flow_reports: Vec::new(),
            totals: Totals::default(),
            scratch: Scratch::new(),
            memory,
            draining: false,
            listeners_close_at: None,
            full: false,
            accept_paused: false,
            backlog: BACKLOG.min(hard_limit),
            hard_limit,
            listeners_paused: false,
            listeners_resume_at: None,
        };
        Ok(worker)
    }

    /// Number of open connections, those of the carrier too.
    fn alive(&self) -> usize {
        self.flows.len() + self.carrier.as_ref().map_or(0, |carrier| carrier.count())
    }

    /// Whether the worker was told to drain, and nothing is left to finish.
    fn has_drained(&self) -> bool {
        self.draining
            && self.alive() == 0
            && self.listeners_close_at.is_none()
            && self.carrier.as_ref().is_none_or(|carrier| carrier.is_over())
    }

    /// Runs the event loop until a command stops it, or it has drained.
    ///
    /// # Errors
    /// When epoll fails: the event loop cannot go on.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        self.run_turns()?;
        *self.context.last_totals.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.totals());
        Ok(())
    }

    fn run_turns(&mut self) -> Result<(), Errno> {
        let mut events = EventBatch::with_capacity(256);
        while !self.has_drained() {
            self.reactor.wait(&mut events, self.timeout())?;
            self.context.progress.count_turn();
            self.scratch.now = Instant::now();
            self.watch_memory();
            for (token, flags) in events.iter() {
                match token {
                    Token::Waker => {
                        if !self.handle_commands() {
                            return Ok(());
                        }
                    }
                    Token::Listener(index) => self.accept(index),
                    Token::Leg(slot, side) => self.on_events(slot, side, flags),
                    Token::Attempt(slot, number) => self.on_attempt(slot, number, flags),
                    Token::Carrier(index) => self.on_carrier_event(index, flags),
                }
            }
            self.proceed_again();
            self.run_ticks();
            self.run_carrier();
            self.check_reaching();
            self.check_dialling();
            self.check_clients();
            self.check_connections();
            self.check_listeners();
            self.take_samples();
            self.continue_flow_reports();
            if let Some(records) = &mut self.records {
                records.hand_over_old(self.scratch.now);
            }
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
            self.lines.as_ref().filter(|lines| !lines.is_empty()).map(|_| MAX_AGE),
            self.records.as_ref().filter(|records| !records.is_empty()).map(|_| MAX_AGE),
            connects.then_some(CONNECT_TICK),
            self.reaching_timeout(),
            (!self.flows.is_empty()).then(|| self.next_samples.saturating_duration_since(Instant::now())),
            self.memory.wait(self.alive() > 0),
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
                WorkerCommand::Flows(request) => self.flow_reports.push(FlowReport { next: 0, request }),
                WorkerCommand::Totals(reply) => drop(reply.send((self.context.number, self.totals()))),
                WorkerCommand::Reload(config) => {
                    self.soft_limit = config.soft_limit_of_a_worker();
                    self.memory.configure(&config);
                    self.config = config;
                    self.measurements.profiles.set(self.config.policy.profiles().map(|(name, ..)| name));
                    for listener in &mut self.listeners {
                        listener.reload(&self.config);
                    }
                    if let Some(carrier) = &mut self.carrier {
                        carrier.reload(&self.config);
                    }
                    self.update_full();
                }
                WorkerCommand::Resolved(LookupResult { origin, serial, name, addresses }) => match origin {
                    LookupOrigin::Client(slot) => self.on_resolved(slot, serial, &name, addresses),
                    LookupOrigin::FarEnd(network) => {
                        if let Some(carrier) = &mut self.carrier {
                            carrier.on_far_end_resolved(network, addresses);
                        }
                    }
                    LookupOrigin::Stream(stream) => {
                        if let Some(carrier) = &mut self.carrier {
                            carrier.on_resolved(stream, serial, addresses);
                        }
                    }
                },
                WorkerCommand::Accept => self.begin_accepting(),
                WorkerCommand::Drain => {
                    self.draining = true;
                    if let Some(carrier) = &mut self.carrier {
                        carrier.drain();
                    }
                    match self.context.gate {
                        Some(_) => self.listeners_close_at = Some(self.scratch.now + DRAIN_GRACE),
                        None => self.close_listeners(),
                    }
                }
                WorkerCommand::Leave => {
                    self.draining = true;
                    if let Some(carrier) = &mut self.carrier {
                        carrier.drain();
                    }
                    self.close_listeners();
                }
                WorkerCommand::Stop => {
                    for slot in 0..self.flows.bound() {
                        self.end(slot, Ending::Stopped);
                        self.end_reaching(slot, Ending::Stopped);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::ConnectionStart;
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::{
        io::Read as _,
        net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
        thread,
    };

    /// A listener that answers no SYN, because its backlog is full; its address; what fills it.
    fn full_listener() -> (Socket, SocketAddr, Vec<TcpStream>) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let fillers = (0..4).filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()).collect();
        (listener, address, fillers)
    }

    /// A worker without listeners, which ends with its last connection.
    fn draining_worker(config: ProxyConfig, on_end: OnEnd) -> Worker {
        let waker = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let context = WorkerContext {
            number: 0,
            inbox: mpsc::channel().1,
            progress: Arc::default(),
            last_totals: Arc::default(),
            accepts: true,
            on_end,
            gate: None,
            memory: Arc::new(MemoryWatch::new(1, None)),
            link_uses: LinkUses::default(),
            log: None,
            records: None,
            lookups: mpsc::channel().0,
            history: Arc::default(),
            open_carrier: |_, _| Ok(None),
        };
        let mut worker = Worker::new(Arc::new(config), waker, Vec::new(), context).unwrap();
        worker.draining = true;
        worker
    }

    /// A client whose server has several addresses: has a worker reach one of them.
    struct Reached {
        client: TcpStream,
        ended: mpsc::Receiver<FlowRecord>,
        running: thread::JoinHandle<Result<(), Errno>>,
    }

    impl Reached {
        fn new(servers: Vec<SocketAddr>, history: &Arc<AddressHistory>, connect_timeout: Duration) -> Self {
            let local = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let client = TcpStream::connect(local.local_addr().unwrap()).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let near = Socket::from(local.accept().unwrap().0);
            near.set_nonblocking(true).unwrap();
            let (tell, ended) = mpsc::channel();
            let (address, history) = (client.local_addr().unwrap(), history.clone());
            let running = thread::spawn(move || {
                let config = ProxyConfig { connect_timeout, ..ProxyConfig::default() };
                let mut worker = draining_worker(config, Arc::new(move |record| drop(tell.send(record))));
                worker.context.history = history;
                worker.reach(
                    ConnectionStart {
                        near,
                        client: address,
                        server: servers[0],
                        far: None,
                        keep_source: false,
                        preface: Vec::new(),
                        already_read: b"hello".to_vec(),
                        socks: true,
                    },
                    servers,
                );
                worker.run()
            });
            Reached { client, ended, running }
        }

        /// The code of the SOCKS reply.
        fn reply(&mut self) -> u8 {
            let mut reply = [0; 10];
            self.client.read_exact(&mut reply).unwrap();
            reply[1]
        }

        /// The record of the flow, after the client has closed.
        fn record(self) -> FlowRecord {
            drop(self.client);
            let record = self.ended.recv_timeout(Duration::from_secs(60)).unwrap();
            self.running.join().unwrap().unwrap();
            record
        }
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_silent_address_delays_the_first_connection_alone() {
        let (silent, history) = (full_listener(), Arc::<AddressHistory>::default());
        let live = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = live.local_addr().unwrap();
        for is_first in [true, false] {
            let mut reached = Reached::new(vec![silent.1, at], &history, PATIENCE);
            let (mut server, _) = live.accept().unwrap();
            assert_eq!(reached.reply(), 0);
            server.read_exact(&mut [0; 5]).unwrap();
            drop(server);
            assert_eq!(reached.client.read(&mut [0]).unwrap(), 0, "the server's FIN is passed on");
            let record = reached.record();
            assert_eq!((record.ending, record.last.server), (Ending::Finished, at));
            // The handshake of the leg itself, not the time of the whole race.
            assert!(record.last.measured.handshakes[1].is_some());
            // Other tests may delay it, but only a timer can delay it by as much as this.
            let time = record.last.age;
            assert!(!is_first || time < PATIENCE / 4, "{time:?}");
            if !is_first {
                let mut race = intercept::AddressRace::new([silent.1, at], &history, PATIENCE, Instant::now());
                assert_eq!(race.next(4, Instant::now()).unwrap().address, at, "the silent address comes last");
            }
        }
    }

    #[test]
    fn a_refusal_has_the_next_address_dialled() {
        let live = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // A port of another address of this host, where nothing listens.
        let refusing = SocketAddr::from(([127, 0, 0, 77], live.local_addr().unwrap().port()));
        let mut reached = Reached::new(vec![refusing, live.local_addr().unwrap()], &Arc::default(), PATIENCE);
        drop(live.accept().unwrap());
        assert_eq!(reached.reply(), 0);
        assert_eq!(reached.record().last.server, live.local_addr().unwrap());
        let mut refused = Reached::new(vec![refusing, SocketAddr::from(([127, 0, 0, 78], refusing.port()))], &Arc::default(), PATIENCE);
        assert_eq!(refused.reply(), 5, "connection refused (RFC 1928)");
        assert_eq!(refused.record().ending, Ending::FarNotReached(io::ErrorKind::ConnectionRefused));
    }

    #[test]
    fn all_addresses_of_a_name_together_have_the_connect_timeout() {
        let (silent, next) = (full_listener(), full_listener());
        // The kernel alone would give up after two minutes.
        let mut reached = Reached::new(vec![silent.1, next.1], &Arc::default(), Duration::from_millis(600));
        assert_eq!(reached.reply(), 6, "the reply for a timeout");
        let record = reached.record();
        assert_eq!(record.ending, Ending::FarNotReached(io::ErrorKind::TimedOut));
        assert_eq!(record.last.server, next.1, "both were tried");
        assert!(record.last.age >= Duration::from_millis(600));
    }

    #[test]
    fn a_client_that_gives_up_ends_the_attempts() {
        let (silent, next) = (full_listener(), full_listener());
        let reached = Reached::new(vec![silent.1, next.1], &Arc::default(), PATIENCE);
        // Closing sends a reset.
        socket2::SockRef::from(&reached.client).set_linger(Some(Duration::ZERO)).unwrap();
        assert_eq!(reached.record().ending, Ending::NearFailed(io::ErrorKind::ConnectionReset));
    }
}
