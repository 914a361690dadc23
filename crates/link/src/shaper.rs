//! A drop-tail queue in front of a transmitter. What happens to packets after their transmission is
//! left to other stages.

use crate::{
    delay_histogram::DelayHistogram,
    stage::{LinkPacket, LinkStage},
    time::Time,
    transmitter::{Transmission, Transmitter},
};
use std::collections::VecDeque;
use units::{Bytes, QueueSize, Rate, Span};

/// A drop-tail queue and its transmitter.
///
/// An arriving packet is dropped if it would have to wait and the queue has no room for it. The
/// packet in transmission is not in the queue.
///
/// The departure time is computed on arrival, so no action is needed at the moment of departure,
/// and a caller that polls late sees what a punctual caller would have seen.
#[derive(Debug)]
pub struct Shaper<P> {
    transmitter: Transmitter,
    limit: QueueSize,
    /// Packets that wait, are in transmission, or have departed and were not taken by the caller.
    packets: VecDeque<ShapedPacket<P>>,
    /// Packets and bytes accepted so far, without dropped ones.
    accepted_packets: u64,
    accepted_bytes: u64,
    /// Accepted packets whose transmission had begun at the last call of [`Shaper::queued`].
    started: u64,
    /// Accepted packets that had departed at the last call of [`Shaper::departed_by`].
    departed: u64,
    max_queued: u64,
    /// From arrival to departure, of the packets that the caller has taken; none if they are not
    /// counted.
    delays: Option<DelayHistogram>,
}

/// A packet inside a shaper.
#[derive(Debug)]
struct ShapedPacket<P> {
    arrived: Time,
    /// When its transmission begins.
    starts: Time,
    /// When its transmission ends.
    departs: Time,
    /// Bytes accepted before it.
    bytes_before: u64,
    packet: P,
}

impl<P: LinkPacket> Shaper<P> {
    /// An empty queue and an idle transmitter.
    pub fn new(transmission: Transmission, limit: QueueSize) -> Self {
        Shaper {
            transmitter: Transmitter::new(transmission),
            limit,
            packets: VecDeque::new(),
            accepted_packets: 0,
            accepted_bytes: 0,
            started: 0,
            departed: 0,
            max_queued: 0,
            delays: Some(DelayHistogram::default()),
        }
    }

    /// The same, without counting delays.
    pub(crate) fn without_delays(self) -> Self {
        Shaper { delays: None, ..self }
    }

    /// Changes the rate at `now`. Everything that has not departed by then is sent at the new rate,
    /// including the rest of the packet in transmission, so a stalled transmitter moves again.
    /// Takes time linear in the number of packets inside, and loses less than a nanosecond. A trace
    /// has no rate, and stays as it is.
    pub fn set_rate(&mut self, now: Time, rate: Rate) {
        self.queued(now);
        let Transmitter::Rate(transmitter) = &mut self.transmitter else { return };
        let before = transmitter.set_rate(now, rate);
        let departed = self.packets.partition_point(|shaped| shaped.departs <= now);
        for shaped in self.packets.range_mut(departed..) {
            let times = (shaped.starts, shaped.departs);
            (shaped.starts, shaped.departs) = transmitter.transmit_again(now, before, times, shaped.packet.wire_bytes());
        }
    }

    /// Starts a trace at `now`; packets that are inside keep their times. A rate has no start.
    pub fn start_trace(&mut self, now: Time) {
        if let Transmitter::Trace(transmitter) = &mut self.transmitter {
            transmitter.start(now);
        }
    }

    /// Packets accepted so far, without dropped ones.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted_packets
    }

    /// Packets that the caller has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.accepted_packets - self.packets.len() as u64
    }

    /// Bytes of the packets that the caller has taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.accepted_bytes - self.bytes_from(self.taken())
    }

    /// Bytes accepted from packet `number` on, counted from the first accepted packet.
    fn bytes_from(&self, number: u64) -> u64 {
        let index = (number - self.taken()) as usize;
        self.packets.get(index).map_or(0, |shaped| self.accepted_bytes - shaped.bytes_before)
    }

    /// Bytes in the queue at `now`, without the packet in transmission.
    #[inline]
    pub fn queued(&mut self, now: Time) -> Bytes {
        let taken = self.taken();
        self.started = self.started.max(taken);
        while self.packets.get((self.started - taken) as usize).is_some_and(|shaped| shaped.starts <= now) {
            self.started += 1;
        }
        Bytes(self.bytes_from(self.started))
    }

    /// Packets inside: in the queue, in transmission, or departed and not taken.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether no packet is inside.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// For how long the transmitter has been busy from time zero until `now`.
    pub fn busy_time(&self, now: Time) -> Span {
        self.transmitter.busy_time(now)
    }

    /// The largest queue length so far, without the packet in transmission.
    pub fn max_queued(&self) -> Bytes {
        Bytes(self.max_queued)
    }

    /// From arrival to departure, of the packets that the caller has taken; none if they are not
    /// counted.
    pub fn delays(&self) -> Option<&DelayHistogram> {
        self.delays.as_ref()
    }

    #[inline]
    fn count_delay(&mut self, delay: Span) {
        if let Some(delays) = &mut self.delays {
            delays.add(delay);
        }
    }

    /// Packets and bytes that had departed at the last poll.
    pub fn departed(&self) -> (u64, Bytes) {
        let departed = self.departed.max(self.taken());
        (departed, Bytes(self.accepted_bytes - self.bytes_from(departed)))
    }

    /// Packets and bytes that have departed by `now`, taken or not.
    pub fn departed_by(&mut self, now: Time) -> (u64, Bytes) {
        let taken = self.taken();
        self.departed = self.departed.max(taken);
        while self.packets.get((self.departed - taken) as usize).is_some_and(|shaped| shaped.departs <= now) {
            self.departed += 1;
        }
        self.departed()
    }

    /// The first packet inside, and when it departs.
    #[inline]
    pub(crate) fn first(&self) -> Option<(Time, &P)> {
        self.packets.front().map(|shaped| (shaped.departs, &shaped.packet))
    }

    /// Removes the first packet and discards it.
    #[inline]
    pub(crate) fn discard_first(&mut self) {
        if let Some(shaped) = self.packets.pop_front() {
            self.count_delay(shaped.departs - shaped.arrived);
        }
    }

    fn has_room(&self, queued: Bytes, size: u64) -> bool {
        match self.limit {
            QueueSize::Packets(limit) => self.accepted_packets - self.started < limit,
            QueueSize::Bytes(limit) => queued.0 + size <= limit.0,
        }
    }
}

impl<P: LinkPacket> LinkStage<P> for Shaper<P> {
    #[inline(always)]
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        let size = u64::from(packet.wire_bytes());
        if self.transmitter.next_start(now) > now {
            let queued = self.queued(now);
            if !self.has_room(queued, size) {
                return Err(packet);
            }
            self.max_queued = self.max_queued.max(queued.0 + size);
        }
        let (starts, departs) = self.transmitter.transmit(now, size);
        self.packets.push_back(ShapedPacket { arrived: now, starts, departs, bytes_before: self.accepted_bytes, packet });
        self.accepted_packets += 1;
        self.accepted_bytes += size;
        Ok(())
    }

    #[inline]
    fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        self.first().filter(|(departs, _)| *departs <= now)?;
        let shaped = self.packets.pop_front()?;
        self.count_delay(shaped.departs - shaped.arrived);
        Some((shaped.departs, shaped.packet))
    }

    #[inline]
    fn next_wakeup(&self) -> Option<Time> {
        self.first().map(|(departs, _)| departs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of this many bytes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Sized(u32);
    impl LinkPacket for Sized {
        fn wire_bytes(&self) -> u32 {
            self.0
        }
    }

    fn rate(bits_per_s: u64) -> Transmission {
        Transmission::Rate(Rate(bits_per_s))
    }

    fn drain(shaper: &mut Shaper<Sized>, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| shaper.ready(Time(now)).map(|(at, _)| at.0)).collect()
    }

    #[test]
    fn packets_leave_one_transmission_time_apart() {
        let mut shaper = Shaper::new(rate(10_000_000), QueueSize::Packets(10));
        for _ in 0..3 {
            shaper.enqueue(Time(0), Sized(1500)).unwrap();
        }
        // 1500 bytes at 10 Mbit/s take 1.2 ms.
        assert_eq!(shaper.next_wakeup(), Some(Time(1_200_000)));
        assert_eq!(drain(&mut shaper, 2_500_000), [1_200_000, 2_400_000]);
        assert_eq!(drain(&mut shaper, 3_600_000), [3_600_000]);
        // The transmitter has been idle: the next packet is sent immediately.
        shaper.enqueue(Time(10_000_000), Sized(750)).unwrap();
        assert_eq!(drain(&mut shaper, 20_000_000), [10_600_000]);
    }

    #[test]
    fn delays_are_from_arrival_to_departure_of_what_was_taken() {
        let mut shaper = Shaper::new(rate(12_000_000), QueueSize::Packets(10));
        for _ in 0..4 {
            shaper.enqueue(Time(1_000_000), Sized(1500)).unwrap();
        }
        // They depart 1, 2, 3 and 4 ms after their arrival; the last is not taken.
        assert_eq!(drain(&mut shaper, 4_500_000).len(), 3);
        let quantiles = [0.1, 0.5, 1.0].map(|share| shaper.delays().unwrap().quantile(share).unwrap().0 as f64 / 1e6);
        assert!(quantiles.iter().zip([1.0, 2.0, 3.0]).all(|(found, exact)| (found / exact - 1.0).abs() < 0.04), "{quantiles:?}");
    }

    #[test]
    fn the_limit_is_exact_and_excludes_the_packet_in_transmission() {
        let mut shaper = Shaper::new(rate(8_000_000), QueueSize::Packets(2));
        let accepted = |shaper: &mut Shaper<Sized>, now| shaper.enqueue(Time(now), Sized(1000)).is_ok();
        // One in transmission, two in the queue; the fourth is dropped.
        assert_eq!([0, 0, 0, 0].map(|now| accepted(&mut shaper, now)), [true, true, true, false]);
        // At 1 ms the first has departed and the second is in transmission.
        assert!(accepted(&mut shaper, 1_000_000));
        assert!(!accepted(&mut shaper, 1_999_999));

        let mut shaper = Shaper::new(rate(8_000_000), QueueSize::Bytes(Bytes(2000)));
        assert_eq!([0, 0, 0, 0].map(|now| accepted(&mut shaper, now)), [true, true, true, false]);
        assert_eq!(shaper.queued(Time(0)), Bytes(2000));
        assert_eq!(shaper.max_queued(), Bytes(2000));
        assert_eq!(shaper.queued(Time(1_000_000)), Bytes(1000));
    }

    #[test]
    fn odd_rates_are_exact_in_the_long_run() {
        const COUNT: u64 = 1_000_000;
        for (rate, size) in [(7, 1), (333_333, 1500), (5_280_000, 1500), (999_999_937, 40), (40_000_000_000, 1)] {
            let mut shaper = Shaper::new(Transmission::Rate(Rate(rate)), QueueSize::Packets(u64::MAX));
            let mut last = 0;
            for _ in 0..COUNT {
                shaper.enqueue(Time(0), Sized(size)).unwrap();
                while let Some((at, _)) = shaper.ready(Time(u64::MAX)) {
                    last = at.0;
                }
            }
            let exact = u128::from(COUNT) * u128::from(size) * 8_000_000_000 / u128::from(rate);
            assert_eq!(u128::from(last), exact, "{rate} bit/s");
            assert_eq!(shaper.departed(), (COUNT, Bytes(COUNT * u64::from(size))));
        }
    }

    #[test]
    fn a_packet_that_arrives_as_the_transmitter_becomes_idle_keeps_the_fraction() {
        // 1 byte at 3 bit/s takes 2.67 s. Each packet arrives in the nanosecond in which the one
        // before it departs.
        let mut shaper = Shaper::new(rate(3), QueueSize::Packets(1));
        let mut now = 0;
        for _ in 0..300 {
            shaper.enqueue(Time(now), Sized(1)).unwrap();
            assert_eq!(shaper.max_queued(), Bytes(0), "none of them waits");
            now = drain(&mut shaper, u64::MAX)[0];
        }
        assert_eq!(now, 800_000_000_000);
    }

    #[test]
    fn busy_time_counts_transmissions() {
        let mut shaper = Shaper::new(rate(8_000_000), QueueSize::Packets(9));
        let busy = |shaper: &Shaper<Sized>| [0, 1_500_000, 3_000_000, 9_000_000].map(|now| shaper.busy_time(Time(now)).0);
        assert_eq!(busy(&shaper), [0; 4]);
        shaper.enqueue(Time(1_000_000), Sized(1000)).unwrap();
        shaper.enqueue(Time(1_000_000), Sized(1000)).unwrap();
        assert_eq!(busy(&shaper)[1..], [500_000, 2_000_000, 2_000_000]);
        shaper.enqueue(Time(8_500_000), Sized(1000)).unwrap();
        assert_eq!(shaper.busy_time(Time(9_000_000)).0, 2_500_000);
        assert_eq!(shaper.busy_time(Time(99_000_000)).0, 3_000_000);
    }

    #[test]
    fn a_new_rate_applies_to_the_queue_and_the_rest_of_the_transmission() {
        let mut shaper = Shaper::new(rate(8_000_000), QueueSize::Packets(9));
        for _ in 0..4 {
            shaper.enqueue(Time(0), Sized(1000)).unwrap();
        }
        // The first packet has departed without being polled, and a quarter of the second has been
        // sent. Then the rate is halved.
        shaper.set_rate(Time(1_250_000), Rate(4_000_000));
        assert_eq!(shaper.queued(Time(1_250_000)), Bytes(2000));
        assert_eq!(shaper.queued(Time(2_749_999)), Bytes(2000));
        assert_eq!(shaper.queued(Time(2_750_000)), Bytes(1000));
        assert_eq!(drain(&mut shaper, 10_000_000), [1_000_000, 2_750_000, 4_750_000, 6_750_000]);
        assert_eq!(shaper.busy_time(Time(10_000_000)).0, 6_750_000);
        // An idle transmitter: only the rate changes.
        shaper.set_rate(Time(10_000_000), Rate(8_000_000));
        shaper.enqueue(Time(10_000_000), Sized(1000)).unwrap();
        assert_eq!(drain(&mut shaper, 20_000_000), [11_000_000]);
    }

    #[test]
    fn a_stalled_transmitter_moves_again() {
        let mut shaper = Shaper::new(rate(8_000_000), QueueSize::Packets(9));
        shaper.set_rate(Time(0), Rate(0));
        shaper.enqueue(Time(0), Sized(1000)).unwrap();
        shaper.enqueue(Time(0), Sized(1000)).unwrap();
        assert_eq!(drain(&mut shaper, 3_600_000_000_000), [0; 0]);
        shaper.set_rate(Time(5_000_000), Rate(8_000_000));
        // A rate of zero counts as 1 bit/s, which sent a nanosecond's worth in the meantime.
        assert_eq!(drain(&mut shaper, 10_000_000), [5_999_999, 6_999_999]);
    }

    #[test]
    fn extremes_do_not_overflow() {
        for rate in [0, 1, u64::MAX] {
            for size in [0, 1, u32::MAX] {
                let mut shaper = Shaper::new(Transmission::Rate(Rate(rate)), QueueSize::Bytes(Bytes(u64::MAX)));
                for now in [0, 1, u64::MAX - 1, u64::MAX] {
                    for _ in 0..3 {
                        shaper.enqueue(Time(now), Sized(size)).unwrap();
                    }
                    shaper.set_rate(Time(now), Rate(rate ^ 1));
                }
                let out = drain(&mut shaper, u64::MAX);
                assert_eq!(out.len(), 12);
                assert!(out.is_sorted() && shaper.is_empty());
                let _ = shaper.busy_time(Time(u64::MAX));
            }
        }
    }

    proptest! {
        /// Polling late yields the same departures as polling in time.
        #[test]
        fn late_polling_changes_nothing(gaps in prop::collection::vec(0u64..3_000_000, 1..60), looks in prop::collection::vec(any::<bool>(), 60)) {
            let run = |looks: &dyn Fn(usize) -> bool| {
                let mut shaper = Shaper::new(rate(7_999_993), QueueSize::Bytes(Bytes(5000)));
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
