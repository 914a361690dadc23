//! What all threads of a soak share.

use crate::{ledger::Ledger, payload::Payload};
use lab::Host;
use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// How often a waiting endpoint checks whether it must stop.
pub(crate) const STEP: Duration = Duration::from_millis(500);

/// State that all threads share.
#[derive(Clone)]
pub(crate) struct SoakState {
    pub(crate) payload: Arc<Payload>,
    pub(crate) ledger: Arc<Ledger>,
    /// Set at the end of the soak: conversations end, and clients make no new connections.
    pub(crate) stop: Arc<AtomicBool>,
    /// Connections that servers have open.
    pub(crate) open: Arc<AtomicU64>,
    /// How long clients pause between connections, µs. It is adjusted to keep the machine at half
    /// load.
    pub(crate) pause_us: Arc<AtomicU64>,
    pub(crate) client: Arc<Host>,
    pub(crate) server: Arc<Host>,
}

impl SoakState {
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Sleeps for this time, or until the soak is over.
    pub(crate) fn rest(&self, time: Duration) {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero() && !self.is_over()) {
            thread::sleep(left.min(STEP));
        }
    }

    /// Makes a host drop all packets of an aborting connection from now on, in both directions.
    pub(crate) fn silence(&self, host: &Host, port: u16) {
        let element = format!("{{ {port} timeout 10m }}");
        let done = host.command("nft").args(["add", "element", "inet", "soak", "dead", &element]).stdin(Stdio::null()).status();
        if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
            self.ledger.violation(format!("the soak could not silence a connection: {done:?}"));
        }
    }
}
