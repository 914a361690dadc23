//! The load factor of a link, as VCP routers measure it (Xia, Subramanian, Stoica, Kalyanaraman,
//! "One more bit is enough", SIGCOMM 2005). The target utilization is the paper's 98 % on every
//! link; the authors' code uses less on slower links.

use crate::packet::{SimPacket, wire_bytes_of};
use link::Time;
use units::Span;

/// t_ρ: the measurement interval, ns.
pub(crate) const INTERVAL_NS: u64 = 200_000_000;
/// t_q: the interval between samples of the queue, ns.
const QUEUE_SAMPLE_NS: u64 = 10_000_000;
/// The weight of a sample in the moving average of the queue.
const QUEUE_SAMPLE_WEIGHT: f64 = 0.25;
/// κ_q: the weight of the queue in the load factor.
const QUEUE_WEIGHT: f64 = 0.5;
/// γ_l: the target utilization.
const TARGET_UTILIZATION: f64 = 0.98;
/// The load factor from which on the load is high.
pub(super) const HIGH_LOAD: f64 = 0.8;
/// The load factor from which on the link is overloaded.
pub(super) const OVERLOAD: f64 = 1.0;

/// The load regions that VCP distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoadRegion {
    /// A load factor below 0.8.
    Low,
    /// A load factor from 0.8 to 1.
    High,
    /// A load factor of 1 and more.
    Overload,
}

impl LoadRegion {
    /// The region of a load factor.
    pub(crate) fn of(load: f64) -> Self {
        match load {
            load if load < HIGH_LOAD => LoadRegion::Low,
            load if load < OVERLOAD => LoadRegion::High,
            _ => LoadRegion::Overload,
        }
    }

    /// The code of the region in a packet, where 0 is no code.
    pub(crate) fn code(self) -> f32 {
        match self {
            LoadRegion::Low => 1.0,
            LoadRegion::High => 2.0,
            LoadRegion::Overload => 3.0,
        }
    }

    /// The region with this code.
    pub(crate) fn from_code(code: f32) -> Option<Self> {
        [LoadRegion::Low, LoadRegion::High, LoadRegion::Overload].into_iter().find(|region| region.code() == code)
    }
}

/// Measures the load factor of a link: what arrived in an interval plus half of the average queue,
/// relative to the target utilization.
#[derive(Debug)]
pub(crate) struct LoadFactor {
    /// Bytes/s.
    capacity: f64,
    interval_end: Time,
    next_queue_sample: Time,
    /// Bytes that arrived in the current interval.
    input: f64,
    /// The queue now, and its moving average, bytes.
    queued: u64,
    average_queue: f64,
    /// The load factor of the last interval.
    factor: f64,
}

impl LoadFactor {
    pub(super) fn new(capacity: f64) -> Self {
        LoadFactor {
            capacity,
            interval_end: Time(INTERVAL_NS),
            next_queue_sample: Time(QUEUE_SAMPLE_NS),
            input: 0.0,
            queued: 0,
            average_queue: 0.0,
            factor: 0.0,
        }
    }

    pub(super) fn set_capacity(&mut self, now: Time, capacity: f64) {
        self.run_timers(now);
        self.capacity = capacity;
    }

    pub(super) fn packet_arrived(&mut self, now: Time, packet: &SimPacket) {
        self.run_timers(now);
        self.input += wire_bytes_of(packet) as f64;
    }

    pub(super) fn queue_changed(&mut self, queued: u64) {
        self.queued = queued;
    }

    /// The load factor that is signalled at `now`.
    pub(super) fn at(&mut self, now: Time) -> f64 {
        self.run_timers(now);
        self.factor
    }

    /// Runs the timers that are due by `now`.
    fn run_timers(&mut self, now: Time) {
        loop {
            if self.next_queue_sample <= now && self.next_queue_sample <= self.interval_end {
                self.average_queue += QUEUE_SAMPLE_WEIGHT * (self.queued as f64 - self.average_queue);
                self.next_queue_sample = self.next_queue_sample + Span(QUEUE_SAMPLE_NS);
            } else if self.interval_end <= now {
                let target_bytes = TARGET_UTILIZATION * self.capacity * INTERVAL_NS as f64 / 1e9;
                self.factor = (self.input + QUEUE_WEIGHT * self.average_queue) / target_bytes;
                self.input = 0.0;
                self.interval_end = self.interval_end + Span(INTERVAL_NS);
            } else {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};
    use crate::packet::RouterProtocol;

    #[test]
    fn the_load_is_measured_in_intervals_also_without_packets() {
        let mut load = LoadFactor::new(1.5e6);
        for number in 0..200 {
            load.packet_arrived(Time(number * 1_000_000), &data(RouterProtocol::Vcp, 0, 0.0));
        }
        assert_eq!(load.at(Time(INTERVAL_NS - 1)), 0.0);
        assert!((load.at(Time(INTERVAL_NS)) - 1.0 / 0.98).abs() < 1e-9);
        assert_eq!(load.at(Time(2 * INTERVAL_NS)), 0.0);
        assert_eq!(load.at(Time(3_600_000_000_000)), 0.0);
    }
}
