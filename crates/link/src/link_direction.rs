//! One direction of a link: queue and rate, then loss, then delay.

use crate::{
    delay::Delay,
    loss_process::LossProcess,
    shaper::Shaper,
    stage::{LinkPacket, LinkStage, QueueTap},
    time::Time,
    transmitter::Transmission,
};
use rand_pcg::Pcg64;
use scenario::{Link, Loss};
use units::{Bytes, QueueSize, Rate, Span};

/// One direction of a link. A lost packet occupies the transmitter like any other and is discarded
/// when its transmission ends. A tap may observe the queue; `()` is no tap.
///
/// A caller takes packets in one of two ways, and keeps to it:
/// - as with any [`LinkStage`]: [`enqueue`](LinkStage::enqueue), [`ready`](LinkStage::ready),
///   [`next_wakeup`](LinkStage::next_wakeup);
/// - the fast path, which wakes up only when packets arrive and moves each of them once:
///   [`enqueue_lazy`](Self::enqueue_lazy), [`poll_arrival`](Self::poll_arrival) or
///   [`poll_arrival_into`](Self::poll_arrival_into), [`next_delivery`](Self::next_delivery).
///
/// Both deliver the same packets at the same times.
#[derive(Debug)]
pub struct LinkDirection<P, T = ()> {
    shaper: Shaper<P>,
    tap: T,
    losses: LossProcess,
    delay: Delay<P>,
    /// Whether the delay stays what it is. If not, the time of an arrival is known at the departure.
    has_constant_delay: bool,
    /// Whether departures are handled when they happen, and not only on arrival.
    is_eager: bool,
    queue_drops: u64,
    lost_bytes: u64,
    /// Bytes in `delay`.
    delayed_bytes: u64,
}

/// Counters of one direction of a link. Sizes count IP bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that arrived at the queue.
    pub arrived: u64,
    /// Packets that the queue dropped.
    pub queue_drops: u64,
    /// Packets whose transmission had ended at the last poll.
    pub departed: u64,
    /// Bytes of the packets in `departed`.
    pub departed_bytes: Bytes,
    /// Packets lost after their transmission.
    pub losses: u64,
    /// Packets delivered at the other end.
    pub delivered: u64,
    /// Bytes of the packets in `delivered`.
    pub delivered_bytes: Bytes,
    /// The largest queue length, without the packet in transmission.
    pub max_queued: Bytes,
}

/// What one direction of a link does to packets.
#[derive(Debug, Clone)]
pub struct DirectionSpec {
    /// When packets leave.
    pub transmission: Transmission,
    /// The limit of the drop-tail queue.
    pub limit: QueueSize,
    /// Propagation delay.
    pub delay: Span,
    /// Random losses after the transmission.
    pub loss: Option<Loss>,
    /// Whether the delay changes during a run ([`LinkDirection::set_delay`]).
    pub varies_delay: bool,
}

impl DirectionSpec {
    /// The direction of a scenario's link: towards the receiver, that of the data, or back.
    pub fn of_link(link: &Link, limit: QueueSize, is_towards_receiver: bool) -> Self {
        let transmission = match &link.trace {
            None => Transmission::Rate(link.rate),
            Some(trace) if is_towards_receiver => Transmission::Trace(trace.down.trace().clone()),
            Some(trace) => Transmission::Trace(trace.up.trace().clone()),
        };
        let loss = link.loss.filter(|_| is_towards_receiver);
        let varies_delay = link.changes.iter().any(|change| change.delay.is_some());
        DirectionSpec { transmission, limit, delay: link.delay, loss, varies_delay }
    }

    /// A link of this rate that loses nothing.
    pub fn lossless(rate: Rate, limit: QueueSize, delay: Span) -> Self {
        DirectionSpec { transmission: Transmission::Rate(rate), limit, delay, loss: None, varies_delay: false }
    }
}

impl<P: LinkPacket> LinkDirection<P> {
    /// An empty link. `rng` draws its losses.
    pub fn new(spec: DirectionSpec, rng: Pcg64) -> Self {
        LinkDirection {
            shaper: Shaper::new(spec.transmission, spec.limit),
            tap: (),
            losses: LossProcess::new(spec.loss, rng),
            delay: Delay::new(spec.delay),
            has_constant_delay: !spec.varies_delay,
            is_eager: spec.varies_delay,
            queue_drops: 0,
            lost_bytes: 0,
            delayed_bytes: 0,
        }
    }

    /// The same link with a tap at its queue.
    pub fn with_tap<T: QueueTap<P>>(self, tap: T) -> LinkDirection<P, T> {
        let LinkDirection { shaper, tap: (), losses, delay, has_constant_delay, is_eager, queue_drops, lost_bytes, delayed_bytes } = self;
        let is_eager = is_eager || tap.is_attached();
        LinkDirection { shaper, tap, losses, delay, has_constant_delay, is_eager, queue_drops, lost_bytes, delayed_bytes }
    }
}

impl<P: LinkPacket, T: QueueTap<P>> LinkDirection<P, T> {
    /// The tap, after it has seen everything that happened until `now`.
    pub fn tap(&mut self, now: Time) -> &mut T {
        self.advance(now);
        &mut self.tap
    }

    /// The counters as of the last poll.
    pub fn counts(&self) -> LinkCounts {
        let (departed, departed_bytes) = self.shaper.departed();
        // A packet that was taken from the shaper and is neither lost nor in flight was delivered.
        LinkCounts {
            arrived: self.shaper.accepted() + self.queue_drops,
            queue_drops: self.queue_drops,
            departed,
            departed_bytes,
            losses: self.losses.lost(),
            delivered: self.shaper.taken() - self.losses.lost() - self.delay.len() as u64,
            delivered_bytes: Bytes(self.shaper.taken_bytes() - self.lost_bytes - self.delayed_bytes),
            max_queued: self.shaper.max_queued(),
        }
    }

    /// The counters at `now`, independent of earlier polls.
    pub fn counts_at(&mut self, now: Time) -> LinkCounts {
        self.advance(now);
        self.counts()
    }

    /// IP bytes whose transmission has ended by `now`.
    pub fn departed_bytes(&mut self, now: Time) -> Bytes {
        if self.is_eager {
            self.advance(now);
        }
        self.shaper.departed_by(now).1
    }

    /// Bytes in the queue at `now`, without the packet in transmission.
    pub fn queued(&mut self, now: Time) -> Bytes {
        if self.is_eager {
            // The tap sees each departure together with the queue length at that time.
            self.advance(now);
        }
        self.shaper.queued(now)
    }

    /// For how long the transmitter has been busy from time zero until `now`.
    pub fn busy_time(&self, now: Time) -> Span {
        self.shaper.busy_time(now)
    }

    /// Packets in the queue, in transmission and in flight, including packets that will be lost
    /// when their transmission ends.
    pub fn len(&self) -> usize {
        self.shaper.len() + self.delay.len()
    }

    /// Whether no packet is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The earliest time at which a packet may arrive at the other end; `None` if no packet is
    /// inside. For callers of the fast path: unlike [`LinkStage::next_wakeup`] it skips the ends of
    /// transmissions.
    #[inline]
    pub fn next_delivery(&self) -> Option<Time> {
        let departs = self.shaper.next_wakeup();
        let undelayed = if self.has_constant_delay { departs.map(|departs| departs + self.delay.base_delay()) } else { departs };
        if self.delay.is_empty() {
            return undelayed;
        }
        match (undelayed, self.delay.next_wakeup()) {
            (Some(undelayed), Some(delayed)) => Some(undelayed.min(delayed)),
            (undelayed, delayed) => undelayed.or(delayed),
        }
    }

    /// [`LinkStage::enqueue`] of the fast path: packets that have departed stay in the shaper until
    /// they arrive.
    ///
    /// # Errors
    /// Returns the packet if the queue has no room for it.
    #[inline]
    pub fn enqueue_lazy(&mut self, now: Time, packet: P) -> Result<(), P> {
        if !self.is_eager {
            return self.shaper.enqueue(now, packet).inspect_err(|_| self.queue_drops += 1);
        }
        self.advance(now);
        self.tap.packet_arrived(now, &packet);
        let accepted = self.shaper.enqueue(now, packet).inspect_err(|_| self.queue_drops += 1);
        self.tap.queue_changed(self.shaper.queued(now));
        accepted
    }

    /// [`LinkStage::ready`] of the fast path: a packet is moved once, when it arrives, and a lost one
    /// is discarded only then.
    pub fn poll_arrival(&mut self, now: Time) -> Option<(Time, P)> {
        if self.is_eager {
            return self.ready(now);
        }
        loop {
            let undelayed = self.shaper.next_wakeup().map(|departs| departs + self.delay.base_delay());
            // Of two packets that arrive together, the one with the extra delay departed first.
            if let Some(delayed) = self.delay.next_wakeup()
                && undelayed.is_none_or(|undelayed| delayed <= undelayed)
            {
                return self.take_delayed(now);
            }
            if undelayed? > now {
                return None;
            }
            let (departed, packet) = self.shaper.ready(now)?;
            if self.is_lost(departed, &packet) {
                continue;
            }
            if packet.extra_delay() == Span::ZERO {
                return Some((departed + self.delay.base_delay(), packet));
            }
            self.put_in_flight(departed, packet);
        }
    }

    /// As [`poll_arrival`](Self::poll_arrival), but copies the packet into `place`; returns whether
    /// a packet has arrived. Nearly always that packet is the first in the shaper and is copied
    /// from there directly.
    #[inline]
    pub fn poll_arrival_into(&mut self, now: Time, place: &mut P) -> bool
    where
        P: Copy,
    {
        while !self.is_eager && self.delay.is_empty() {
            let Some((departs, packet)) = self.shaper.first() else { return false };
            if departs + self.delay.base_delay() > now {
                return false;
            }
            if packet.extra_delay() > Span::ZERO {
                break;
            }
            *place = *packet;
            self.shaper.discard_first();
            if !self.is_lost(departs, place) {
                return true;
            }
        }
        self.poll_arrival(now).map(|(_, packet)| *place = packet).is_some()
    }

    /// Decides whether a packet whose transmission ended at `departed` is lost.
    #[inline]
    fn is_lost(&mut self, departed: Time, packet: &P) -> bool {
        let is_lost = self.losses.drops(departed);
        if is_lost {
            self.lost_bytes += u64::from(packet.wire_bytes());
        }
        is_lost
    }

    /// Passes a transmitted packet to the delay stage.
    fn put_in_flight(&mut self, departed: Time, packet: P) {
        self.delayed_bytes += u64::from(packet.wire_bytes());
        // The delay stage never refuses a packet.
        let _ = self.delay.enqueue(departed, packet);
    }

    /// Takes the next packet that has passed the delay stage by `now`.
    fn take_delayed(&mut self, now: Time) -> Option<(Time, P)> {
        let (at, packet) = self.delay.ready(now)?;
        self.delayed_bytes -= u64::from(packet.wire_bytes());
        Some((at, packet))
    }

    /// Starts a trace at `now`; packets that are inside keep their times. A rate has no start.
    pub fn start_trace(&mut self, now: Time) {
        self.advance(now);
        self.shaper.start_trace(now);
    }

    /// Changes the propagation delay of packets whose transmission ends after `now`. They do not
    /// overtake packets that are in flight.
    ///
    /// # Panics
    /// The link was made without [`DirectionSpec::varies_delay`].
    pub fn set_delay(&mut self, now: Time, delay: Span) {
        assert!(!self.has_constant_delay, "a link whose delay changes is made with varies_delay");
        self.advance(now);
        self.delay.set_base_delay(delay);
    }

    /// Changes the losses of packets whose transmission ends after `now`.
    pub fn set_loss(&mut self, now: Time, loss: Option<Loss>) {
        self.advance(now);
        self.losses.set(loss);
    }

    /// Changes the rate at `now`, also for the packets in the queue and in transmission.
    pub fn set_rate(&mut self, now: Time, rate: Rate) {
        self.advance(now);
        self.shaper.set_rate(now, rate);
    }

    /// Moves the packets whose transmission has ended by `now` to the delay stage.
    fn advance(&mut self, now: Time) {
        while let Some(at) = self.shaper.next_wakeup().filter(|at| *at <= now) {
            let Some((departed, mut packet)) = self.shaper.ready(at) else { break };
            self.tap.packet_departed(departed, &mut packet);
            self.tap.queue_changed(self.shaper.queued(departed));
            if !self.is_lost(departed, &packet) {
                self.put_in_flight(departed, packet);
            }
        }
    }
}

impl<P: LinkPacket, T: QueueTap<P>> LinkStage<P> for LinkDirection<P, T> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        self.advance(now);
        self.enqueue_lazy(now, packet)
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.advance(now);
        self.take_delayed(now)
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.shaper.next_wakeup().into_iter().chain(self.delay.next_wakeup()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use scenario::{Gilbert, Purpose, stream};
    use std::rc::Rc;

    /// A packet with a number, a size in bytes and an extra delay. The reference count of its
    /// buffer shows whether the packet still exists.
    #[derive(Debug)]
    struct Numbered(usize, u32, Span, #[expect(dead_code, reason = "only held")] Rc<()>);

    /// The delivered packets with their times, and the dropped packets.
    type Observed = (Vec<(u64, usize)>, Vec<usize>);
    impl LinkPacket for Numbered {
        fn wire_bytes(&self) -> u32 {
            self.1
        }
        fn extra_delay(&self) -> Span {
            self.2
        }
    }

    fn drain(direction: &mut LinkDirection<Numbered>, now: Time) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| direction.ready(now).map(|(at, packet)| (at.0, packet.0))).collect()
    }

    /// Polls at each wakeup until the link is empty.
    fn run_out(direction: &mut LinkDirection<Numbered>) -> Vec<(u64, usize)> {
        let mut out = Vec::new();
        while let Some(wakeup) = direction.next_wakeup() {
            out.extend(drain(direction, wakeup));
        }
        out
    }

    #[test]
    fn a_shorter_delay_does_not_reorder_and_a_change_of_losses_holds_at_once() {
        let spec =
            DirectionSpec { varies_delay: true, ..DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(9), Span(40_000_000)) };
        let mut direction = LinkDirection::new(spec, stream(1, Purpose::Losses, 0));
        for number in 0..4 {
            direction.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, Rc::default())).unwrap();
        }
        // The first two have departed.
        direction.set_delay(Time(2_500_000), Span(10_000_000));
        assert_eq!(direction.next_delivery(), Some(Time(3_000_000)), "the next departure, as its delay may change");
        direction.set_loss(Time(3_500_000), Some(Loss::PerPacket(1.0)));
        assert_eq!(run_out(&mut direction), [(41_000_000, 0), (42_000_000, 1), (42_000_000, 2)]);
        assert_eq!(direction.counts().losses, 1);
    }

    #[test]
    fn a_packet_takes_transmission_then_delay() {
        let mut direction = LinkDirection::new(
            DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(400_000_000)),
            stream(1, Purpose::Losses, 0),
        );
        for (number, extra) in [(0, 0), (1, 1_500_000), (2, 0), (3, 0)] {
            direction.enqueue(Time(7), Numbered(number, 1000, Span(extra), Rc::default())).unwrap();
        }
        // The second takes 1.5 ms more and is overtaken.
        assert_eq!(run_out(&mut direction), [(401_000_007, 0), (403_000_007, 2), (403_500_007, 1), (404_000_007, 3)]);
        assert_eq!(direction.busy_time(Time(1_000_000_000)), Span(4_000_000));
    }

    #[test]
    fn a_lost_packet_occupies_the_transmitter_and_is_freed() {
        let mut direction = LinkDirection::new(
            DirectionSpec { loss: Some(Loss::PerPacket(1.0)), ..DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(0)) },
            stream(1, Purpose::Losses, 0),
        );
        let buffer = Rc::new(());
        for number in 0..3 {
            direction.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, buffer.clone())).unwrap();
        }
        assert_eq!(direction.len(), 3);
        assert_eq!(run_out(&mut direction), []);
        assert_eq!(direction.counts().losses, 3);
        assert_eq!(direction.counts().departed_bytes, Bytes(3000));
        assert_eq!(direction.busy_time(Time(9_000_000)), Span(3_000_000));
        assert_eq!(Rc::strong_count(&buffer), 1);
    }

    #[test]
    fn nothing_is_delivered_before_next_delivery() {
        let mut direction = LinkDirection::new(
            DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(400_000_000)),
            stream(1, Purpose::Losses, 0),
        );
        assert_eq!(direction.next_delivery(), None);
        for (number, extra) in [(0, 1_500_000), (1, 0), (2, 0)] {
            direction.enqueue(Time(0), Numbered(number, 1000, Span(extra), Rc::default())).unwrap();
        }
        let (mut looks, mut out) = (Vec::new(), Vec::new());
        while let Some(at) = direction.next_delivery() {
            looks.push(at.0);
            out.extend(drain(&mut direction, at));
        }
        assert_eq!(out, [(402_000_000, 1), (402_500_000, 0), (403_000_000, 2)]);
        // One poll finds nothing: an extra delay is not known before the departure.
        assert_eq!(looks, [401_000_000, 402_000_000, 402_500_000, 403_000_000]);
    }

    /// A tap that adds 1000 to the number of each departing packet and records what it sees.
    #[derive(Debug, Default)]
    struct Notes(Vec<(u64, usize, u64)>, u64);
    impl QueueTap<Numbered> for Notes {
        fn packet_arrived(&mut self, now: Time, packet: &Numbered) {
            self.0.push((now.0, packet.0, self.1));
        }
        fn packet_departed(&mut self, at: Time, packet: &mut Numbered) {
            packet.0 += 1000;
            self.0.push((at.0, packet.0, self.1));
        }
        fn queue_changed(&mut self, queued: Bytes) {
            self.1 = queued.0;
        }
    }

    #[test]
    fn a_tap_sees_events_at_exact_times_however_often_the_caller_polls() {
        for looks in [false, true] {
            let direction = LinkDirection::new(
                DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(2), Span(5_000_000)),
                stream(1, Purpose::Losses, 0),
            );
            let mut direction = direction.with_tap(Notes::default());
            for number in 0..4 {
                let refused = direction.enqueue(Time(number as u64), Numbered(number, 1000, Span::ZERO, Rc::default())).is_err();
                assert_eq!(refused, number == 3, "one is in transmission, two wait");
            }
            if looks {
                assert_eq!(direction.queued(Time(1_500_000)), Bytes(1000));
            }
            let out: Vec<usize> = std::iter::from_fn(|| direction.ready(Time(90_000_000)).map(|(_, packet)| packet.0)).collect();
            assert_eq!(out, [1000, 1001, 1002], "a tap may modify departing packets");
            // Time, packet number, and queue length before the event.
            let seen =
                [(0, 0, 0), (1, 1, 0), (2, 2, 1000), (3, 3, 2000), (1_000_000, 1000, 2000), (2_000_000, 1001, 1000), (3_000_000, 1002, 0)];
            assert_eq!(direction.tap(Time(90_000_000)).0, seen);
        }
    }

    #[test]
    fn an_outage_holds_packets_until_it_ends() {
        let mut direction = LinkDirection::new(
            DirectionSpec::lossless(Rate(8_000_000), QueueSize::Packets(5), Span(10_000_000)),
            stream(1, Purpose::Losses, 0),
        );
        for number in 0..3 {
            direction.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, Rc::default())).unwrap();
        }
        direction.set_rate(Time(1_000_000), Rate(0));
        assert_eq!(drain(&mut direction, Time(60_000_000_000)), [(11_000_000, 0)]);
        direction.set_rate(Time(60_000_000_000), Rate(4_000_000));
        let out = run_out(&mut direction);
        // A rate of zero counts as 1 bit/s, which sent 59.999 bits in a minute.
        assert_eq!(out, [(60_011_985_000, 1), (60_013_985_000, 2)]);
    }

    /// How a caller polls.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum PollingCaller {
        /// At each wakeup.
        EachWakeup,
        /// At arbitrary times.
        Arbitrary,
        /// By the fast path.
        FastPath,
    }

    fn any_loss() -> impl Strategy<Value = Option<Loss>> {
        prop_oneof![
            Just(None),
            (0.0..1.0f64).prop_map(|p| Some(Loss::PerPacket(p))),
            (0.0..2000.0f64).prop_map(|rate| Some(Loss::PerSecond(rate))),
            (0.0..0.5f64, 0.1..1.0f64).prop_map(|(good_to_bad, bad_to_good)| Some(Loss::Gilbert(Gilbert {
                good_to_bad,
                bad_to_good,
                loss_good: 0.01,
                loss_bad: 0.9
            }))),
        ]
    }

    /// A packet that can be copied: number, size, extra delay.
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct PlainPacket(usize, u32, Span);
    impl LinkPacket for PlainPacket {
        fn wire_bytes(&self) -> u32 {
            self.1
        }
        fn extra_delay(&self) -> Span {
            self.2
        }
    }

    proptest! {
        /// Copying arrivals and moving them yields the same packets and counters, with and without
        /// extra delays.
        #[test]
        fn copying_and_moving_arrivals_are_equivalent(
            packets in prop::collection::vec((0u64..2_000_000, 40u32..1500, 0u64..20_000_000), 1..200),
            late: bool,
            loss in any_loss(),
            seed: u64,
        ) {
            let link = || LinkDirection::<PlainPacket>::new(DirectionSpec { loss, ..DirectionSpec::lossless(Rate(5_280_001), QueueSize::Packets(3), Span(5_000_000)) }, stream(seed, Purpose::Losses, 0));
            let (mut copies, mut moves, mut now) = (link(), link(), 0);
            let take = |copies: &mut LinkDirection<PlainPacket>, moves: &mut LinkDirection<PlainPacket>, until: u64| -> Result<(), TestCaseError> {
                while let Some(at) = copies.next_delivery().filter(|at| at.0 <= until) {
                    prop_assert_eq!(moves.next_delivery(), Some(at));
                    let mut place = PlainPacket(usize::MAX, 0, Span::ZERO);
                    while copies.poll_arrival_into(at, &mut place) {
                        prop_assert_eq!(moves.poll_arrival(at), Some((at, place)));
                    }
                    prop_assert_eq!(moves.poll_arrival(at), None);
                }
                Ok(())
            };
            for (number, (gap, size, extra)) in packets.iter().enumerate() {
                now += gap;
                take(&mut copies, &mut moves, now)?;
                let packet = PlainPacket(number, *size, Span(if late { extra.saturating_sub(10_000_000) } else { 0 }));
                prop_assert_eq!(copies.enqueue_lazy(Time(now), packet), moves.enqueue_lazy(Time(now), packet));
                prop_assert_eq!(copies.departed_bytes(Time(now)), moves.departed_bytes(Time(now)));
            }
            take(&mut copies, &mut moves, u64::MAX)?;
            let counts = copies.counts();
            prop_assert_eq!(counts, moves.counts());
            prop_assert_eq!(counts.delivered + counts.losses + counts.queue_drops, packets.len() as u64);
        }
    }

    proptest! {
        /// Every packet is accounted for, and how often the caller polls changes neither which packets
        /// are delivered nor when.
        #[test]
        fn every_packet_is_accounted_for(
            // Gap in ns, size in bytes, extra delay in ns (none for half of them), whether the
            // arbitrary caller polls.
            packets in prop::collection::vec((0u64..2_000_000, 40u32..1500, 0u64..20_000_000, any::<bool>()), 1..200),
            bytes: bool,
            loss in any_loss(),
            seed: u64,
        ) {
            let limit = if bytes { QueueSize::Bytes(Bytes(4000)) } else { QueueSize::Packets(3) };
            let buffer = Rc::new(());
            let run = |caller: PollingCaller| -> Result<Observed, TestCaseError> {
                let mut direction: LinkDirection<Numbered> = LinkDirection::new(DirectionSpec { loss: loss, ..DirectionSpec::lossless(Rate(5_280_001), limit, Span(5_000_000)) }, stream(seed, Purpose::Losses, 0));
                let (mut now, mut out, mut dropped) = (0, Vec::new(), Vec::new());
                for (number, (gap, size, extra, looks)) in packets.iter().enumerate() {
                    now += gap;
                    match caller {
                        PollingCaller::EachWakeup => {
                            while let Some(wakeup) = direction.next_wakeup().filter(|at| at.0 <= now) {
                                out.extend(drain(&mut direction, wakeup));
                            }
                        }
                        PollingCaller::Arbitrary if *looks => out.extend(drain(&mut direction, Time(now))),
                        PollingCaller::Arbitrary => {}
                        PollingCaller::FastPath => {
                            while let Some(at) = direction.next_delivery().filter(|at| at.0 <= now) {
                                out.extend(std::iter::from_fn(|| direction.poll_arrival(at).map(|(at, packet)| (at.0, packet.0))));
                            }
                            // Reading the counters advances packets inside the link.
                            if *looks { direction.counts_at(Time(now)); }
                        }
                    }
                    let extra = Span(extra.saturating_sub(10_000_000));
                    let packet = Numbered(number, *size, extra, buffer.clone());
                    let refused = match caller {
                        PollingCaller::FastPath => direction.enqueue_lazy(Time(now), packet).is_err(),
                        PollingCaller::EachWakeup | PollingCaller::Arbitrary => direction.enqueue(Time(now), packet).is_err(),
                    };
                    if refused {
                        dropped.push(number);
                    }
                    let counts = direction.counts();
                    prop_assert_eq!(counts.arrived, counts.queue_drops + counts.losses + counts.delivered + direction.len() as u64);
                    prop_assert_eq!(Rc::strong_count(&buffer), 1 + direction.len(), "a packet that is not inside is freed");
                }
                out.extend(run_out(&mut direction));
                let counts = direction.counts();
                prop_assert!(direction.is_empty() && out.is_sorted_by_key(|(at, _)| *at));
                prop_assert_eq!(counts.arrived, packets.len() as u64);
                prop_assert_eq!(counts.queue_drops, dropped.len() as u64);
                prop_assert_eq!(counts.arrived, counts.queue_drops + counts.departed);
                prop_assert_eq!(counts.departed, counts.losses + counts.delivered);
                prop_assert_eq!(counts.delivered, out.len() as u64);
                prop_assert_eq!(counts.delivered_bytes.0, out.iter().map(|(_, number)| u64::from(packets[*number].1)).sum::<u64>());
                // The busy time is the transmission time of all bytes, less a fraction of a nanosecond
                // each time the transmitter becomes idle.
                let busy = direction.busy_time(Time(u64::MAX)).0;
                let exact = Rate(5_280_001).time_for(counts.departed_bytes).0;
                prop_assert!(busy <= exact && exact - busy <= counts.departed, "{} {}", busy, exact);
                Ok((out, dropped))
            };
            let each_wakeup = run(PollingCaller::EachWakeup)?;
            prop_assert_eq!(&each_wakeup, &run(PollingCaller::Arbitrary)?);
            prop_assert_eq!(&each_wakeup, &run(PollingCaller::FastPath)?);
        }
    }
}
