//! Start-up: how long until a connection sends at its assigned rate, end to end and split, and what
//! that gains for a file (Wei, Zhang, Zang, Kurose and Towsley 2005, §IV-A).

use crate::error::{TheoryError, positive};

/// A path with a proxy, and the rate that its bottleneck assigns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    near_s: f64,
    far_s: f64,
    rate: f64,
    packet: f64,
    growth: f64,
}

/// The initial state of the leg after the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downstream {
    /// Its window fills the leg from the start.
    Full,
    /// It starts in slow start.
    SlowStart,
}

impl SlowStart {
    /// A path with the round-trip times upstream (r₁) and downstream (r₂) of the proxy, s, the
    /// assigned rate v, bytes/s, and the packet size s, bytes.
    ///
    /// # Errors
    /// When a parameter is not positive.
    pub fn new(upstream_s: f64, downstream_s: f64, rate: f64, packet: f64) -> Result<Self, TheoryError> {
        Ok(SlowStart {
            near_s: positive("the upstream round-trip time", upstream_s)?,
            far_s: positive("the downstream round-trip time", downstream_s)?,
            rate: positive("the assigned rate", rate)?,
            packet: positive("the packet's size", packet)?,
            growth: 2.0,
        })
    }

    /// Sets the factor by which the window grows per round trip: 2 by default, 1.5 with delayed
    /// acknowledgements.
    ///
    /// # Errors
    /// When the factor is not above 1.
    pub fn with_growth(self, factor: f64) -> Result<Self, TheoryError> {
        positive("the growth beyond 1", factor - 1.0)?;
        Ok(SlowStart { growth: factor, ..self })
    }

    /// Round trips of slow start, from one packet, until the window fills a path with this
    /// round-trip time: log₂(r v/s), at least 0.
    fn rounds(&self, rtt_s: f64) -> f64 {
        (rtt_s * self.rate / self.packet).log(self.growth).max(0.0)
    }

    /// T_regular = (r₁ + r₂) log₂((r₁ + r₂) v/s), s.
    pub fn regular_s(&self) -> f64 {
        let rtt_s = self.near_s + self.far_s;
        rtt_s * self.rounds(rtt_s)
    }

    /// T_split, s: r₁ log₂(r₂ v/s) if downstream is full from the start, else r₂ log₂(r₂ v/s).
    pub fn split_s(&self, downstream: Downstream) -> f64 {
        let grows_s = if downstream == Downstream::Full { self.near_s } else { self.far_s };
        grows_s * self.rounds(self.far_s)
    }

    /// T_regular − T_split as the paper approximates it, s: r₁ + r₂ log₂(r₂ v/s) if downstream is
    /// full from the start, else r₁ (log₂(r₂ v/s) + 1).
    ///
    /// The paper replaces log₂(1 + r₁/r₂) by r₁/r₂. That holds for the natural logarithm; to base 2
    /// a small x gives log₂(1 + x) ≈ x/ln 2, 44 % more.
    pub fn approximate_difference_s(&self, downstream: Downstream) -> f64 {
        match downstream {
            Downstream::Full => self.near_s + self.far_s * self.rounds(self.far_s),
            Downstream::SlowStart => self.near_s * (self.rounds(self.far_s) + 1.0),
        }
    }

    /// Bytes sent end to end before the assigned rate is reached: the windows of all rounds up to
    /// the one that fills the path.
    pub fn bytes_before(&self) -> f64 {
        let rounds = self.rounds(self.near_s + self.far_s);
        self.packet * (self.growth.powf(rounds + 1.0) - 1.0) / (self.growth - 1.0)
    }

    /// Time to send a file of `bytes` end to end, s: a window per round trip until the path is
    /// full, then the assigned rate.
    pub fn transfer_regular_s(&self, bytes: f64) -> f64 {
        self.transfer(bytes, self.near_s + self.far_s, self.near_s + self.far_s)
    }

    /// The same through the proxy: the delay to the proxy, and the time of the slower leg.
    pub fn transfer_split_s(&self, bytes: f64, downstream: Downstream) -> f64 {
        let grows_s = if downstream == Downstream::Full { self.near_s } else { self.far_s };
        self.near_s / 2.0 + self.transfer(bytes, grows_s, self.far_s)
    }

    /// Windows of w, gw, g²w …, one per `grows_s`, up to the one that fills `full_s` at the
    /// assigned rate.
    fn transfer(&self, bytes: f64, grows_s: f64, full_s: f64) -> f64 {
        let full = full_s * self.rate;
        let mut window = self.packet;
        let mut left = bytes;
        let mut time = 0.0;
        while window < full && left > window {
            left -= window;
            window *= self.growth;
            time += grows_s;
        }
        // The rest is sent at the assigned rate.
        time + left / self.rate
    }

    /// Gain of a split connection for a file of `bytes`: the time saved over the time end to end.
    /// Negative if it is slower.
    pub fn gain(&self, bytes: f64, downstream: Downstream) -> f64 {
        1.0 - self.transfer_split_s(bytes, downstream) / self.transfer_regular_s(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's example: 128 kbit/s, 1500 bytes, 30 and 800 ms.
    fn example() -> SlowStart {
        SlowStart::new(0.03, 0.8, 16_000.0, 1500.0).unwrap()
    }

    #[test]
    fn the_papers_example_is_reproduced() {
        let example = example();
        let gains = [Downstream::Full, Downstream::SlowStart].map(|downstream| example.regular_s() - example.split_s(downstream));
        assert!((gains[0] - 2.5).abs() < 0.05, "{gains:?}");
        assert!((gains[1] - 0.1369).abs() < 0.0001, "{gains:?}");
        // What the paper prints, 2.5 and 0.12, are its approximations.
        let approximate = [Downstream::Full, Downstream::SlowStart].map(|downstream| example.approximate_difference_s(downstream));
        assert!((approximate[0] - 2.5045).abs() < 0.0001 && (approximate[1] - 0.1228).abs() < 0.0001, "{approximate:?}");
        // 25 kB without delayed ACKs.
        assert!((example.bytes_before() - 25_000.0).abs() < 500.0, "{}", example.bytes_before());
    }

    #[test]
    fn the_gain_rises_with_the_size_and_falls_again() {
        let gain = |bytes: f64| example().gain(bytes, Downstream::Full);
        let sizes = [1e3, 1e4, 5e4, 1e6, 1e7].map(gain);
        // A single packet only takes the longer way.
        assert!(sizes[0] < 0.0, "{sizes:?}");
        assert!(sizes[1] > sizes[0] && sizes[3] < sizes[2] && sizes[4] < sizes[3], "{sizes:?}");
    }

    #[test]
    fn slower_growth_takes_longer() {
        let slow = example().with_growth(1.5).unwrap();
        assert!(slow.regular_s() > example().regular_s());
        assert!(example().with_growth(1.0).is_err() && SlowStart::new(0.0, 1.0, 1.0, 1.0).is_err());
    }
}
