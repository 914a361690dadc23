//! One connection: its rate rises by 1/R² a second and is halved by each loss (equation (19.1), with X = W/R).

/// How losses come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Losses {
    /// Rate independent (RI): so many a second, however much is sent.
    PerSecond(f64),
    /// Rate dependent (RD): so many a packet.
    PerPacket(f64),
}

/// A connection in congestion avoidance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aimd {
    rtt_s: f64,
    losses: Losses,
}

/// Why a model has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TheoryError {
    /// A parameter must be a positive number.
    #[error("{what} is {value}, and must be a positive number")]
    NotPositive {
        /// Which.
        what: &'static str,
        /// What it was.
        value: f64,
    },
    /// A parameter must lie elsewhere.
    #[error("{what} is {value}, and must be {bounds}")]
    Outside {
        /// Which.
        what: String,
        /// What it was.
        value: f64,
        /// Where it must lie.
        bounds: &'static str,
    },
    /// Not a number that a job can have as its size.
    #[error("{0:?} is not a size")]
    NotASize(String),
    /// Too few samples for a statement with an interval.
    #[error("{have} positive samples are too few for an interval: it takes {need}")]
    TooFew {
        /// How many there are.
        have: usize,
        /// How many it takes.
        need: usize,
    },
    /// A buffer forgets its past too slowly for what was played.
    #[error(
        "the legs are nearly alike (the faster one alone sends {ratio} times as much), so that a buffer of {packets} packets changes too slowly \
         for {have} losses to tell what it costs: ask with {need}, or for a smaller share of the rate"
    )]
    Critical {
        /// The mean rates of the two alone, the larger over the smaller.
        ratio: f64,
        /// What was asked about.
        packets: f64,
        /// Losses of both legs that were played.
        have: u64,
        /// How many it takes.
        need: u64,
    },
    /// Not a system of networks.
    #[error("{networks} networks and {classes} classes of jobs: it takes 1 to {most} networks, and one class more than there are networks")]
    Networks {
        /// How many networks.
        networks: usize,
        /// How many classes.
        classes: usize,
        /// The most networks.
        most: usize,
    },
    /// More comes than can be served.
    #[error("the load of {what} is {load}, and must be below 1: else there is no stationary state")]
    Overloaded {
        /// Of whom.
        what: String,
        /// What they bring over what serves them.
        load: f64,
    },
    /// Without a bound the buffer grows for ever.
    #[error(
        "the first connection alone is faster than the second: rho = {rho}, and an unbounded buffer needs rho < 1; give the buffer a bound"
    )]
    Unstable {
        /// The load, as in Lemma 19.7.
        rho: f64,
    },
}

/// `value`, if it is positive and finite.
pub(crate) fn positive(what: &'static str, value: f64) -> Result<f64, TheoryError> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err(TheoryError::NotPositive { what, value }) }
}

/// Φ of equation (19.3): the mean rate under RD losses is Φ √(α/λ). See [`phi`].
pub const PHI: f64 = 1.309_833_274_658_020_7;

/// Φ = √(2/π) · Σᵢ bᵢ / Σᵢ 2ⁱ bᵢ with bᵢ = Πⱼ₌₁ⁱ 1/(1 − 4ʲ), 1.30983…, also of Ott, Kemperman and Mathis (1996).
///
/// As printed, the root of (19.3) covers the sums as well, which would be 1.0223: the density gives the root over 2/π alone, and 1.309, the
/// value that the paper names.
pub fn phi() -> f64 {
    let (mut b, mut sum, mut weighed) = (1.0, 0.0, 0.0);
    for i in 0..12 {
        sum += b;
        weighed += b * f64::from(1 << i);
        b /= 1.0 - 4f64.powi(i + 1);
    }
    std::f64::consts::FRAC_2_PI.sqrt() * sum / weighed
}

impl Aimd {
    /// Of a round trip (s) and a loss process.
    pub fn new(rtt_s: f64, losses: Losses) -> Result<Self, TheoryError> {
        positive("the round-trip time", rtt_s)?;
        match losses {
            Losses::PerSecond(rate) => positive("the losses per second", rate)?,
            Losses::PerPacket(rate) => positive("the losses per packet", rate)?,
        };
        Ok(Aimd { rtt_s, losses })
    }

    /// Its round trip, s.
    pub fn rtt_s(&self) -> f64 {
        self.rtt_s
    }

    /// Its loss process.
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// α = 1/R²: by how much its rate rises, packets/s².
    pub fn slope(&self) -> f64 {
        self.rtt_s.powi(-2)
    }

    /// How long from a rate on until a loss that takes so much chance, s.
    pub(crate) fn loses_after(&self, rate: f64, chance: f64) -> f64 {
        match self.losses {
            Losses::PerSecond(losses) => chance / losses,
            Losses::PerPacket(losses) => ((rate.powi(2) + 2.0 * self.slope() * chance / losses).sqrt() - rate) / self.slope(),
        }
    }

    /// The mean rate, packets/s: 2α/λ (RI, §19.4.2), Φ √(α/λ) (RD, (19.3)).
    pub fn mean(&self) -> f64 {
        self.moment(1)
    }

    /// `E[Xⁿ]` in steady state, from the generator: n α `E[Xⁿ⁻¹]` = λ (1 − 2⁻ⁿ) `E[Xⁿ]` (RI), … `E[Xⁿ⁺¹]` (RD).
    pub fn moment(&self, n: u32) -> f64 {
        let step = |n: u32| f64::from(n) * self.slope() / (1.0 - 0.5f64.powi(n as i32));
        match self.losses {
            Losses::PerSecond(rate) => (1..=n).map(|n| step(n) / rate).product(),
            Losses::PerPacket(rate) => {
                let first = if n % 2 == 1 { PHI * (self.slope() / rate).sqrt() } else { 1.0 };
                (1..n).filter(|below| (n - below) % 2 == 1).map(|below| step(below) / rate).product::<f64>() * first
            }
        }
    }

    /// The share of packets that are lost: by the square root formulas (19.2) and (19.3) it gives the mean back.
    pub fn loss_probability(&self) -> f64 {
        match self.losses {
            Losses::PerSecond(rate) => rate / self.mean(),
            Losses::PerPacket(rate) => rate,
        }
    }

    /// The stationary density of the rate at `x` packets/s: Σ cᵢ exp(−λ 2ⁱ x/α) (RI), Σ cᵢ exp(−λ 4ⁱ x²/(2α)) (RD), which solve
    /// α f'(x) = −λ f(x) + 2λ f(2x) and α f'(x) = −λ x f(x) + 4λ x f(2x).
    pub fn density(&self, x: f64) -> f64 {
        self.series(|term| term.coefficient * term.decay(x))
    }

    /// The share of time in which the rate is above `x` packets/s.
    pub fn above(&self, x: f64) -> f64 {
        self.series(|term| term.coefficient * term.tail(x)).clamp(0.0, 1.0)
    }

    /// Sums what `of` makes of the density's terms, normalized.
    fn series(&self, of: impl Fn(&Term) -> f64) -> f64 {
        // The coefficients fall faster than geometrically: the twelfth is below 1e-20 (RI) and 1e-40 (RD).
        let (mut sum, mut whole, mut coefficient) = (0.0, 0.0, 1.0);
        for i in 0..24 {
            let term = match self.losses {
                Losses::PerSecond(rate) => Term { coefficient, scale: rate * 2f64.powi(i) / self.slope(), gaussian: false },
                Losses::PerPacket(rate) => Term { coefficient, scale: rate * 4f64.powi(i) / (2.0 * self.slope()), gaussian: true },
            };
            sum += of(&term);
            whole += coefficient * term.tail(0.0);
            coefficient *= match self.losses {
                Losses::PerSecond(_) => 2.0 / (1.0 - 2f64.powi(i + 1)),
                Losses::PerPacket(_) => 4.0 / (1.0 - 4f64.powi(i + 1)),
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

    /// Its integral from `x` on.
    fn tail(&self, x: f64) -> f64 {
        if self.gaussian {
            (std::f64::consts::PI / self.scale).sqrt() / 2.0 * erfc(self.scale.sqrt() * x)
        } else {
            self.decay(x) / self.scale
        }
    }
}

/// The complementary error function for x ≥ 0, to 1e-14: a series near 0, a continued fraction (Abramowitz and Stegun 7.1.14) further out.
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

    const BOTH: [Losses; 2] = [Losses::PerSecond(0.4), Losses::PerPacket(0.003)];

    fn near(a: f64, b: f64, relative: f64) {
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
    fn phi_is_the_papers_value_with_the_root_where_it_belongs() {
        near(phi(), PHI, 1e-14);
        assert_eq!(format!("{PHI:.6}"), "1.309833");
    }

    #[test]
    fn the_density_has_the_moments_that_the_generator_gives() {
        for losses in BOTH {
            let one = Aimd::new(0.06, losses).unwrap();
            let end = 30.0 * one.mean();
            near(integral(|x| one.density(x), end), 1.0, 1e-9);
            for n in 1..=4 {
                near(integral(|x| x.powi(n as i32) * one.density(x), end), one.moment(n), 1e-7);
            }
            let x = 1.3 * one.mean();
            near(one.above(x), 1.0 - integral(|x| one.density(x), x), 1e-7);
        }
    }

    #[test]
    fn the_density_solves_its_equation() {
        for losses in BOTH {
            let one = Aimd::new(0.06, losses).unwrap();
            for x in [0.2, 0.7, 1.0, 2.0].map(|part| part * one.mean()) {
                let h = x * 1e-5;
                let slope = (one.density(x + h) - one.density(x - h)) / (2.0 * h) * one.slope();
                let right = match losses {
                    Losses::PerSecond(rate) => -rate * one.density(x) + 2.0 * rate * one.density(2.0 * x),
                    Losses::PerPacket(rate) => -rate * x * one.density(x) + 4.0 * rate * x * one.density(2.0 * x),
                };
                near(slope, right, 1e-6);
            }
        }
    }

    #[test]
    fn the_square_root_formulas_give_the_mean_back() {
        let [ri, rd] = BOTH.map(|losses| Aimd::new(0.04, losses).unwrap());
        near((2.0 * ri.slope() / ri.loss_probability()).sqrt(), ri.mean(), 1e-12);
        near(PHI * (rd.slope() / rd.loss_probability()).sqrt(), rd.mean(), 1e-12);
        near(rd.moment(2), 2.0 * rd.slope() / 0.003, 1e-12);
        near(ri.moment(2), 16.0 / 3.0 * (ri.slope() / 0.4).powi(2), 1e-12);
    }

    #[test]
    fn erfc_is_itself() {
        near(erfc(0.5), 0.479_500_122_186_953_5, 1e-13);
        near(erfc(2.4), 6.885_138_966_866_7e-4, 1e-9);
        near(erfc(3.0), 2.209_049_699_858_544e-5, 1e-12);
        assert_eq!(erfc(0.0), 1.0);
    }

    #[test]
    fn wrong_parameters_are_named() {
        let error = Aimd::new(0.0, Losses::PerSecond(1.0)).unwrap_err();
        assert_eq!(error.to_string(), "the round-trip time is 0, and must be a positive number");
        assert!(Aimd::new(0.1, Losses::PerPacket(-1.0)).is_err());
        assert!(Aimd::new(0.1, Losses::PerSecond(f64::NAN)).is_err());
    }
}
