//! The memory that the directions of an event loop may take together: how far every B may grow, and
//! what it may be at most while memory is short.
//!
//! Nothing here makes a system call. The owner of the event loop measures memory, and does so the
//! earlier the more [may have been taken](BufferBudget::growth) since.

use crate::buffer_law::START;

/// The most that any B may be at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferCap {
    /// Bytes.
    pub buffer: u64,
    /// Whether the bound of a receive queue applies at once, although the kernel then drops what
    /// the queue has no room for.
    pub is_strict: bool,
}

impl BufferCap {
    /// No limit: memory is not short.
    pub const NONE: Self = BufferCap { buffer: u64::MAX, is_strict: false };
}

impl Default for BufferCap {
    fn default() -> Self {
        Self::NONE
    }
}

/// The memory that may still be taken before buffers have to be limited, as of the last
/// measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferRoom {
    /// From how many bytes of [held-back](BufferBudget::held_back) queues on B is at most its
    /// share, and from how many on at once.
    pub tight_from: u64,
    /// See `tight_from`.
    pub strict_from: u64,
    /// What all directions may have together then, as B, bytes.
    pub shared: u64,
    /// Directions of other event loops that carry bulk data.
    pub other_bulk: u64,
    /// By how much B may be larger on trial, all together and with what is taken besides, bytes.
    pub for_trials: u64,
}

impl BufferRoom {
    /// No limit is known.
    pub const UNLIMITED: Self =
        BufferRoom { tight_from: u64::MAX, strict_from: u64::MAX, shared: u64::MAX, other_bulk: 0, for_trials: u64::MAX };
}

/// The least share: on a path whose segments have 64 KiB a smaller B would stall.
pub const LEAST_SHARE: u64 = 64 * 1024;

/// The share of each of these directions in a sum of B, but at least `least`, bytes. Shares are
/// powers of two, so that not every flow that begins or ends changes all others.
pub fn share_of(shared: u64, directions: u64, least: u64) -> u64 {
    let share = shared / directions.max(1);
    if share == 0 { least } else { (1 << share.ilog2()).max(least) }
}

/// The memory for the directions of an event loop.
#[derive(Debug, Clone, Copy)]
pub struct BufferBudget {
    /// How much every B that follows its flow may exceed the start, all together, bytes. B is a
    /// bound, not memory in use, and most connections stay below the start.
    limit: Option<u64>,
    granted: u64,
    cap: BufferCap,
    /// Directions that carry bulk data.
    bulk: usize,
    growth: u64,
    held_back: u64,
    /// By how much B is larger on trial, all together, bytes.
    on_trial: u64,
    room: BufferRoom,
}

impl Default for BufferBudget {
    fn default() -> Self {
        let (cap, room) = (BufferCap::NONE, BufferRoom::UNLIMITED);
        BufferBudget { limit: None, granted: 0, cap, bulk: 0, growth: 0, held_back: 0, on_trial: 0, room }
    }
}

impl BufferBudget {
    /// Sets the limit of every B that follows its flow; none: there is no limit. What was granted
    /// before stays granted.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Sets the most that any B may be, as of the last measurement, and when it has to be less
    /// before the next one. Directions follow when they are called next.
    pub fn set_cap(&mut self, cap: BufferCap, room: BufferRoom) {
        (self.cap, self.room) = (cap, room);
    }

    /// The most that any B may be.
    pub fn cap(&self) -> BufferCap {
        let BufferRoom { tight_from, strict_from, shared, other_bulk, for_trials: _ } = self.room;
        if self.held_back < tight_from {
            return self.cap;
        }
        let share = share_of(shared, self.bulk as u64 + other_bulk, LEAST_SHARE);
        BufferCap { buffer: self.cap.buffer.min(share), is_strict: self.cap.is_strict || self.held_back >= strict_from }
    }

    /// The receive queues of sources that are not read, since their destinations take nothing, as
    /// large as they may become by their own B, bytes. They fill within a round trip.
    pub fn held_back(&self) -> u64 {
        self.held_back
    }

    /// What a direction holds back has changed.
    pub(crate) fn change_held_back(&mut self, before: u64, now: u64) {
        self.held_back = (self.held_back + now).saturating_sub(before);
    }

    /// The number of directions that carry bulk data.
    pub fn bulk(&self) -> usize {
        self.bulk
    }

    /// A direction carries bulk data from now on, or has ended.
    pub(crate) fn change_bulk(&mut self, carries: bool) {
        self.bulk = if carries { self.bulk + 1 } else { self.bulk.saturating_sub(1) };
    }

    /// Notes that this many bytes of memory may be taken: those that were written to a socket, and
    /// the receive queue of a leg that is not read.
    pub fn note_growth(&mut self, bytes: u64) {
        self.growth = self.growth.saturating_add(bytes);
    }

    /// Bytes that may have been taken since the last call of [`measured`](Self::measured).
    pub fn growth(&self) -> u64 {
        self.growth
    }

    /// Memory was measured.
    pub fn measured(&mut self) {
        self.growth = 0;
    }

    /// Has B of a direction be larger by so many bytes on trial, if this part (a divisor) of the
    /// room for all trials is enough: whether the destination takes what comes is not known yet.
    pub(crate) fn begin_trial(&mut self, extra: u64, part: u64) -> bool {
        let taken = [self.on_trial, self.held_back, self.growth, extra].into_iter().fold(0, u64::saturating_add);
        let has_room = taken <= self.room.for_trials / part;
        self.on_trial += if has_room { extra } else { 0 };
        has_room
    }

    /// A trial has ended.
    pub(crate) fn end_trial(&mut self, extra: u64) {
        self.on_trial = self.on_trial.saturating_sub(extra);
    }

    /// How much this B may grow now, bytes.
    pub(crate) fn spare(&self, buffer: u64) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.granted) + START.saturating_sub(buffer))
    }

    /// A B has changed.
    pub(crate) fn change(&mut self, before: u64, now: u64) {
        let beyond = |buffer: u64| buffer.saturating_sub(START);
        self.granted = (self.granted + beyond(now)).saturating_sub(beyond(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_will_fill_limit_buffers_before_memory_is_measured() {
        let mut budget = BufferBudget::default();
        budget.change_held_back(0, 1 << 40);
        assert_eq!(budget.cap(), BufferCap::NONE);
        let room = BufferRoom { tight_from: 100, strict_from: 200, shared: 40 << 20, other_bulk: 2, for_trials: 0 };
        budget.set_cap(BufferCap::NONE, room);
        budget.change_held_back(1 << 40, 99);
        assert_eq!(budget.cap(), BufferCap::NONE);
        budget.change_bulk(true);
        budget.change_held_back(0, 1);
        // 40 MiB / 3, rounded down to a power of two.
        assert_eq!(budget.cap(), BufferCap { buffer: 8 << 20, is_strict: false });
        budget.change_held_back(0, 100);
        assert_eq!(budget.cap(), BufferCap { buffer: 8 << 20, is_strict: true });
        assert_eq!(share_of(40 << 20, 1 << 30, LEAST_SHARE), LEAST_SHARE);
        assert_eq!(share_of(0, 0, 5), 5);
    }

    #[test]
    fn what_is_granted_is_bounded_and_comes_back() {
        let mut budget = BufferBudget::default();
        assert_eq!(budget.spare(START), u64::MAX);
        budget.set_limit(Some(1 << 20));
        budget.change(START, 3 * START);
        assert_eq!(budget.spare(START), (1 << 20) - 2 * START);
        // Below the start nothing is granted, and nothing given back.
        budget.change(START, START / 4);
        budget.change(START / 4, START);
        assert_eq!(budget.spare(START), (1 << 20) - 2 * START);
        budget.change(3 * START, START);
        assert_eq!(budget.spare(START), 1 << 20);
    }
}
