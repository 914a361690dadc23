//! Start-up: how long until a connection sends at the rate that it is given, end to end and split (Wei, Zhang, Zang, Kurose and Towsley 2005,
//! §IV-A), and what that gains a file.

use crate::{TheoryError, aimd::positive};

/// A path with a proxy on it, and the rate that its slowest part assigns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StartUp {
    near_s: f64,
    far_s: f64,
    rate: f64,
    packet: f64,
    growth: f64,
}

/// What the leg after the proxy does at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downstream {
    /// It begins with a window that fills it.
    Full,
    /// It goes through slow start.
    SlowStart,
}

impl StartUp {
    /// Of the round trips of upstream (r₁) and downstream (r₂), s, the assigned rate v, bytes/s, and a packet of s bytes.
    pub fn new(upstream_s: f64, downstream_s: f64, rate: f64, packet: f64) -> Result<Self, TheoryError> {
        Ok(StartUp {
            near_s: positive("the upstream round-trip time", upstream_s)?,
            far_s: positive("the downstream round-trip time", downstream_s)?,
            rate: positive("the assigned rate", rate)?,
            packet: positive("the packet's size", packet)?,
            growth: 2.0,
        })
    }

    /// With a window that grows by this factor a round trip, rather than 2: 1.5 where every second packet is acknowledged.
    pub fn with_growth(self, factor: f64) -> Result<Self, TheoryError> {
        // What does not grow never gets there.
        positive("the growth beyond 1", factor - 1.0)?;
        Ok(StartUp { growth: factor, ..self })
    }

    /// Round trips of slow start, from one packet, until a window fills a path of this round trip: log₂(r v/s), none where one packet does.
    fn rounds(&self, rtt_s: f64) -> f64 {
        (rtt_s * self.rate / self.packet).log(self.growth).max(0.0)
    }

    /// T_regular = (r₁ + r₂) log₂((r₁ + r₂) v/s), s.
    pub fn regular_s(&self) -> f64 {
        let rtt_s = self.near_s + self.far_s;
        rtt_s * self.rounds(rtt_s)
    }

    /// T_split, s: r₁ log₂(r₂ v/s) where downstream is full from the beginning, else r₂ log₂(r₂ v/s).
    pub fn split_s(&self, downstream: Downstream) -> f64 {
        let grows_s = if downstream == Downstream::Full { self.near_s } else { self.far_s };
        grows_s * self.rounds(self.far_s)
    }

    /// What is sent before the assigned rate is reached, end to end, bytes: the windows of all whole rounds and of the one that fills the path.
    pub fn bytes_before(&self) -> f64 {
        let rounds = self.rounds(self.near_s + self.far_s);
        self.packet * (self.growth.powf(rounds + 1.0) - 1.0) / (self.growth - 1.0)
    }

    /// How long a file of so many bytes takes to be sent, end to end, s: a window a round trip until the path is full, then at the assigned rate.
    pub fn transfer_regular_s(&self, bytes: f64) -> f64 {
        self.transfer(bytes, self.near_s + self.far_s, self.near_s + self.far_s)
    }

    /// The same through the proxy: the slower of its legs counts, and the way to the proxy, which the file takes first.
    pub fn transfer_split_s(&self, bytes: f64, downstream: Downstream) -> f64 {
        let grows_s = if downstream == Downstream::Full { self.near_s } else { self.far_s };
        self.near_s / 2.0 + self.transfer(bytes, grows_s, self.far_s)
    }

    /// Windows of w, gw, g²w … each `grows_s`, up to what fills `full_s` at the assigned rate.
    fn transfer(&self, bytes: f64, grows_s: f64, full_s: f64) -> f64 {
        let full = full_s * self.rate;
        let (mut window, mut left, mut time) = (self.packet, bytes, 0.0);
        while window < full && left > window {
            left -= window;
            window *= self.growth;
            time += grows_s;
        }
        // The last window goes out at the assigned rate.
        time + left / self.rate
    }

    /// By how much of the time end to end a split connection is faster, for a file of so many bytes; below 0 it is slower.
    pub fn gain(&self, bytes: f64, downstream: Downstream) -> f64 {
        1.0 - self.transfer_split_s(bytes, downstream) / self.transfer_regular_s(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's example: 128 kbit/s, 1500 bytes, 30 and 800 ms.
    fn example() -> StartUp {
        StartUp::new(0.03, 0.8, 16_000.0, 1500.0).unwrap()
    }

    #[test]
    fn the_papers_example_comes_out() {
        let example = example();
        let gains = [Downstream::Full, Downstream::SlowStart].map(|downstream| example.regular_s() - example.split_s(downstream));
        assert!((gains[0] - 2.5).abs() < 0.05, "{gains:?}");
        // The paper has about 0.12 here; its own formula gives 0.137.
        assert!((gains[1] - 0.137).abs() < 0.001, "{gains:?}");
        // 25 kB without delayed ACKs.
        assert!((example.bytes_before() - 25_000.0).abs() < 500.0, "{}", example.bytes_before());
    }

    #[test]
    fn the_gain_rises_with_the_size_and_falls_again() {
        let gain = |bytes: f64| example().gain(bytes, Downstream::Full);
        let sizes = [1e3, 1e4, 5e4, 1e6, 1e7].map(gain);
        // One packet only has further to go.
        assert!(sizes[0] < 0.0, "{sizes:?}");
        assert!(sizes[1] > sizes[0] && sizes[3] < sizes[2] && sizes[4] < sizes[3], "{sizes:?}");
    }

    #[test]
    fn what_grows_more_slowly_takes_longer() {
        let slow = example().with_growth(1.5).unwrap();
        assert!(slow.regular_s() > example().regular_s());
        assert!(example().with_growth(1.0).is_err() && StartUp::new(0.0, 1.0, 1.0, 1.0).is_err());
    }
}
