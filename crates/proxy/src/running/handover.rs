//! What a proxy does when another process takes over from it, or when it takes over itself.

use super::{HandedRules, Proxy};
use crate::{
    config::ProxyConfig,
    experiment::{Results, RunningExperiment},
    gate::{GateCommand, HandoverDecision},
    listeners,
    meter::Totals,
    takeover::OfferedListener,
    worker::WorkerCommand,
};
use intercept::{Egress, OpenError};
use rustix::fd::OwnedFd;
use std::{
    io,
    os::unix::net::UnixStream,
    sync::{PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Time limit for workers that are to reset their flows.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Proxy {
    /// The listeners, with a copy of the socket of each.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn offer(&self) -> io::Result<(Vec<OfferedListener>, Vec<OwnedFd>)> {
        let (config, listeners) = (self.config(), self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        let mut offered = (Vec::new(), Vec::new());
        for listener in listeners.iter() {
            offered.0.push(listeners::offered(&config, listener));
            offered.1.push(listener.socket.socket.try_clone()?.into());
        }
        Ok(offered)
    }

    /// Whether this proxy has firewall rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.gate.is_some()
    }

    /// Copies of the rules for another process, and where to say what becomes of them: until then
    /// this process does not touch them. None: there are no rules.
    ///
    /// # Errors
    /// Why the rules cannot be handed over.
    pub(crate) fn hand_over_rules(&self) -> Result<Option<(HandedRules, mpsc::Sender<HandoverDecision>)>, String> {
        let (decision, decided) = mpsc::channel();
        let Some(answer) = self.ask_gate(|reply| GateCommand::HandOver(reply, decided)) else { return Ok(None) };
        let handed = answer.map_err(|error| error.to_string())?;
        handed.map(|rules| Some((rules, decision))).map_err(|why| format!("cannot hand over the firewall's rules: {why}"))
    }

    /// What the experiment has measured, for the next process.
    pub(crate) fn measured(&self) -> Results {
        self.experiment().as_ref().map(RunningExperiment::results).unwrap_or_default()
    }

    /// Makes rules that were taken over belong to this process.
    pub(crate) fn keep_rules(&self) {
        if let Some((commands, _)) = &self.gate {
            let _ = commands.send(GateCommand::Keep);
        }
    }

    /// The connections to processes that drain, and the totals of those that have ended.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn earlier_connections(&self) -> io::Result<(Vec<OwnedFd>, Totals)> {
        let mut earlier = self.earlier();
        Ok((earlier.connections()?, earlier.past()))
    }

    /// Adds a process from which this one has taken over.
    pub(crate) fn add_earlier(&self, stream: UnixStream) {
        self.earlier().add(stream);
    }

    /// The number of processes that drain since this one took over from them.
    pub fn draining_processes(&self) -> usize {
        self.earlier().count()
    }

    /// Shapes and watches the links, which another process has shaped so far.
    ///
    /// # Errors
    /// A link cannot be set up as its profile says.
    pub(super) fn take_over_links(&self) -> Result<(), OpenError> {
        let egress = Egress::of(self.config().profiles(), &self.link_uses)?;
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).1 = egress;
        Ok(())
    }

    /// Sets the links up again after another process has failed to take over, which may have
    /// changed them.
    pub(crate) fn resume_links(&self) {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = kernel.1.as_mut().map(|egress| egress.change(ProxyConfig::profiles(&self.config()))) {
            tracing::error!("cannot set the links up again after a takeover that failed: {error}");
        }
    }

    /// Leaves everything to the process that has taken over: accepts no connections any more, and
    /// ends when the last flow has ended. The rules have been left already.
    pub(crate) fn leave(&self) {
        // Only one process reads the packets of an experiment.
        *self.experiment() = None;
        self.memory.leave();
        self.close_listeners();
        self.send_all(|| WorkerCommand::Leave);
        if let Some((records, _)) = &self.records {
            records.leave();
        }
        if let Some(egress) = self.kernel.lock().unwrap_or_else(PoisonError::into_inner).1.take() {
            egress.leave();
        }
        self.earlier().leave();
    }

    /// Resets the flows of this process, and returns the totals of all that it had, when its
    /// workers have ended. To be called after another process has taken over.
    pub fn end(&self) -> Totals {
        if !self.have_workers_ended() {
            self.send_all(|| WorkerCommand::Stop);
        }
        let begun = Instant::now();
        while !self.have_workers_ended() && begun.elapsed() < STOP_TIMEOUT {
            thread::sleep(Duration::from_millis(5));
        }
        self.own_totals()
    }
}
