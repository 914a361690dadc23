//! Statistics of a connection, and its samples.

use super::Connection;
use crate::measure::FlowSamples;
use intercept::{leg, sys};
use relay::{Direction, DirectionStats, FlowMeasurements, FlowStats};
use rustix::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

impl Connection {
    /// Statistics of the flow without the lengths of its queues, for its end.
    pub(crate) fn last_stats(&self, now: Instant) -> FlowStats {
        let direction = |direction: &Direction, destination: BorrowedFd<'_>| DirectionStats {
            moved: direction.carried(),
            in_hand: direction.in_hand(),
            unacknowledged: Some(unacknowledged(direction, destination)),
            buffer: direction.adapted_buffer(),
            ..DirectionStats::default()
        };
        FlowStats {
            client: self.client,
            server: self.server,
            age: now - self.born,
            near: sys::tcp_info(&self.near).unwrap_or_default(),
            far: sys::tcp_info(&self.far).unwrap_or_default(),
            up: direction(&self.up, self.far.as_fd()),
            down: direction(&self.down, self.near.as_fd()),
            control: Default::default(),
            drops: [0; 2],
            accounts: [None, None],
            multipath: None,
            measured: FlowMeasurements {
                profiles: self.profiles,
                handshakes: self.handshakes,
                phases: self.samples.as_ref().map(|samples| samples.phases).unwrap_or_default(),
                most_held: self.samples.as_ref().map(|samples| samples.most_held).unwrap_or_default(),
            },
        }
    }

    /// What was sampled of the flow; none: it has not lived long enough.
    pub(crate) fn samples(&self) -> Option<&FlowSamples> {
        self.samples.as_deref()
    }

    /// Has `add` add a sample, unless the flow is younger than `least`. Returns whether it was
    /// sampled.
    pub(crate) fn sample(&mut self, least: Duration, now: Instant, add: impl FnOnce(&FlowStats, &mut FlowSamples)) -> bool {
        if self.is_dialling() || now - self.born < least {
            return false;
        }
        let stats = self.stats_of_queues(now);
        let [near, far] = self.handshakes.map(Option::unwrap_or_default);
        let begun = self.dialled_at + far;
        add(&stats, self.samples.get_or_insert_with(|| Box::new(FlowSamples::new(begun, near + far))));
        true
    }

    /// Statistics of the flow.
    pub(crate) fn stats(&self, now: Instant) -> FlowStats {
        let control = [&self.near, &self.far].map(|leg| leg::controller_of(leg.socket()));
        let accounts = self.samples.as_ref().map(|samples| [0, 1].map(|at| samples.accounts[at].account.shares())).unwrap_or_default();
        FlowStats { control, accounts, ..self.stats_of_queues(now) }
    }

    /// Statistics of the flow without the names of its controllers.
    fn stats_of_queues(&self, now: Instant) -> FlowStats {
        let queues = |stats: &mut DirectionStats, source: BorrowedFd<'_>, destination: BorrowedFd<'_>| {
            let memory = sys::receive_memory(source).unwrap_or_default();
            stats.received = sys::received(source);
            // Data in order is readable: memory without readable data holds packets beyond a hole.
            stats.has_hole = stats.received == 0 && memory.used > 0;
            stats.unsent = sys::unsent(destination).unwrap_or(0);
            memory.drops
        };
        let mut stats = self.last_stats(now);
        stats.drops =
            [queues(&mut stats.up, self.near.as_fd(), self.far.as_fd()), queues(&mut stats.down, self.far.as_fd(), self.near.as_fd())];
        stats
    }

    /// Bytes carried so far, up and down.
    pub(crate) fn carried(&self) -> [u64; 2] {
        [self.up.carried(), self.down.carried()]
    }

    /// Bytes acknowledged as of the last [`Self::ask_acknowledged`], up and down; those carried
    /// since are included.
    pub(crate) fn acknowledged_bytes(&self) -> [u64; 2] {
        let of = |carried: u64, queued: u32| carried.saturating_sub(queued.into());
        [of(self.up.carried(), self.unacknowledged[0]), of(self.down.carried(), self.unacknowledged[1])]
    }

    /// Asks the kernel what is acknowledged. Returns the number of system calls.
    pub(crate) fn ask_acknowledged(&mut self) -> usize {
        self.unacknowledged =
            [(&self.up, self.far.as_fd()), (&self.down, self.near.as_fd())].map(|(direction, leg)| unacknowledged(direction, leg) as u32);
        [&self.up, &self.down].into_iter().filter(|direction| direction.carried() >= BULK).count()
    }
}

/// A direction that has carried less is not asked for what is acknowledged, so that short flows
/// cost no system call: it counts as acknowledged.
const BULK: u64 = 64 * 1024;

/// Payload of a direction in the send queue of its destination that is not acknowledged, bytes.
fn unacknowledged(direction: &Direction, destination: BorrowedFd<'_>) -> usize {
    if direction.carried() < BULK { 0 } else { sys::unacknowledged(destination).unwrap_or(0) }
}
