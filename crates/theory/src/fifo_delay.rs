//! The delays of single packets through the proxy, first in, first out: what Baccelli (19.16)
//! approximates by the buffer's content over a mean rate.

use crate::{
    split::TandemModel,
    trajectory::{FIRST, SECOND, TandemState, TrajectorySegment, time_for},
};
use std::collections::VecDeque;
use units::Phase;

impl TandemModel {
    /// End-to-end delays, s, of packets that are so many packets apart: half of both round trips, and
    /// the time in the buffer. Every packet counts alike.
    pub fn fifo_delays_s(&self, seed: u64, packets_apart: f64) -> impl Iterator<Item = f64> {
        let [first, second] = self.legs;
        let propagation = (first.rtt_s() + second.rtt_s()) / 2.0;
        let mut path = self.trajectory(TandemState { x: first.mean(), y: second.mean(), q: 0.0 }, seed);
        // Packets that have arrived and left, and the time, at the start of the next segment.
        let (mut arrived, mut left, mut now) = (0.0, 0.0, 0.0);
        let mut next = packets_apart;
        let mut waiting: VecDeque<(f64, f64)> = VecDeque::new();
        std::iter::repeat_with(move || {
            let segment = path.step();
            let ([v, a], [w, b]) = (segment.arrivals(), segment.departures());
            let arrived_after = arrived + (v + a * segment.span / 2.0) * segment.span;
            let left_after = left + segment.sent;
            while next <= arrived_after {
                waiting.push_back((next, now + time_for(v, a, next - arrived)));
                next += packets_apart;
            }
            let mut delays = Vec::new();
            while let Some((_, arrival)) = waiting.front().filter(|(packet, _)| *packet <= left_after) {
                let packet = waiting[0].0;
                delays.push(propagation + (now + time_for(w, b, packet - left) - arrival).max(0.0));
                waiting.pop_front();
            }
            // Rounding must not let the two counts drift apart from the content.
            (arrived, left, now) = (left_after + segment.to.q, left_after, now + segment.span);
            delays
        })
        .flatten()
    }
}

impl TrajectorySegment {
    /// The rate of arrivals at the buffer at its start, and its slope.
    fn arrivals(&self) -> [f64; 2] {
        match self.phase {
            Phase::Backpressure => [self.from.y, self.slopes[SECOND]],
            Phase::Free | Phase::Starvation => [self.from.x, self.slopes[FIRST]],
        }
    }

    /// The rate at which packets leave the buffer at its start, and its slope.
    fn departures(&self) -> [f64; 2] {
        match self.phase {
            Phase::Starvation => [self.from.x, self.slopes[FIRST]],
            Phase::Free | Phase::Backpressure => [self.from.y, self.slopes[SECOND]],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Aimd, LossRate, TandemModel};

    #[test]
    fn the_mean_of_the_packets_delays_is_that_of_littles_law() {
        for (losses, buffer) in [(LossRate::PerSecond(0.4), 500.0), (LossRate::PerSecond(0.4), 20_000.0), (LossRate::PerPacket(1e-3), 50.0)]
        {
            let split = TandemModel::new(Aimd::new(0.04, losses).unwrap(), Aimd::new(0.06, losses).unwrap()).with_buffer(buffer).unwrap();
            let little = split.estimate(1, 400_000).unwrap();
            let count = 400_000;
            let apart = little.rate.mean * 3.0;
            let mean = split.fifo_delays_s(2, apart).skip(1000).take(count).sum::<f64>() / count as f64;
            let error = 3.0 * little.delay_s.half + 0.01 * little.delay_s.mean;
            assert!((mean - little.delay_s.mean).abs() < error, "{mean} is not {:?}", little.delay_s);
        }
    }
}
