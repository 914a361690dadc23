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
    heap: BinaryHeap<Reverse<(Key, usize)>>,
    places: Vec<Option<P>>,
    free: Vec<usize>,
    number: u64,
}

/// When a packet arrives, and its number: those that arrive together leave in order of arrival.
type Key = (Time, u64);

impl<P> Delay<P> {
    /// Nothing on its way.
    pub fn new(delay: Span) -> Self {
        Delay { delay, ring: VecDeque::new(), heap: BinaryHeap::new(), places: Vec::new(), free: Vec::new(), number: 0 }
    }

    /// The delay that every packet has.
    pub fn least(&self) -> Span {
        self.delay
    }

    /// Packets on their way.
    pub fn len(&self) -> usize {
        self.ring.len() + self.heap.len()
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn heap_is_next(&self) -> bool {
        match (self.ring.front(), self.heap.peek()) {
            (Some((ring, _)), Some(Reverse((heap, _)))) => heap < ring,
            (None, heap) => heap.is_some(),
            (Some(_), None) => false,
        }
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
            self.places.len() - 1
        });
        self.places[place] = Some(packet);
        self.heap.push(Reverse((key, place)));
        Ok(())
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        if self.next_wakeup()? > now {
            return None;
        }
        if !self.heap_is_next() {
            return self.ring.pop_front().map(|((arrives, _), packet)| (arrives, packet));
        }
        let Reverse(((arrives, _), place)) = self.heap.pop()?;
        self.free.push(place);
        self.places[place].take().map(|packet| (arrives, packet))
    }

    fn next_wakeup(&self) -> Option<Time> {
        let ring = self.ring.front().map(|((arrives, _), _)| *arrives);
        let heap = self.heap.peek().map(|Reverse(((arrives, _), _))| *arrives);
        ring.into_iter().chain(heap).min()
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
