//! Signals of a service, as events of one channel. They are blocked and waited for instead of
//! handled: a handler has to hand a signal on by a system call, and if that fails, it is lost.

use crate::CommandError;
use nix::sys::signal::{SigSet, Signal};
use proxy::ReloadReport;
use std::{sync::mpsc, thread, time::Duration};

/// Where the answer to a request for a reload goes.
pub(crate) type ReloadReply = mpsc::Sender<Result<ReloadReport, String>>;

/// What a service waits for.
#[derive(Debug)]
pub(crate) enum ServiceEvent {
    /// SIGHUP, or a request of the control socket, which awaits a reply.
    Reload(Option<ReloadReply>),
    /// SIGTERM or SIGINT.
    Stop,
    /// A part of the service has failed permanently.
    Failure,
    /// Another process has taken over.
    Left,
}

/// Receives [`ServiceEvent`]s.
#[derive(Debug)]
pub(crate) struct ServiceEvents {
    received: mpsc::Receiver<ServiceEvent>,
    sender: mpsc::Sender<ServiceEvent>,
}

impl ServiceEvents {
    /// Blocks SIGTERM and SIGINT, and SIGHUP if `reloads`, in this thread and those that it starts
    /// from now on. To be called before the service starts threads.
    ///
    /// # Errors
    /// The kernel blocks no signals or starts no thread.
    pub(crate) fn start(reloads: bool) -> Result<Self, CommandError> {
        let failed = |why: &dyn std::fmt::Display| CommandError::Failed(format!("cannot wait for signals: {why}"));
        let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().chain(reloads.then_some(Signal::SIGHUP)).collect();
        signals.thread_block().map_err(|why| failed(&why))?;
        let (sender, received) = mpsc::channel();
        let events = sender.clone();
        let wait = move || {
            loop {
                let event = match signals.wait() {
                    Ok(Signal::SIGHUP) => ServiceEvent::Reload(None),
                    Ok(_) => ServiceEvent::Stop,
                    // No signal has been taken.
                    Err(_) => continue,
                };
                if events.send(event).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("tandem-signals".into()).spawn(wait).map_err(|why| failed(&why))?;
        Ok(ServiceEvents { received, sender })
    }

    /// Where a part of the service reports that it has failed.
    pub(crate) fn sender(&self) -> mpsc::Sender<ServiceEvent> {
        self.sender.clone()
    }

    /// Waits for the next event.
    pub(crate) fn next(&self) -> ServiceEvent {
        // Not disconnected: this has a sender itself.
        self.received.recv().unwrap_or(ServiceEvent::Stop)
    }

    /// Waits at most this long for a signal to stop, or for a failure.
    pub(crate) fn ends_within(&self, patience: Duration) -> bool {
        matches!(self.received.recv_timeout(patience), Ok(ServiceEvent::Stop | ServiceEvent::Failure))
    }
}
