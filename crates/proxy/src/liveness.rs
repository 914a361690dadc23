//! Whether the event loop of each worker still turns: what a watchdog asks.

use rustix::fd::OwnedFd;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// What a worker shows of its event loop.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// How often it has turned.
    count: AtomicU64,
    /// The worker has ended as it was told to.
    ended: AtomicBool,
}

impl Turns {
    /// The loop turns once more. Only the worker itself calls this.
    pub(crate) fn turn(&self) {
        self.count.store(self.count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// The worker has ended as it was told to, and will turn no more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Relaxed);
    }
}

/// Watches the event loops of the workers of a proxy. Without a call nothing is woken, so that a
/// proxy without a watchdog pays nothing.
#[derive(Debug)]
pub struct Liveness(Vec<Watched>);

#[derive(Debug)]
struct Watched {
    turns: Arc<Turns>,
    waker: Arc<OwnedFd>,
    /// The count at the last check.
    seen: Option<u64>,
}

impl Liveness {
    pub(crate) fn of(workers: impl Iterator<Item = (Arc<Turns>, Arc<OwnedFd>)>) -> Self {
        Liveness(workers.map(|(turns, waker)| Watched { turns, waker, seen: None }).collect())
    }

    /// Whether every worker that has not ended has turned its event loop since the last check;
    /// wakes them all, so that idle ones turn theirs before the next.
    pub fn check(&mut self) -> bool {
        let mut all = true;
        for Watched { turns, waker, seen } in &mut self.0 {
            let count = turns.count.load(Relaxed);
            all &= *seen != Some(count) || turns.ended.load(Relaxed);
            *seen = Some(count);
            let _ = rustix::io::write(&**waker, &1u64.to_ne_bytes());
        }
        all
    }
}
