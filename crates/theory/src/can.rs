//! The concurrent access network (CAN) model: files that are split over N networks without
//! overhead; each network shares its capacity fairly between them and its own background files
//! (Hoekstra, van der Mei and Bosman 2011, §II).
//!
//! With exponential sizes the numbers of jobs are a Markov chain (Remark 3). [`Can::solve`] solves
//! it by a power series. [`Can::solve_truncated`] solves it on a truncated state space, as a check
//! of the series. [`Can::simulation`] simulates what the chain does not cover: other size
//! distributions, and the extensions that the paper leaves to further research (§VII).
//!
//! *Power series.* Arrival rates are scaled by θ. In light traffic the probability of a state with
//! n jobs is of order θⁿ, so π(k; θ) = θ^|k| Σₘ θᵐ b(k, m), and the balance equations give the
//! coefficients recursively:
//!
//! ```text
//! d(k) b(k, m) = Σᵢ λᵢ b(k − eᵢ, m) − Λ b(k, m − 1) + Σᵢ dᵢ(k + eᵢ) b(k + eᵢ, m − 1)
//! b(0, m) = −Σ b(k, m − |k|)
//! ```
//!
//! with d the departure rates of a state. The series of E[Nᵢ], times 1 − θ Σρ/Σc, which removes its
//! nearest pole, is summed at θ = 1 by Wynn's epsilon algorithm.

mod arrivals;
mod assignment;
mod assignment_chain;
#[cfg(test)]
mod assignment_tests;
mod control_queue;
mod control_variates;
mod decision_process;
mod double_double;
mod event_simulation;
mod fair_share;
mod fixed_point;
mod fluid_replay;
mod job_queue;
mod job_sizes;
mod jump_chain;
mod power_series;
mod replication;
mod shared_network;
mod simulate;
mod simulation;
mod truncated_chain;

pub use arrivals::{InelasticStreams, Modulation};
pub use assignment::AssignmentRule;
pub use fluid_replay::{ideal, replay};
pub use job_sizes::SizeDistribution;
pub use simulate::CanSimulationResult;
pub use simulation::CanSimulation;

use crate::error::{TheoryError, positive};
use double_double::{DoubleDouble, Real};
use power_series::{Epsilon, PowerSeries};

/// A system of N networks. Class 0 is the foreground, which is split over all networks; class i is
/// the background of network i.
#[derive(Debug, Clone, PartialEq)]
pub struct Can {
    /// Arrival rate of each class, jobs/s.
    pub(crate) arrivals: Vec<f64>,
    /// Mean job size of each class.
    pub(crate) sizes: Vec<f64>,
    /// Capacity of each network, size/s.
    pub(crate) speeds: Vec<f64>,
    /// Weight of a foreground job against a background job.
    pub(crate) weight: f64,
}

/// A value with its error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueWithError {
    /// The value.
    pub value: f64,
    /// Absolute error: for a series, from the differences between its last orders; for a
    /// simulation, the half width of the 95 % confidence interval.
    pub error: f64,
}

/// Stationary means of each class.
#[derive(Debug, Clone, PartialEq)]
pub struct CanMeans {
    /// `E[Nᵢ]`: mean number of jobs.
    pub jobs: Vec<ValueWithError>,
    /// `E[Sᵢ]`: mean sojourn time by Little's law, s; `None` for a class without arrivals.
    pub sojourn_s: Vec<Option<ValueWithError>>,
    /// Terms of the series, simulated events, or states of the truncated chain.
    pub order: usize,
}

impl CanMeans {
    /// The largest relative error of E[Nᵢ].
    fn uncertainty(&self) -> f64 {
        self.jobs.iter().map(|jobs| jobs.error / jobs.value.abs().max(f64::MIN_POSITIVE)).fold(0.0, f64::max)
    }

    /// Whether all means have the target precision.
    fn complete(&self) -> bool {
        self.uncertainty() < 1.000_001 * Can::PRECISION
    }
}

impl Can {
    /// N networks with capacity 1 and jobs with mean size 1, given by the loads of the foreground
    /// (over the first network's capacity) and of the backgrounds, as in the paper's tables.
    ///
    /// # Errors
    /// As [`Can::with`].
    pub fn new(foreground: f64, backgrounds: &[f64]) -> Result<Self, TheoryError> {
        let ones = |count: usize| vec![1.0; count];
        let loads: Vec<f64> = std::iter::once(foreground).chain(backgrounds.iter().copied()).collect();
        Can::with(&loads, &ones(loads.len()), &ones(backgrounds.len()))
    }

    /// A system with these arrival rates (jobs/s) and mean sizes, the foreground's first, and the
    /// networks' capacities (size/s).
    ///
    /// # Errors
    /// When the numbers of networks and classes do not match, a parameter is not positive, or the
    /// load is not below 1.
    pub fn with(arrivals: &[f64], sizes: &[f64], speeds: &[f64]) -> Result<Self, TheoryError> {
        let count = speeds.len();
        if count == 0 || count > Can::MAX_NETWORKS || arrivals.len() != count + 1 || sizes.len() != count + 1 {
            return Err(TheoryError::Networks { networks: count, classes: arrivals.len(), most: Can::MAX_NETWORKS });
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

    /// Sets the weight of a foreground job: it gets as much of a network as `weight` background
    /// jobs; 1 is fair. In (1) to (4) k₀/(k₀ + kᵢ) becomes w k₀/(w k₀ + kᵢ), and kᵢ/(k₀ + kᵢ)
    /// becomes kᵢ/(w k₀ + kᵢ): one of the paper's topics for further research (§VII).
    ///
    /// # Errors
    /// When the weight is not positive.
    pub fn with_weight(mut self, weight: f64) -> Result<Self, TheoryError> {
        self.weight = positive("the weight of the foreground", weight)?;
        Ok(self)
    }

    /// The error for a class or network that does not exist.
    fn no_class(&self, class: usize) -> TheoryError {
        TheoryError::Outside { what: "the number of a class or network".into(), value: class as f64, bounds: "that of an existing one" }
    }

    /// The most networks: the number of states is exponential in it.
    pub const MAX_NETWORKS: usize = 4;

    /// Offered work of a class, size/s.
    fn work(&self, class: usize) -> f64 {
        self.arrivals[class] * self.sizes[class]
    }

    /// Offered work over capacity, of all classes and networks.
    fn load(&self) -> f64 {
        (0..self.sizes.len()).map(|class| self.work(class)).sum::<f64>() / self.speeds.iter().sum::<f64>()
    }

    /// The means by the power series, to ten digits; `error` has the precision reached.
    ///
    /// Close to saturation the 16 digits of `f64` do not suffice, and the series is computed with
    /// 31 digits.
    pub fn solve(&self) -> CanMeans {
        let network = self.speeds.len() - 1;
        let quick = self.extrapolate::<f64>([200, 110, 50, 36][network]);
        if quick.complete() { quick } else { self.extrapolate::<DoubleDouble>([250, 170, 80, 50][network]) }
    }

    /// Target relative error: ten digits, and one to spare.
    const PRECISION: f64 = 2e-11;

    /// The means by the series up to order `max_order`.
    ///
    /// The error is twice the largest relative distance of the last estimate from the five before
    /// it, over all classes, and at least [`Can::PRECISION`]. Two neighbouring estimates, or a
    /// single class, would not be reliable enough.
    fn extrapolate<R: Real>(&self, max_order: usize) -> CanMeans {
        const COMPARED: usize = 6;
        let classes = self.sizes.len();
        let mut series = PowerSeries::<R>::new(self, max_order);
        let mut sums = vec![Epsilon::<R>::new(); classes];
        // The nearest pole, and its factor at θ = 1.
        let pole = (0..classes)
            .fold(R::from(0.0), |sum, class| sum.plus_product(R::from(self.arrivals[class]), R::from(self.sizes[class])))
            .normalized()
            / self.speeds.iter().fold(R::from(0.0), |sum, speed| sum + R::from(*speed));
        let left = R::from(1.0) - pole;
        let mut last = vec![R::from(0.0); classes];
        let mut found: Vec<Vec<f64>> = Vec::new();
        let mut best: Option<CanMeans> = None;
        for order in 0..=max_order {
            let moments = series.next_level();
            let estimate = |class: usize| (sums[class].add(moments[class] - pole * last[class]) / left).rounded();
            let estimates: Vec<f64> = (0..classes).map(estimate).collect();
            last = moments;
            if order % 2 == 1 {
                // Odd columns of the epsilon table are not estimates.
                continue;
            }
            found.push(estimates);
            let Some(before) = found.len().checked_sub(COMPARED) else { continue };
            let last = &found[found.len() - 1];
            let spread = |class: usize| found[before..].iter().map(|found| (found[class] - last[class]).abs()).fold(0.0, f64::max);
            let part = |class: usize| spread(class) / last[class].abs().max(f64::MIN_POSITIVE);
            let part = (0..classes).map(part).fold(Can::PRECISION / 2.0, f64::max);
            let jobs = last.iter().map(|value| ValueWithError { value: *value, error: 2.0 * part * value.abs() }).collect();
            let means = self.means(jobs, order);
            if best.as_ref().is_none_or(|best| means.uncertainty() < best.uncertainty()) {
                best = Some(means);
            }
            if best.as_ref().is_some_and(CanMeans::complete) {
                break;
            }
        }
        best.expect("there are more orders than estimates compared")
    }

    /// Adds the sojourn times by Little's law.
    pub(crate) fn means(&self, jobs: Vec<ValueWithError>, order: usize) -> CanMeans {
        let sojourn = |(jobs, rate): (&ValueWithError, &f64)| {
            (*rate > 0.0).then(|| ValueWithError { value: jobs.value / rate, error: jobs.error / rate })
        };
        CanMeans { sojourn_s: jobs.iter().zip(&self.arrivals).map(sojourn).collect(), jobs, order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twelve digits of E[S₀], E[S₁], … computed with 113 bits.
    const HARD: [(f64, &[f64], &[f64]); 3] = [
        (0.9, &[0.45, 0.5], &[4.874_954_646_65, 9.356_499_363_92, 10.241_886_030_46]),
        (0.6, &[0.2, 0.4, 0.7], &[0.730_815_621_597, 1.678_560_637_474, 2.232_954_197_451, 4.513_789_455_787]),
        (0.1, &[0.1, 0.95], &[1.083_045_097_967, 1.226_210_866_305, 22.008_833_487_29]),
    ];

    #[test]
    fn results_have_ten_digits_close_to_saturation() {
        for (foreground, backgrounds, right) in HARD {
            let found = Can::new(foreground, backgrounds).unwrap().solve();
            for (found, right) in found.sojourn_s.iter().zip(right) {
                let found = found.unwrap();
                assert!((found.value / right - 1.0).abs() < 5e-11 && found.error < 5e-11 * right, "{found:?}, expected {right}");
            }
        }
    }

    #[test]
    fn errors_bound_the_deviation_at_any_order() {
        // From light to heavy load, of all classes and of one background.
        for (foreground, backgrounds) in
            [(0.3, [0.3, 0.3]), (0.1, [0.3, 0.9]), (1.7, [0.05, 0.1]), (0.9, [0.45, 0.5]), (0.9, [0.5, 0.5]), (1.2, [0.03, 0.65])]
        {
            let can = Can::new(foreground, &backgrounds).unwrap();
            let right = can.extrapolate::<DoubleDouble>(100);
            for order in [20, 36, 60, 80] {
                let (quick, exact) = (can.extrapolate::<f64>(order), can.extrapolate::<DoubleDouble>(order));
                // Incomplete f64 results are not returned.
                for found in [Some(exact), Some(quick).filter(CanMeans::complete)].into_iter().flatten() {
                    for (found, right) in found.jobs.iter().zip(&right.jobs) {
                        let off = (found.value - right.value).abs();
                        assert!(off < 2.0 * found.error + right.error, "{can:?} at {order}: {found:?}, expected {right:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn series_and_truncated_chain_agree() {
        let unequal = Can::with(&[0.5, 0.4, 0.3], &[1.5, 0.5, 2.0], &[0.8, 1.5]).unwrap();
        for (can, tolerance) in [
            (Can::new(0.1, &[0.3, 0.5]).unwrap(), 1e-9),
            (Can::new(0.9, &[0.3, 0.3]).unwrap(), 1e-9),
            (Can::new(0.2, &[0.2, 0.3, 0.1]).unwrap(), 1e-7),
            (Can::new(0.4, &[0.4]).unwrap().with_weight(3.0).unwrap(), 1e-9),
            (unequal.clone(), 1e-9),
            (unequal.with_weight(0.5).unwrap(), 1e-9),
        ] {
            let (series, truncated) = (can.solve(), can.solve_truncated(tolerance, 10_000_000));
            for (series, truncated) in series.jobs.iter().zip(&truncated.jobs) {
                let off = (series.value - truncated.value).abs();
                assert!(
                    off < 3.0 * (series.error + truncated.error) && truncated.error < 30.0 * tolerance * truncated.value,
                    "{can:?}: {series:?} {truncated:?}"
                );
            }
        }
    }

    #[test]
    fn a_truncation_that_is_too_small_reports_its_error() {
        let can = Can::new(0.9, &[0.3, 0.3]).unwrap();
        let (small, right) = (can.solve_truncated(1e-9, 3000), can.solve());
        assert!(small.order <= 3000);
        for (small, right) in small.jobs.iter().zip(&right.jobs) {
            assert!(small.error > 1e-6 && (small.value - right.value).abs() < 3.0 * small.error, "{small:?}, expected {right:?}");
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
        // Fayolle, Mitrani and Iasnogorodski 1980: with Aₖⱼ = λⱼgⱼ/(μⱼgⱼ + μₖgₖ), Wₖ (1 − Σⱼ Aₖⱼ) −
        // Σⱼ Aₖⱼ Wⱼ = 1/μₖ.
        let (arrivals, sizes, weights) = ([0.3, 0.2], [1.0, 2.0], [4.0, 1.0]);
        let a = |k: usize, j: usize| arrivals[j] * weights[j] / (weights[j] / sizes[j] + weights[k] / sizes[k]);
        let own = |k: usize| 1.0 - a(k, 0) - a(k, 1) - a(k, k);
        let determinant = own(0) * own(1) - a(0, 1) * a(1, 0);
        let right = [(sizes[0] * own(1) + a(0, 1) * sizes[1]) / determinant, (sizes[1] * own(0) + a(1, 0) * sizes[0]) / determinant];
        let found = Can::with(&arrivals, &sizes, &[1.0]).unwrap().with_weight(4.0).unwrap().solve();
        for (found, right) in found.sojourn_s.iter().zip(right) {
            assert!((found.unwrap().value - right).abs() < 1e-9, "{found:?}, expected {right}");
        }
    }

    #[test]
    fn without_backgrounds_the_networks_are_one_with_the_total_capacity() {
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
    fn systems_without_stationary_state_are_refused() {
        let error = |foreground: f64, backgrounds: &[f64]| Can::new(foreground, backgrounds).unwrap_err().to_string();
        assert!(error(0.1, &[0.5, 1.0]).contains("network 2") && error(1.2, &[0.5, 0.4]).contains("all classes together"));
        assert!(error(0.1, &[]).contains("0 networks"), "{}", error(0.1, &[]));
        assert!(error(-0.1, &[0.5]).contains("-0.1"));
        let weight = Can::new(0.1, &[0.5]).unwrap().with_weight(0.0).unwrap_err().to_string();
        assert!(weight.contains("weight of the foreground is 0"), "{weight}");
    }
}
