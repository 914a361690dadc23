//! Large deviations of what a connection sends, and the decay rate of the proxy's buffer that
//! follows: open question (ii)(a) of Baccelli, Carofiglio and Foss.
//!
//! Λ(θ) = lim ln E exp(θ ∫₀ᵗ X)/t is the principal eigenvalue of the generator of the rate with θx
//! added: αf'(x) + ℓ(x)(f(x/2) − f(x)) + θx f(x) = Λ f(x), with the loss intensity ℓ(x) = λ (RI) or
//! λx (RD). A solution from f(0) = 1 stays positive if and only if Λ is not below the eigenvalue.

use crate::{
    aimd::{Aimd, LossRate},
    error::TheoryError,
    split::TandemModel,
    trajectory::{FIRST, SECOND},
};

/// How fast the tail of an unbounded buffer decays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TailDecay {
    /// −ln P(Q > q) ≈ `per_sqrt_packet` · √q: a Weibull tail of shape 1/2. The first leg has no loss
    /// for √(2q/α) seconds.
    Stretched {
        /// λ √(2/α), per √packet.
        per_sqrt_packet: f64,
    },
    /// −ln P(Q > q) ≈ `per_packet` · q: an exponential tail.
    Exponential {
        /// θ, per packet.
        per_packet: f64,
        /// Whether θ is the first leg's loss rate per packet: q packets in a row without a loss. The
        /// factor before the exponential then falls with √q as well.
        by_one_burst: bool,
    },
}

/// Points of the grid on which the eigenfunction is integrated.
const POINTS: usize = 1200;
/// The largest rate of the grid, in means of the rate. An uncapped rate is never above it.
const LARGEST: f64 = 14.0;

impl Aimd {
    /// Λ(θ), per second, for θ per packet, of a rate that stays at `cap` packets/s (infinite: none)
    /// once it reaches it. Infinite if the expectation is: for θ > 0 and RI losses, and for θ above
    /// the loss rate per packet and RD losses, both without a cap.
    pub fn growth_rate(&self, theta: f64, cap: f64) -> f64 {
        let is_capped = cap < LARGEST * self.mean();
        let is_finite = match self.losses() {
            _ if is_capped => true,
            LossRate::PerSecond(_) => theta <= 0.0,
            LossRate::PerPacket(losses) => theta <= losses,
        };
        if !is_finite {
            return f64::INFINITY;
        }
        // Jensen's inequality bounds it from below, by less than these.
        let mut low = theta.min(0.0) * self.mean();
        let mut high = theta.max(0.0) * self.mean();
        while self.is_below_growth_rate(high, theta, cap) {
            (low, high) = (high, high + theta.abs() * self.mean());
        }
        while high - low > 1e-10 * theta.abs() * self.mean() {
            let middle = low.midpoint(high);
            if self.is_below_growth_rate(middle, theta, cap) { low = middle } else { high = middle }
        }
        low.midpoint(high)
    }

    /// Whether `growth` is below Λ(θ): the solution from f(0) = 1 changes its sign, or at the cap is
    /// smaller than what a loss leaves of it.
    fn is_below_growth_rate(&self, growth: f64, theta: f64, cap: f64) -> bool {
        let end = cap.min(LARGEST * self.mean());
        let step = end / POINTS as f64;
        let intensity = |x: f64| match self.losses() {
            LossRate::PerSecond(losses) => losses,
            LossRate::PerPacket(losses) => losses * x,
        };
        let slope = |x: f64, f: f64, halved: f64| ((growth + intensity(x) - theta * x) * f - intensity(x) * halved) / self.slope();
        let mut values = Vec::with_capacity(POINTS + 1);
        values.push(1.0);
        for at in 0..POINTS {
            // f(x/2), on a grid of the same step: at half of the index, between two points if odd.
            let between = |index: usize| f64::midpoint(values[index / 2], values[index.div_ceil(2).min(at)]);
            let halved = [between(at), between(at + 1)];
            let middle = f64::midpoint(halved[0], halved[1]);
            let (x, f): (f64, f64) = (at as f64 * step, values[at]);
            let k1 = slope(x, f, halved[0]);
            let k2 = slope(x + step / 2.0, f + step / 2.0 * k1, middle);
            let k3 = slope(x + step / 2.0, f + step / 2.0 * k2, middle);
            let k4 = slope(x + step, f + step * k3, halved[1]);
            let next = f + step / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4);
            if next <= 0.0 {
                return true;
            }
            if next > 1e200 {
                return false;
            }
            values.push(next);
        }
        let is_capped = cap < LARGEST * self.mean();
        is_capped && (growth + intensity(cap) - theta * cap) * values[POINTS] < intensity(cap) * values[POINTS / 2]
    }
}

impl TandemModel {
    /// The decay of the tail of an unbounded buffer, if that is stable. The free queue between the
    /// bounds (19.10) and (19.11) has it: θ solves Λₓ(θ) + Λᵧ(−θ) = 0, or is the largest for which Λₓ
    /// is finite.
    ///
    /// # Errors
    /// [`Unstable`](TheoryError::Unstable) at a load of 1 or more.
    pub fn tail_decay(&self) -> Result<TailDecay, TheoryError> {
        let [first, second] = self.legs;
        let mean = |leg: Aimd, cap: f64| {
            let theta = 1e-4 / (leg.mean() / leg.slope() * leg.mean());
            leg.growth_rate(-theta, cap) / -theta
        };
        let rho = mean(first, self.caps[FIRST]) / mean(second, self.caps[SECOND]);
        if rho >= 1.0 {
            return Err(TheoryError::Unstable { rho });
        }
        let sum = |theta: f64| first.growth_rate(theta, self.caps[FIRST]) + second.growth_rate(-theta, self.caps[SECOND]);
        let is_capped = self.caps[FIRST] < LARGEST * first.mean();
        let mut high = match first.losses() {
            LossRate::PerSecond(losses) if !is_capped => {
                return Ok(TailDecay::Stretched { per_sqrt_packet: losses * (2.0 / first.slope()).sqrt() });
            }
            LossRate::PerPacket(losses) if !is_capped => {
                if sum(losses) <= 0.0 {
                    return Ok(TailDecay::Exponential { per_packet: losses, by_one_burst: true });
                }
                losses
            }
            _ => 1.0 / self.buffer_unit(),
        };
        while sum(high) < 0.0 {
            high *= 2.0;
        }
        let mut low = 0.0;
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if sum(middle) < 0.0 { low = middle } else { high = middle }
        }
        Ok(TailDecay::Exponential { per_packet: f64::midpoint(low, high), by_one_burst: false })
    }

    /// The asymptote of P(Q > q) under RI losses without caps, from one long period without a loss of
    /// the first leg: K² e^(−2/ρ) (c√q + 1) e^(−c√q) / (2(1/ρ − 1)) with c = λ√(2/α) and K = Πᵢ 1/(1 −
    /// 2⁻ⁱ). The period lasts T, sends αT²/2 and what the rates before and after it add, and may
    /// begin at every loss; the buffer then drains at the difference of the means. `None` for other
    /// losses.
    pub fn one_burst_tail(&self, packets: f64) -> Option<f64> {
        let (LossRate::PerSecond(losses), LossRate::PerSecond(_)) = (self.legs[FIRST].losses(), self.legs[SECOND].losses()) else {
            return None;
        };
        let rho = self.rho();
        let exponent = losses * (2.0 * packets / self.legs[FIRST].slope()).sqrt();
        let residual: f64 = (1..60).map(|halving| 1.0 / (1.0 - 0.5f64.powi(halving))).product();
        Some(residual.powi(2) * (-2.0 / rho).exp() * (exponent + 1.0) * (-exponent).exp() / (2.0 * (1.0 / rho - 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: f64 = f64::INFINITY;

    fn leg(losses: LossRate) -> Aimd {
        Aimd::new(1.0, losses).unwrap()
    }

    fn assert_close(a: f64, b: f64, relative: f64) {
        assert!((a - b).abs() <= relative * b.abs(), "{a} is not {b}");
    }

    #[test]
    fn the_growth_rate_begins_with_the_mean_and_is_convex() {
        for losses in [LossRate::PerSecond(1.0), LossRate::PerPacket(1.0)] {
            let leg = leg(losses);
            let at = |theta: f64| leg.growth_rate(theta, NONE);
            assert_close(at(-1e-4) / -1e-4, leg.mean(), 1e-3);
            assert!(at(-1.0) < at(-0.5) && f64::midpoint(at(-1.0), 0.0) > at(-0.5));
        }
        // The series of the eigenfunction ends after its square root term.
        assert_close(leg(LossRate::PerPacket(1.0)).growth_rate(0.5, NONE), 0.5f64.sqrt(), 1e-5);
    }

    #[test]
    fn the_growth_rate_is_infinite_where_a_burst_weighs_more_than_it_costs() {
        assert!(leg(LossRate::PerSecond(1.0)).growth_rate(0.01, NONE).is_infinite());
        assert!(leg(LossRate::PerPacket(1.0)).growth_rate(1.01, NONE).is_infinite());
        assert!(leg(LossRate::PerPacket(1.0)).growth_rate(1.0, NONE).is_finite());
        // At a cap c the rate can stay without losses: at least θc − λ.
        let capped = leg(LossRate::PerSecond(1.0)).growth_rate(3.0, 4.0);
        assert!(capped > 3.0 * 4.0 - 1.0 && capped < 3.0 * 4.0, "{capped}");
    }

    #[test]
    fn the_decay_depends_on_the_losses_the_cap_and_the_legs() {
        let tandem = |losses: LossRate, second: f64| TandemModel::new(leg(losses), Aimd::new(second, losses).unwrap());
        let ri = tandem(LossRate::PerSecond(0.4), 0.5);
        assert_eq!(ri.tail_decay().unwrap(), TailDecay::Stretched { per_sqrt_packet: 0.4 * 2f64.sqrt() });
        let capped = ri.with_capacities(10.0, f64::MAX).unwrap().tail_decay().unwrap();
        assert!(matches!(capped, TailDecay::Exponential { per_packet, by_one_burst: false } if per_packet > 0.0), "{capped:?}");
        // Alike legs: many moderate bursts. A far faster second leg: a single burst.
        let alike = tandem(LossRate::PerPacket(1.0), 0.9).tail_decay().unwrap();
        assert!(matches!(alike, TailDecay::Exponential { per_packet, by_one_burst: false } if per_packet < 1.0), "{alike:?}");
        let fast = tandem(LossRate::PerPacket(1.0), 0.3).tail_decay().unwrap();
        assert_eq!(fast, TailDecay::Exponential { per_packet: 1.0, by_one_burst: true });
        assert!(matches!(tandem(LossRate::PerPacket(1.0), 1.1).tail_decay(), Err(TheoryError::Unstable { .. })));
    }
}
