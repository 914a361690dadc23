//! One connection: its rate rises by 1/R² per second and is halved by each loss, Baccelli (19.1)
//! with X = W/R.

use crate::error::{TheoryError, positive};

/// The loss rate of a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossRate {
    /// Rate independent (RI): a Poisson process in time, losses/s.
    PerSecond(f64),
    /// Rate dependent (RD): a Poisson process in packets sent, losses/packet.
    PerPacket(f64),
}

/// A connection in congestion avoidance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aimd {
    rtt_s: f64,
    losses: LossRate,
}

/// Φ of Baccelli (19.3): the mean rate under RD losses is Φ √(α/λ). See [`phi`].
pub const PHI: f64 = 1.309_833_274_658_020_7;

/// Φ = √(2/π) · Σᵢ bᵢ / Σᵢ 2ⁱ bᵢ with bᵢ = Πⱼ₌₁ⁱ 1/(1 − 4ʲ), 1.30983…, also of Ott, Kemperman and
/// Mathis (1996).
///
/// As printed, the root of (19.3) covers the sums too, which gives 1.0223. The density gives the
/// root of 2/π alone, and 1.309, the value that the paper states.
pub fn phi() -> f64 {
    let mut b = 1.0;
    let mut sum = 0.0;
    let mut weighed = 0.0;
    for i in 0..12 {
        sum += b;
        weighed += b * f64::from(1 << i);
        b /= 1.0 - 4f64.powi(i + 1);
    }
    std::f64::consts::FRAC_2_PI.sqrt() * sum / weighed
}

impl Aimd {
    /// A connection with a round-trip time (s) and a loss process.
    ///
    /// # Errors
    /// When a parameter is not positive.
    pub fn new(rtt_s: f64, losses: LossRate) -> Result<Self, TheoryError> {
        positive("the round-trip time", rtt_s)?;
        match losses {
            LossRate::PerSecond(rate) => positive("the losses per second", rate)?,
            LossRate::PerPacket(rate) => positive("the losses per packet", rate)?,
        };
        Ok(Aimd { rtt_s, losses })
    }

    /// Its round-trip time, s.
    pub fn rtt_s(&self) -> f64 {
        self.rtt_s
    }

    /// Its loss process.
    pub fn losses(&self) -> LossRate {
        self.losses
    }

    /// α = 1/R²: slope of its rate, packets/s².
    pub fn slope(&self) -> f64 {
        self.rtt_s.powi(-2)
    }

    /// Time from a rate until the next loss, s, given the integral of the loss intensity until
    /// then.
    pub(crate) fn time_to_loss(&self, rate: f64, hazard: f64) -> f64 {
        match self.losses {
            LossRate::PerSecond(losses) => hazard / losses,
            LossRate::PerPacket(losses) => ((rate.powi(2) + 2.0 * self.slope() * hazard / losses).sqrt() - rate) / self.slope(),
        }
    }

    /// The mean rate, packets/s: 2α/λ (RI, Baccelli §19.4.2), Φ √(α/λ) (RD, (19.3)).
    pub fn mean(&self) -> f64 {
        self.moment(1)
    }

    /// `E[Xⁿ]` in steady state, from the generator: n α `E[Xⁿ⁻¹]` = λ (1 − 2⁻ⁿ) `E[Xⁿ]` (RI), …
    /// `E[Xⁿ⁺¹]` (RD).
    pub fn moment(&self, n: u32) -> f64 {
        let step = |n: u32| f64::from(n) * self.slope() / (1.0 - 0.5f64.powi(n as i32));
        match self.losses {
            LossRate::PerSecond(rate) => (1..=n).map(|n| step(n) / rate).product(),
            LossRate::PerPacket(rate) => {
                let first = if n % 2 == 1 { PHI * (self.slope() / rate).sqrt() } else { 1.0 };
                (1..n).filter(|below| (n - below) % 2 == 1).map(|below| step(below) / rate).product::<f64>() * first
            }
        }
    }

    /// The fraction of packets lost. The square root formulas (19.2) and (19.3) map it to the mean
    /// rate.
    pub fn loss_probability(&self) -> f64 {
        match self.losses {
            LossRate::PerSecond(rate) => rate / self.mean(),
            LossRate::PerPacket(rate) => rate,
        }
    }

    /// The stationary density of the rate at `x` packets/s: Σ cᵢ exp(−λ 2ⁱ x/α) (RI), Σ cᵢ exp(−λ
    /// 4ⁱ x²/(2α)) (RD), which solve α f'(x) = −λ f(x) + 2λ f(2x) and α f'(x) = −λ x f(x) + 4λ x
    /// f(2x).
    pub fn density(&self, x: f64) -> f64 {
        self.series(|term| term.coefficient * term.decay(x))
    }

    /// The fraction of time in which the rate is above `x` packets/s.
    pub fn survival(&self, x: f64) -> f64 {
        self.series(|term| term.coefficient * term.tail(x)).clamp(0.0, 1.0)
    }

    /// Sums `of` over the terms of the density, normalized.
    fn series(&self, of: impl Fn(&Term) -> f64) -> f64 {
        // The coefficients fall faster than geometrically: the twelfth is below 1e-20 (RI) and
        // 1e-40 (RD).
        let mut sum = 0.0;
        let mut whole = 0.0;
        let mut coefficient = 1.0;
        for i in 0..24 {
            let term = match self.losses {
                LossRate::PerSecond(rate) => Term { coefficient, scale: rate * 2f64.powi(i) / self.slope(), gaussian: false },
                LossRate::PerPacket(rate) => Term { coefficient, scale: rate * 4f64.powi(i) / (2.0 * self.slope()), gaussian: true },
            };
            sum += of(&term);
            whole += coefficient * term.tail(0.0);
            coefficient *= match self.losses {
                LossRate::PerSecond(_) => 2.0 / (1.0 - 2f64.powi(i + 1)),
                LossRate::PerPacket(_) => 4.0 / (1.0 - 4f64.powi(i + 1)),
            };
        }
        sum / whole
    }
}

/// A term of the density's series: `coefficient` times exp(−scale x) or exp(−scale x²).
struct Term {
    coefficient: f64,
    scale: f64,
    gaussian: bool,
}

impl Term {
    fn decay(&self, x: f64) -> f64 {
        if self.gaussian { (-self.scale * x * x).exp() } else { (-self.scale * x).exp() }
    }

    /// Its integral from `x` to infinity.
    fn tail(&self, x: f64) -> f64 {
        if self.gaussian {
            (std::f64::consts::PI / self.scale).sqrt() / 2.0 * erfc(self.scale.sqrt() * x)
        } else {
            self.decay(x) / self.scale
        }
    }
}

/// The complementary error function for x ≥ 0, to 1e-14: a series near 0, a continued fraction
/// (Abramowitz and Stegun 7.1.14) further out.
fn erfc(x: f64) -> f64 {
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
    }
    let fraction = (1..80).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    (-x * x).exp() / (std::f64::consts::PI.sqrt() * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [LossRate; 2] = [LossRate::PerSecond(0.4), LossRate::PerPacket(0.003)];

    fn assert_close(a: f64, b: f64, relative: f64) {
        assert!((a - b).abs() <= relative * b.abs(), "{a} is not {b}");
    }

    /// ∫ of `f` over [0, end] by Simpson's rule.
    fn integral(f: impl Fn(f64) -> f64, end: f64) -> f64 {
        const STEPS: u32 = 20_000;
        let h = end / f64::from(STEPS);
        let weight = |i: u32| if i == 0 || i == STEPS { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        (0..=STEPS).map(|i| weight(i) * f(f64::from(i) * h)).sum::<f64>() * h / 3.0
    }

    #[test]
    fn phi_is_the_value_that_the_paper_states() {
        assert_close(phi(), PHI, 1e-14);
        assert_eq!(format!("{PHI:.6}"), "1.309833");
    }

    #[test]
    fn the_density_has_the_moments_of_the_generator() {
        for losses in BOTH {
            let leg = Aimd::new(0.06, losses).unwrap();
            let end = 30.0 * leg.mean();
            assert_close(integral(|x| leg.density(x), end), 1.0, 1e-9);
            for n in 1..=4 {
                assert_close(integral(|x| x.powi(n as i32) * leg.density(x), end), leg.moment(n), 1e-7);
            }
            let x = 1.3 * leg.mean();
            assert_close(leg.survival(x), 1.0 - integral(|x| leg.density(x), x), 1e-7);
        }
    }

    #[test]
    fn the_density_solves_its_equation() {
        for losses in BOTH {
            let leg = Aimd::new(0.06, losses).unwrap();
            for x in [0.2, 0.7, 1.0, 2.0].map(|part| part * leg.mean()) {
                let h = x * 1e-5;
                let slope = (leg.density(x + h) - leg.density(x - h)) / (2.0 * h) * leg.slope();
                let right = match losses {
                    LossRate::PerSecond(rate) => -rate * leg.density(x) + 2.0 * rate * leg.density(2.0 * x),
                    LossRate::PerPacket(rate) => -rate * x * leg.density(x) + 4.0 * rate * x * leg.density(2.0 * x),
                };
                assert_close(slope, right, 1e-6);
            }
        }
    }

    #[test]
    fn the_square_root_formulas_give_the_mean() {
        let [ri, rd] = BOTH.map(|losses| Aimd::new(0.04, losses).unwrap());
        assert_close((2.0 * ri.slope() / ri.loss_probability()).sqrt(), ri.mean(), 1e-12);
        assert_close(PHI * (rd.slope() / rd.loss_probability()).sqrt(), rd.mean(), 1e-12);
        assert_close(rd.moment(2), 2.0 * rd.slope() / 0.003, 1e-12);
        assert_close(ri.moment(2), 16.0 / 3.0 * (ri.slope() / 0.4).powi(2), 1e-12);
    }

    #[test]
    fn erfc_matches_tables() {
        assert_close(erfc(0.5), 0.479_500_122_186_953_5, 1e-13);
        assert_close(erfc(2.4), 6.885_138_966_866_7e-4, 1e-9);
        assert_close(erfc(3.0), 2.209_049_699_858_544e-5, 1e-12);
        assert_eq!(erfc(0.0), 1.0);
    }

    #[test]
    fn wrong_parameters_are_named() {
        let error = Aimd::new(0.0, LossRate::PerSecond(1.0)).unwrap_err();
        assert_eq!(error.to_string(), "the round-trip time is 0, and must be a positive number");
        assert!(Aimd::new(0.1, LossRate::PerPacket(-1.0)).is_err());
        assert!(Aimd::new(0.1, LossRate::PerSecond(f64::NAN)).is_err());
    }
}
