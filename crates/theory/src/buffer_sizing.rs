//! Buffer sizing, open in the paper (Baccelli §19.5): what rate does a bounded buffer leave, and
//! how much buffer suffices?
//!
//! An unbounded buffer passes on all that the slower leg sends in isolation, so the cost of a bound
//! is a fraction of that rate. It is measured against the isolated slower leg with the same losses
//! (common random numbers), so that the common variation cancels: under RI losses both have their
//! losses at the same times, under RD losses after the same packets. A shortfall of a thousandth is
//! then known to a few percent.

use crate::{
    aimd::{Aimd, LossRate},
    error::{TheoryError, positive},
    estimate::{self, Mean},
    split::TandemModel,
    trajectory::{FIRST, LossClock, SECOND, SegmentEnd, TandemState, Trajectory},
};
use outcome::half_width;

/// A buffer that suffices for a share of the rate, and its delay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SufficientBuffer {
    /// Throughput over that with an unbounded buffer.
    pub share: f64,
    /// Buffer size, packets, with the half width of its 95 % confidence interval.
    pub packets: Mean,
    /// Mean queueing delay in the buffer, s.
    pub waits_s: f64,
}

/// Batches of a trajectory, for the confidence interval.
const BATCHES: usize = 40;

impl TandemModel {
    /// The leg with the lower mean rate in isolation, which an unbounded buffer passes on.
    fn slower_leg(&self) -> usize {
        let [first, second] = self.legs;
        if first.mean() <= second.mean() { FIRST } else { SECOND }
    }

    /// The fraction of the throughput with an unbounded buffer that this buffer costs, from
    /// `losses` losses of both legs together. 0 for an unbounded buffer. Capacities are ignored.
    pub fn shortfall(&self, seed: u64, losses: u64) -> Mean {
        let slower = self.slower_leg();
        let [first, second] = self.legs;
        let q = if self.buffer.is_finite() { self.buffer / 2.0 } else { 0.0 };
        let mut trajectory = self.trajectory(TandemState { x: first.mean(), y: second.mean(), q }, seed);
        let mut reference = IsolatedLeg::new(self.legs[slower], LossClock::new(seed, slower));
        // Batches are counted in losses of the slower leg.
        let each = (losses as f64 * self.slower_loss_fraction() / BATCHES as f64).ceil() as u64;
        // The first batch is the warm-up.
        let batches: Vec<Comparison> =
            (0..=BATCHES).map(|_| Comparison::over(each, slower, &mut trajectory, &mut reference)).skip(1).collect();
        let sum = |of: fn(&Comparison) -> f64| batches.iter().map(of).sum::<f64>() / BATCHES as f64;
        let means = [sum(|batch| batch.sent), sum(|batch| batch.time_s), sum(|batch| batch.sent_alone), sum(|batch| batch.time_alone_s)];
        let ratio = means[0] / means[1] * means[3] / means[2];
        // Deviation of a batch, to first order.
        let deviation = |batch: &Comparison| {
            let [sent, time, alone, time_alone] = means;
            ratio * (batch.sent / sent - batch.time_s / time - batch.sent_alone / alone + batch.time_alone_s / time_alone)
        };
        Mean { mean: 1.0 - ratio, half: half_width(&batches.iter().map(deviation).collect::<Vec<_>>()) }
    }

    /// The smallest buffer that leaves `share` of the throughput with an unbounded buffer (0.99 for
    /// 99 %). The shortfall decreases with the buffer, and common random numbers make it a smooth
    /// function; its root is bracketed between powers of four and then refined. Each evaluation
    /// uses `losses` losses.
    ///
    /// # Errors
    /// When `share` is not between 0 and 1, or `losses` are too few
    /// ([`Critical`](TheoryError::Critical)).
    pub fn sufficient_buffer(&self, share: f64, seed: u64, losses: u64) -> Result<SufficientBuffer, TheoryError> {
        let target = 1.0 - positive("the share of the rate", share)?;
        positive("the share of the rate that may be lost", target)?;
        let shortfall = |packets: f64| {
            self.check_mixing(packets, losses)?;
            Ok(TandemModel { buffer: packets, ..*self }.shortfall(seed, losses))
        };
        let Some((low, high)) = self.bracket(target, &shortfall)? else {
            return Ok(SufficientBuffer { share, packets: Mean { mean: 0.0, half: 0.0 }, waits_s: 0.0 });
        };
        let packets = root(low, high, target, &shortfall)?;
        // The error of the shortfall becomes one of the buffer by the slope up to a quarter more.
        let found_shortfall = shortfall(packets)?;
        let steepness = -(shortfall(packets * 1.25)?.mean / found_shortfall.mean).ln() / 1.25f64.ln();
        let half = packets * found_shortfall.half / target / steepness.max(1e-3);
        let found = estimate::estimate(&TandemModel { buffer: packets, ..*self }, seed, losses);
        Ok(SufficientBuffer { share, packets: Mean { mean: packets, half }, waits_s: found.queue.mean / found.rate.mean })
    }

    /// A buffer that costs more than the target, and one four times as large that costs less.
    /// `None` if even a negligible buffer costs less.
    fn bracket(&self, target: f64, shortfall: &impl Fn(f64) -> Result<Mean, TheoryError>) -> Result<Option<(f64, f64)>, TheoryError> {
        let mut high = self.buffer_unit();
        while shortfall(high)?.mean > target {
            high *= 4.0;
        }
        let mut low = high / 4.0;
        while shortfall(low)?.mean < target {
            (low, high) = (low / 4.0, low);
            if low < 1e-6 * self.buffer_unit() {
                return Ok(None);
            }
        }
        Ok(Some((low, high)))
    }

    /// Checks that `losses` are enough for the buffer content to mix. In
    /// [units](TandemModel::buffer_unit) of the buffer it is a random walk with a step of about 1
    /// per loss, and a drift of twice the relative difference of the mean rates.
    fn check_mixing(&self, packets: f64, losses: u64) -> Result<(), TheoryError> {
        const MIXING_TIMES: f64 = 10.0;
        let [first, second] = self.isolated_means();
        let (ratio, size) = (first.max(second) / first.min(second), packets / self.buffer_unit());
        let drift = 2.0 * (ratio - 1.0);
        let steps = size.powi(2).min(size / drift + drift.powi(-2));
        let need = (MIXING_TIMES * steps / self.slower_loss_fraction()).ceil() as u64;
        if need <= losses { Ok(()) } else { Err(TheoryError::Critical { ratio, packets, have: losses, need }) }
    }

    /// Mean loss rate of the slower leg in isolation, losses/s.
    pub fn slower_losses(&self) -> f64 {
        self.losses_of(self.slower_leg())
    }

    fn losses_of(&self, leg: usize) -> f64 {
        self.legs[leg].mean() * self.legs[leg].loss_probability()
    }

    /// Losses of the slower leg over all losses.
    fn slower_loss_fraction(&self) -> f64 {
        self.slower_losses() / (self.losses_of(FIRST) + self.losses_of(SECOND))
    }

    /// Natural unit of the buffer, packets: the order of what the slower leg gains between two of
    /// its losses, α/λ² (RI) or 1/λ (RD). In natural units of buffer, rate (α/λ or √(α/λ)) and time
    /// the equations depend only on the ratios between the legs.
    pub fn buffer_unit(&self) -> f64 {
        let leg = self.legs[self.slower_leg()];
        match leg.losses() {
            LossRate::PerSecond(losses) => leg.slope() / losses.powi(2),
            LossRate::PerPacket(losses) => 1.0 / losses,
        }
    }
}

/// The buffer with the target shortfall: bisection and a final secant step in logarithms, where the
/// function is nearly linear.
fn root(mut low: f64, mut high: f64, target: f64, shortfall: &impl Fn(f64) -> Result<Mean, TheoryError>) -> Result<f64, TheoryError> {
    for _ in 0..7 {
        let middle = (low * high).sqrt();
        if shortfall(middle)?.mean > target { low = middle } else { high = middle }
    }
    let ends = [shortfall(low)?.mean, shortfall(high)?.mean];
    let slope = (ends[0] / ends[1]).ln() / (high / low).ln();
    Ok(low * (ends[0] / target).powf(1.0 / slope))
}

/// The tandem and its isolated slower leg, over the same losses of that leg.
struct Comparison {
    sent: f64,
    time_s: f64,
    sent_alone: f64,
    time_alone_s: f64,
}

impl Comparison {
    fn over(losses: u64, leg: usize, trajectory: &mut Trajectory, reference: &mut IsolatedLeg) -> Self {
        let mut sent = 0.0;
        let mut time_s = 0.0;
        let before = reference.done;
        let own_loss = if leg == FIRST { SegmentEnd::FirstLoses } else { SegmentEnd::SecondLoses };
        for _ in 0..losses {
            loop {
                let segment = trajectory.step();
                // Packets of the first leg are those that arrive at the buffer.
                sent += segment.sent + if leg == FIRST { segment.to.q - segment.from.q } else { 0.0 };
                time_s += segment.span;
                if segment.ends == own_loss {
                    break;
                }
            }
            reference.step();
        }
        Comparison { sent, time_s, sent_alone: reference.done[0] - before[0], time_alone_s: reference.done[1] - before[1] }
    }
}

/// The slower leg in isolation, with the losses that it has in the tandem.
struct IsolatedLeg {
    leg: Aimd,
    rate: f64,
    clock: LossClock,
    /// Packets sent, and time, s.
    done: [f64; 2],
}

impl IsolatedLeg {
    fn new(leg: Aimd, clock: LossClock) -> Self {
        IsolatedLeg { leg, rate: leg.mean(), clock, done: [0.0; 2] }
    }

    /// Advances past the next loss.
    fn step(&mut self) {
        let span = self.leg.time_to_loss(self.rate, self.clock.draw());
        let end = self.rate + self.leg.slope() * span;
        self.done[0] += (self.rate + end) / 2.0 * span;
        self.done[1] += span;
        self.rate = end / 2.0;
    }
}
