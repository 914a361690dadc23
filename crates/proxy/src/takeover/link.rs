//! The connection of a proxy that drains to the one that took over from it.

use super::messages::{FromEarlier, ToEarlier};
use crate::{
    control::write_line,
    meter::{FlowView, Totals},
    running::Proxy,
};
use rustix::{
    fd::OwnedFd,
    process::{Signal, pidfd_send_signal},
};
use std::{
    io::{BufRead as _, BufReader},
    os::unix::net::UnixStream,
    sync::{Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Time limit for sending an answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to the proxy that took over. This proxy drains, and answers its queries.
#[derive(Debug)]
pub struct EarlierLink {
    /// None: this proxy has said that it ends.
    stream: Mutex<Option<UnixStream>>,
    /// The process that took over, as the kernel names it in this process's PID namespace.
    pub pid: u32,
    /// The same process, for signals.
    process: OwnedFd,
    /// Its version.
    pub version: String,
}

impl EarlierLink {
    pub(super) fn new(stream: UnixStream, pid: u32, process: OwnedFd, version: String) -> Self {
        EarlierLink { stream: Mutex::new(Some(stream)), pid, process, version }
    }

    /// Has the process that took over end, by SIGTERM. It may have ended already.
    pub fn stop_next(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::TERM);
    }

    fn send(&self, message: &FromEarlier, is_last: bool) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails if the next proxy has ended.
        if let Some(open) = &*stream {
            let _ = write_line(open, message, Instant::now() + SEND_TIMEOUT);
        }
        if is_last {
            *stream = None;
        }
    }

    /// Says that this proxy ends, with these totals of its flows.
    pub fn end(&self, totals: Totals) {
        self.send(&FromEarlier::Ended(totals), true);
    }

    /// Answers queries on the calling thread until the next proxy closes the connection, or this
    /// one ends. `stop` is called when the next proxy wants this one to end.
    pub(super) fn serve(&self, queries: UnixStream, proxy: &Weak<Proxy>, stop: impl Fn()) {
        if queries.set_read_timeout(None).is_err() {
            return;
        }
        for line in BufReader::new(queries).lines() {
            let Ok(query) = line.and_then(|line| Ok(serde_json::from_str::<ToEarlier>(&line)?)) else { return };
            // The reference is kept only while the answer is made.
            let Some(proxy) = proxy.upgrade() else { return };
            let json = |value: serde_json::Result<serde_json::Value>| value.unwrap_or_default();
            let answer = match query {
                ToEarlier::Flows => json(serde_json::to_value(proxy.flows().iter().map(FlowView::of).collect::<Vec<_>>())),
                ToEarlier::Totals => json(serde_json::to_value(proxy.totals())),
                ToEarlier::Stop => {
                    stop();
                    serde_json::Value::Null
                }
            };
            drop(proxy);
            self.send(&FromEarlier::Answer(answer), false);
        }
    }
}
