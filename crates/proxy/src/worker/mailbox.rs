//! How other threads tell a worker what to do.

use super::sys;
use crate::{config::Config, meter::Totals, resolver::Answer};
use relay::FlowStats;
use rustix::fd::OwnedFd;
use std::sync::{Arc, mpsc};

/// What a worker may be told to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Report every flow, some at a time.
    Flows(mpsc::Sender<Vec<FlowStats>>),
    /// Report the totals of all flows, those that are not over too.
    Totals(mpsc::Sender<Totals>),
    /// Take this configuration for new flows.
    Reload(Arc<Config>),
    /// A name has been looked up.
    Resolved(Answer),
    /// Take no new connections; end when the last one has.
    Drain,
    /// Reset every connection and end.
    Stop,
}

/// Where a worker gets its commands.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    pub(crate) commands: mpsc::Sender<Command>,
    /// Owned by threads of the main descriptor table: a worker must never hold one.
    pub(crate) waker: Arc<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn send(&self, command: Command) {
        // A worker that has ended needs no more commands.
        let _ = self.commands.send(command);
        sys::signal(&self.waker);
    }
}
