//! A running proxy: its workers, and its other threads (gate, log, name lookups).

use crate::{
    bonds,
    brief::{FlowBrief, FlowId},
    config::{ListenMode, ProxyConfig},
    error::{ChangeError, ProxyStartError},
    failure::ProxyFailure,
    flow_log,
    gate::{self, BypassChange, Gate, GateCommand},
    liveness::{Liveness, LoopProgress},
    meter::Totals,
    resolver,
    worker::{FlowRequest, Mailbox, OnEnd, Worker, WorkerCommand, WorkerContext, sys},
};
use intercept::{
    Controllers, Counted, Egress, LinkView, OpenError, Prefix,
    kernel_setting::{self, ChangedSetting},
    leg, rules,
};
use relay::{FlowRecord, FlowStats};
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::AsRawFd as _,
};
use std::{
    panic,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// Time limit for the answer of a worker.
const WORKER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running proxy.
///
/// The caller calls [`start`](Self::start), then watches [`failures`](Self::failures). To end
/// gracefully it calls [`begin_drain`](Self::begin_drain) and waits until
/// [`is_idle`](Self::is_idle), or calls [`drain`](Self::drain), which does both. Dropping it resets
/// the remaining connections and removes its firewall rules.
#[derive(Debug)]
pub struct Proxy {
    workers: Vec<WorkerHandle>,
    config: Mutex<Arc<ProxyConfig>>,
    /// Loaded controllers, and the shaped or watched links.
    kernel: Mutex<(Controllers, Option<Egress>)>,
    /// The gate's channel and thread; none: the proxy has no firewall rules.
    gate: Option<(mpsc::Sender<GateCommand>, thread::JoinHandle<()>)>,
    log: Option<thread::JoinHandle<()>>,
    failures: Mutex<Option<mpsc::Receiver<ProxyFailure>>>,
    _mtu_probing: Option<ChangedSetting>,
}

/// A worker thread, from outside.
#[derive(Debug)]
struct WorkerHandle {
    mailbox: Mailbox,
    progress: Arc<LoopProgress>,
    thread: Option<thread::JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts a worker, and returns when its listeners are open. If it ends later without a
    /// command, it reports that to `failures`.
    ///
    /// # Errors
    /// When the worker cannot be set up, or its thread cannot be started.
    fn start(
        config: &Arc<ProxyConfig>,
        failures: mpsc::Sender<ProxyFailure>,
        context: impl FnOnce(mpsc::Receiver<WorkerCommand>, Arc<LoopProgress>) -> WorkerContext,
    ) -> Result<Self, OpenError> {
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| OpenError::system("make an eventfd")(errno.into()))?;
        let (commands, inbox) = mpsc::channel();
        let (report, started) = mpsc::channel();
        let progress = Arc::new(LoopProgress::default());
        let (config, waker_fd, context) = (config.clone(), waker.as_raw_fd(), context(inbox, progress.clone()));
        let (number, ended) = (context.number, progress.clone());
        let name = format!("tandem-{number}");
        let work = move || {
            let worker = sys::own_descriptors(waker_fd)
                .map_err(OpenError::system("give a worker thread a descriptor table of its own"))
                .and_then(|waker| Worker::new(config, waker, context));
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
        let handle = WorkerHandle { mailbox: Mailbox { commands, waker: Arc::new(waker) }, progress, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| handle),
            Err(_) => Err(OpenError::system("start a worker thread")(std::io::Error::other("it panicked"))),
        }
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
    pub fn start(mut config: ProxyConfig, on_end: impl Fn(FlowRecord) + Send + Sync + 'static) -> Result<Self, ProxyStartError> {
        leg::raise_open_files();
        config.without_absent_families();
        let kernel = Mutex::new((config.prepare()?, Egress::of(config.profiles()).map_err(OpenError::from)?));
        config.rename_controllers();
        let config = Arc::new(config);
        let on_end: OnEnd = Arc::new(on_end);
        let rules = config.rules();
        let (failure_sender, failures) = mpsc::channel();
        let failures = Mutex::new(Some(failures));
        // Dropped when a later step fails, which stops the threads that have been started. Declared
        // before the channels, so that it is dropped after the senders that its threads wait for.
        let mut proxy = Proxy {
            workers: Vec::new(),
            config: Mutex::new(config.clone()),
            kernel,
            gate: None,
            log: None,
            failures,
            _mtu_probing: config.install_rules.then(kernel_setting::probe_mtu).flatten(),
        };
        let (log, log_thread) = flow_log::start().map_err(OpenError::system("start the log's thread"))?;
        proxy.log = Some(log_thread);
        let (lookups, lookup_inbox) = mpsc::channel();
        let (gate_commands, gate_inbox) = mpsc::channel();
        for number in 0..config.threads.max(1) {
            let context = |inbox, progress| WorkerContext {
                number,
                inbox,
                progress,
                on_end: on_end.clone(),
                gate: rules.is_some().then(|| gate_commands.clone()),
                log: Some(log.clone()),
                lookups: lookups.clone(),
                open_carrier: bonds::open,
            };
            proxy.workers.push(WorkerHandle::start(&config, failure_sender.clone(), context)?);
        }
        if config.listen.iter().any(|listen| matches!(listen.mode, ListenMode::Socks5 | ListenMode::Bond)) {
            let mailboxes: Vec<Mailbox> = proxy.workers.iter().map(|worker| worker.mailbox.clone()).collect();
            let send_result = move |worker: usize, result| mailboxes[worker].send(WorkerCommand::Resolved(result));
            resolver::start(lookup_inbox, send_result).map_err(OpenError::system("start the threads that look names up"))?;
        }
        // The rules come last: connections pass unsplit until all listeners are open.
        if let Some(rules) = rules {
            let limit = gate::memory_limit(&config);
            let gate = Gate::start(rules::Installed::install(rules).map_err(OpenError::from)?, limit, gate_inbox, failure_sender)
                .map_err(OpenError::system("start the thread that opens and shuts the gate"))?;
            proxy.gate = Some((gate_commands, gate));
        }
        Ok(proxy)
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
        while let Ok(answer) = answers.recv_timeout(WORKER_TIMEOUT) {
            add(answer);
        }
    }

    /// The present state of every flow.
    pub fn flows(&self) -> Vec<FlowStats> {
        let mut flows = Vec::new();
        self.collect(|reply| WorkerCommand::Flows(FlowRequest::All(reply)), |part: Vec<_>| flows.extend(part));
        flows
    }

    /// Every flow in brief, which costs no system call for a flow.
    pub fn brief_flows(&self) -> Vec<FlowBrief> {
        let mut flows = Vec::new();
        self.collect(|reply| WorkerCommand::Flows(FlowRequest::Brief(reply)), |part: Vec<_>| flows.extend(part));
        flows
    }

    /// The present state of these flows, in any order; those that have ended are left out.
    pub fn flows_of(&self, ids: &[FlowId]) -> Vec<(FlowId, FlowStats)> {
        let (ids, mut flows): (Arc<[FlowId]>, _) = (ids.into(), Vec::new());
        self.collect(|reply| WorkerCommand::Flows(FlowRequest::Of(ids.clone(), reply)), |part: Vec<_>| flows.extend(part));
        flows
    }

    /// The totals of all flows, open ones too.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.collect(WorkerCommand::Totals, |part| totals += part);
        totals
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
        match &mut kernel.1 {
            Some(egress) => egress.change(config.profiles())?,
            none => *none = Egress::of(config.profiles())?,
        }
        // Open connections keep a controller that is unloaded.
        kernel.0 = controllers;
        config.rename_controllers();
        if let Some(answer) = self.ask_gate(|reply| GateCommand::Policy(config.policy.rules.clone(), reply)) {
            answer??;
        }
        if let Some((commands, _)) = &self.gate {
            let _ = commands.send(GateCommand::Memory(gate::memory_limit(&config)));
        }
        let config = Arc::new(config);
        *present = config.clone();
        self.send_all(|| WorkerCommand::Reload(config.clone()));
        Ok(())
    }

    /// As [`begin_drain`](Self::begin_drain), then waits until all connections have ended.
    pub fn drain(&mut self) {
        self.begin_drain();
        self.join();
    }

    /// Accepts no new connections from now on: they pass unsplit. Open ones continue.
    pub fn begin_drain(&self) {
        self.ask_gate(GateCommand::Shut);
        self.send_all(|| WorkerCommand::Drain);
    }

    /// Whether every worker has ended, as it does after a drain.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.as_ref().is_none_or(thread::JoinHandle::is_finished))
    }

    /// State of the links whose capacity is configured.
    pub fn links(&self) -> Vec<LinkView> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).1.as_mut().map_or(Vec::new(), Egress::views)
    }

    fn join(&mut self) {
        let threads = self.workers.iter_mut().filter_map(|worker| worker.thread.take());
        for thread in threads.collect::<Vec<_>>() {
            // A panic has been reported as a failure.
            let _ = thread.join();
        }
        // All other senders ended with the workers, so that these threads end too. The gate removes
        // the rules.
        let gate = self.gate.take().map(|(commands, gate)| {
            drop(commands);
            gate
        });
        for thread in gate.into_iter().chain(self.log.take()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ask_gate(GateCommand::Shut);
        self.send_all(|| WorkerCommand::Stop);
        self.join();
    }
}
