//! One direction of a link: queue and rate, then loss, then delay.

use crate::{Delay, Losses, Packet, Shaper, Stage, Tap, Time};
use rand_pcg::Pcg64;
use scenario::Loss;
use units::{Bytes, QueueSize, Rate, Span};

/// One direction of a link. A lost packet has used its time on the line; it is dropped there, and its place in memory is
/// its own to give back. A tap stands at the queue, if there is one: `()` is none.
#[derive(Debug)]
pub struct Way<P, T = ()> {
    shaper: Shaper<P>,
    tap: T,
    losses: Losses,
    delay: Delay<P>,
    queue_drops: u64,
    lost_bytes: u64,
    /// Bytes in `delay`.
    delayed_bytes: u64,
}

/// What a direction of a link has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came.
    pub arrived: u64,
    /// Packets that the queue had no room for.
    pub queue_drops: u64,
    /// Packets that left the line, as far as anybody has looked: each enqueue and each ready does.
    pub left: u64,
    /// Their IP bytes.
    pub left_bytes: Bytes,
    /// Packets that were lost after it.
    pub losses: u64,
    /// Packets that came out at the other end.
    pub delivered: u64,
    /// Their IP bytes.
    pub delivered_bytes: Bytes,
    /// The largest the queue has been.
    pub most_queued: Bytes,
}

impl<P: Packet> Way<P> {
    /// An empty link.
    pub fn new(rate: Rate, limit: QueueSize, delay: Span, loss: Option<Loss>, rng: Pcg64) -> Self {
        let (shaper, losses, delay) = (Shaper::new(rate, limit), Losses::new(loss, rng), Delay::new(delay));
        Way { shaper, tap: (), losses, delay, queue_drops: 0, lost_bytes: 0, delayed_bytes: 0 }
    }

    /// The same with a tap at its queue.
    pub fn tapped<T: Tap<P>>(self, tap: T) -> Way<P, T> {
        let Way { shaper, tap: (), losses, delay, queue_drops, lost_bytes, delayed_bytes } = self;
        Way { shaper, tap, losses, delay, queue_drops, lost_bytes, delayed_bytes }
    }
}

impl<P: Packet, T: Tap<P>> Way<P, T> {
    /// Its tap, which has seen all that happened until `now`.
    pub fn tap(&mut self, now: Time) -> &mut T {
        self.advance(now);
        &mut self.tap
    }

    /// What it has done until now.
    pub fn counts(&self) -> Counts {
        let (left, left_bytes) = self.shaper.left();
        // What was taken off the line and neither is lost nor on its way has come out.
        Counts {
            arrived: self.shaper.came() + self.queue_drops,
            queue_drops: self.queue_drops,
            left,
            left_bytes,
            losses: self.losses.lost(),
            delivered: self.shaper.taken() - self.losses.lost() - self.delay.len() as u64,
            delivered_bytes: Bytes(self.shaper.taken_bytes() - self.lost_bytes - self.delayed_bytes),
            most_queued: self.shaper.most_queued(),
        }
    }

    /// What it has done until `now`, whoever looked when.
    pub fn counts_at(&mut self, now: Time) -> Counts {
        self.advance(now);
        self.counts()
    }

    /// IP bytes that have left the line by `now`.
    pub fn left_bytes(&mut self, now: Time) -> Bytes {
        if self.tap.is_there() {
            self.advance(now);
        }
        self.shaper.left_by(now).1
    }

    /// Bytes in its queue at `now`.
    pub fn queued(&mut self, now: Time) -> Bytes {
        if self.tap.is_there() {
            // It is to see each departure with what waited then.
            self.advance(now);
        }
        self.shaper.queued(now)
    }

    /// For how long the line has been in use between the beginning of time and `now`.
    pub fn busy(&self, now: Time) -> Span {
        self.shaper.busy(now)
    }

    /// Packets in the queue, on the line and on their way; one that will be lost is among them until the line is done with it.
    pub fn len(&self) -> usize {
        self.shaper.len() + self.delay.len()
    }

    /// Whether no packet is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// None comes out before, if a packet is inside. Later than `next_wakeup`, which also is when one leaves the line: for those whom only
    /// what arrives concerns.
    #[inline]
    pub fn next_delivery(&self) -> Option<Time> {
        let leaves = self.shaper.next_wakeup().map(|at| at + self.delay.least());
        if self.delay.is_empty() {
            return leaves;
        }
        match (leaves, self.delay.next_wakeup()) {
            (Some(leaves), Some(arrives)) => Some(leaves.min(arrives)),
            (leaves, arrives) => leaves.or(arrives),
        }
    }

    /// As [`Stage::enqueue`], for those who take packets by [`Way::arrived`].
    #[inline]
    pub fn put(&mut self, now: Time, packet: P) -> Result<(), P> {
        if !self.tap.is_there() {
            return self.shaper.enqueue(now, packet).inspect_err(|_| self.queue_drops += 1);
        }
        self.advance(now);
        self.tap.comes(now, &packet);
        let taken = self.shaper.enqueue(now, packet).inspect_err(|_| self.queue_drops += 1);
        self.tap.holds(self.shaper.queued(now));
        taken
    }

    /// As [`Stage::ready`], for those whom only what arrives concerns: a packet is moved once, when it does, and a lost one is let go only
    /// then. What comes out, and when, is the same.
    pub fn arrived(&mut self, now: Time) -> Option<(Time, P)> {
        if self.tap.is_there() {
            return self.ready(now);
        }
        loop {
            let straight = self.shaper.next_wakeup().map(|leaves| leaves + self.delay.least());
            // Of two that arrive together, the one that was delayed left the line before.
            if let Some(late) = self.delay.next_wakeup()
                && straight.is_none_or(|straight| late <= straight)
            {
                return self.arrive(now);
            }
            if straight? > now {
                return None;
            }
            let (left, packet) = self.shaper.ready(now)?;
            if self.loses(left, &packet) {
                continue;
            }
            if packet.extra_delay() == Span::ZERO {
                return Some((left + self.delay.least(), packet));
            }
            self.set_out(left, packet);
        }
    }

    /// As [`Way::arrived`], into a place for it; false: nothing has. Nearly always the packet is the first in the shaper, from where it is copied once.
    #[inline]
    pub fn arrived_in(&mut self, now: Time, place: &mut P) -> bool
    where
        P: Copy,
    {
        while !self.tap.is_there() && self.delay.is_empty() {
            let Some((leaves, packet)) = self.shaper.first() else { return false };
            if leaves + self.delay.least() > now {
                return false;
            }
            if packet.extra_delay() > Span::ZERO {
                break;
            }
            *place = *packet;
            self.shaper.drop_first();
            if !self.loses(leaves, place) {
                return true;
            }
        }
        self.arrived(now).map(|(_, packet)| *place = packet).is_some()
    }

    /// Whether a packet that leaves the line is lost.
    #[inline]
    fn loses(&mut self, left: Time, packet: &P) -> bool {
        let is_lost = self.losses.drops(left);
        if is_lost {
            self.lost_bytes += u64::from(packet.wire_bytes());
        }
        is_lost
    }

    /// A packet has left the line and goes on its way.
    fn set_out(&mut self, left: Time, packet: P) {
        self.delayed_bytes += u64::from(packet.wire_bytes());
        // A delay refuses nothing.
        let _ = self.delay.enqueue(left, packet);
    }

    /// The next of those on their way that is there by now.
    fn arrive(&mut self, now: Time) -> Option<(Time, P)> {
        let (at, packet) = self.delay.ready(now)?;
        self.delayed_bytes -= u64::from(packet.wire_bytes());
        Some((at, packet))
    }

    /// Changes the rate at `now`, for what is in the queue and on the line too.
    pub fn set_rate(&mut self, now: Time, rate: Rate) {
        self.advance(now);
        self.shaper.set_rate(now, rate);
    }

    /// Lets packets that have left the line by `now` go on their way.
    fn advance(&mut self, now: Time) {
        while let Some(at) = self.shaper.next_wakeup().filter(|at| *at <= now) {
            let Some((left, mut packet)) = self.shaper.ready(at) else { break };
            self.tap.leaves(left, &mut packet);
            self.tap.holds(self.shaper.queued(left));
            if !self.loses(left, &packet) {
                self.set_out(left, packet);
            }
        }
    }
}

impl<P: Packet, T: Tap<P>> Stage<P> for Way<P, T> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        self.advance(now);
        self.put(now, packet)
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.advance(now);
        self.arrive(now)
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

    /// A packet with a number and an extra delay; the buffer shows whether anybody still holds it.
    #[derive(Debug)]
    struct Numbered(usize, u32, Span, #[expect(dead_code, reason = "only held")] Rc<()>);

    /// Which packets came out when, and which the queue had no room for.
    type Seen = (Vec<(u64, usize)>, Vec<usize>);
    impl Packet for Numbered {
        fn wire_bytes(&self) -> u32 {
            self.1
        }
        fn extra_delay(&self) -> Span {
            self.2
        }
    }

    fn drain(way: &mut Way<Numbered>, now: Time) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| way.ready(now).map(|(at, packet)| (at.0, packet.0))).collect()
    }

    /// Looks whenever the link says so, until it is empty.
    fn run_out(way: &mut Way<Numbered>) -> Vec<(u64, usize)> {
        let mut out = Vec::new();
        while let Some(wakeup) = way.next_wakeup() {
            out.extend(drain(way, wakeup));
        }
        out
    }

    #[test]
    fn a_packet_takes_transmission_then_delay() {
        let mut way = Way::new(Rate(8_000_000), QueueSize::Packets(5), Span(400_000_000), None, stream(1, Purpose::Losses, 0));
        for (number, extra) in [(0, 0), (1, 1_500_000), (2, 0), (3, 0)] {
            way.enqueue(Time(7), Numbered(number, 1000, Span(extra), Rc::default())).unwrap();
        }
        // The second takes 1.5 ms more and is overtaken.
        assert_eq!(run_out(&mut way), [(401_000_007, 0), (403_000_007, 2), (403_500_007, 1), (404_000_007, 3)]);
        assert_eq!(way.busy(Time(1_000_000_000)), Span(4_000_000));
    }

    #[test]
    fn a_lost_packet_has_used_its_time_on_the_line_and_is_let_go() {
        let mut way = Way::new(Rate(8_000_000), QueueSize::Packets(5), Span(0), Some(Loss::PerPacket(1.0)), stream(1, Purpose::Losses, 0));
        let buffer = Rc::new(());
        for number in 0..3 {
            way.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, buffer.clone())).unwrap();
        }
        assert_eq!(way.len(), 3);
        assert_eq!(run_out(&mut way), []);
        assert_eq!(way.counts().losses, 3);
        assert_eq!(way.counts().left_bytes, Bytes(3000));
        assert_eq!(way.busy(Time(9_000_000)), Span(3_000_000));
        assert_eq!(Rc::strong_count(&buffer), 1);
    }

    #[test]
    fn nothing_is_delivered_before_it_was_said() {
        let mut way = Way::new(Rate(8_000_000), QueueSize::Packets(5), Span(400_000_000), None, stream(1, Purpose::Losses, 0));
        assert_eq!(way.next_delivery(), None);
        for (number, extra) in [(0, 1_500_000), (1, 0), (2, 0)] {
            way.enqueue(Time(0), Numbered(number, 1000, Span(extra), Rc::default())).unwrap();
        }
        let (mut looks, mut out) = (Vec::new(), Vec::new());
        while let Some(at) = way.next_delivery() {
            looks.push(at.0);
            out.extend(drain(&mut way, at));
        }
        assert_eq!(out, [(402_000_000, 1), (402_500_000, 0), (403_000_000, 2)]);
        // One look in vain: an extra delay is not known before the line is left.
        assert_eq!(looks, [401_000_000, 402_000_000, 402_500_000, 403_000_000]);
    }

    /// Numbers what leaves by adding a thousand, and writes down what it sees.
    #[derive(Debug, Default)]
    struct Notes(Vec<(u64, usize, u64)>, u64);
    impl Tap<Numbered> for Notes {
        fn comes(&mut self, now: Time, packet: &Numbered) {
            self.0.push((now.0, packet.0, self.1));
        }
        fn leaves(&mut self, at: Time, packet: &mut Numbered) {
            packet.0 += 1000;
            self.0.push((at.0, packet.0, self.1));
        }
        fn holds(&mut self, queued: Bytes) {
            self.1 = queued.0;
        }
    }

    #[test]
    fn a_tap_sees_everything_at_its_time_whoever_looks_when() {
        for looks in [false, true] {
            let way = Way::new(Rate(8_000_000), QueueSize::Packets(2), Span(5_000_000), None, stream(1, Purpose::Losses, 0));
            let mut way = way.tapped(Notes::default());
            for number in 0..4 {
                let refused = way.enqueue(Time(number as u64), Numbered(number, 1000, Span::ZERO, Rc::default())).is_err();
                assert_eq!(refused, number == 3, "one is on the line, two wait");
            }
            if looks {
                assert_eq!(way.queued(Time(1_500_000)), Bytes(1000));
            }
            let out: Vec<usize> = std::iter::from_fn(|| way.ready(Time(90_000_000)).map(|(_, packet)| packet.0)).collect();
            assert_eq!(out, [1000, 1001, 1002], "a tap may change what leaves");
            // When, which, and what had waited until then.
            let seen =
                [(0, 0, 0), (1, 1, 0), (2, 2, 1000), (3, 3, 2000), (1_000_000, 1000, 2000), (2_000_000, 1001, 1000), (3_000_000, 1002, 0)];
            assert_eq!(way.tap(Time(90_000_000)).0, seen);
        }
    }

    #[test]
    fn an_outage_holds_packets_until_it_ends() {
        let mut way = Way::new(Rate(8_000_000), QueueSize::Packets(5), Span(10_000_000), None, stream(1, Purpose::Losses, 0));
        for number in 0..3 {
            way.enqueue(Time(0), Numbered(number, 1000, Span::ZERO, Rc::default())).unwrap();
        }
        way.set_rate(Time(1_000_000), Rate(0));
        assert_eq!(drain(&mut way, Time(60_000_000_000)), [(11_000_000, 0)]);
        way.set_rate(Time(60_000_000_000), Rate(4_000_000));
        let out = run_out(&mut way);
        // In a minute the bit a second that a rate of zero counts as has sent 59.999 bits.
        assert_eq!(out, [(60_011_985_000, 1), (60_013_985_000, 2)]);
    }

    /// How somebody takes packets out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Caller {
        /// Whenever the link says so.
        Careful,
        /// When it pleases.
        Careless,
        /// When one arrives, and only those that do.
        Lazy,
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
    struct Plain(usize, u32, Span);
    impl Packet for Plain {
        fn wire_bytes(&self) -> u32 {
            self.1
        }
        fn extra_delay(&self) -> Span {
            self.2
        }
    }

    proptest! {
        /// What is copied from the shaper is what is moved, with and without extra delays, and so is what is counted.
        #[test]
        fn copied_packets_are_those_that_are_moved(
            packets in prop::collection::vec((0u64..2_000_000, 40u32..1500, 0u64..20_000_000), 1..200),
            late: bool,
            loss in any_loss(),
            seed: u64,
        ) {
            let link = || Way::<Plain>::new(Rate(5_280_001), QueueSize::Packets(3), Span(5_000_000), loss, stream(seed, Purpose::Losses, 0));
            let (mut copies, mut moves, mut now) = (link(), link(), 0);
            let take = |copies: &mut Way<Plain>, moves: &mut Way<Plain>, until: u64| -> Result<(), TestCaseError> {
                while let Some(at) = copies.next_delivery().filter(|at| at.0 <= until) {
                    prop_assert_eq!(moves.next_delivery(), Some(at));
                    let mut place = Plain(usize::MAX, 0, Span::ZERO);
                    while copies.arrived_in(at, &mut place) {
                        prop_assert_eq!(moves.arrived(at), Some((at, place)));
                    }
                    prop_assert_eq!(moves.arrived(at), None);
                }
                Ok(())
            };
            for (number, (gap, size, extra)) in packets.iter().enumerate() {
                now += gap;
                take(&mut copies, &mut moves, now)?;
                let packet = Plain(number, *size, Span(if late { extra.saturating_sub(10_000_000) } else { 0 }));
                prop_assert_eq!(copies.put(Time(now), packet), moves.put(Time(now), packet));
                prop_assert_eq!(copies.left_bytes(Time(now)), moves.left_bytes(Time(now)));
            }
            take(&mut copies, &mut moves, u64::MAX)?;
            let counts = copies.counts();
            prop_assert_eq!(counts, moves.counts());
            prop_assert_eq!(counts.delivered + counts.losses + counts.queue_drops, packets.len() as u64);
        }
    }

    proptest! {
        /// No packet is made or unmade, and polling more or less often changes neither which come out nor when.
        #[test]
        fn every_packet_is_accounted_for(
            // Gap, size, extra delay (half have none), whether a careless caller looks.
            packets in prop::collection::vec((0u64..2_000_000, 40u32..1500, 0u64..20_000_000, any::<bool>()), 1..200),
            bytes: bool,
            loss in any_loss(),
            seed: u64,
        ) {
            let limit = if bytes { QueueSize::Bytes(Bytes(4000)) } else { QueueSize::Packets(3) };
            let buffer = Rc::new(());
            let run = |caller: Caller| -> Result<Seen, TestCaseError> {
                let mut way: Way<Numbered> = Way::new(Rate(5_280_001), limit, Span(5_000_000), loss, stream(seed, Purpose::Losses, 0));
                let (mut now, mut out, mut dropped) = (0, Vec::new(), Vec::new());
                for (number, (gap, size, extra, looks)) in packets.iter().enumerate() {
                    now += gap;
                    match caller {
                        Caller::Careful => {
                            while let Some(wakeup) = way.next_wakeup().filter(|at| at.0 <= now) {
                                out.extend(drain(&mut way, wakeup));
                            }
                        }
                        Caller::Careless if *looks => out.extend(drain(&mut way, Time(now))),
                        Caller::Careless => {}
                        Caller::Lazy => {
                            while let Some(at) = way.next_delivery().filter(|at| at.0 <= now) {
                                out.extend(std::iter::from_fn(|| way.arrived(at).map(|(at, packet)| (at.0, packet.0))));
                            }
                            // Whoever counts moves packets on their way.
                            if *looks { way.counts_at(Time(now)); }
                        }
                    }
                    let extra = Span(extra.saturating_sub(10_000_000));
                    let packet = Numbered(number, *size, extra, buffer.clone());
                    let refused = match caller {
                        Caller::Lazy => way.put(Time(now), packet).is_err(),
                        Caller::Careful | Caller::Careless => way.enqueue(Time(now), packet).is_err(),
                    };
                    if refused {
                        dropped.push(number);
                    }
                    let counts = way.counts();
                    prop_assert_eq!(counts.arrived, counts.queue_drops + counts.losses + counts.delivered + way.len() as u64);
                    prop_assert_eq!(Rc::strong_count(&buffer), 1 + way.len(), "a packet that is not inside is held by nobody");
                }
                out.extend(run_out(&mut way));
                let counts = way.counts();
                prop_assert!(way.is_empty() && out.is_sorted_by_key(|(at, _)| *at));
                prop_assert_eq!(counts.arrived, packets.len() as u64);
                prop_assert_eq!(counts.queue_drops, dropped.len() as u64);
                prop_assert_eq!(counts.arrived, counts.queue_drops + counts.left);
                prop_assert_eq!(counts.left, counts.losses + counts.delivered);
                prop_assert_eq!(counts.delivered, out.len() as u64);
                prop_assert_eq!(counts.delivered_bytes.0, out.iter().map(|(_, number)| u64::from(packets[*number].1)).sum::<u64>());
                // The line was in use for as long as its bytes take; each time it falls idle it drops a fraction.
                let busy = way.busy(Time(u64::MAX)).0;
                let exact = Rate(5_280_001).time_for(counts.left_bytes).0;
                prop_assert!(busy <= exact && exact - busy <= counts.left, "{} {}", busy, exact);
                Ok((out, dropped))
            };
            let careful = run(Caller::Careful)?;
            prop_assert_eq!(&careful, &run(Caller::Careless)?);
            prop_assert_eq!(&careful, &run(Caller::Lazy)?);
        }
    }
}
