//! Concurrent access networks: files that are split over N networks without any loss, each of which they share fairly with files of its own
//! (Hoekstra, van der Mei and Bosman 2011, §II). With exponential sizes it is a Markov chain on the numbers of jobs (Remark 3), solved here
//! by power series ([`Can::solve`]), and to check that on a box of states ([`Can::solve_on_box`]). Other sizes, and what the paper leaves for
//! further research, are played ([`Can::run`]).
//!
//! Arrival rates are scaled by θ. In lighter and lighter traffic a state of n jobs is as rare as θⁿ, so that π(k; θ) = θ^|k| Σₘ θᵐ b(k, m), and the
//! balance equations give the coefficients one after the other, exactly:
//!
//!   d(k) b(k, m) = Σᵢ λᵢ b(k − eᵢ, m) − Λ b(k, m − 1) + Σᵢ dᵢ(k + eᵢ) b(k + eᵢ, m − 1),   b(0, m) = −Σ b(k, m − |k|)
//!
//! with d what leaves a state. The series of E[Nᵢ], times 1 − θ Σρ/Σc, which takes its nearest pole away, is summed at θ = 1 by Wynn's epsilon.

mod arrivals;
mod double_double;
mod event_simulation;
mod fluid_replay;
mod job_sizes;
mod jump_chain;
mod power_series;
mod replication;
mod simulate;
mod simulation;
mod truncated_chain;

pub use arrivals::{Modulation, Streams};
pub use fluid_replay::{ideal, replay};
pub use job_sizes::Sizes;
pub use simulate::CanPlayed;
pub use simulation::CanRun;

use crate::{TheoryError, aimd::positive};
use double_double::{Double, Real};
use power_series::{Epsilon, Series};

/// A system of N networks: class 0 is the foreground, which is split over all of them; class i is network i's own background.
#[derive(Debug, Clone, PartialEq)]
pub struct Can {
    /// Jobs a second of each class.
    pub(crate) arrivals: Vec<f64>,
    /// Mean size of a job of each class.
    pub(crate) sizes: Vec<f64>,
    /// What each network serves a second.
    pub(crate) speeds: Vec<f64>,
    /// How many jobs of the background one of the foreground counts for.
    pub(crate) weight: f64,
}

/// A number and what it may be off by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    /// The value.
    pub value: f64,
    /// What it may be off by: of a series, by how its last orders differ; of a simulation, half the width of the 95 % interval.
    pub error: f64,
}

/// The stationary means, a number a class.
#[derive(Debug, Clone, PartialEq)]
pub struct CanMeans {
    /// `E[Nᵢ]`, jobs.
    pub jobs: Vec<Number>,
    /// `E[Sᵢ]`, s, by Little's law; of a class that never comes, absent.
    pub sojourn_s: Vec<Option<Number>>,
    /// Terms of the series, events that were played, or states of the box.
    pub order: usize,
}

impl CanMeans {
    /// The largest error of E[Nᵢ] over its value.
    fn uncertainty(&self) -> f64 {
        self.jobs.iter().map(|jobs| jobs.error / jobs.value.abs().max(f64::MIN_POSITIVE)).fold(0.0, f64::max)
    }

    /// Whether all means have their digits.
    fn complete(&self) -> bool {
        self.uncertainty() < 1.000_001 * Can::DIGITS
    }
}

impl Can {
    /// N networks of speed 1 with jobs of mean size 1: the loads of the backgrounds, and of the foreground as a part of the first network's
    /// capacity, as in the paper's tables.
    pub fn new(foreground: f64, backgrounds: &[f64]) -> Result<Self, TheoryError> {
        let ones = |count: usize| vec![1.0; count];
        let loads: Vec<f64> = std::iter::once(foreground).chain(backgrounds.iter().copied()).collect();
        Can::with(&loads, &ones(loads.len()), &ones(backgrounds.len()))
    }

    /// Of arrivals a second and mean sizes, the foreground's first, and the networks' speeds (size a second).
    pub fn with(arrivals: &[f64], sizes: &[f64], speeds: &[f64]) -> Result<Self, TheoryError> {
        let count = speeds.len();
        if count == 0 || count > Can::MOST || arrivals.len() != count + 1 || sizes.len() != count + 1 {
            return Err(TheoryError::Networks { networks: count, classes: arrivals.len(), most: Can::MOST });
        }
        for value in arrivals.iter().filter(|value| **value != 0.0) {
            positive("an arrival rate that is not 0", *value)?;
        }
        for value in sizes.iter().chain(speeds) {
            positive("a size or speed", *value)?;
        }
        let can = Can { arrivals: arrivals.to_vec(), sizes: sizes.to_vec(), speeds: speeds.to_vec(), weight: 1.0 };
        for network in 1..=count {
            let load = can.work(network) / can.speeds[network - 1];
            if load >= 1.0 {
                return Err(TheoryError::Overloaded { what: format!("the background in network {network}"), load });
            }
        }
        let load = can.load();
        if load >= 1.0 { Err(TheoryError::Overloaded { what: "all classes together".into(), load }) } else { Ok(can) }
    }

    /// With a foreground each of whose jobs gets as much of a network as `weight` jobs of its background: 1 is fair. So in (1) to (4)
    /// k₀/(k₀ + kᵢ) becomes w k₀/(w k₀ + kᵢ), and kᵢ/(k₀ + kᵢ) becomes kᵢ/(w k₀ + kᵢ): one of the paper's topics for further research (§VII).
    pub fn with_weight(mut self, weight: f64) -> Result<Self, TheoryError> {
        self.weight = positive("the weight of the foreground", weight)?;
        Ok(self)
    }

    /// The error that names a class which is not there.
    fn no_class(&self, class: usize) -> TheoryError {
        TheoryError::Outside { what: "the number of a class or network".into(), value: class as f64, bounds: "that of one which is there" }
    }

    /// The most networks: the states grow with the power of their number.
    pub const MOST: usize = 4;

    /// What a class brings, size a second.
    fn work(&self, class: usize) -> f64 {
        self.arrivals[class] * self.sizes[class]
    }

    /// All that comes over all that can be served.
    fn load(&self) -> f64 {
        (0..self.sizes.len()).map(|class| self.work(class)).sum::<f64>() / self.speeds.iter().sum::<f64>()
    }

    /// The means, to ten digits; the error says how many they are.
    ///
    /// Where the 16 digits of `f64` do not give them, which is close to saturation, the series is computed in 31.
    pub fn solve(&self) -> CanMeans {
        let network = self.speeds.len() - 1;
        let quick = self.extrapolate::<f64>([200, 110, 50, 36][network]);
        if quick.complete() { quick } else { self.extrapolate::<Double>([250, 170, 80, 50][network]) }
    }

    /// The error of a complete result, as a part of it: ten digits, and one to spare.
    const DIGITS: f64 = 2e-11;

    /// The means by the series up to an order.
    ///
    /// Errors are twice how far the last estimate lies from the five before it, in the class that fares worst, and at least [`Can::DIGITS`]:
    /// what two neighbours say of each other, or one class of itself, is too little.
    fn extrapolate<R: Real>(&self, most: usize) -> CanMeans {
        const AGREE: usize = 6;
        let classes = self.sizes.len();
        let mut series = Series::<R>::new(self, most);
        let mut sums = vec![Epsilon::<R>::new(); classes];
        // Its nearest pole, and what is left over of it at θ = 1.
        let pole = (0..classes)
            .fold(R::from(0.0), |sum, class| sum.plus_product(R::from(self.arrivals[class]), R::from(self.sizes[class])))
            .settled()
            / self.speeds.iter().fold(R::from(0.0), |sum, speed| sum + R::from(*speed));
        let left = R::from(1.0) - pole;
        let mut last = vec![R::from(0.0); classes];
        let mut found: Vec<Vec<f64>> = Vec::new();
        let mut best: Option<CanMeans> = None;
        for order in 0..=most {
            let moments = series.next_level();
            let estimate = |class: usize| (sums[class].add(moments[class] - pole * last[class]) / left).rounded();
            let estimates: Vec<f64> = (0..classes).map(estimate).collect();
            last = moments;
            if order % 2 == 1 {
                // Odd columns of the table are no estimates.
                continue;
            }
            found.push(estimates);
            let Some(before) = found.len().checked_sub(AGREE) else { continue };
            let last = &found[found.len() - 1];
            let spread = |class: usize| found[before..].iter().map(|found| (found[class] - last[class]).abs()).fold(0.0, f64::max);
            let part = |class: usize| spread(class) / last[class].abs().max(f64::MIN_POSITIVE);
            let part = (0..classes).map(part).fold(Can::DIGITS / 2.0, f64::max);
            let jobs = last.iter().map(|value| Number { value: *value, error: 2.0 * part * value.abs() }).collect();
            let means = self.means(jobs, order);
            if best.as_ref().is_none_or(|best| means.uncertainty() < best.uncertainty()) {
                best = Some(means);
            }
            if best.as_ref().is_some_and(CanMeans::complete) {
                break;
            }
        }
        best.expect("there are more than twice as many orders")
    }

    /// With the sojourn times that follow from the numbers of jobs.
    pub(crate) fn means(&self, jobs: Vec<Number>, order: usize) -> CanMeans {
        let sojourn = |(jobs, rate): (&Number, &f64)| (*rate > 0.0).then(|| Number { value: jobs.value / rate, error: jobs.error / rate });
        CanMeans { sojourn_s: jobs.iter().zip(&self.arrivals).map(sojourn).collect(), jobs, order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twelve digits of E[S₀], E[S₁], … from a reckoning with 113 bits.
    const HARD: [(f64, &[f64], &[f64]); 3] = [
        (0.9, &[0.45, 0.5], &[4.874_954_646_65, 9.356_499_363_92, 10.241_886_030_46]),
        (0.6, &[0.2, 0.4, 0.7], &[0.730_815_621_597, 1.678_560_637_474, 2.232_954_197_451, 4.513_789_455_787]),
        (0.1, &[0.1, 0.95], &[1.083_045_097_967, 1.226_210_866_305, 22.008_833_487_29]),
    ];

    #[test]
    fn ten_digits_come_out_close_to_saturation() {
        for (foreground, backgrounds, right) in HARD {
            let found = Can::new(foreground, backgrounds).unwrap().solve();
            for (found, right) in found.sojourn_s.iter().zip(right) {
                let found = found.unwrap();
                assert!((found.value / right - 1.0).abs() < 5e-11 && found.error < 5e-11 * right, "{found:?}, should be {right}");
            }
        }
    }

    #[test]
    fn errors_are_honest_wherever_the_series_stops() {
        // From light to heavy, of all classes and of one background.
        for (foreground, backgrounds) in
            [(0.3, [0.3, 0.3]), (0.1, [0.3, 0.9]), (1.7, [0.05, 0.1]), (0.9, [0.45, 0.5]), (0.9, [0.5, 0.5]), (1.2, [0.03, 0.65])]
        {
            let can = Can::new(foreground, &backgrounds).unwrap();
            let right = can.extrapolate::<Double>(100);
            for order in [20, 36, 60, 80] {
                let (quick, exact) = (can.extrapolate::<f64>(order), can.extrapolate::<Double>(order));
                // What rounding spoils is not handed out.
                for found in [Some(exact), Some(quick).filter(CanMeans::complete)].into_iter().flatten() {
                    for (found, right) in found.jobs.iter().zip(&right.jobs) {
                        let off = (found.value - right.value).abs();
                        assert!(off < 2.0 * found.error + right.error, "{can:?} at {order}: {found:?}, should be {right:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn series_and_box_agree() {
        let unequal = Can::with(&[0.5, 0.4, 0.3], &[1.5, 0.5, 2.0], &[0.8, 1.5]).unwrap();
        for (can, tolerance) in [
            (Can::new(0.1, &[0.3, 0.5]).unwrap(), 1e-9),
            (Can::new(0.9, &[0.3, 0.3]).unwrap(), 1e-9),
            (Can::new(0.2, &[0.2, 0.3, 0.1]).unwrap(), 1e-7),
            (Can::new(0.4, &[0.4]).unwrap().with_weight(3.0).unwrap(), 1e-9),
            (unequal.clone(), 1e-9),
            (unequal.with_weight(0.5).unwrap(), 1e-9),
        ] {
            let (series, boxed) = (can.solve(), can.solve_on_box(tolerance, 10_000_000));
            for (series, boxed) in series.jobs.iter().zip(&boxed.jobs) {
                let off = (series.value - boxed.value).abs();
                assert!(
                    off < 3.0 * (series.error + boxed.error) && boxed.error < 30.0 * tolerance * boxed.value,
                    "{can:?}: {series:?} {boxed:?}"
                );
            }
        }
    }

    #[test]
    fn a_box_that_is_too_small_says_so() {
        let can = Can::new(0.9, &[0.3, 0.3]).unwrap();
        let (small, right) = (can.solve_on_box(1e-9, 3000), can.solve());
        assert!(small.order <= 3000);
        for (small, right) in small.jobs.iter().zip(&right.jobs) {
            assert!(small.error > 1e-6 && (small.value - right.value).abs() < 3.0 * small.error, "{small:?}, should be {right:?}");
        }
    }

    #[test]
    fn one_network_is_a_processor_sharing_queue() {
        let means = Can::new(0.3, &[0.5]).unwrap().solve();
        for (class, load) in [(0, 0.3), (1, 0.5)] {
            let jobs = means.jobs[class];
            assert!((jobs.value - load / 0.2).abs() < 1e-10 && jobs.error < 1e-9, "{means:?}");
        }
    }

    #[test]
    fn one_network_with_weights_is_discriminatory_processor_sharing() {
        // Fayolle, Mitrani and Iasnogorodski 1980: with Aₖⱼ = λⱼgⱼ/(μⱼgⱼ + μₖgₖ), Wₖ (1 − Σⱼ Aₖⱼ) − Σⱼ Aₖⱼ Wⱼ = 1/μₖ.
        let (arrivals, sizes, weights) = ([0.3, 0.2], [1.0, 2.0], [4.0, 1.0]);
        let a = |k: usize, j: usize| arrivals[j] * weights[j] / (weights[j] / sizes[j] + weights[k] / sizes[k]);
        let own = |k: usize| 1.0 - a(k, 0) - a(k, 1) - a(k, k);
        let determinant = own(0) * own(1) - a(0, 1) * a(1, 0);
        let right = [(sizes[0] * own(1) + a(0, 1) * sizes[1]) / determinant, (sizes[1] * own(0) + a(1, 0) * sizes[0]) / determinant];
        let found = Can::with(&arrivals, &sizes, &[1.0]).unwrap().with_weight(4.0).unwrap().solve();
        for (found, right) in found.sojourn_s.iter().zip(right) {
            assert!((found.unwrap().value - right).abs() < 1e-9, "{found:?}, should be {right}");
        }
    }

    #[test]
    fn without_backgrounds_the_networks_are_one_of_their_speeds_together() {
        let means = Can::with(&[1.2, 0.0, 0.0], &[1.0; 3], &[1.0, 2.0]).unwrap().solve();
        assert!((means.jobs[0].value - 0.4 / 0.6).abs() < 1e-10, "{means:?}");
        assert_eq!(means.sojourn_s[1], None);
    }

    #[test]
    fn four_networks_have_ten_digits() {
        let found = Can::new(0.5, &[0.3; 4]).unwrap().solve();
        let right = found.jobs[1].value;
        for jobs in &found.jobs[1..] {
            assert!((jobs.value / right - 1.0).abs() < 1e-13 && jobs.error < 5e-11 * right, "{found:?}");
        }
    }

    #[test]
    fn what_has_no_stationary_state_is_named() {
        let error = |foreground: f64, backgrounds: &[f64]| Can::new(foreground, backgrounds).unwrap_err().to_string();
        assert!(error(0.1, &[0.5, 1.0]).contains("network 2") && error(1.2, &[0.5, 0.4]).contains("all classes together"));
        assert!(error(0.1, &[]).contains("0 networks"), "{}", error(0.1, &[]));
        assert!(error(-0.1, &[0.5]).contains("-0.1"));
        let weight = Can::new(0.1, &[0.5]).unwrap().with_weight(0.0).unwrap_err().to_string();
        assert!(weight.contains("weight of the foreground is 0"), "{weight}");
    }
}
