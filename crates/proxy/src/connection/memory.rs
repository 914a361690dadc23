//! The memory of a connection, and whether it is stuck.

use super::Connection;
use relay::PlainLeg;
use std::time::{Duration, Instant};

/// What was found when the connection's sockets were asked last.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemorySample {
    /// Kernel memory of both sockets, bytes.
    sockets: u64,
    /// Bytes that either peer has sent and acknowledged, and since when they have not changed.
    progress: u64,
    since: Instant,
    checked: Instant,
}

/// How often it is asked whether a connection makes progress.
const PROGRESS_CHECK: Duration = Duration::from_secs(1);

impl MemorySample {
    pub(super) fn new(now: Instant) -> Self {
        MemorySample { sockets: 0, progress: 0, since: now, checked: now }
    }
}

impl Connection {
    /// Asks the sockets what they take, and, if that is at least `least` bytes, whether anything
    /// has moved.
    pub(crate) fn ask_memory(&mut self, least: u64, now: Instant) {
        let legs = [&self.near, &self.far];
        self.memory.sockets = legs.map(|leg| leg.memory().unwrap_or(0)).into_iter().sum();
        let since = now.saturating_duration_since(self.memory.checked);
        if self.memory.sockets + self.in_hand() < least {
            (self.memory.since, self.memory.checked) = (now, now);
        } else if since >= PROGRESS_CHECK {
            // A receiver that reads slowly acknowledges long before the relay can write again.
            let moved = |leg: &PlainLeg| leg.progress().unwrap_or(0);
            let progress = legs.map(moved).into_iter().sum::<u64>() + self.up.carried() + self.down.carried();
            if progress != self.memory.progress {
                (self.memory.progress, self.memory.since) = (progress, now);
            }
            self.memory.checked = now;
        }
    }

    /// Kernel memory of its sockets when they were last asked, bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.sockets
    }

    /// Bytes in its pipes and buffers.
    pub(crate) fn in_hand(&self) -> u64 {
        (self.up.in_hand() + self.down.in_hand()) as u64
    }

    /// Whether nothing has moved for so long, by what was asked just now and before. In the time
    /// between two questions bytes may have moved without being noticed.
    pub(crate) fn is_stuck(&self, limit: Duration, now: Instant) -> bool {
        let MemorySample { since, checked, .. } = self.memory;
        let is_fresh = now.saturating_duration_since(checked) < 2 * PROGRESS_CHECK;
        !self.is_dialling() && is_fresh && checked.saturating_duration_since(since) >= limit
    }
}
