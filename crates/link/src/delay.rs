//! Propagation: a constant delay, and what a packet's own flow adds to it.

use crate::{Packet, Stage, Time};
use scenario::Span;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Packets on their way. Those without an extra delay stay in order and cost a ring; the others go through a heap. Ties leave
/// in order of arrival.
#[derive(Debug)]
pub struct Delay<P> {
    delay: Span,
    ring: VecDeque<(Key, P)>,
    /// Of those with an extra delay: when they arrive, and where they lie. A heap moves what is in it, which packets are too large for.
    heap: BinaryHeap<Reverse<Late>>,
    places: Vec<Option<P>>,
    free: Vec<u32>,
    number: u64,
}

/// When a packet arrives, and its number: those that arrive together leave in order of arrival.
type Key = (Time, u64);

/// The key of a packet with an extra delay and its place, as one number, by which it is compared at once: 64, 40 and 24 bits.
type Late = u128;

fn late((arrives, number): Key, place: u32) -> Late {
    u128::from(arrives.0) << 64 | u128::from(number << 24 | u64::from(place))
}

fn key_of(late: Late) -> Key {
    (Time((late >> 64) as u64), late as u64 >> 24)
}

impl<P> Delay<P> {
    /// Nothing on its way.
    pub fn new(delay: Span) -> Self {
        Delay { delay, ring: VecDeque::new(), heap: BinaryHeap::new(), places: Vec::new(), free: Vec::new(), number: 0 }
    }

    /// The delay that every packet has.
    #[inline]
    pub fn least(&self) -> Span {
        self.delay
    }

    /// Packets on their way.
    pub fn len(&self) -> usize {
        self.ring.len() + self.heap.len()
    }

    /// Whether nothing is on its way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.heap.is_empty()
    }

    /// The next of those with an extra delay.
    fn first_late(&self) -> Option<Key> {
        self.heap.peek().map(|Reverse(late)| key_of(*late))
    }
}

impl<P: Packet> Stage<P> for Delay<P> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        let extra = packet.extra_delay();
        let key = (now + self.delay + extra, self.number);
        self.number += 1;
        if extra == Span::ZERO {
            self.ring.push_back((key, packet));
            return Ok(());
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(packet);
        self.heap.push(Reverse(late(key, place)));
        Ok(())
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        let (late, ring) = (self.first_late(), self.ring.front().map(|(key, _)| *key));
        if late.is_none_or(|late| ring.is_some_and(|ring| ring < late)) {
            return (ring?.0 <= now).then(|| self.ring.pop_front())?.map(|((arrives, _), packet)| (arrives, packet));
        }
        let arrives = late?.0;
        if arrives > now {
            return None;
        }
        let Reverse(late) = self.heap.pop()?;
        let place = late as u32 & 0xff_ffff;
        self.free.push(place);
        self.places[place as usize].take().map(|packet| (arrives, packet))
    }

    #[inline]
    fn next_wakeup(&self) -> Option<Time> {
        let (late, ring) = (self.first_late().map(|(at, _)| at), self.ring.front().map(|((at, _), _)| *at));
        match (late, ring) {
            (Some(late), Some(ring)) => Some(late.min(ring)),
            (late, ring) => late.or(ring),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Numbered(usize, Span);
    impl Packet for Numbered {
        fn wire_bytes(&self) -> u32 {
            100
        }
        fn extra_delay(&self) -> Span {
            self.1
        }
    }

    proptest! {
        #[test]
        fn packets_leave_in_order_of_time_then_arrival(gaps in prop::collection::vec((0u64..50, 0u64..200), 1..100)) {
            let mut delay: Delay<Numbered> = Delay::new(Span(40));
            let (mut now, mut expected) = (0, Vec::new());
            for (number, (gap, extra)) in gaps.into_iter().enumerate() {
                now += gap;
                // Half of them have no extra delay.
                let extra = extra.saturating_sub(100);
                expected.push((now + 40 + extra, number));
                delay.enqueue(Time(now), Numbered(number, Span(extra))).unwrap();
            }
            expected.sort_unstable();
            let mut out = Vec::new();
            while let Some(at) = delay.next_wakeup() {
                let (left, packet) = delay.ready(at).unwrap();
                prop_assert_eq!(left, at);
                out.push((left.0, packet.0));
            }
            prop_assert_eq!(out, expected);
            prop_assert!(delay.is_empty());
        }
    }
}
