//! The event queue: one-shot events, and timers that are moved far more often than they fire.
//!
//! A timer has at most one live entry in the heap. Moving a timer to a later time only stores that
//! time: its entry surfaces early, finds that the timer is not due, and is inserted again.
//! Restarting a retransmission timer at each acknowledgement therefore leaves the heap alone.

use std::{cmp::Reverse, collections::BinaryHeap};

/// A time that is never reached, ns.
pub(crate) const NEVER: u64 = u64::MAX;

/// What an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventKey {
    /// Index of a connection, a flow, a transfer or a source of cross traffic, depending on `kind`.
    pub(crate) target: u32,
    pub(crate) kind: ScheduledEventKind,
}

/// The kinds of events. Of events at the same time and with the same target, the kind that is
/// listed first is handled first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScheduledEventKind {
    /// The rate of a link changes.
    RateChange,
    /// A sample of the whole simulation is due.
    Sample,
    /// A flow opens its connection, or the next transfer arrives.
    FlowStart,
    /// The application of a flow writes more data.
    ApplicationWrite,
    /// A source of cross traffic sends a packet.
    CrossTraffic,
    /// The timer of a connection's sender: handshake, retransmission, tail loss probe, reordering,
    /// window probe, receipt request.
    SenderTimer,
    /// Pacing permits the next segment of a sender.
    Pacing,
    /// The timer of a connection's receiver: handshake, delayed acknowledgement.
    ReceiverTimer,
    /// The bond of a transfer checks for overdue data.
    BondCheck,
    /// The timer of a connection at an agent. Its target is the number of the timer.
    AgentTimer,
    /// A browser, or a client of request-response, acts.
    WebClient,
    /// A server sends the next response over a connection.
    WebServer,
}

/// A timer that can be set, moved and stopped. Its entries are in an [`EventQueue`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer {
    due: u64,
    /// Time of the live entry in the heap, [`NEVER`] if there is none.
    queued_at: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Timer { due: NEVER, queued_at: NEVER }
    }
}

impl Timer {
    /// When it expires, ns; [`NEVER`] while it is stopped.
    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// Stops it.
    pub(crate) fn stop(&mut self) {
        self.due = NEVER;
    }

    /// To be called for each entry of this timer's key that surfaces at time `at`. Returns whether
    /// the timer has expired: not if the entry is obsolete, or the timer was stopped or moved
    /// later.
    pub(crate) fn expired(&mut self, at: u64, key: EventKey, events: &mut EventQueue) -> bool {
        if self.queued_at != at {
            return false;
        }
        self.queued_at = NEVER;
        if self.due > at {
            if self.due != NEVER {
                let due = self.due;
                events.set_timer(self, key, due);
            }
            return false;
        }
        self.due = NEVER;
        true
    }
}

/// Every kind, in the order of its discriminant.
const ALL_KINDS: [ScheduledEventKind; 12] = [
    ScheduledEventKind::RateChange,
    ScheduledEventKind::Sample,
    ScheduledEventKind::FlowStart,
    ScheduledEventKind::ApplicationWrite,
    ScheduledEventKind::CrossTraffic,
    ScheduledEventKind::SenderTimer,
    ScheduledEventKind::Pacing,
    ScheduledEventKind::ReceiverTimer,
    ScheduledEventKind::BondCheck,
    ScheduledEventKind::AgentTimer,
    ScheduledEventKind::WebClient,
    ScheduledEventKind::WebServer,
];

/// An entry as one integer, so that one comparison orders entries: time, target, kind.
fn pack(at: u64, key: EventKey) -> u128 {
    u128::from(at) << 64 | u128::from(key.target) << 8 | u128::from(key.kind as u8)
}

fn unpack(entry: u128) -> (u64, EventKey) {
    let kind = ALL_KINDS[(entry & 0xff) as usize % ALL_KINDS.len()];
    ((entry >> 64) as u64, EventKey { target: (entry >> 8) as u32, kind })
}

/// The entries of all timers and one-shot events, ordered by time.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<u128>>,
}

impl EventQueue {
    /// Sets a timer to `due` ns, whether or not it was set before.
    pub(crate) fn set_timer(&mut self, timer: &mut Timer, key: EventKey, due: u64) {
        timer.due = due;
        if due < timer.queued_at {
            timer.queued_at = due;
            self.heap.push(Reverse(pack(due, key)));
        }
    }

    /// Schedules a one-shot event at `at` ns.
    pub(crate) fn schedule(&mut self, key: EventKey, at: u64) {
        self.heap.push(Reverse(pack(at, key)));
    }

    /// Time of the first entry, ns; [`NEVER`] if the queue is empty.
    pub(crate) fn next_due(&self) -> u64 {
        self.heap.peek().map_or(NEVER, |Reverse(entry)| (*entry >> 64) as u64)
    }

    /// Removes the first entry: its time, ns, and its key.
    pub(crate) fn pop(&mut self) -> Option<(u64, EventKey)> {
        self.heap.pop().map(|Reverse(entry)| unpack(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: EventKey = EventKey { target: 0, kind: ScheduledEventKind::SenderTimer };

    #[test]
    fn entries_surface_in_order_of_time_with_their_keys() {
        let mut events = EventQueue::default();
        for (number, kind) in (0..).zip(ALL_KINDS) {
            events.schedule(EventKey { target: u32::MAX - number, kind }, u64::MAX - 1 - u64::from(number));
        }
        for (number, kind) in (0..ALL_KINDS.len() as u32).zip(ALL_KINDS).rev() {
            assert_eq!(events.pop(), Some((u64::MAX - 1 - u64::from(number), EventKey { target: u32::MAX - number, kind })));
        }
        assert_eq!(events.next_due(), NEVER);
    }

    /// The times at which the timer expires from here on, and the number of entries that surface.
    fn run(timer: &mut Timer, events: &mut EventQueue) -> (Vec<u64>, usize) {
        let (mut expired, mut entries) = (Vec::new(), 0);
        while let Some((at, key)) = events.pop() {
            entries += 1;
            if timer.expired(at, key, events) {
                expired.push(at);
            }
        }
        (expired, entries)
    }

    #[test]
    fn a_timer_that_is_moved_later_keeps_one_entry() {
        let (mut timer, mut events) = (Timer::default(), EventQueue::default());
        for due in 10..1000 {
            events.set_timer(&mut timer, KEY, due);
        }
        assert_eq!(run(&mut timer, &mut events), (vec![999], 2));
    }

    #[test]
    fn a_timer_that_is_moved_earlier_expires_once() {
        let (mut timer, mut events) = (Timer::default(), EventQueue::default());
        for due in [50, 20, 30] {
            events.set_timer(&mut timer, KEY, due);
        }
        assert_eq!(run(&mut timer, &mut events).0, [30]);
        events.set_timer(&mut timer, KEY, 70);
        timer.stop();
        assert_eq!(run(&mut timer, &mut events).0, [0; 0]);
    }
}
