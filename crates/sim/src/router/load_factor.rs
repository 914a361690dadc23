//! How loaded a link is, and the VCP router, which tells that in two bits (Xia, Subramanian, Stoica, Kalyanaraman, "One more bit is enough",
//! SIGCOMM 2005). The target is the paper's 98 % on every link; the authors' code has less on slower ones.

use crate::packet::{Packet, bytes_of};
use link::Time;
use units::Span;

/// How long the load is measured before it is told (t_ρ).
pub(crate) const INTERVAL_NS: u64 = 200_000_000;
/// From one look at the queue to the next (t_q), and what a look weighs in its mean.
const LOOK_NS: u64 = 10_000_000;
const LOOK_WEIGHT: f64 = 0.25;
/// What counts of the queue (κ_q), and how much of the link is to be used (γ_l).
const QUEUE_PART: f64 = 0.5;
const TARGET: f64 = 0.98;
/// Low load is below the one, high load from there to the other.
pub(super) const HIGH_LOAD: f64 = 0.8;
pub(super) const OVERLOAD: f64 = 1.0;

/// What a VCP router tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    /// Below 80 % of the target.
    Low,
    /// From there to the target.
    High,
    /// Above it.
    Over,
}

impl Code {
    /// Of a load.
    pub(crate) fn of(load: f64) -> Self {
        match load {
            load if load < HIGH_LOAD => Code::Low,
            load if load < OVERLOAD => Code::High,
            _ => Code::Over,
        }
    }

    /// As it stands in a packet, where nought is none.
    pub(crate) fn word(self) -> f32 {
        match self {
            Code::Low => 1.0,
            Code::High => 2.0,
            Code::Over => 3.0,
        }
    }

    /// What stands in a packet.
    pub(crate) fn read(word: f32) -> Option<Self> {
        [Code::Low, Code::High, Code::Over].into_iter().find(|code| code.word() == word)
    }
}

/// The load of a link: what came in an interval, and half of the steady queue, over what should have.
#[derive(Debug)]
pub(crate) struct Load {
    /// Bytes/s.
    capacity: f64,
    ends: Time,
    looks: Time,
    input: f64,
    queued: u64,
    steady: f64,
    /// As last measured.
    factor: f64,
}

impl Load {
    pub(super) fn new(capacity: f64) -> Self {
        Load { capacity, ends: Time(INTERVAL_NS), looks: Time(LOOK_NS), input: 0.0, queued: 0, steady: 0.0, factor: 0.0 }
    }

    pub(super) fn set_capacity(&mut self, now: Time, capacity: f64) {
        self.catch_up(now);
        self.capacity = capacity;
    }

    pub(super) fn comes(&mut self, now: Time, packet: &Packet) {
        self.catch_up(now);
        self.input += bytes_of(packet) as f64;
    }

    pub(super) fn holds(&mut self, queued: u64) {
        self.queued = queued;
    }

    /// What is told at `now`.
    pub(super) fn at(&mut self, now: Time) -> f64 {
        self.catch_up(now);
        self.factor
    }

    fn catch_up(&mut self, now: Time) {
        loop {
            if self.looks <= now && self.looks <= self.ends {
                self.steady += LOOK_WEIGHT * (self.queued as f64 - self.steady);
                self.looks = self.looks + Span(LOOK_NS);
            } else if self.ends <= now {
                let carries = TARGET * self.capacity * INTERVAL_NS as f64 / 1e9;
                self.factor = (self.input + QUEUE_PART * self.steady) / carries;
                self.input = 0.0;
                self.ends = self.ends + Span(INTERVAL_NS);
            } else {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};
    use crate::packet::Protocol;

    #[test]
    fn the_load_is_measured_in_intervals_however_long_nobody_comes() {
        let mut load = Load::new(1.5e6);
        for number in 0..200 {
            load.comes(Time(number * 1_000_000), &data(Protocol::Vcp, 0, 0.0));
        }
        assert_eq!(load.at(Time(INTERVAL_NS - 1)), 0.0);
        assert!((load.at(Time(INTERVAL_NS)) - 1.0 / 0.98).abs() < 1e-9);
        assert_eq!(load.at(Time(2 * INTERVAL_NS)), 0.0);
        assert_eq!(load.at(Time(3_600_000_000_000)), 0.0);
    }
}
