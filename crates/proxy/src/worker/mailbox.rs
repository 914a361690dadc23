//! How other threads tell a worker what to do.

use super::sys;
use crate::{config::Config, meter::Totals, resolver::Answer};
use relay::FlowStats;
use rustix::fd::OwnedFd;
use std::sync::{Arc, mpsc};

/// What a worker may be told.
#[derive(Debug)]
pub(crate) enum Command {
    /// Tell every flow, some at a time.
    Flows(mpsc::Sender<Vec<FlowStats>>),
    /// Tell what all flows came to, those that are not over too.
    Totals(mpsc::Sender<Totals>),
    /// New flows by this from now on.
    Reload(Arc<Config>),
    /// A name has been looked up.
    Resolved(Answer),
    /// Take no new connections; end when the last one has.
    Drain,
    /// Reset every connection and end.
    Stop,
}

/// Where a worker is told things.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    pub(crate) commands: mpsc::Sender<Command>,
    /// Owned by threads of the main descriptor table: a worker must never hold one.
    pub(crate) waker: Arc<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn send(&self, command: Command) {
        // A worker that is gone has nothing left to be told.
        let _ = self.commands.send(command);
        sys::signal(&self.waker);
    }
}
