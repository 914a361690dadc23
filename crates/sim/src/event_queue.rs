//! Timers that are moved far more often than they fire.
//!
//! A timer has at most one live entry in the heap. Moving it to a later time only notes that time: the entry comes up early, finds
//! nothing to do, and is put back. So an acknowledgement that restarts a retransmission timer does not touch the heap.

use std::{cmp::Reverse, collections::BinaryHeap};

/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// Whose timer it is, and which of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// A connection, a flow or a source of cross traffic, as `what` has it.
    pub(crate) who: u32,
    pub(crate) what: What,
}

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A link's rate changes.
    Change,
    /// A look at everything.
    Look,
    /// A flow's application opens a connection.
    Open,
    /// It offers more.
    Offer,
    /// A UDP source sends.
    Cross,
    /// A connection's left end: retransmission, loss probe, reordering, SYN, window probe.
    Retransmit,
    /// Its pace lets the next segment go.
    Pace,
    /// Its right end: a delayed acknowledgement, or a SYN.
    Acknowledge,
    /// A bond looks whether anything of its transfer is late, whose number it is.
    Steer,
}

/// A timer that is set, stopped and moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    due: u64,
    queued: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Timer { due: NEVER, queued: NEVER }
    }
}

impl Timer {
    /// When it fires; [`NEVER`] while it is stopped.
    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// It fires no more.
    pub(crate) fn stop(&mut self) {
        self.due = NEVER;
    }

    /// Whether an entry that came up is its own, and it is time.
    pub(crate) fn fires(&mut self, at: u64, key: Key, timers: &mut Timers) -> bool {
        if self.queued != at {
            return false;
        }
        self.queued = NEVER;
        if self.due > at {
            if self.due != NEVER {
                let due = self.due;
                timers.set(self, key, due);
            }
            return false;
        }
        self.due = NEVER;
        true
    }
}

/// Every purpose, in order.
const PURPOSES: [What; 9] =
    [What::Change, What::Look, What::Open, What::Offer, What::Cross, What::Retransmit, What::Pace, What::Acknowledge, What::Steer];

/// An entry as one number, by which it is compared at once: when, whose, what for.
fn pack(at: u64, key: Key) -> u128 {
    u128::from(at) << 64 | u128::from(key.who) << 8 | u128::from(key.what as u8)
}

fn unpack(entry: u128) -> (u64, Key) {
    let what = PURPOSES[(entry & 0xff) as usize % PURPOSES.len()];
    ((entry >> 64) as u64, Key { who: (entry >> 8) as u32, what })
}

/// All timers' entries.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<u128>>,
}

impl Timers {
    /// Sets a timer, whatever it was set to.
    pub(crate) fn set(&mut self, timer: &mut Timer, key: Key, due: u64) {
        timer.due = due;
        if due < timer.queued {
            timer.queued = due;
            self.heap.push(Reverse(pack(due, key)));
        }
    }

    /// Something that happens once, at a time.
    pub(crate) fn once(&mut self, key: Key, at: u64) {
        self.heap.push(Reverse(pack(at, key)));
    }

    /// When the next entry comes up.
    pub(crate) fn next(&self) -> u64 {
        self.heap.peek().map_or(NEVER, |Reverse(entry)| (*entry >> 64) as u64)
    }

    /// The next entry.
    pub(crate) fn pop(&mut self) -> Option<(u64, Key)> {
        self.heap.pop().map(|Reverse(entry)| unpack(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { who: 0, what: What::Retransmit };

    #[test]
    fn entries_come_in_order_of_time_and_are_what_they_were() {
        let mut timers = Timers::default();
        for (number, what) in (0..).zip(PURPOSES) {
            timers.once(Key { who: u32::MAX - number, what }, u64::MAX - 1 - u64::from(number));
        }
        for (number, what) in (0..PURPOSES.len() as u32).zip(PURPOSES).rev() {
            assert_eq!(timers.pop(), Some((u64::MAX - 1 - u64::from(number), Key { who: u32::MAX - number, what })));
        }
        assert_eq!(timers.next(), NEVER);
    }

    /// When the timer fires from here on, and how many entries came up for that.
    fn run(timer: &mut Timer, timers: &mut Timers) -> (Vec<u64>, usize) {
        let (mut fired, mut entries) = (Vec::new(), 0);
        while let Some((at, key)) = timers.pop() {
            entries += 1;
            if timer.fires(at, key, timers) {
                fired.push(at);
            }
        }
        (fired, entries)
    }

    #[test]
    fn a_timer_that_is_moved_later_stays_one_entry() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        for due in 10..1000 {
            timers.set(&mut timer, KEY, due);
        }
        assert_eq!(run(&mut timer, &mut timers), (vec![999], 2));
    }

    #[test]
    fn a_timer_that_is_moved_earlier_fires_once() {
        let (mut timer, mut timers) = (Timer::default(), Timers::default());
        for due in [50, 20, 30] {
            timers.set(&mut timer, KEY, due);
        }
        assert_eq!(run(&mut timer, &mut timers).0, [30]);
        timers.set(&mut timer, KEY, 70);
        timer.stop();
        assert_eq!(run(&mut timer, &mut timers).0, [0; 0]);
    }
}
