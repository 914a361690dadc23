//! Propagation: a constant delay, and what a packet's own flow adds to it.

use crate::{
    Packet, Stage, Time,
    timing_wheel::{Key, Wheel},
};
use std::collections::VecDeque;
use units::Span;

/// Packets on their way. Those without an extra delay stay in order and cost a ring; the others go through a wheel. Ties leave
/// in order of arrival.
#[derive(Debug)]
pub struct Delay<P> {
    delay: Span,
    ring: VecDeque<(Key, P)>,
    late: Wheel<P>,
    number: u64,
}

impl<P> Delay<P> {
    /// Nothing on its way.
    pub fn new(delay: Span) -> Self {
        Delay { delay, ring: VecDeque::new(), late: Wheel::new(), number: 0 }
    }

    /// The delay that every packet has.
    #[inline]
    pub fn least(&self) -> Span {
        self.delay
    }

    /// Packets on their way.
    pub fn len(&self) -> usize {
        self.ring.len() + self.late.len()
    }

    /// Whether nothing is on its way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.late.is_empty()
    }
}

impl<P: Packet> Stage<P> for Delay<P> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        let extra = packet.extra_delay();
        let key = ((now + self.delay + extra).0, self.number);
        self.number += 1;
        match extra {
            Span::ZERO => self.ring.push_back((key, packet)),
            _ => self.late.push(key, packet),
        }
        Ok(())
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        let (late, ring) = (self.late.first(), self.ring.front().map(|(key, _)| *key));
        let is_late = late.is_some_and(|late| ring.is_none_or(|ring| late < ring));
        let next = if is_late { late } else { ring };
        next.filter(|(arrives, _)| *arrives <= now.0)?;
        let ((arrives, _), packet) = if is_late { self.late.pop() } else { self.ring.pop_front() }?;
        Some((Time(arrives), packet))
    }

    #[inline]
    fn next_wakeup(&self) -> Option<Time> {
        let (late, ring) = (self.late.first(), self.ring.front().map(|(key, _)| *key));
        let next = match (late, ring) {
            (Some(late), Some(ring)) => Some(late.min(ring)),
            (late, ring) => late.or(ring),
        };
        next.map(|(arrives, _)| Time(arrives))
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
