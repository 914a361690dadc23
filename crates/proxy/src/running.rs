//! A running proxy: its workers, and the threads beside them.

use crate::{
    bonds,
    config::{Config, ListenMode},
    error::{ChangeError, StartError},
    failure::Failure,
    flow_log,
    gate::{self, Change, Gate, GateCommand},
    liveness::{Liveness, Turns},
    meter::Totals,
    resolver,
    worker::{Command, Mailbox, OnEnd, Worker, WorkerContext, sys},
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

/// A running proxy. Dropping it resets what it still carries and takes its rules away.
#[derive(Debug)]
pub struct Proxy {
    workers: Vec<Handle>,
    config: Mutex<Arc<Config>>,
    /// What the legs need of the kernel: controllers, and the shaped or watched links.
    kernel: Mutex<(Controllers, Option<Egress>)>,
    /// The gate's channel and thread, where the firewall's rules are ours.
    gate: Option<(mpsc::Sender<GateCommand>, thread::JoinHandle<()>)>,
    log: Option<thread::JoinHandle<()>>,
    failures: Mutex<Option<mpsc::Receiver<Failure>>>,
    _mtu_probing: Option<ChangedSetting>,
}

#[derive(Debug)]
struct Handle {
    mailbox: Mailbox,
    turns: Arc<Turns>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Handle {
    /// Starts a worker, and returns when it listens. When it ends later without having been told
    /// to, it reports that to `failures`.
    fn start(
        config: &Arc<Config>,
        failures: mpsc::Sender<Failure>,
        context: impl FnOnce(mpsc::Receiver<Command>, Arc<Turns>) -> WorkerContext,
    ) -> Result<Self, OpenError> {
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| OpenError::system("make an eventfd")(errno.into()))?;
        let (commands, inbox) = mpsc::channel();
        let (tell, started) = mpsc::channel();
        let turns = Arc::new(Turns::default());
        let (config, at, context) = (config.clone(), waker.as_raw_fd(), context(inbox, turns.clone()));
        let (number, ended) = (context.number, turns.clone());
        let name = format!("tandem-{number}");
        let work = move || {
            let worker = sys::own_descriptors(at)
                .map_err(OpenError::system("give a worker thread a descriptor table of its own"))
                .and_then(|waker| Worker::new(config, waker, context));
            match worker {
                Ok(worker) => {
                    let _ = tell.send(Ok(()));
                    // A panic drops the worker, so that no inconsistent state survives.
                    let why = match panic::catch_unwind(panic::AssertUnwindSafe(|| worker.run())) {
                        Ok(Ok(())) => return ended.end(),
                        Ok(Err(why)) => format!("cannot wait for events: {why}"),
                        Err(_) => "it panicked".into(),
                    };
                    let _ = failures.send(Failure::Worker { number, why });
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name(name).spawn(work).map_err(OpenError::system("start a worker thread"))?;
        let handle = Handle { mailbox: Mailbox { commands, waker: Arc::new(waker) }, turns, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| handle),
            Err(_) => Err(OpenError::system("start a worker thread")(std::io::Error::other("it panicked"))),
        }
    }
}

impl Proxy {
    /// Starts in the network namespace of the calling thread; returns when every listener listens
    /// and every rule is in place. `on_end` is called for each flow that ends, on the worker's
    /// thread: it must not block.
    pub fn start(mut config: Config, on_end: impl Fn(FlowRecord) + Send + Sync + 'static) -> Result<Self, StartError> {
        leg::raise_open_files();
        config.without_absent_families();
        let kernel = Mutex::new((config.prepare()?, Egress::of(config.profiles()).map_err(OpenError::from)?));
        config.rename_controllers();
        let config = Arc::new(config);
        let on_end: OnEnd = Arc::new(on_end);
        let rules = config.rules();
        let (failed_parts, failures) = mpsc::channel();
        let failures = Mutex::new(Some(failures));
        // Dropped when a later step fails, which stops what has been started. Declared before the
        // channels, so that it outlives what its threads receive from.
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
        let (names, questions) = mpsc::channel();
        let (notes, gate_inbox) = mpsc::channel();
        for number in 0..config.threads.max(1) {
            let context = |inbox, turns| WorkerContext {
                number,
                inbox,
                turns,
                on_end: on_end.clone(),
                gate: rules.is_some().then(|| notes.clone()),
                log: Some(log.clone()),
                names: names.clone(),
                open_carrier: bonds::open,
            };
            proxy.workers.push(Handle::start(&config, failed_parts.clone(), context)?);
        }
        if config.listen.iter().any(|listen| matches!(listen.mode, ListenMode::Socks5 | ListenMode::Bond)) {
            let mailboxes: Vec<Mailbox> = proxy.workers.iter().map(|worker| worker.mailbox.clone()).collect();
            let tell = move |worker: usize, answer| mailboxes[worker].send(Command::Resolved(answer));
            resolver::start(questions, tell).map_err(OpenError::system("start the threads that look names up"))?;
        }
        // Rules come last: until the listeners listen, connections pass unsplit.
        if let Some(rules) = rules {
            let limit = gate::memory_limit(&config);
            let gate = Gate::start(rules::Installed::install(rules).map_err(OpenError::from)?, limit, gate_inbox, failed_parts)
                .map_err(OpenError::system("start the thread that opens and shuts the gate"))?;
            proxy.gate = Some((notes, gate));
        }
        Ok(proxy)
    }

    /// Receives when a part of the proxy has failed for good: the process should then end.
    /// Disconnected once the proxy has ended. None when it was taken before.
    pub fn failures(&self) -> Option<mpsc::Receiver<Failure>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What a watchdog asks whether the workers still turn their event loops.
    pub fn liveness(&self) -> Liveness {
        Liveness::of(self.workers.iter().map(|worker| (worker.turns.clone(), worker.mailbox.waker.clone())))
    }

    fn send_all(&self, command: impl Fn() -> Command) {
        self.workers.iter().for_each(|worker| worker.mailbox.send(command()));
    }

    /// Every flow as it is now.
    pub fn flows(&self) -> Vec<FlowStats> {
        let (reply, answers) = mpsc::channel();
        self.send_all(|| Command::Flows(reply.clone()));
        drop(reply);
        let mut flows = Vec::new();
        while let Ok(part) = answers.recv_timeout(Duration::from_secs(5)) {
            flows.extend(part);
        }
        flows
    }

    /// The totals of all flows, those that are not over too.
    pub fn totals(&self) -> Totals {
        let (reply, answers) = mpsc::channel();
        self.send_all(|| Command::Totals(reply.clone()));
        drop(reply);
        let mut totals = Totals::default();
        while let Ok(part) = answers.recv_timeout(Duration::from_secs(5)) {
            totals += part;
        }
        totals
    }

    /// Asks the gate; none: there is none.
    fn ask<T>(&self, note: impl FnOnce(mpsc::Sender<T>) -> GateCommand) -> Option<Result<T, ChangeError>> {
        let (notes, _) = self.gate.as_ref()?;
        let (reply, answer) = mpsc::channel();
        let asked = notes.send(note(reply));
        Some(asked.map_err(|_| ChangeError::Ending).and_then(|()| answer.recv().map_err(|_| ChangeError::Ending)))
    }

    /// What the firewall has counted; none when its rules are not ours.
    pub fn counted(&self) -> Option<Result<Counted, ChangeError>> {
        Some(self.ask(GateCommand::Counted)?.and_then(|counted| Ok(counted?)))
    }

    /// Changes the prefixes whose connections bypass, whichever end is in them; returns the list as
    /// it then is.
    pub fn bypass(&self, change: Change) -> Result<Vec<Prefix>, ChangeError> {
        let answer = self.ask(|reply| GateCommand::Bypass(change, reply)).ok_or(ChangeError::NoRules)?;
        Ok(answer??)
    }

    /// Takes another configuration for new flows: all of it, or nothing and an error.
    pub fn reload(&self, mut config: Config) -> Result<(), ChangeError> {
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
        // Connections keep a controller that is removed.
        kernel.0 = controllers;
        config.rename_controllers();
        if let Some(answer) = self.ask(|reply| GateCommand::Policy(config.policy.rules.clone(), reply)) {
            answer??;
        }
        if let Some((notes, _)) = &self.gate {
            let _ = notes.send(GateCommand::Memory(gate::memory_limit(&config)));
        }
        let config = Arc::new(config);
        *present = config.clone();
        self.send_all(|| Command::Reload(config.clone()));
        Ok(())
    }

    /// Takes no new connections (they pass unsplit), and returns when the present ones have ended.
    pub fn drain(&mut self) {
        self.begin_drain();
        self.join();
    }

    /// Takes no new connections from now on; the present ones continue.
    pub fn begin_drain(&self) {
        self.ask(GateCommand::Shut);
        self.send_all(|| Command::Drain);
    }

    /// Whether every worker has ended, as it does when drained.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.as_ref().is_none_or(thread::JoinHandle::is_finished))
    }

    /// What is known of the links whose capacity is.
    pub fn links(&self) -> Vec<LinkView> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).1.as_mut().map_or(Vec::new(), Egress::views)
    }

    fn join(&mut self) {
        let threads = self.workers.iter_mut().filter_map(|worker| worker.thread.take());
        for thread in threads.collect::<Vec<_>>() {
            // A panic has been reported as a failure.
            let _ = thread.join();
        }
        // The senders of commands and lines are gone, so that these threads end; the gate removes
        // the rules.
        let gate = self.gate.take().map(|(notes, gate)| {
            drop(notes);
            gate
        });
        for thread in gate.into_iter().chain(self.log.take()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ask(GateCommand::Shut);
        self.send_all(|| Command::Stop);
        self.join();
    }
}
