//! Estimates of the stationary state from a long trajectory, by batch means.

use crate::{
    error::TheoryError,
    split::TandemModel,
    trajectory::{SegmentEnd, TandemState, Trajectory},
};
use outcome::half_width;
use units::Phase;

/// A mean with the half width of its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half width of the interval (Student's t over the batches).
    pub half: f64,
}

/// The stationary state of a split connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Throughput, packets/s.
    pub rate: Mean,
    /// Fractions of time in the phases free, starvation and backpressure.
    pub phases: [Mean; 3],
    /// Buffer content of the proxy, packets.
    pub queue: Mean,
    /// Free space of the buffer, packets; infinite if it is unbounded.
    pub antibuffer: Mean,
    /// Mean end-to-end delay of a packet, s: half of both round trips, and the buffer content over the
    /// throughput, which is Little's law. Baccelli (19.16) has the isolated mean rate of the second
    /// leg in place of the throughput.
    pub delay_s: Mean,
}

/// Batches of a trajectory, long enough to be nearly independent.
const BATCHES: usize = 40;

/// Sums over a batch: time, packets, time in each phase, ∫ Q dt.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    time: f64,
    sent: f64,
    phases: [f64; 3],
    held: f64,
}

impl TandemModel {
    /// Estimates the stationary state from a trajectory with `losses` losses of both legs together.
    ///
    /// # Errors
    /// [`Unstable`](TheoryError::Unstable) when the buffer is unbounded and not stable (Baccelli
    /// Lemma 19.7).
    pub fn estimate(&self, seed: u64, losses: u64) -> Result<Estimate, TheoryError> {
        let rho = if self.buffer.is_finite() { 0.0 } else { self.load(seed, losses)? };
        if rho < 1.0 { Ok(estimate(self, seed, losses)) } else { Err(TheoryError::Unstable { rho }) }
    }

    /// The load: ρ or, with capacities, the ratio of the isolated legs' mean rates, which is
    /// simulated.
    fn load(&self, seed: u64, losses: u64) -> Result<f64, TheoryError> {
        // A rate is never clipped by such a capacity.
        let is_wide = |leg: usize| self.caps[leg] > 1e3 * self.legs[leg].mean();
        if is_wide(0) && is_wide(1) {
            return Ok(self.rho());
        }
        let mean = |leg: usize| -> Result<f64, TheoryError> {
            if is_wide(leg) {
                return Ok(self.legs[leg].mean());
            }
            Ok(estimate(&TandemModel::alone(self.legs[leg], self.caps[leg])?, seed, losses).rate.mean)
        };
        Ok(mean(0)? / mean(1)?)
    }
}

pub(crate) fn estimate(split: &TandemModel, seed: u64, losses: u64) -> Estimate {
    let [first, second] = split.legs;
    let mut trajectory = split.trajectory(TandemState { x: first.mean(), y: second.mean(), q: 0.0 }, seed);
    let each = (losses / BATCHES as u64).max(1);
    // The first batch is the warm-up.
    let batches: Vec<Batch> = (0..=BATCHES).map(|_| simulate(&mut trajectory, each)).skip(1).collect();
    let rate = mean(&batches, |batch| batch.sent);
    let queue = mean(&batches, |batch| batch.held);
    let phases = [0, 1, 2].map(|phase| mean(&batches, |batch| batch.phases[phase]));
    let propagation = (first.rtt_s() + second.rtt_s()) / 2.0;
    Estimate {
        rate,
        phases,
        queue,
        antibuffer: Mean { mean: split.buffer - queue.mean, half: queue.half },
        delay_s: Mean { mean: propagation + queue.mean / rate.mean, half: queue.half / rate.mean },
    }
}

fn simulate(trajectory: &mut Trajectory, losses: u64) -> Batch {
    let mut batch = Batch::default();
    let mut left = losses;
    while left > 0 {
        let segment = trajectory.step();
        batch.time += segment.span;
        batch.sent += segment.sent;
        batch.held += segment.held;
        let phase = match segment.phase {
            Phase::Free => 0,
            Phase::Starvation => 1,
            Phase::Backpressure => 2,
        };
        batch.phases[phase] += segment.span;
        left -= u64::from(matches!(segment.ends, SegmentEnd::FirstLoses | SegmentEnd::SecondLoses));
    }
    batch
}

/// A time average as a ratio of sums, with the error from the batches' deviations.
fn mean(batches: &[Batch], of: impl Fn(&Batch) -> f64) -> Mean {
    let time: f64 = batches.iter().map(|batch| batch.time).sum();
    let mean = batches.iter().map(&of).sum::<f64>() / time;
    let each = time / batches.len() as f64;
    let deviations: Vec<f64> = batches.iter().map(|batch| (of(batch) - mean * batch.time) / each).collect();
    Mean { mean, half: half_width(&deviations) }
}
