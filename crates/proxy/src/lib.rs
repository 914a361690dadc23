//! Splits TCP connections.
//!
//! The way of a byte: `intercept` (who, where to) → `leg` (dial and tune) → `relay` (splice, bounded, back-pressured) →
//! `connection` (its life and its close); `meter` looks on. `rules` brings the traffic in and owns what it installs.
//! One worker a thread, each with its own listeners and its own epoll; workers share nothing on the data path.
//!
//! The accepted connection is the *near leg*, the dialled one the *far leg*, whichever way the data flows.

mod config;
mod connection;
mod ending;
mod intercept;
mod leg;
mod meter;
mod relay;
mod rules;
mod sys;
mod worker;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

pub use config::{Config, ConfigError, Listen};
pub use ending::Ending;
pub use leg::{LegProfile, available_controllers};
pub use meter::{DirectionStats, FlowRecord, FlowStats};
pub use rules::Rules;
pub use sys::{TcpInfo, clamp_window, force_receive_buffer, tcp_info, unsent};

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::{AsRawFd as _, OwnedFd},
};
use worker::{Command, OnEnd, Worker};

/// Why a proxy did not start: what was attempted, on what, why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration can't work on any machine, or not on this one.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener could not be opened.
    #[error("cannot listen on {address}: {why}; {cure}")]
    Listen {
        /// Where.
        address: String,
        /// The system's reason.
        why: std::io::Error,
        /// What to do about it.
        cure: &'static str,
    },
    /// The firewall or routing rules could not be installed.
    #[error(transparent)]
    Rules(#[from] rules::RulesError),
    /// Something else the system refused.
    #[error("cannot {what}: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's reason.
        why: std::io::Error,
    },
}

/// A running proxy. Dropping it resets what it still carries and takes its rules away.
#[derive(Debug)]
pub struct Proxy {
    workers: Vec<Handle>,
    rules: Option<rules::Installed>,
}

#[derive(Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    waker: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

impl Handle {
    /// Starts a worker, and returns when it listens.
    fn start(number: usize, config: &Arc<Config>, on_end: &OnEnd) -> Result<Self, StartError> {
        let failed = |what| move |why| StartError::System { what, why };
        let waker = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| StartError::System { what: "make an eventfd", why: errno.into() })?;
        let (commands, inbox) = mpsc::channel();
        let (tell, started) = mpsc::channel();
        let (config, on_end, at) = (config.clone(), on_end.clone(), waker.as_raw_fd());
        let work = move || {
            let worker = sys::own_descriptors(at)
                .map_err(failed("give a worker thread a descriptor table of its own"))
                .and_then(|waker| Worker::new(config, waker, inbox, on_end));
            match worker {
                Ok(worker) => {
                    let _ = tell.send(Ok(()));
                    worker.run();
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name(format!("tandem-{number}")).spawn(work).map_err(failed("start a worker thread"))?;
        let handle = Handle { commands, waker, thread: Some(thread) };
        match started.recv() {
            Ok(outcome) => outcome.map(|()| handle),
            Err(_) => Err(StartError::System { what: "start a worker thread", why: std::io::Error::other("it panicked") }),
        }
    }

    fn send(&self, command: Command) {
        // A worker that is gone has nothing left to be told.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }
}

impl Proxy {
    /// Starts in the network namespace of the calling thread; returns when every listener listens and every rule is in place.
    /// `on_end` hears of each flow that ends, on the worker's thread: it must not block.
    pub fn start(config: Config, on_end: impl Fn(FlowRecord) + Send + Sync + 'static) -> Result<Self, StartError> {
        config.check()?;
        let config = Arc::new(config);
        let on_end: OnEnd = Arc::new(on_end);
        // What has been started is stopped when a later step fails.
        let mut proxy = Proxy { workers: Vec::new(), rules: None };
        for number in 0..config.threads.max(1) {
            proxy.workers.push(Handle::start(number, &config, &on_end)?);
        }
        // Rules come last: until the listeners listen, connections pass unsplit.
        if let Some(rules) = config.rules() {
            proxy.rules = Some(rules.install()?);
        }
        Ok(proxy)
    }

    /// Every flow as it is now.
    pub fn flows(&self) -> Vec<FlowStats> {
        let (reply, answers) = mpsc::channel();
        for worker in &self.workers {
            worker.send(Command::Flows(reply.clone()));
        }
        drop(reply);
        let mut flows = Vec::new();
        while let Ok(part) = answers.recv_timeout(Duration::from_secs(5)) {
            flows.extend(part);
        }
        flows
    }

    /// Takes no new connections (they pass unsplit), and returns when those there are have ended.
    pub fn drain(&mut self) {
        self.begin_drain();
        self.join();
        self.rules = None;
    }

    /// Takes no new connections from now on; those there are go on.
    pub fn begin_drain(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.stop_intercepting();
        }
        for worker in &self.workers {
            worker.send(Command::Drain);
        }
    }

    /// Whether every worker has ended, as it does when drained.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.as_ref().is_none_or(thread::JoinHandle::is_finished))
    }

    fn join(&mut self) {
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.stop_intercepting();
        }
        for worker in &self.workers {
            worker.send(Command::Stop);
        }
        self.join();
    }
}
