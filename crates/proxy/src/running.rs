//! A running proxy: its workers, and its other threads (gate, log, name lookups). `handover` is
//! what it does when another process takes over from it, `experiment` compares split and unsplit
//! connections.

mod experiment;
mod handover;

pub(crate) use crate::gate::HandedRules;
use crate::{
    bonds,
    brief::{FlowBrief, FlowId},
    config::{ListenMode, ProxyConfig},
    end::{END_TIMEOUT, EndDeadline, join_by},
    error::{ChangeError, ProxyStartError},
    experiment::{RelayedFlows, Results, RunningExperiment},
    failure::ProxyFailure,
    flow_log::LogSink,
    flow_records::{RecordCounts, RecordSink},
    gate::{BypassChange, Gate, GateCommand},
    listeners::{self, InheritedListeners, WorkerListener},
    liveness::{Liveness, LoopProgress},
    memory::{MemoryView, MemoryWatch},
    meter::{FlowView, Totals},
    resolver,
    takeover::Generations,
    worker::{self, FlowRequest, Mailbox, OnEnd, Worker, WorkerCommand, WorkerContext, sys},
};
use intercept::{
    AddressHistory, Controllers, Counted, Egress, LinkUses, LinkView, ListenAt, Listener, OpenError, Prefix, Rules,
    kernel_setting::{self, ChangedSetting},
    leg,
    rules::Installed,
};
use multipath::FarEnd;
use relay::{FlowRecord, FlowStats};
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::{AsRawFd as _, OwnedFd},
};
use serde::{Deserialize, Serialize};
use std::{
    panic,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A running proxy.
///
/// The caller calls [`start`](Self::start), then watches [`failures`](Self::failures). To end
/// gracefully it calls [`begin_drain`](Self::begin_drain) and waits until
/// [`is_idle`](Self::is_idle), or calls [`drain`](Self::drain), which does both. Dropping it resets
/// the remaining connections and removes its firewall rules. That takes at most
/// [`END_TIMEOUT`](crate::END_TIMEOUT): what is stuck then is left behind, and what could not be
/// written is counted and logged.
#[derive(Debug)]
pub struct Proxy {
    workers: Vec<WorkerHandle>,
    /// Copies of the workers' listeners, for a process that takes over.
    listeners: Mutex<Vec<WorkerListener>>,
    /// Processes from which this one took over, which drain.
    earlier: Arc<Mutex<Generations>>,
    memory: Arc<MemoryWatch>,
    link_uses: LinkUses,
    /// The thread that follows the limits of memory, and what ends it.
    memory_thread: Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>,
    config: Mutex<Arc<ProxyConfig>>,
    /// Loaded controllers, and the shaped or watched links.
    kernel: Mutex<(Controllers, Option<Egress>)>,
    /// The gate's channel and thread; none: the proxy has no firewall rules.
    gate: Option<(mpsc::Sender<GateCommand>, thread::JoinHandle<()>)>,
    /// The file that the program reads the configuration from; none: it reads none.
    config_file: Mutex<Option<PathBuf>>,
    /// Compares split and unsplit connections; none: no experiment is configured.
    experiment: Mutex<Option<RunningExperiment>>,
    /// Flows that have ended, for the experiment.
    relayed: Arc<RelayedFlows>,
    log: Option<thread::JoinHandle<()>>,
    /// The channel and the thread of flow records.
    records: Option<(RecordSink, thread::JoinHandle<()>)>,
    failures: Mutex<Option<mpsc::Receiver<ProxyFailure>>>,
    /// The deadline of the end.
    end: EndDeadline,
    _mtu_probing: Option<ChangedSetting>,
}

/// The limits beyond which new connections pass unsplit, or wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyLimits {
    /// Open flows of all workers: `max_flows`, or as many as they have descriptors for.
    pub flows: u64,
    /// The kernel's mark of TCP memory on this host, below which the proxy stays, bytes; absent:
    /// not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// A worker thread, from outside.
#[derive(Debug)]
struct WorkerHandle {
    mailbox: Mailbox,
    progress: Arc<LoopProgress>,
    /// The totals of its flows, once it has ended.
    last_totals: Arc<Mutex<Option<Totals>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts a worker with copies of these listeners. If it ends later without a command, it
    /// reports that to `failures`.
    ///
    /// # Errors
    /// When the worker cannot be set up, or its thread cannot be started.
    fn start(
        config: &Arc<ProxyConfig>,
        listeners: &[WorkerListener],
        failures: mpsc::Sender<ProxyFailure>,
        context: impl FnOnce(mpsc::Receiver<WorkerCommand>, Arc<LoopProgress>) -> WorkerContext,
    ) -> Result<Self, OpenError> {
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| OpenError::system("make an eventfd")(errno.into()))?;
        let (commands, inbox) = mpsc::channel();
        let (report, started) = mpsc::channel();
        let progress = Arc::new(LoopProgress::default());
        let (config, waker_fd, context) = (config.clone(), waker.as_raw_fd(), context(inbox, progress.clone()));
        let (number, ended, last_totals) = (context.number, progress.clone(), context.last_totals.clone());
        // The descriptors of its table have the numbers of those here.
        let (mut descriptors, mut configured) = (vec![waker_fd], Vec::new());
        for WorkerListener { socket, listen } in listeners {
            descriptors.push(socket.socket.as_raw_fd());
            configured.push((socket.listen, listen.clone()));
        }
        let name = format!("tandem-{number}");
        let work = move || {
            let worker = sys::own_descriptors(&descriptors)
                .and_then(|own| {
                    let mut own = own.into_iter();
                    let waker = own.next().ok_or(std::io::ErrorKind::NotFound)?;
                    let listener = |(socket, (at, listen)): (OwnedFd, (ListenAt, _))| WorkerListener {
                        socket: Listener { socket: socket.into(), listen: at },
                        listen,
                    };
                    Ok((waker, own.zip(configured).map(listener).collect()))
                })
                .map_err(OpenError::system("give a worker thread a descriptor table of its own"))
                .and_then(|(waker, listeners)| Worker::new(config, waker, listeners, context));
            match worker {
                Ok(worker) => {
                    let _ = report.send(Ok(()));
                    // A panic drops the worker and with it any inconsistent state.
                    let why = match panic::catch_unwind(panic::AssertUnwindSafe(|| worker.run())) {
                        Ok(Ok(())) => return ended.end(),
                        Ok(Err(why)) => format!("cannot wait for events: {why}"),
                        Err(_) => "it panicked".into(),
                    };
                    let _ = failures.send(ProxyFailure::Worker { number, why });
                }
                Err(error) => drop(report.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name(name).spawn(work).map_err(OpenError::system("start a worker thread"))?;
        let mailbox = Mailbox { commands, waker: Arc::new(waker) };
        let handle = WorkerHandle { mailbox, progress, last_totals, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| handle),
            Err(_) => Err(OpenError::system("start a worker thread")(std::io::Error::other("it panicked"))),
        }
    }
}

/// A proxy whose workers run. They accept when the proxy is [begun](Self::begin), if it takes over
/// from another process.
///
/// On an error its threads end, and everything that was set up is removed.
#[derive(Debug)]
pub(crate) struct PreparedProxy {
    // The channels are dropped before the proxy, whose threads wait for that.
    gate_commands: mpsc::Sender<GateCommand>,
    gate_inbox: mpsc::Receiver<GateCommand>,
    failures: mpsc::Sender<ProxyFailure>,
    rules: Option<Rules>,
    takes_over: bool,
    proxy: Proxy,
}

impl PreparedProxy {
    /// What of a configuration a takeover cannot change: a key, or several. `inherited`: the
    /// listeners of the other process; `has_rules`: whether it has firewall rules.
    pub(crate) fn fixed_in_takeover(config: &ProxyConfig, inherited: &InheritedListeners, has_rules: bool) -> Option<&'static str> {
        let mut config = config.clone();
        config.without_absent_families();
        let drops_rules = has_rules && config.rules().is_none();
        let rules = drops_rules.then_some("whether there are firewall rules (install_rules, a transparent listener)");
        inherited.needs_restart(&config).or(rules)
    }

    /// Starts all but what a takeover must not touch before the other process leaves it: firewall
    /// rules and links. `inherited`: the listeners of that process.
    ///
    /// # Errors
    /// As for [`Proxy::start`].
    pub(crate) fn prepare(
        mut config: ProxyConfig,
        on_end: impl Fn(FlowRecord) + Send + Sync + 'static,
        inherited: Option<InheritedListeners>,
    ) -> Result<Self, ProxyStartError> {
        leg::raise_open_files();
        config.without_absent_families();
        let takes_over = inherited.is_some();
        let inherited = inherited.unwrap_or_default();
        let rules = config.rules();
        let controllers = config.prepare().map_err(ProxyStartError::from)?;
        let link_uses = LinkUses::default();
        let egress = if takes_over {
            if let Some(rules) = &rules {
                rules.try_out().map_err(OpenError::from)?;
            }
            // The check loads the monitor, which a proxy without links may not do.
            if config.profiles().any(|(_, profile, _)| profile.capacity.is_some()) {
                Egress::try_out(config.profiles()).map_err(OpenError::from)?;
            }
            None
        } else {
            Egress::of(config.profiles(), &link_uses).map_err(OpenError::from)?
        };
        config.rename_controllers();
        let config = Arc::new(config);
        let relayed = Arc::new(RelayedFlows::default());
        let flows = relayed.clone();
        let on_end: OnEnd = Arc::new(move |record| {
            flows.add(&record);
            on_end(record);
        });
        let memory = Arc::new(MemoryWatch::new(config.threads.max(1), config.memory.map(|bytes| bytes.0)));
        let (failure_sender, failures) = mpsc::channel();
        // Dropped when a later step fails, which stops the threads that have been started. Declared
        // before the channels, so that it is dropped after the senders that its threads wait for.
        let mut proxy = Proxy {
            workers: Vec::new(),
            listeners: Mutex::default(),
            earlier: Arc::default(),
            memory: memory.clone(),
            link_uses: link_uses.clone(),
            memory_thread: None,
            config: Mutex::new(config.clone()),
            kernel: Mutex::new((controllers, egress)),
            gate: None,
            config_file: Mutex::default(),
            experiment: Mutex::default(),
            relayed,
            log: None,
            records: None,
            failures: Mutex::new(Some(failures)),
            end: EndDeadline::default(),
            _mtu_probing: config.install_rules.then(kernel_setting::probe_mtu).flatten(),
        };
        let (log, log_thread) = LogSink::start(proxy.end.clone()).map_err(OpenError::system("start the log's thread"))?;
        proxy.log = Some(log_thread);
        let records = RecordSink::start(config.flow_records.clone(), proxy.end.clone())
            .map_err(OpenError::system("start the thread that writes flow records"))?;
        let sink = records.0.clone();
        proxy.records = Some(records);
        let (lookups, lookup_inbox) = mpsc::channel();
        let history = Arc::<AddressHistory>::default();
        let (gate_commands, gate_inbox) = mpsc::channel();
        for number in 0..config.threads.max(1) {
            let context = |inbox, progress| WorkerContext {
                number,
                inbox,
                progress,
                last_totals: Arc::default(),
                accepts: !takes_over,
                on_end: on_end.clone(),
                gate: rules.is_some().then(|| gate_commands.clone()),
                memory: memory.clone(),
                link_uses: link_uses.clone(),
                log: Some(log.clone()),
                records: Some(sink.clone()),
                lookups: lookups.clone(),
                history: history.clone(),
                open_carrier: bonds::open,
            };
            let listeners = listeners::open(&config, number, &inherited)?;
            proxy.workers.push(WorkerHandle::start(&config, &listeners, failure_sender.clone(), context)?);
            proxy.listeners.get_mut().unwrap_or_else(PoisonError::into_inner).extend(listeners);
        }
        let has_names = config.networks.iter().any(|network| matches!(network.to, FarEnd::Name(..)));
        if has_names || config.listen.iter().any(|listen| matches!(listen.mode, ListenMode::Socks5 | ListenMode::Bond)) {
            let mailboxes: Vec<Mailbox> = proxy.workers.iter().map(|worker| worker.mailbox.clone()).collect();
            let send_result = move |worker: usize, result| mailboxes[worker].send(WorkerCommand::Resolved(result));
            resolver::start(lookup_inbox, send_result).map_err(OpenError::system("start the threads that look names up"))?;
        }
        Ok(PreparedProxy { gate_commands, gate_inbox, failures: failure_sender, rules, takes_over, proxy })
    }

    /// Installs the firewall rules, or takes over those of another process, and begins to accept.
    /// `measured`: what that process has measured in its experiment.
    ///
    /// # Errors
    /// [`ProxyStartError::Open`] when a rule or a link cannot be set up. Rules that were to be
    /// taken over still belong to the other process.
    pub(crate) fn begin(self, handed: Option<HandedRules>, earlier: Generations, measured: Results) -> Result<Proxy, ProxyStartError> {
        let PreparedProxy { gate_commands, gate_inbox, failures, rules, takes_over, mut proxy } = self;
        // The rules come last: connections pass unsplit until all listeners are open.
        if let Some(rules) = rules {
            let installed = match handed {
                Some((state, descriptors)) => Installed::take_over(rules, state, descriptors),
                None => Installed::install(rules),
            };
            let gate = Gate::start(installed.map_err(OpenError::from)?, gate_inbox, failures)
                .map_err(OpenError::system("start the thread that opens and shuts the gate"))?;
            // The process that had the rules may have been full.
            proxy.memory.set_gate(gate_commands.clone());
            proxy.gate = Some((gate_commands, gate));
        }
        proxy.measure(measured)?;
        *proxy.earlier() = earlier;
        proxy.memory_thread = Some(follow_limits(&proxy).map_err(OpenError::system("start the thread that follows the limits of memory"))?);
        if takes_over {
            proxy.take_over_links()?;
            proxy.send_all(|| WorkerCommand::Accept);
        }
        Ok(proxy)
    }
}

impl Proxy {
    /// Starts a proxy in the network namespace of the calling thread; returns when all listeners
    /// are open and all firewall rules are installed. Each flow that ends is passed to `on_end` on
    /// its worker's thread, which `on_end` must not block.
    ///
    /// # Errors
    /// [`ProxyStartError`] when the configuration cannot be used, or a listener, a rule, a link or
    /// a thread cannot be set up. Everything that was set up before is removed again.
    pub fn start(config: ProxyConfig, on_end: impl Fn(FlowRecord) + Send + Sync + 'static) -> Result<Self, ProxyStartError> {
        PreparedProxy::prepare(config, on_end, None)?.begin(None, Generations::default(), Results::default())
    }

    fn config(&self) -> Arc<ProxyConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The channel on which the proxy reports that a part of it has failed for good; the process
    /// should then end. It is disconnected once the proxy has ended. None: it was taken before.
    pub fn failures(&self) -> Option<mpsc::Receiver<ProxyFailure>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Checks the workers' event loops, for a watchdog.
    pub fn liveness(&self) -> Liveness {
        Liveness::of(self.workers.iter().map(|worker| (worker.progress.clone(), worker.mailbox.waker.clone())))
    }

    /// Sends a command to every worker.
    fn send_all(&self, command: impl Fn() -> WorkerCommand) {
        self.workers.iter().for_each(|worker| worker.mailbox.send(command()));
    }

    /// Collects the answers of all workers to a command; leaves out those that do not answer in
    /// time.
    fn collect<T>(&self, command: impl Fn(mpsc::Sender<T>) -> WorkerCommand, mut add: impl FnMut(T)) {
        let (reply, answers) = mpsc::channel();
        self.send_all(|| command(reply.clone()));
        drop(reply);
        while let Ok(answer) = answers.recv_timeout(worker::ANSWER_TIMEOUT) {
            add(answer);
        }
    }

    /// The present state of every flow.
    pub fn flows(&self) -> Vec<FlowStats> {
        let mut flows = Vec::new();
        self.collect(|reply| WorkerCommand::Flows(FlowRequest::All(reply)), |part: Vec<_>| flows.extend(part));
        flows
    }

    /// Every flow in brief, which costs no system call for a flow. In parts, each by ascending
    /// slots of one worker.
    pub fn brief_flows(&self) -> Vec<Vec<FlowBrief>> {
        let mut parts = Vec::new();
        self.collect(|reply| WorkerCommand::Flows(FlowRequest::Brief(reply)), |part| parts.push(part));
        parts
    }

    /// The present state of these flows, in any order; those that have ended are left out.
    pub fn flows_of(&self, ids: &[FlowId]) -> Vec<(FlowId, FlowStats)> {
        let (ids, mut flows): (Arc<[FlowId]>, _) = (ids.into(), Vec::new());
        self.collect(|reply| WorkerCommand::Flows(FlowRequest::Of(ids.clone(), reply)), |part: Vec<_>| flows.extend(part));
        flows
    }

    /// The present state of every flow for display, also of processes that drain since this one
    /// took over from them.
    pub fn flow_views(&self) -> Vec<FlowView> {
        let mut views: Vec<FlowView> = self.flows().iter().map(FlowView::of).collect();
        views.extend(self.earlier().flows());
        views
    }

    /// The totals of all flows, open ones too, and of processes from which this one took over.
    pub fn totals(&self) -> Totals {
        // An account takes the place of one in another unit, and this process knows the capacities
        // now.
        let mut totals = self.earlier().totals();
        totals += self.own_totals();
        totals
    }

    /// The totals of the flows of this process.
    pub(crate) fn own_totals(&self) -> Totals {
        let (mut totals, mut answered) = (Totals::default(), vec![false; self.workers.len()]);
        self.collect(WorkerCommand::Totals, |(number, part): (usize, Totals)| {
            answered[number] = true;
            totals += part;
        });
        for (worker, _) in self.workers.iter().zip(answered).filter(|(_, answered)| !answered) {
            let last = worker.last_totals.lock().unwrap_or_else(PoisonError::into_inner).clone();
            totals += last.unwrap_or_default();
        }
        totals
    }

    fn earlier(&self) -> MutexGuard<'_, Generations> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command to the gate and waits for its reply; none: there is no gate.
    fn ask_gate<T>(&self, command: impl FnOnce(mpsc::Sender<T>) -> GateCommand) -> Option<Result<T, ChangeError>> {
        let (commands, _) = self.gate.as_ref()?;
        let (reply, answer) = mpsc::channel();
        let sent = commands.send(command(reply));
        Some(sent.map_err(|_| ChangeError::Ending).and_then(|()| answer.recv().map_err(|_| ChangeError::Ending)))
    }

    /// The firewall's counters; none: the proxy has no firewall rules.
    ///
    /// # Errors
    /// When the firewall cannot be read, or the proxy is stopping.
    pub fn counted(&self) -> Option<Result<Counted, ChangeError>> {
        Some(self.ask_gate(GateCommand::Counted)?.and_then(|counted| Ok(counted?)))
    }

    /// Changes the prefixes that bypass: connections with either end in one of them pass unsplit.
    /// Returns the resulting list.
    ///
    /// # Errors
    /// [`ChangeError::NoRules`] without firewall rules, [`ChangeError::Rules`] when they cannot be
    /// changed, [`ChangeError::Ending`] while the proxy stops.
    pub fn bypass(&self, change: BypassChange) -> Result<Vec<Prefix>, ChangeError> {
        let answer = self.ask_gate(|reply| GateCommand::Bypass(change, reply)).ok_or(ChangeError::NoRules)?;
        Ok(answer??)
    }

    /// Applies another configuration to new flows, wholly or, with an error, not at all.
    ///
    /// # Errors
    /// [`ChangeError`] when the configuration cannot be used, needs a restart, or the firewall or a
    /// link cannot be changed.
    pub fn reload(&self, mut config: ProxyConfig) -> Result<(), ChangeError> {
        config.without_absent_families();
        let controllers = config.prepare()?;
        let mut present = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = config.needs_restart(&present) {
            return Err(ChangeError::NeedsRestart(key));
        }
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        self.change_rules(&config)?;
        let changed = match &mut kernel.1 {
            Some(egress) => egress.change(config.profiles()),
            none => Egress::of(config.profiles(), &self.link_uses).map(|egress| *none = egress),
        };
        config.rename_controllers();
        if let Err(error) = changed.map_err(ChangeError::from).and_then(|()| self.change_experiment(&present, &config)) {
            let restored = kernel.1.as_mut().map_or(Ok(()), |egress| egress.change(present.profiles())).map_err(ChangeError::from);
            if let Err(why) = self.change_rules(&present).and(restored) {
                tracing::error!("cannot put rules and links back after a reload that has failed: {why}");
            }
            return Err(error);
        }
        // Open connections keep a controller that is unloaded.
        kernel.0 = controllers;
        self.memory.configure(config.memory.map(|bytes| bytes.0));
        if let Some((records, _)) = &self.records {
            records.configure(config.flow_records.clone());
        }
        let config = Arc::new(config);
        *present = config.clone();
        self.send_all(|| WorkerCommand::Reload(config.clone()));
        Ok(())
    }

    /// Has the firewall follow the rules of a configuration.
    fn change_rules(&self, config: &ProxyConfig) -> Result<(), ChangeError> {
        let answer = self.ask_gate(|reply| GateCommand::Policy(config.policy.rules.clone(), reply));
        answer.map_or(Ok(()), |answer| Ok(answer??))
    }

    /// As [`begin_drain`](Self::begin_drain), then waits until all connections have ended.
    pub fn drain(&mut self) {
        self.begin_drain();
        for worker in &mut self.workers {
            // A panic has been reported as a failure.
            let _ = worker.thread.take().map(thread::JoinHandle::join);
        }
        self.join_others();
    }

    /// Accepts no new connections from now on: they pass unsplit. Open ones continue.
    pub fn begin_drain(&self) {
        self.shut_gate(Instant::now() + END_TIMEOUT);
        self.close_listeners();
        self.send_all(|| WorkerCommand::Drain);
    }

    /// Has the firewall bring no more connections, and waits for that until `deadline`.
    fn shut_gate(&self, deadline: Instant) {
        let Some((commands, _)) = &self.gate else { return };
        let (reply, answer) = mpsc::channel();
        if commands.send(GateCommand::Shut(reply)).is_ok() {
            let _ = answer.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Closes the copies of the listeners; the workers close theirs when they drain.
    fn close_listeners(&self) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether every worker has ended, as it does after a drain, and no process drains from which
    /// this one took over: its flows need this one's rules.
    pub fn is_idle(&self) -> bool {
        self.have_workers_ended() && self.earlier().count() == 0
    }

    fn have_workers_ended(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.as_ref().is_none_or(thread::JoinHandle::is_finished))
    }

    /// The limits beyond which new connections pass unsplit, or wait.
    pub fn limits(&self) -> ProxyLimits {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let flows = config.soft_limit_of_a_worker() * config.threads.max(1);
        ProxyLimits { flows: flows as u64, memory: self.memory.host_mark() }
    }

    /// The memory that the connections of this process take, and may take.
    pub fn memory(&self) -> MemoryView {
        self.memory.view()
    }

    /// Counts of flow records; none: they are not configured.
    pub fn flow_records(&self) -> Option<RecordCounts> {
        let configured = self.config.lock().unwrap_or_else(PoisonError::into_inner).flow_records.is_some();
        self.records.as_ref().filter(|_| configured).map(|(records, _)| records.counts())
    }

    /// State of the links whose capacity is configured.
    pub fn links(&self) -> Vec<LinkView> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).1.as_mut().map_or(Vec::new(), Egress::views)
    }

    /// Begins the end, unless it has begun: no flow is left to wait for. Returns the deadline,
    /// which holds for all that is left to do, also for the program.
    pub fn begin_end(&self) -> Instant {
        self.end.begin()
    }

    /// Waits for the end of the gate, the log and the flow records, which end after the workers.
    /// All other senders of commands have ended with these. The gate removes the rules.
    fn join_others(&mut self) {
        let deadline = self.end.begin();
        let memory = self.memory_thread.take().map(|(_, thread)| ("that follows the limits of memory", thread));
        self.memory.forget_gate();
        let gate = self.gate.take().map(|(commands, gate)| {
            drop(commands);
            ("that changes the firewall's rules", gate)
        });
        let log = self.log.take().map(|log| ("that writes the flow log", log));
        let (records, writer) = self.records.take().unzip();
        // A copy of the counts, without the channel: the thread ends when all senders have.
        let left = records.map(RecordSink::into_left_at_end);
        let writer = writer.map(|writer| ("that writes flow records", writer));
        for (what, thread) in gate.into_iter().chain(log).chain(writer).chain(memory) {
            if !join_by(thread, deadline) {
                report_stuck(what);
            }
        }
        let left = left.map_or(0, |left| left());
        if left > 0 {
            let to = self.config().flow_records.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::warn!("{left} flow records were not written to {to}: the end of the proxy waits {} s at most", END_TIMEOUT.as_secs());
        }
    }
}

fn report_stuck(what: &str) {
    tracing::error!("the thread {what} has not ended within {} s, and is left behind", END_TIMEOUT.as_secs());
}

/// Starts the thread that follows the limits of memory, which may change while the proxy runs, and
/// what processes take from which this one has taken over. It ends when the sender is dropped.
fn follow_limits(proxy: &Proxy) -> std::io::Result<(mpsc::Sender<()>, thread::JoinHandle<()>)> {
    const PAUSE: Duration = Duration::from_secs(1);
    let (stop, stopped) = mpsc::channel();
    let (memory, earlier) = (proxy.memory.clone(), proxy.earlier.clone());
    let work = move || {
        while stopped.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let mut earlier = earlier.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = if earlier.count() > 0 { earlier.totals().memory } else { 0 };
            drop(earlier);
            memory.refresh(taken);
        }
    };
    thread::Builder::new().name("tandem-memory".into()).spawn(work).map(|thread| (stop, thread))
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let deadline = self.end.begin();
        self.shut_gate(deadline);
        self.close_listeners();
        self.send_all(|| WorkerCommand::Stop);
        self.earlier().stop(deadline);
        for worker in &mut self.workers {
            if worker.thread.take().is_some_and(|thread| !join_by(thread, deadline)) {
                report_stuck("of a worker");
            }
        }
        self.join_others();
    }
}
