//! Propagation delay: a constant, plus extra delays of the packet's flow and of the packet itself.

use crate::{
    disorder::ExtraDelay,
    stage::{LinkPacket, LinkStage},
    time::Time,
    timing_wheel::{DueKey, TimingWheel},
};
use std::collections::VecDeque;
use units::Span;

/// A delay stage. Packets that stay in order are kept in a FIFO queue; those that may overtake
/// others or be overtaken are kept in a timing wheel. Packets that are due at the same time leave
/// in order of arrival.
#[derive(Debug)]
pub struct Delay<P> {
    delay: Span,
    in_order: VecDeque<(DueKey, P)>,
    /// Packets with an extra delay.
    delayed: TimingWheel<P>,
    next_number: u64,
}

impl<P> Delay<P> {
    /// An empty stage with this propagation delay.
    pub fn new(delay: Span) -> Self {
        Delay { delay, in_order: VecDeque::new(), delayed: TimingWheel::new(), next_number: 0 }
    }

    /// The delay of every packet, without extra delays.
    #[inline]
    pub fn base_delay(&self) -> Span {
        self.delay
    }

    /// Changes the delay of packets that come from now on. They do not overtake packets that are in
    /// flight.
    pub fn set_base_delay(&mut self, delay: Span) {
        self.delay = delay;
    }

    /// Number of packets in flight.
    pub fn len(&self) -> usize {
        self.in_order.len() + self.delayed.len()
    }

    /// Whether no packet is in flight.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty() && self.delayed.is_empty()
    }

    /// The keys of the first packet of the wheel and of the first of the FIFO queue.
    #[inline]
    fn heads(&self) -> (Option<DueKey>, Option<DueKey>) {
        (self.delayed.first(), self.in_order.front().map(|(key, _)| *key))
    }
}

impl<P: LinkPacket> Delay<P> {
    /// Accepts a packet that has an extra delay besides that of its flow.
    pub(crate) fn put(&mut self, now: Time, extra: ExtraDelay, packet: P) {
        let of_flow = packet.extra_delay();
        let due = (now + self.delay + extra.span + of_flow).0;
        let number = self.next_number;
        self.next_number += 1;
        if of_flow == Span::ZERO && extra.keeps_order {
            // A packet with a smaller delay waits for those that were sent before it.
            let due = self.in_order.back().map_or(due, |((before, _), _)| due.max(*before));
            self.in_order.push_back(((due, number), packet));
        } else {
            self.delayed.push((due, number), packet);
        }
    }
}

impl<P: LinkPacket> LinkStage<P> for Delay<P> {
    /// Never refuses a packet.
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        self.put(now, ExtraDelay::NONE, packet);
        Ok(())
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        let (delayed, in_order) = self.heads();
        let take_delayed = delayed.is_some_and(|delayed| in_order.is_none_or(|in_order| delayed < in_order));
        let next = if take_delayed { delayed } else { in_order };
        next.filter(|(due, _)| *due <= now.0)?;
        let ((due, _), packet) = if take_delayed { self.delayed.pop() } else { self.in_order.pop_front() }?;
        Some((Time(due), packet))
    }

    #[inline]
    fn next_wakeup(&self) -> Option<Time> {
        let next = match self.heads() {
            (Some(delayed), Some(in_order)) => Some(delayed.min(in_order)),
            (delayed, in_order) => delayed.or(in_order),
        };
        next.map(|(due, _)| Time(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    struct DelayedPacket(usize, Span);
    impl LinkPacket for DelayedPacket {
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
            let mut delay: Delay<DelayedPacket> = Delay::new(Span(40));
            let (mut now, mut expected) = (0, Vec::new());
            for (number, (gap, extra)) in gaps.into_iter().enumerate() {
                now += gap;
                // Half of them have no extra delay.
                let extra = extra.saturating_sub(100);
                expected.push((now + 40 + extra, number));
                delay.enqueue(Time(now), DelayedPacket(number, Span(extra))).unwrap();
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
