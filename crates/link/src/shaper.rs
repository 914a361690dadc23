//! A drop-tail queue in front of a line of fixed rate.

use crate::{Packet, Stage, Time};
use scenario::{Bytes, Rate};
use std::collections::VecDeque;

/// What a queue holds at most, not counting the packet on the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// So many packets.
    Packets(u64),
    /// So many IP bytes.
    Bytes(Bytes),
}

/// A queue and the line behind it. A packet that comes is dropped when it must wait and the queue has no room for it; the
/// packet on the line has left the queue. Each packet leaves the line `size / rate` after the later of its arrival and the
/// departure of the one before it, exactly: fractions of a nanosecond are carried, so that no rate is off in the long run.
#[derive(Debug)]
pub struct Shaper<P> {
    rate: Rate,
    limit: Limit,
    /// Packets in the queue and on the line: when each began to use the line, when it leaves, and itself.
    waiting: VecDeque<(Time, Time, P)>,
    /// How many of them had begun to use the line when last looked, and the queue without these.
    begun: usize,
    queued_bytes: u64,
    /// When the line falls idle, and by how many parts of `rate` of a nanosecond later.
    free_at: Time,
    fraction: u128,
    left_bytes: u64,
    left_packets: u64,
    most_queued: u64,
}

impl<P: Packet> Shaper<P> {
    /// An idle line.
    pub fn new(rate: Rate, limit: Limit) -> Self {
        Shaper {
            rate,
            limit,
            waiting: VecDeque::new(),
            begun: 0,
            queued_bytes: 0,
            free_at: Time(0),
            fraction: 0,
            left_bytes: 0,
            left_packets: 0,
            most_queued: 0,
        }
    }

    /// Changes the rate for packets that come from now on.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
        self.fraction = 0;
    }

    /// Bytes in the queue at `now`, without the packet on the line.
    pub fn queued(&mut self, now: Time) -> Bytes {
        while let Some((begins, _, packet)) = self.waiting.get(self.begun)
            && *begins <= now
        {
            self.queued_bytes -= u64::from(packet.wire_bytes());
            self.begun += 1;
        }
        Bytes(self.queued_bytes)
    }

    /// The largest the queue has been.
    pub fn most_queued(&self) -> Bytes {
        Bytes(self.most_queued)
    }

    /// Packets and bytes that have left the line and been taken.
    pub fn left(&self) -> (u64, Bytes) {
        (self.left_packets, Bytes(self.left_bytes))
    }

    fn has_room(&self, size: u64) -> bool {
        match self.limit {
            Limit::Packets(most) => ((self.waiting.len() - self.begun) as u64) < most,
            Limit::Bytes(most) => self.queued_bytes + size <= most.0,
        }
    }
}

impl<P: Packet> Stage<P> for Shaper<P> {
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        let size = u64::from(packet.wire_bytes());
        self.queued(now);
        let waits = (self.free_at, self.fraction) > (now, 0);
        if waits && !self.has_room(size) {
            return Err(packet);
        }
        if !waits {
            self.free_at = now;
            self.fraction = 0;
        }
        let begins = self.free_at;
        let rate = u128::from(self.rate.bits_per_s().max(1));
        let parts = self.fraction + u128::from(size) * 8_000_000_000;
        self.fraction = parts % rate;
        self.free_at = Time(begins.0.saturating_add(u64::try_from(parts / rate).unwrap_or(u64::MAX)));
        self.waiting.push_back((begins, self.free_at, packet));
        self.queued_bytes += size;
        if waits {
            self.most_queued = self.most_queued.max(self.queued_bytes);
        }
        self.queued(now);
        Ok(())
    }

    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        if self.waiting.front()?.1 > now {
            return None;
        }
        self.queued(now);
        let (_, leaves, packet) = self.waiting.pop_front()?;
        self.begun -= 1;
        self.left_packets += 1;
        self.left_bytes += u64::from(packet.wire_bytes());
        Some((leaves, packet))
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.waiting.front().map(|(_, leaves, _)| *leaves)
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
        let mut shaper = Shaper::new(Rate(10_000_000), Limit::Packets(10));
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
        let mut shaper = Shaper::new(Rate(8_000_000), Limit::Packets(2));
        let accepted = |shaper: &mut Shaper<Sized>, now| shaper.enqueue(Time(now), Sized(1000)).is_ok();
        // One on the line, two in the queue, the fourth has no room.
        assert_eq!([0, 0, 0, 0].map(|now| accepted(&mut shaper, now)), [true, true, true, false]);
        // At 1 ms the first has left and the second is on the line.
        assert!(accepted(&mut shaper, 1_000_000));
        assert!(!accepted(&mut shaper, 1_999_999));

        let mut shaper = Shaper::new(Rate(8_000_000), Limit::Bytes(Bytes(2000)));
        assert_eq!([0, 0, 0, 0].map(|now| accepted(&mut shaper, now)), [true, true, true, false]);
        assert_eq!(shaper.queued(Time(0)), Bytes(2000));
        assert_eq!(shaper.most_queued(), Bytes(2000));
        assert_eq!(shaper.queued(Time(1_000_000)), Bytes(1000));
    }

    #[test]
    fn odd_rates_are_exact_in_the_long_run() {
        for rate in [1, 7, 333_333, 5_280_000, 999_999_937, 40_000_000_000] {
            let mut shaper = Shaper::new(Rate(rate), Limit::Packets(u64::MAX));
            let mut last = 0;
            for _ in 0..100_000 {
                shaper.enqueue(Time(0), Sized(1)).unwrap();
                while let Some((at, _)) = shaper.ready(Time(u64::MAX)) {
                    last = at.0;
                }
            }
            assert_eq!(u128::from(last), 100_000 * 8_000_000_000 / u128::from(rate), "{rate}");
        }
    }

    proptest! {
        /// Whoever looks late sees the same departures as whoever looks in time.
        #[test]
        fn looking_late_changes_nothing(gaps in prop::collection::vec(0u64..3_000_000, 1..60), looks in prop::collection::vec(any::<bool>(), 60)) {
            let run = |looks: &dyn Fn(usize) -> bool| {
                let mut shaper = Shaper::new(Rate(8_000_000), Limit::Bytes(Bytes(5000)));
                let (mut now, mut out, mut dropped) = (0, Vec::new(), Vec::new());
                for (index, gap) in gaps.iter().enumerate() {
                    now += gap;
                    if looks(index) { out.extend(drain(&mut shaper, now)); }
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
