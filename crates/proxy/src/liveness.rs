//! Liveness of the workers' event loops, for a watchdog.

use rustix::fd::OwnedFd;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Progress of a worker's event loop.
#[derive(Debug, Default)]
pub(crate) struct LoopProgress {
    /// Number of turns so far.
    count: AtomicU64,
    /// The worker has ended by a command.
    ended: AtomicBool,
}

impl LoopProgress {
    /// Counts a turn. Only the worker itself calls this.
    pub(crate) fn count_turn(&self) {
        self.count.store(self.count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Notes that the worker has ended by a command.
    pub(crate) fn end(&self) {
        self.ended.store(true, Relaxed);
    }
}

/// Checks the event loops of a proxy's workers. A watchdog calls [`check`](Self::check) at
/// intervals; without calls it costs nothing.
#[derive(Debug)]
pub struct Liveness(Vec<WatchedWorker>);

#[derive(Debug)]
struct WatchedWorker {
    progress: Arc<LoopProgress>,
    waker: Arc<OwnedFd>,
    /// Number of turns at the last check.
    seen: Option<u64>,
}

impl Liveness {
    pub(crate) fn of(workers: impl Iterator<Item = (Arc<LoopProgress>, Arc<OwnedFd>)>) -> Self {
        Liveness(workers.map(|(progress, waker)| WatchedWorker { progress, waker, seen: None }).collect())
    }

    /// Whether the event loop of every worker has turned since the last check, or has ended by a
    /// command. Wakes all workers, so that idle ones turn before the next check.
    pub fn check(&mut self) -> bool {
        let mut all = true;
        for WatchedWorker { progress, waker, seen } in &mut self.0 {
            let count = progress.count.load(Relaxed);
            all &= *seen != Some(count) || progress.ended.load(Relaxed);
            *seen = Some(count);
            let _ = rustix::io::write(&**waker, &1u64.to_ne_bytes());
        }
        all
    }
}
