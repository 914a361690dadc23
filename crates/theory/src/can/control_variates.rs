//! Means of a simulation with control variates: the same jobs also pass through queues whose means
//! are known, and the errors of those correct the means of the model.
//!
//! The controls are M/G/1 processor-sharing queues. Their means are insensitive to the size
//! distribution, E\[Nₖ\] = ρₖ/(c − Σρ), so that they are exact for each distribution. They get
//! the same arrivals and the same sizes:
//!
//! - all classes in one queue with the capacity of all networks, which near saturation has almost
//!   the same congestion as the model: one control for each class;
//! - the background of each network alone in it;
//! - the foreground alone over all networks.
//!
//! The means over the replications are regressed on the controls (Lavenberg and Welch 1981). What
//! remains is what distinguishes the model from a queue of its own, which mixes quickly.

use super::{Can, CanMeans, ValueWithError, event_simulation::EventSimulation, event_simulation::JobQueue, simulation::CanSimulation};
use crate::error::TheoryError;
use outcome::half_width;

/// A processor-sharing queue with a known mean.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    pub(super) queue: JobQueue,
    /// Number of jobs of each of its classes.
    pub(super) jobs: Vec<usize>,
    /// Its classes: the only one, or all.
    only: Option<usize>,
    speed: f64,
}

impl ControlQueue {
    fn new(can: &Can, only: Option<usize>, speed: f64) -> Self {
        let classes = only.map_or(can.sizes.len(), |_| 1);
        ControlQueue { queue: JobQueue { size: can.sizes[0], ..JobQueue::default() }, jobs: vec![0; classes], only, speed }
    }

    /// The controls of a system.
    fn all_of(can: &Can) -> Vec<ControlQueue> {
        let total: f64 = can.speeds.iter().sum();
        let mut controls = vec![ControlQueue::new(can, None, total)];
        for (class, rate) in can.arrivals.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            debug_assert!(*rate > 0.0, "a class without arrivals has no queue");
            controls.push(ControlQueue::new(can, Some(class), class.checked_sub(1).map_or(total, |network| can.speeds[network])));
        }
        controls
    }

    /// `E[N]` of each of its classes, by insensitivity.
    fn means(&self, can: &Can) -> Vec<f64> {
        let works: Vec<f64> = match self.only {
            Some(class) => vec![can.work(class)],
            None => (0..can.sizes.len()).map(|class| can.work(class)).collect(),
        };
        let left = self.speed - works.iter().sum::<f64>();
        works.into_iter().map(|work| work / left).collect()
    }

    pub(super) fn arrive(&mut self, class: usize, size: f64) {
        if self.only.is_none_or(|only| only == class) {
            let place = if self.only.is_some() { 0 } else { class };
            self.queue.add(size, place);
            self.jobs[place] += 1;
            self.share();
        }
    }

    pub(super) fn depart(&mut self) {
        let place = self.queue.pop();
        self.jobs[place] -= 1;
        self.share();
    }

    fn share(&mut self) {
        self.queue.rate = self.speed / self.jobs.iter().sum::<usize>().max(1) as f64;
    }
}

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
        let (arrivals, _) = self.arrivals_and_warm_up(jobs, REPLICATIONS);
        let time = arrivals as f64 / can.arrivals.iter().sum::<f64>();
        // The controls start empty as well, which corrects most of what a short warm-up leaves.
        let replications = self.replications(seed, REPLICATIONS, |seed| {
            let mut system = EventSimulation::new(self, seed).with_controls(ControlQueue::all_of(can));
            system.run_for(time / 5.0);
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
fn regressed(values: &[f64], controls: &[Vec<f64>]) -> ValueWithError {
    let count = values.len() as f64;
    let number = controls.first().map_or(0, Vec::len);
    let mean = |of: &dyn Fn(usize) -> f64| (0..values.len()).map(of).sum::<f64>() / count;
    let value_mean = mean(&|row| values[row]);
    let means: Vec<f64> = (0..number).map(|control| mean(&|row| controls[row][control])).collect();
    let product = |a: usize, b: usize| (0..values.len()).map(|row| (controls[row][a] - means[a]) * (controls[row][b] - means[b])).sum();
    let matrix: Vec<Vec<f64>> = (0..number).map(|a| (0..number).map(|b| product(a, b)).collect()).collect();
    let with_value: Vec<f64> =
        (0..number).map(|a| (0..values.len()).map(|row| (controls[row][a] - means[a]) * (values[row] - value_mean)).sum()).collect();
    let slopes = solve(matrix.clone(), with_value);
    let corrected = |row: usize| values[row] - (0..number).map(|a| slopes[a] * (controls[row][a] - means[a])).sum::<f64>();
    let value = value_mean - (0..number).map(|a| slopes[a] * means[a]).sum::<f64>();
    let residuals: Vec<f64> = (0..values.len()).map(corrected).collect();
    // The slopes are estimates too: fewer degrees of freedom, and the distance of the controls' means.
    let distance: f64 = solve(matrix, means.clone()).iter().zip(&means).map(|(a, b)| a * b).sum();
    let freedom = (count - 1.0 - number as f64).max(1.0);
    ValueWithError { value, error: half_width(&residuals) * ((count - 1.0) / freedom * (1.0 + count * distance)).sqrt() }
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
    use crate::SizeDistribution;

    #[test]
    fn a_linear_dependence_is_removed() {
        // values = 3 + 2 x − y, exactly; the second control twice, which must not matter.
        let controls: Vec<Vec<f64>> =
            (0..20).map(|row| [f64::from(row * 7 % 5), f64::from(row * row % 11)]).map(|[x, y]| vec![x, y, y]).collect();
        let values: Vec<f64> = controls.iter().map(|of| 3.0 + 2.0 * of[0] - of[1]).collect();
        let found = regressed(&values, &controls);
        assert!((found.value - 3.0).abs() < 1e-9 && found.error < 1e-9, "{found:?}");
    }

    #[test]
    fn the_interval_holds_the_chain_and_is_narrow() {
        for (foreground, backgrounds, gain) in [(0.1, [0.1, 0.9], 2.0), (0.9, [0.5, 0.5], 3.0), (1.8, [0.0, 0.05], 3.0)] {
            let can = Can::new(foreground, &backgrounds).unwrap();
            let right = can.solve().jobs[0].value;
            let simulation = can.simulation().with_sizes(&SizeDistribution::EXPONENTIAL);
            let with = simulation.run_with_controls(3, 40_000).unwrap().jobs[0];
            let without = simulation.run(3, 40_000).unwrap().means.jobs[0];
            assert!((with.value - right).abs() < 1.5 * with.error, "{foreground} {backgrounds:?}: {with:?}, expected {right}");
            assert!(with.error < without.error / gain, "{foreground} {backgrounds:?}: {with:?} {without:?}");
        }
    }

    #[test]
    fn one_network_is_its_own_control() {
        // E[N₀] = 0.3/0.2, whatever the sizes: the control is the system itself.
        let simulation = Can::new(0.3, &[0.5]).unwrap().simulation().with_sizes(&SizeDistribution::lomax(2.0).unwrap());
        let found = simulation.run_with_controls(1, 20_000).unwrap().jobs[0];
        assert!((found.value - 1.5).abs() < 1e-6 && found.error < 1e-6, "{found:?}");
    }
}
