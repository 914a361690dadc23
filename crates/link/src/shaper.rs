//! A drop-tail queue in front of a line that sends at a rate. What becomes of packets behind the line is left to others.

use crate::{Packet, Stage, Time};
use std::collections::VecDeque;
use units::{Bytes, QueueSize, Rate, Span};

/// A queue and the line behind it. A packet that comes is dropped when it must wait and the queue has no room for it; the
/// packet on the line has left the queue. Each packet leaves the line `size / rate` after the later of its arrival and the
/// departure of the one before it, exactly: fractions of a nanosecond are carried, so that no rate is off in the long run.
///
/// A departure is known when its packet comes, so nothing has to happen at the moment itself, and whoever looks late finds
/// what a punctual caller would have found. A rate of zero counts as one bit a second: the line stands, and still has an end.
#[derive(Debug)]
pub struct Shaper<P> {
    rate: Rate,
    limit: QueueSize,
    /// In the queue, on the line, and off it and not taken.
    waiting: VecDeque<Waiting<P>>,
    /// Packets and bytes that came, dropped ones not among them.
    came: (u64, u64),
    /// How many of those had begun to use the line when last looked, and how many had left it.
    begun: u64,
    gone: u64,
    /// When the line falls idle, and by how many parts of `rate` of a nanosecond later.
    free_at: Time,
    fraction: u64,
    /// What the last packet took: its bytes, nanoseconds, and parts of `rate` of one. Most are like the one before, and a division is spared.
    last: (u64, u64, u64),
    /// For how long it was idle before.
    idle: Span,
    most_queued: u64,
}

/// A packet in a shaper.
#[derive(Debug)]
struct Waiting<P> {
    /// When it begins to use the line, and when it leaves.
    begins: Time,
    leaves: Time,
    /// Bytes that came before it.
    before: u64,
    packet: P,
}

impl<P: Packet> Shaper<P> {
    /// An idle line.
    pub fn new(rate: Rate, limit: QueueSize) -> Self {
        Shaper {
            rate,
            limit,
            waiting: VecDeque::new(),
            came: (0, 0),
            begun: 0,
            gone: 0,
            free_at: Time(0),
            fraction: 0,
            last: (0, 0, 0),
            idle: Span::ZERO,
            most_queued: 0,
        }
    }

    /// Changes the rate at `now`. What has not left by then goes at the new one, the rest of the packet on the line too: a
    /// line that stood still moves again. Costs a step for each packet inside, and forgets less than a nanosecond.
    pub fn set_rate(&mut self, now: Time, rate: Rate) {
        self.queued(now);
        let old = parts_per_ns(self.rate);
        self.rate = rate;
        self.fraction = 0;
        self.last = (0, 0, 0);
        if self.free_at <= now {
            return;
        }
        self.free_at = now;
        let gone = self.waiting.partition_point(|waiting| waiting.leaves <= now);
        for index in gone..self.waiting.len() {
            let Waiting { begins, leaves, ref packet, .. } = self.waiting[index];
            // The one on the line keeps the moment at which it left the queue.
            let (begins, parts) = match begins < now {
                true => (begins, u128::from((leaves - now).0) * u128::from(old)),
                false => (self.free_at, u128::from(packet.wire_bytes()) * u128::from(PARTS_OF_A_BYTE)),
            };
            let rate = u128::from(parts_per_ns(rate));
            // The rest is less than the rate, which has 64 bits.
            self.occupy(u64::try_from(parts / rate).unwrap_or(u64::MAX), (parts % rate) as u64);
            (self.waiting[index].begins, self.waiting[index].leaves) = (begins, self.free_at);
        }
    }

    /// Holds the line from `free_at` on for nanoseconds, and parts of `rate` of one.
    #[inline]
    fn occupy(&mut self, whole: u64, parts: u64) {
        let rate = parts_per_ns(self.rate);
        // Both parts are less than the rate, and their sum less than two.
        let (sum, overflows) = self.fraction.overflowing_add(parts);
        let carry = overflows || sum >= rate;
        self.fraction = if carry { sum.wrapping_sub(rate) } else { sum };
        self.free_at = self.free_at + Span(whole.saturating_add(carry.into()));
    }

    /// How long a packet holds the line.
    #[inline]
    fn time_of(&mut self, size: u64) -> (u64, u64) {
        if size != self.last.0 {
            let rate = parts_per_ns(self.rate);
            // More than a packet can have is for ever.
            let parts = size.saturating_mul(PARTS_OF_A_BYTE);
            self.last = (size, parts / rate, parts % rate);
        }
        (self.last.1, self.last.2)
    }

    /// Packets that came; dropped ones are not among them.
    pub(crate) fn came(&self) -> u64 {
        self.came.0
    }

    /// Bytes of the packets that were taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.came.1 - self.bytes_from(self.taken())
    }

    /// Packets that were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.came.0 - self.waiting.len() as u64
    }

    /// Bytes that came from the packet with this number on.
    fn bytes_from(&self, number: u64) -> u64 {
        let at = (number - self.taken()) as usize;
        self.waiting.get(at).map_or(0, |waiting| self.came.1 - waiting.before)
    }

    /// Bytes in the queue at `now`, without the packet on the line.
    #[inline]
    pub fn queued(&mut self, now: Time) -> Bytes {
        let taken = self.taken();
        self.begun = self.begun.max(taken);
        while self.waiting.get((self.begun - taken) as usize).is_some_and(|waiting| waiting.begins <= now) {
            self.begun += 1;
        }
        Bytes(self.bytes_from(self.begun))
    }

    /// Packets that came and have not been taken: in the queue, on the line, or off it and not fetched.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet is inside.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// For how long the line has been in use between the beginning of time and `now`.
    pub fn busy(&self, now: Time) -> Span {
        Span((now.min(self.free_at) - Time(0)).0.saturating_sub(self.idle.0))
    }

    /// The largest the queue has been.
    pub fn most_queued(&self) -> Bytes {
        Bytes(self.most_queued)
    }

    /// Packets and bytes that have left the line, as far as anybody has looked.
    pub fn left(&self) -> (u64, Bytes) {
        let gone = self.gone.max(self.taken());
        (gone, Bytes(self.came.1 - self.bytes_from(gone)))
    }

    /// The same until `now`, whoever took what.
    pub fn left_by(&mut self, now: Time) -> (u64, Bytes) {
        let taken = self.taken();
        self.gone = self.gone.max(taken);
        while self.waiting.get((self.gone - taken) as usize).is_some_and(|waiting| waiting.leaves <= now) {
            self.gone += 1;
        }
        self.left()
    }

    /// The first packet, and when it leaves the line.
    #[inline]
    pub(crate) fn first(&self) -> Option<(Time, &P)> {
        self.waiting.front().map(|waiting| (waiting.leaves, &waiting.packet))
    }

    /// Takes it out, to be forgotten.
    #[inline]
    pub(crate) fn drop_first(&mut self) {
        self.waiting.pop_front();
    }

    fn has_room(&self, queued: Bytes, size: u64) -> bool {
        match self.limit {
            QueueSize::Packets(most) => self.came.0 - self.begun < most,
            QueueSize::Bytes(most) => queued.0 + size <= most.0,
        }
    }
}

/// What the line gets done in a nanosecond, in parts: bits × 10⁹, so that a packet is a whole number of them.
#[inline]
fn parts_per_ns(rate: Rate) -> u64 {
    rate.bits_per_s().max(1)
}

/// What it has to do for a byte.
const PARTS_OF_A_BYTE: u64 = 8_000_000_000;

impl<P: Packet> Stage<P> for Shaper<P> {
    #[inline(always)]
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        let size = u64::from(packet.wire_bytes());
        if self.free_at > now {
            let queued = self.queued(now);
            if !self.has_room(queued, size) {
                return Err(packet);
            }
            self.most_queued = self.most_queued.max(queued.0 + size);
        } else if self.free_at < now {
            self.idle += now - self.free_at;
            self.free_at = now;
            self.fraction = 0;
        }
        let begins = self.free_at;
        let (whole, parts) = self.time_of(size);
        self.occupy(whole, parts);
        self.waiting.push_back(Waiting { begins, leaves: self.free_at, before: self.came.1, packet });
        self.came = (self.came.0 + 1, self.came.1 + size);
        Ok(())
    }

    #[inline]
    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.first().filter(|(leaves, _)| *leaves <= now)?;
        self.waiting.pop_front().map(|waiting| (waiting.leaves, waiting.packet))
    }

    #[inline]
    fn next_wakeup(&self) -> Option<Time> {
        self.first().map(|(leaves, _)| leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of that many bytes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Sized(u32);
    impl Packet for Sized {
        fn wire_bytes(&self) -> u32 {
            self.0
        }
    }

    fn drain(shaper: &mut Shaper<Sized>, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| shaper.ready(Time(now)).map(|(at, _)| at.0)).collect()
    }

    #[test]
    fn packets_leave_one_transmission_time_apart() {
        let mut shaper = Shaper::new(Rate(10_000_000), QueueSize::Packets(10));
        for _ in 0..3 {
            shaper.enqueue(Time(0), Sized(1500)).unwrap();
        }
        // 1500 bytes at 10 Mbit/s are 1.2 ms.
        assert_eq!(shaper.next_wakeup(), Some(Time(1_200_000)));
        assert_eq!(drain(&mut shaper, 2_500_000), [1_200_000, 2_400_000]);
        assert_eq!(drain(&mut shaper, 3_600_000), [3_600_000]);
        // Idle since; the next one starts afresh.
        shaper.enqueue(Time(10_000_000), Sized(750)).unwrap();
        assert_eq!(drain(&mut shaper, 20_000_000), [10_600_000]);
    }

    #[test]
    fn the_limit_is_exact_and_leaves_out_the_packet_on_the_line() {
        let mut shaper = Shaper::new(Rate(8_000_000), QueueSize::Packets(2));
        let accepted = |shaper: &mut Shaper<Sized>, now| shaper.enqueue(Time(now), Sized(1000)).is_ok();
        // One on the line, two in the queue, the fourth has no room.
        assert_eq!([0, 0, 0, 0].map(|now| accepted(&mut shaper, now)), [true, true, true, false]);
        // At 1 ms the first has left and the second is on the line.
        assert!(accepted(&mut shaper, 1_000_000));
        assert!(!accepted(&mut shaper, 1_999_999));

        let mut shaper = Shaper::new(Rate(8_000_000), QueueSize::Bytes(Bytes(2000)));
        assert_eq!([0, 0, 0, 0].map(|now| accepted(&mut shaper, now)), [true, true, true, false]);
        assert_eq!(shaper.queued(Time(0)), Bytes(2000));
        assert_eq!(shaper.most_queued(), Bytes(2000));
        assert_eq!(shaper.queued(Time(1_000_000)), Bytes(1000));
    }

    #[test]
    fn odd_rates_are_exact_in_the_long_run() {
        const COUNT: u64 = 1_000_000;
        for (rate, size) in [(7, 1), (333_333, 1500), (5_280_000, 1500), (999_999_937, 40), (40_000_000_000, 1)] {
            let mut shaper = Shaper::new(Rate(rate), QueueSize::Packets(u64::MAX));
            let mut last = 0;
            for _ in 0..COUNT {
                shaper.enqueue(Time(0), Sized(size)).unwrap();
                while let Some((at, _)) = shaper.ready(Time(u64::MAX)) {
                    last = at.0;
                }
            }
            let exact = u128::from(COUNT) * u128::from(size) * 8_000_000_000 / u128::from(rate);
            assert_eq!(u128::from(last), exact, "{rate} bit/s");
            assert_eq!(shaper.left(), (COUNT, Bytes(COUNT * u64::from(size))));
        }
    }

    #[test]
    fn a_packet_that_comes_as_the_line_falls_idle_loses_no_fraction() {
        // 1 byte at 3 bit/s takes 2.67 s: each packet comes in the very nanosecond in which the one before it leaves.
        let mut shaper = Shaper::new(Rate(3), QueueSize::Packets(1));
        let mut now = 0;
        for _ in 0..300 {
            shaper.enqueue(Time(now), Sized(1)).unwrap();
            assert_eq!(shaper.most_queued(), Bytes(0), "none of them waits");
            now = drain(&mut shaper, u64::MAX)[0];
        }
        assert_eq!(now, 800_000_000_000);
    }

    #[test]
    fn the_line_is_busy_while_it_sends() {
        let mut shaper = Shaper::new(Rate(8_000_000), QueueSize::Packets(9));
        let busy = |shaper: &Shaper<Sized>| [0, 1_500_000, 3_000_000, 9_000_000].map(|now| shaper.busy(Time(now)).0);
        assert_eq!(busy(&shaper), [0; 4]);
        shaper.enqueue(Time(1_000_000), Sized(1000)).unwrap();
        shaper.enqueue(Time(1_000_000), Sized(1000)).unwrap();
        assert_eq!(busy(&shaper)[1..], [500_000, 2_000_000, 2_000_000]);
        shaper.enqueue(Time(8_500_000), Sized(1000)).unwrap();
        assert_eq!(shaper.busy(Time(9_000_000)).0, 2_500_000);
        assert_eq!(shaper.busy(Time(99_000_000)).0, 3_000_000);
    }

    #[test]
    fn a_new_rate_holds_for_the_queue_and_the_rest_of_the_packet_on_the_line() {
        let mut shaper = Shaper::new(Rate(8_000_000), QueueSize::Packets(9));
        for _ in 0..4 {
            shaper.enqueue(Time(0), Sized(1000)).unwrap();
        }
        // The first has left, though nobody has looked; of the second a quarter; then the rate is halved.
        shaper.set_rate(Time(1_250_000), Rate(4_000_000));
        assert_eq!(shaper.queued(Time(1_250_000)), Bytes(2000));
        assert_eq!(shaper.queued(Time(2_749_999)), Bytes(2000));
        assert_eq!(shaper.queued(Time(2_750_000)), Bytes(1000));
        assert_eq!(drain(&mut shaper, 10_000_000), [1_000_000, 2_750_000, 4_750_000, 6_750_000]);
        assert_eq!(shaper.busy(Time(10_000_000)).0, 6_750_000);
        // An idle line has nothing to change.
        shaper.set_rate(Time(10_000_000), Rate(8_000_000));
        shaper.enqueue(Time(10_000_000), Sized(1000)).unwrap();
        assert_eq!(drain(&mut shaper, 20_000_000), [11_000_000]);
    }

    #[test]
    fn a_line_that_stood_still_moves_again() {
        let mut shaper = Shaper::new(Rate(8_000_000), QueueSize::Packets(9));
        shaper.set_rate(Time(0), Rate(0));
        shaper.enqueue(Time(0), Sized(1000)).unwrap();
        shaper.enqueue(Time(0), Sized(1000)).unwrap();
        assert_eq!(drain(&mut shaper, 3_600_000_000_000), [0; 0]);
        shaper.set_rate(Time(5_000_000), Rate(8_000_000));
        // The bit a second that a rate of zero counts as has spared it a nanosecond.
        assert_eq!(drain(&mut shaper, 10_000_000), [5_999_999, 6_999_999]);
    }

    #[test]
    fn extremes_do_not_overflow() {
        for rate in [0, 1, u64::MAX] {
            for size in [0, 1, u32::MAX] {
                let mut shaper = Shaper::new(Rate(rate), QueueSize::Bytes(Bytes(u64::MAX)));
                for now in [0, 1, u64::MAX - 1, u64::MAX] {
                    for _ in 0..3 {
                        shaper.enqueue(Time(now), Sized(size)).unwrap();
                    }
                    shaper.set_rate(Time(now), Rate(rate ^ 1));
                }
                let out = drain(&mut shaper, u64::MAX);
                assert_eq!(out.len(), 12);
                assert!(out.is_sorted() && shaper.is_empty());
                let _ = shaper.busy(Time(u64::MAX));
            }
        }
    }

    proptest! {
        /// Whoever looks late sees the same departures as whoever looks in time.
        #[test]
        fn looking_late_changes_nothing(gaps in prop::collection::vec(0u64..3_000_000, 1..60), looks in prop::collection::vec(any::<bool>(), 60)) {
            let run = |looks: &dyn Fn(usize) -> bool| {
                let mut shaper = Shaper::new(Rate(7_999_993), QueueSize::Bytes(Bytes(5000)));
                let (mut now, mut out, mut dropped) = (0, Vec::new(), Vec::new());
                for (index, gap) in gaps.iter().enumerate() {
                    now += gap;
                    if looks(index) { out.extend(drain(&mut shaper, now)); }
                    if index % 16 == 15 { shaper.set_rate(Time(now), Rate(1_234_567 * (index as u64 % 5 + 1))); }
                    if shaper.enqueue(Time(now), Sized(500 + 100 * (index as u32 % 10))).is_err() { dropped.push(index); }
                }
                out.extend(drain(&mut shaper, u64::MAX));
                prop_assert_eq!(out.len() + dropped.len(), gaps.len());
                Ok((out, dropped))
            };
            prop_assert_eq!(run(&|_| true)?, run(&|index| looks[index])?);
        }
    }
}
