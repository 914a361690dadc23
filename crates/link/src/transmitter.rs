//! When a transmitter sends its packets: at a rate, or as a trace permits.

use crate::time::Time;
use scenario::{DeliveryTrace, OPPORTUNITY};
use std::sync::Arc;
use units::{Rate, Span};

/// What determines the departures of a link.
#[derive(Debug, Clone)]
pub enum Transmission {
    /// A rate. Zero counts as 1 bit/s: the transmitter stands still in practice and all times stay
    /// finite.
    Rate(Rate),
    /// The delivery opportunities of a recorded link.
    Trace(Arc<DeliveryTrace>),
}

/// A transmitter, which sends one packet after the other. It is told of a packet as soon as it
/// arrives, and answers when its transmission begins and ends.
#[derive(Debug)]
pub(crate) enum Transmitter {
    Rate(RateTransmitter),
    Trace(TraceTransmitter),
}

impl Transmitter {
    pub(crate) fn new(transmission: Transmission) -> Self {
        match transmission {
            Transmission::Rate(rate) => Transmitter::Rate(RateTransmitter::new(rate)),
            Transmission::Trace(trace) => Transmitter::Trace(TraceTransmitter::new(trace)),
        }
    }

    /// When a packet that arrives at `now` would begin to be sent.
    #[inline]
    pub(crate) fn next_start(&self, now: Time) -> Time {
        match self {
            Transmitter::Rate(rate) => rate.idle_at.max(now),
            Transmitter::Trace(trace) => trace.next_start(now),
        }
    }

    /// Sends a packet of `bytes` that arrived at `now`; returns when its transmission begins and
    /// ends.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Time, bytes: u64) -> (Time, Time) {
        match self {
            Transmitter::Rate(rate) => rate.transmit(now, bytes),
            Transmitter::Trace(trace) => trace.transmit(now, bytes),
        }
    }

    /// For how long it has been sending from time zero until `now`; of a trace, the time that its
    /// used opportunities take at the mean rate.
    pub(crate) fn busy_time(&self, now: Time) -> Span {
        match self {
            Transmitter::Rate(rate) => rate.busy_time(now),
            Transmitter::Trace(trace) => trace.busy_time(),
        }
    }
}

/// A transmitter of a constant rate. Transmission of a packet takes `size / rate`, from the later
/// of its arrival and the departure of the packet before it. Fractions of a nanosecond are carried
/// over, so the rate is exact in the long run.
#[derive(Debug)]
pub(crate) struct RateTransmitter {
    rate: Rate,
    /// When it becomes idle: a time in ns, and a fraction of one in units of 1/`rate`.
    idle_at: Time,
    idle_at_fraction: u64,
    /// Transmission time of the last packet, cached because most packets have the size of the one
    /// before and a division is saved.
    last_transmission: TransmissionTime,
    /// Total time for which it was idle, up to the last arrival.
    idle_time: Span,
}

/// How long a packet of `bytes` occupies the transmitter: nanoseconds, and a fraction of one in
/// units of 1/rate.
#[derive(Debug, Clone, Copy, Default)]
struct TransmissionTime {
    bytes: u64,
    ns: u64,
    fraction: u64,
}

/// The work that the transmitter does in a nanosecond, in units of 10⁻⁹ bits: in these units both
/// the rate and the size of a packet are integers.
#[inline]
fn work_per_ns(rate: Rate) -> u64 {
    rate.bits_per_s().max(1)
}

/// The work to transmit one byte, in the units of [`work_per_ns`].
const WORK_PER_BYTE: u64 = 8_000_000_000;

impl RateTransmitter {
    fn new(rate: Rate) -> Self {
        RateTransmitter {
            rate,
            idle_at: Time(0),
            idle_at_fraction: 0,
            last_transmission: TransmissionTime::default(),
            idle_time: Span::ZERO,
        }
    }

    #[inline]
    fn transmit(&mut self, now: Time, bytes: u64) -> (Time, Time) {
        if self.idle_at < now {
            self.idle_time += now - self.idle_at;
            self.idle_at = now;
            self.idle_at_fraction = 0;
        }
        let starts = self.idle_at;
        let transmission = self.transmission_time(bytes);
        self.occupy(transmission.ns, transmission.fraction);
        (starts, self.idle_at)
    }

    /// Occupies the transmitter from `idle_at` on for `ns` and `fraction` / `rate` nanoseconds.
    #[inline]
    fn occupy(&mut self, ns: u64, fraction: u64) {
        let rate = work_per_ns(self.rate);
        // Both fractions are less than the rate, so their sum carries at most one nanosecond.
        let (sum, overflows) = self.idle_at_fraction.overflowing_add(fraction);
        let carry = overflows || sum >= rate;
        self.idle_at_fraction = if carry { sum.wrapping_sub(rate) } else { sum };
        self.idle_at = self.idle_at + Span(ns.saturating_add(carry.into()));
    }

    /// The transmission time of a packet of `bytes`.
    #[inline]
    fn transmission_time(&mut self, bytes: u64) -> TransmissionTime {
        if bytes != self.last_transmission.bytes {
            let rate = work_per_ns(self.rate);
            // Saturates for packets larger than any that exists.
            let work = bytes.saturating_mul(WORK_PER_BYTE);
            self.last_transmission = TransmissionTime { bytes, ns: work / rate, fraction: work % rate };
        }
        self.last_transmission
    }

    /// Changes the rate at `now`, for the rest of the packet in transmission as well. The caller
    /// then calls [`Self::transmit_again`] for each packet that has not departed, in order. Returns
    /// the rate before.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Rate) -> Rate {
        let before = std::mem::replace(&mut self.rate, rate);
        self.idle_at_fraction = 0;
        self.last_transmission = TransmissionTime::default();
        self.idle_at = self.idle_at.min(now);
        before
    }

    /// Sends a packet once more at a rate that has changed from `before` at `now`. The old times
    /// are `starts` and `departs`; returns the new ones.
    pub(crate) fn transmit_again(&mut self, now: Time, before: Rate, (starts, departs): (Time, Time), bytes: u32) -> (Time, Time) {
        // The packet in transmission keeps the time at which it left the queue.
        let (starts, work) = match starts < now {
            true => (starts, u128::from((departs - now).0) * u128::from(work_per_ns(before))),
            false => (self.idle_at, u128::from(bytes) * u128::from(WORK_PER_BYTE)),
        };
        let rate = u128::from(work_per_ns(self.rate));
        // The remainder is less than the rate, which has 64 bits.
        self.occupy(u64::try_from(work / rate).unwrap_or(u64::MAX), (work % rate) as u64);
        (starts, self.idle_at)
    }

    fn busy_time(&self, now: Time) -> Span {
        Span((now.min(self.idle_at) - Time(0)).0.saturating_sub(self.idle_time.0))
    }
}

/// A transmitter that sends as a trace permits. Each opportunity carries up to 1500 bytes of
/// packets that have arrived by then: several small packets, or a part of a large one. What it
/// cannot use is lost. This is what mahimahi's link does.
#[derive(Debug)]
pub(crate) struct TraceTransmitter {
    trace: Arc<DeliveryTrace>,
    /// When the trace starts.
    origin: Time,
    /// The number of the opportunity that sends next, and the bytes that it has left.
    opportunity: u64,
    left: u64,
    sent_bytes: u64,
}

impl TraceTransmitter {
    fn new(trace: Arc<DeliveryTrace>) -> Self {
        TraceTransmitter { trace, origin: Time(0), opportunity: 0, left: OPPORTUNITY.0, sent_bytes: 0 }
    }

    /// Starts the trace at `origin`. Packets that are inside keep their times.
    pub(crate) fn start(&mut self, origin: Time) {
        self.origin = origin;
        self.opportunity = 0;
        self.left = OPPORTUNITY.0;
    }

    fn time(&self, opportunity: u64) -> Time {
        self.origin + self.trace.time(opportunity)
    }

    /// The opportunity at which a packet that arrives at `now` begins to be sent.
    fn opportunity_from(&self, now: Time) -> u64 {
        if self.time(self.opportunity) >= now { self.opportunity } else { self.trace.first_from(now - self.origin) }
    }

    fn next_start(&self, now: Time) -> Time {
        self.time(self.opportunity_from(now))
    }

    fn transmit(&mut self, now: Time, bytes: u64) -> (Time, Time) {
        let first = self.opportunity_from(now);
        if first != self.opportunity {
            self.opportunity = first;
            self.left = OPPORTUNITY.0;
        }
        let starts = self.time(first);
        self.sent_bytes += bytes;
        if bytes > self.left {
            let missing = bytes - self.left;
            let more = missing.div_ceil(OPPORTUNITY.0);
            self.opportunity += more;
            self.left = more * OPPORTUNITY.0 - missing;
        } else {
            self.left -= bytes;
        }
        let departs = self.time(self.opportunity);
        if self.left == 0 {
            self.opportunity += 1;
            self.left = OPPORTUNITY.0;
        }
        (starts, departs)
    }

    fn busy_time(&self) -> Span {
        self.trace.mean_rate().time_for(units::Bytes(self.sent_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn transmitter(times: &str) -> TraceTransmitter {
        TraceTransmitter::new(Arc::new(DeliveryTrace::read(times.as_bytes()).unwrap()))
    }

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn an_opportunity_carries_several_small_packets_or_a_part_of_a_large_one() {
        let mut trace = transmitter("5\n10\n20\n");
        assert_eq!(
            [700, 700, 200, 1500].map(|bytes| trace.transmit(ms(1), bytes)),
            [(ms(5), ms(5)), (ms(5), ms(5)), (ms(5), ms(10)), (ms(10), ms(20)),]
        );
        // 100 bytes of the opportunity at 20 ms are used: a packet that arrives later cannot have
        // the rest.
        assert_eq!(trace.transmit(ms(21), 1), (ms(25), ms(25)));
        // The trace repeats: opportunities at 25, 30, 40, 45 ms.
        assert_eq!(trace.transmit(ms(21), 4000), (ms(25), ms(40)));
    }

    #[test]
    fn an_opportunity_without_a_packet_is_lost() {
        let mut trace = transmitter("5\n10\n20\n");
        assert_eq!(trace.next_start(ms(6)), ms(10));
        assert_eq!(trace.transmit(ms(10), 1500), (ms(10), ms(10)));
        assert_eq!(trace.transmit(ms(10), 1500), (ms(20), ms(20)));
    }

    #[test]
    fn a_trace_starts_when_it_is_told() {
        let mut trace = transmitter("5\n10\n");
        trace.transmit(ms(0), 1500);
        trace.start(ms(100));
        assert_eq!(trace.transmit(ms(50), 1500), (ms(105), ms(105)));
    }

    /// The same, opportunity by opportunity: each sends from the packets that have arrived by then.
    fn one_by_one(times_ms: &[u64], packets: &[(Time, u64)]) -> Vec<(Time, Time)> {
        let (mut sent, mut at) = (Vec::new(), 0);
        let (mut first, mut rest) = (0, packets.first().map_or(0, |(_, bytes)| *bytes));
        let mut starts = None;
        while first < packets.len() {
            let period = times_ms[times_ms.len() - 1];
            let now = ms(at as u64 / times_ms.len() as u64 * period + times_ms[at % times_ms.len()]);
            at += 1;
            let mut left = OPPORTUNITY.0;
            while left > 0 && first < packets.len() && packets[first].0 <= now {
                let begun = *starts.get_or_insert(now);
                let part = rest.min(left);
                (rest, left) = (rest - part, left - part);
                if rest == 0 {
                    sent.push((begun, now));
                    first += 1;
                    rest = packets.get(first).map_or(0, |(_, bytes)| *bytes);
                    starts = None;
                }
            }
        }
        sent
    }

    proptest! {
        #[test]
        fn packets_leave_as_opportunity_by_opportunity(
            mut times in prop::collection::vec(0u64..60, 1..12),
            packets in prop::collection::vec((0u64..30_000_000, 1u64..4000), 1..60),
        ) {
            times.sort_unstable();
            *times.last_mut().unwrap() += 1;
            let text: String = times.iter().map(|time| format!("{time}\n")).collect();
            let mut now = 0;
            let packets: Vec<(Time, u64)> = packets.into_iter().map(|(gap, bytes)| { now += gap; (Time(now), bytes) }).collect();
            let mut trace = transmitter(&text);
            let found: Vec<_> = packets.iter().map(|(at, bytes)| trace.transmit(*at, *bytes)).collect();
            prop_assert_eq!(found, one_by_one(&times, &packets));
        }
    }
}
