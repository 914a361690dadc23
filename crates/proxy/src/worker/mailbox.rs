//! Commands from other threads to a worker.

use super::{flow_reports::FlowRequest, sys};
use crate::{config::ProxyConfig, meter::Totals, resolver::LookupResult};
use rustix::fd::OwnedFd;
use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

/// Time limit for the answer of a worker to a command.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A command to a worker.
#[derive(Debug)]
pub(crate) enum WorkerCommand {
    /// Report flows, in several messages.
    Flows(FlowRequest),
    /// Report the totals of all flows, open ones too, with the worker's number.
    Totals(mpsc::Sender<(usize, Totals)>),
    /// Apply this configuration to new flows.
    Reload(Arc<ProxyConfig>),
    /// Take the result of a name lookup.
    Resolved(LookupResult),
    /// Accept connections from now on.
    Accept,
    /// Accept no new connections; end with the last one.
    Drain,
    /// As `Drain`, and close the listeners at once: another process accepts from them.
    Leave,
    /// Reset every connection and end.
    Stop,
}

/// Sends commands to a worker.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    pub(crate) commands: mpsc::Sender<WorkerCommand>,
    /// The eventfd that wakes the worker. It belongs to the main descriptor table: a worker, which
    /// has its own table, must never hold a clone.
    pub(crate) waker: Arc<OwnedFd>,
}

impl Mailbox {
    /// Queues a command and wakes the worker.
    pub(crate) fn send(&self, command: WorkerCommand) {
        // Fails only if the worker has ended.
        let _ = self.commands.send(command);
        sys::signal(&self.waker);
    }
}
