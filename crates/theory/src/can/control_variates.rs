//! Means of a simulation with control variates: the same jobs also pass through queues whose means
//! are known ([`ControlQueue`]), and the errors of those correct the means of the model.
//!
//! The means over the replications are regressed on the controls (Lavenberg and Welch 1981). What
//! remains is what distinguishes the model from a queue of its own, which mixes quickly.

use super::{CanMeans, ValueWithError, control_queue::ControlQueue, event_simulation::EventSimulation, simulation::CanSimulation};
use crate::error::TheoryError;
use outcome::half_width;

impl CanSimulation {
    /// The means of each class as [`run`](CanSimulation::run) estimates them, with control variates:
    /// the intervals are several times as narrow for the same number of jobs, for each job two to
    /// three times the work.
    ///
    /// The controls' means are those of Poisson arrivals to networks of fixed speed. With modulated
    /// arrivals or streams there are no controls, and the result is that of `run`.
    ///
    /// # Errors
    /// When there is no stationary state.
    pub fn run_with_controls(&self, seed: u64, jobs: u64) -> Result<CanMeans, TheoryError> {
        /// Many more than there are controls, and enough for a normal distribution of the errors.
        const REPLICATIONS: usize = 100;
        if self.modulations.iter().any(Option::is_some) || self.streams.iter().any(Option::is_some) {
            return Ok(self.run(seed, jobs)?.means);
        }
        self.check()?;
        let can = &self.can;
        let (arrivals, warm_up) = self.arrivals_and_warm_up(jobs, REPLICATIONS);
        let [time, warm_up] = [arrivals, warm_up.max(arrivals / 5)].map(|arrivals| arrivals as f64 / can.arrivals.iter().sum::<f64>());
        // The controls start empty as well, but do not replace the warm-up: where all replications are
        // below the stationary means, the regression is extrapolated, and model and controls do not
        // depend on each other linearly.
        let replications = self.replications(seed, REPLICATIONS, |seed| {
            let mut system = EventSimulation::new(self, seed).with_controls(ControlQueue::all_of(can));
            system.run_for(warm_up);
            system.run_for(time)
        });
        let known: Vec<f64> = ControlQueue::all_of(can).iter().flat_map(|control| control.means(can)).collect();
        // A class without arrivals is no control.
        let used: Vec<usize> = (0..known.len()).filter(|place| known[*place] > 0.0).collect();
        let controls: Vec<Vec<f64>> = replications
            .iter()
            .map(|replication| used.iter().map(|place| replication.controls[*place] / time - known[*place]).collect())
            .collect();
        let jobs = (0..can.sizes.len())
            .map(|class| {
                let found: Vec<f64> = replications.iter().map(|replication| replication.areas[class] / time).collect();
                regressed(&found, &controls)
            })
            .collect();
        Ok(can.means(jobs, replications.iter().map(|replication| replication.events as usize).sum()))
    }
}

/// The mean of `values` where all controls have their means: the intercept of the regression on the
/// controls' deviations from them, with the half width of its 95 % interval.
///
/// The interval is the jackknife's (Nelson 1990, *Control variate remedies*): the variance of the
/// residuals differs between replications, since a congested one varies more, and it is those that
/// determine the slopes. The least-squares interval assumes equal variances and is too narrow.
fn regressed(values: &[f64], controls: &[Vec<f64>]) -> ValueWithError {
    let count = values.len() as f64;
    let number = controls.first().map_or(0, Vec::len);
    let value_mean = values.iter().sum::<f64>() / count;
    let means: Vec<f64> = (0..number).map(|control| controls.iter().map(|row| row[control]).sum::<f64>() / count).collect();
    let centred: Vec<Vec<f64>> = controls.iter().map(|row| row.iter().zip(&means).map(|(value, mean)| value - mean).collect()).collect();
    let matrix: Vec<Vec<f64>> =
        (0..number).map(|a| (0..number).map(|b| centred.iter().map(|row| row[a] * row[b]).sum()).collect()).collect();
    let with_value = (0..number).map(|a| centred.iter().zip(values).map(|(row, value)| row[a] * (value - value_mean)).sum()).collect();
    let slopes = solve(matrix.clone(), with_value);
    let towards_means = solve(matrix.clone(), means.clone());
    let value = value_mean - dot(&slopes, &means);
    // By how much the value changes if a replication is left out, times the number of replications.
    let influence = |(row, found): (&Vec<f64>, &f64)| {
        let residual = found - value_mean - dot(&slopes, row);
        let leverage = 1.0 / count + dot(row, &solve(matrix.clone(), row.clone()));
        // A replication that alone determines a slope has the leverage 1, and no residual.
        count * (1.0 / count - dot(&towards_means, row)) * residual / (1.0 - leverage).max(f64::EPSILON)
    };
    let influences: Vec<f64> = centred.iter().zip(values).map(influence).collect();
    ValueWithError { value, error: half_width(&influences) }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves a small symmetric system of equations by elimination. A control that depends on others
/// gets no weight.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    let scales: Vec<f64> = (0..size).map(|place| matrix[place][place]).collect();
    let mut free = vec![true; size];
    for pivot in 0..size {
        let diagonal = matrix[pivot][pivot];
        if diagonal <= 1e-9 * scales[pivot] {
            free[pivot] = false;
            continue;
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = matrix[row][pivot] / diagonal;
            let by = matrix[pivot].clone();
            matrix[row].iter_mut().zip(by).for_each(|(value, by)| *value -= factor * by);
            right[row] -= factor * right[pivot];
        }
    }
    (0..size).map(|place| if free[place] { right[place] / matrix[place][place] } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Can, SizeDistribution};

    #[test]
    fn a_linear_dependence_is_removed() {
        // values = 3 + 2 x − y, exactly; the second control twice, which must not matter.
        let controls: Vec<Vec<f64>> =
            (0..20).map(|row| [f64::from(row * 7 % 5), f64::from(row * row % 11)]).map(|[x, y]| vec![x, y, y]).collect();
        let values: Vec<f64> = controls.iter().map(|of| 3.0 + 2.0 * of[0] - of[1]).collect();
        let found = regressed(&values, &controls);
        assert!((found.value - 3.0).abs() < 1e-9 && found.error < 1e-9, "{found:?}");
    }

    /// Over many seeds, 95 % of the intervals hold the chain's value, and the mean does not deviate.
    #[test]
    fn the_interval_holds_the_chain_and_is_narrow() {
        const SEEDS: u64 = 40;
        let mut missed = 0;
        for (foreground, backgrounds, jobs, gain) in
            [(0.1, [0.1, 0.9], 10_000, 2.0), (0.9, [0.5, 0.5], 40_000, 2.5), (1.8, [0.0, 0.05], 40_000, 3.0)]
        {
            let can = Can::new(foreground, &backgrounds).unwrap();
            let right = can.solve().jobs[0].value;
            let simulation = can.simulation().with_sizes(&SizeDistribution::EXPONENTIAL);
            let with: Vec<ValueWithError> = (1..=SEEDS).map(|seed| simulation.run_with_controls(seed, jobs).unwrap().jobs[0]).collect();
            let deviations: Vec<f64> = with.iter().map(|found| found.value - right).collect();
            let deviation = deviations.iter().sum::<f64>() / SEEDS as f64;
            // 1.5 half widths of 95 %: a chance of 1 in 250.
            assert!(
                deviation.abs() < 1.5 * half_width(&deviations),
                "{foreground} {backgrounds:?}: {deviation} ± {}",
                half_width(&deviations)
            );
            missed += with.iter().filter(|found| (found.value - right).abs() > found.error).count();
            let error = with.iter().map(|found| found.error).sum::<f64>() / SEEDS as f64;
            let without = simulation.run(3, jobs).unwrap().means.jobs[0];
            assert!(error < without.error / gain, "{foreground} {backgrounds:?}: {error} {without:?}");
        }
        // Of 120 with the chance 0.05, 13 or more are missed with a chance below 1 %.
        assert!(missed < 13, "{missed} of {} intervals", 3 * SEEDS);
    }

    #[test]
    fn one_network_is_its_own_control() {
        // E[N₀] = 0.3/0.2, whatever the sizes: the control is the system itself.
        let simulation = Can::new(0.3, &[0.5]).unwrap().simulation().with_sizes(&SizeDistribution::lomax(2.0).unwrap());
        let found = simulation.run_with_controls(1, 20_000).unwrap().jobs[0];
        assert!((found.value - 1.5).abs() < 1e-6 && found.error < 1e-6, "{found:?}");
    }
}
