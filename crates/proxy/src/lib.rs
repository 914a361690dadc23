//! Splits TCP connections.
//!
//! The way of a byte: the crate `intercept` brings a connection to one of the `listeners` → a `greeting`, where the client names its
//! destination → `relay` (splice, bounded, back-pressured) between the legs that `intercept` dials and tunes → `connection` (its life and
//! its close); `meter` looks on. `gate` lets the firewall pass connections by when there is no room.
//! One worker a thread, each with its own listeners and its own epoll; workers share nothing on the data path.
//!
//! A far leg may be a *bond*, one stream over several connections, and so may the near leg where such streams come out: `bonded`.
//!
//! The accepted connection is the *near leg*, the dialled one the *far leg*, whichever way the data flows.

mod bonded;
pub mod check;
mod config;
mod connection;
pub mod control;
pub mod diagnosis;
mod ending;
mod failure;
mod flow_log;
#[doc(hidden)]
pub mod fuzz_api;
mod gate;
mod greeting;
mod listeners;
mod liveness;
mod meter;
pub mod metrics;
mod pipe;
mod relay;
mod resolver;
mod worker;

use std::{
    panic,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

pub use bonded::{BondConfig, BondView, Network, NetworkSpec, PathView};
pub use config::{BufferSetting, Config, ConfigError, Listen, ProxyVersion, Service, Way, config_schema};
pub use ending::Ending;
pub use failure::Failure;
pub use gate::Change;
pub use liveness::Liveness;
pub use meter::{DirectionStats, DirectionView, FlowRecord, FlowStats, FlowView, LegView, Limiter, NetworkTotals, Totals};
pub use units::Phase;

use gate::{Gate, Note};
use intercept::{
    Controllers, Counted, Egress, EgressError, LinkView, OpenError, Prefix, RulesError,
    kernel_setting::{self, Changed},
    leg, rules,
};
use liveness::Turns;
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::AsRawFd as _,
};
use worker::{Command, Mailbox, OnEnd, Ties, Worker, sys};

/// Why a proxy did not start: what was attempted, on what, why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration can't work on any machine, or not on this one.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener, a rule or a link could not be set up.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something else the system refused.
    #[error("cannot {what}: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's reason.
        why: std::io::Error,
    },
}

/// Why a running proxy did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The new configuration can't work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Listeners and threads are there already.
    #[error("{0} can't be changed while the proxy runs: restart it for that; nothing has been changed")]
    NeedsRestart(&'static str),
    /// The firewall did not follow.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A link could not be shaped or watched as it is to be now.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// There are no rules of ours.
    #[error(
        "this proxy has no rules in the firewall that could let connections bypass: it has no transparent listener, or runs with --no-rules"
    )]
    NoRules,
    /// The gate's thread is gone.
    #[error("the proxy is ending")]
    Ending,
}

/// A running proxy. Dropping it resets what it still carries and takes its rules away.
#[derive(Debug)]
pub struct Proxy {
    workers: Vec<Handle>,
    config: Mutex<Arc<Config>>,
    /// What the legs have of the kernel: their controllers, and the links that they leave through.
    kernel: Mutex<(Controllers, Option<Egress>)>,
    /// The way from the firewall, where that is ours.
    gate: Option<(mpsc::Sender<Note>, thread::JoinHandle<()>)>,
    log: Option<thread::JoinHandle<()>>,
    failures: Mutex<Option<mpsc::Receiver<Failure>>>,
    _mtu_probing: Option<Changed>,
}

#[derive(Debug)]
struct Handle {
    mailbox: Mailbox,
    turns: Arc<Turns>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Handle {
    /// Starts a worker, and returns when it listens. When it ends later without having been told to, it says so to `failures`.
    fn start(
        config: &Arc<Config>,
        failures: mpsc::Sender<Failure>,
        ties: impl FnOnce(mpsc::Receiver<Command>, Arc<Turns>) -> Ties,
    ) -> Result<Self, StartError> {
        let failed = |what| move |why| StartError::System { what, why };
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| StartError::System { what: "make an eventfd", why: errno.into() })?;
        let (commands, inbox) = mpsc::channel();
        let (tell, started) = mpsc::channel();
        let turns = Arc::new(Turns::default());
        let (config, at, ties) = (config.clone(), waker.as_raw_fd(), ties(inbox, turns.clone()));
        let (number, ended) = (ties.number, turns.clone());
        let name = format!("tandem-{number}");
        let work = move || {
            let worker = sys::own_descriptors(at)
                .map_err(failed("give a worker thread a descriptor table of its own"))
                .and_then(|waker| Worker::new(config, waker, ties));
            match worker {
                Ok(worker) => {
                    let _ = tell.send(Ok(()));
                    // The worker is gone after a panic, and with it all that its state could be wrong in.
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
        let thread = thread::Builder::new().name(name).spawn(work).map_err(failed("start a worker thread"))?;
        let handle = Handle { mailbox: Mailbox { commands, waker: Arc::new(waker) }, turns, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| handle),
            Err(_) => Err(StartError::System { what: "start a worker thread", why: std::io::Error::other("it panicked") }),
        }
    }
}

impl Proxy {
    /// Starts in the network namespace of the calling thread; returns when every listener listens and every rule is in place.
    /// `on_end` hears of each flow that ends, on the worker's thread: it must not block.
    pub fn start(mut config: Config, on_end: impl Fn(FlowRecord) + Send + Sync + 'static) -> Result<Self, StartError> {
        leg::raise_open_files();
        config.without_absent_families();
        let kernel = Mutex::new((config.prepare()?, Egress::of(config.profiles()).map_err(OpenError::from)?));
        config.rename_controllers();
        let failed = |what| move |why| StartError::System { what, why };
        let config = Arc::new(config);
        let on_end: OnEnd = Arc::new(on_end);
        let rules = config.rules();
        let (failed_parts, failures) = mpsc::channel();
        let failures = Mutex::new(Some(failures));
        // What has been started is stopped when a later step fails; declared first, it outlives what its threads listen to.
        let mut proxy = Proxy {
            workers: Vec::new(),
            config: Mutex::new(config.clone()),
            kernel,
            gate: None,
            log: None,
            failures,
            _mtu_probing: config.install_rules.then(kernel_setting::probe_mtu).flatten(),
        };
        let (log, log_thread) = flow_log::start().map_err(failed("start the log's thread"))?;
        proxy.log = Some(log_thread);
        let (names, questions) = mpsc::channel();
        let (notes, gate_inbox) = mpsc::channel();
        for number in 0..config.threads.max(1) {
            let ties = |inbox, turns| Ties {
                number,
                inbox,
                turns,
                on_end: on_end.clone(),
                gate: rules.is_some().then(|| notes.clone()),
                log: Some(log.clone()),
                names: names.clone(),
            };
            proxy.workers.push(Handle::start(&config, failed_parts.clone(), ties)?);
        }
        if config.listen.iter().any(|listen| matches!(listen.way, Way::Socks5 | Way::Bond)) {
            let mailboxes: Vec<Mailbox> = proxy.workers.iter().map(|worker| worker.mailbox.clone()).collect();
            let tell = move |worker: usize, answer| mailboxes[worker].send(Command::Resolved(answer));
            resolver::start(questions, tell).map_err(failed("start the threads that look names up"))?;
        }
        // Rules come last: until the listeners listen, connections pass unsplit.
        if let Some(rules) = rules {
            let limit = gate::memory_limit(&config);
            let gate = Gate::start(rules::Installed::install(rules).map_err(OpenError::from)?, limit, gate_inbox, failed_parts)
                .map_err(failed("start the thread that opens and shuts the gate"))?;
            proxy.gate = Some((notes, gate));
        }
        Ok(proxy)
    }

    /// Where the proxy says that a part of it has failed for good: whoever runs it should then end
    /// it. The other end is gone when the proxy has ended. None when it was asked for before.
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

    /// What all flows came to, those that are not over too.
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

    /// Asks the gate; none when there is none.
    fn ask<T>(&self, note: impl FnOnce(mpsc::Sender<T>) -> Note) -> Option<Result<T, ChangeError>> {
        let (notes, _) = self.gate.as_ref()?;
        let (reply, answer) = mpsc::channel();
        let asked = notes.send(note(reply));
        Some(asked.map_err(|_| ChangeError::Ending).and_then(|()| answer.recv().map_err(|_| ChangeError::Ending)))
    }

    /// What the firewall has counted; none when its rules are not ours.
    pub fn counted(&self) -> Option<Result<Counted, ChangeError>> {
        Some(self.ask(Note::Counted)?.and_then(|counted| Ok(counted?)))
    }

    /// Changes the prefixes whose connections bypass, whichever end is in them; returns the list as it then is.
    pub fn bypass(&self, change: Change) -> Result<Vec<Prefix>, ChangeError> {
        let answer = self.ask(|reply| Note::Bypass(change, reply)).ok_or(ChangeError::NoRules)?;
        Ok(answer??)
    }

    /// Takes another configuration for flows that come from now on: all of it, or nothing and an error.
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
        // Connections that have one of the controllers that go keep it.
        kernel.0 = controllers;
        config.rename_controllers();
        if let Some(answer) = self.ask(|reply| Note::Policy(config.policy.rules.clone(), reply)) {
            answer??;
        }
        if let Some((notes, _)) = &self.gate {
            let _ = notes.send(Note::Memory(gate::memory_limit(&config)));
        }
        let config = Arc::new(config);
        *present = config.clone();
        self.send_all(|| Command::Reload(config.clone()));
        Ok(())
    }

    /// Takes no new connections (they pass unsplit), and returns when those there are have ended.
    pub fn drain(&mut self) {
        self.begin_drain();
        self.join();
    }

    /// Takes no new connections from now on; those there are go on.
    pub fn begin_drain(&self) {
        self.ask(Note::Shut);
        self.send_all(|| Command::Drain);
    }

    /// Whether every worker has ended, as it does when drained.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.as_ref().is_none_or(thread::JoinHandle::is_finished))
    }

    /// What is known of the links whose capacity is.
    pub fn links(&self) -> Vec<LinkView> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).1.as_mut().map_or(Vec::new(), Egress::look)
    }

    fn join(&mut self) {
        let threads = self.workers.iter_mut().filter_map(|worker| worker.thread.take());
        for thread in threads.collect::<Vec<_>>() {
            // Whatever has ended it was told to those who ask for failures.
            let _ = thread.join();
        }
        // Those who sent notes and lines are gone: these end too, and the gate takes the rules with it.
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
        self.ask(Note::Shut);
        self.send_all(|| Command::Stop);
        self.join();
    }
}
