//! The same Markov chain by brute force: iteration of the balance equations on a truncated state
//! space.

use super::{Can, CanMeans, ValueWithError};

impl Can {
    /// The means from the chain truncated to a box of states. It shares only the rates (2) to (4)
    /// with [`Can::solve`], so it serves as a check. It takes minutes where the series takes
    /// milliseconds.
    ///
    /// The box grows until its boundary affects each mean by less than `tolerance` (relative), or
    /// it has `max_states` states. The errors add the effect of the boundary, the change by the
    /// last enlargement, and that of further sweeps. `order` is the number of states.
    ///
    /// Each box is iterated by Gauss-Seidel sweeps. Between sweeps the total probability of each
    /// number of jobs, of one class or of all, is corrected by the balance of flows across cuts
    /// (aggregation after Koury, McAllister and Stewart 1984).
    pub fn solve_truncated(&self, tolerance: f64, max_states: usize) -> CanMeans {
        let mut sides: Vec<usize> = vec![8; self.sizes.len()];
        let mut chain = TruncatedChain::new(self, sides.clone(), None);
        let mut last_means = vec![f64::INFINITY; sides.len()];
        loop {
            let left = chain.relax(tolerance / 20.0);
            let (means, boundary_errors) = chain.means_and_boundary_errors();
            let short: Vec<bool> = boundary_errors.iter().map(|error| *error > tolerance / 4.0).collect();
            let mut grown = sides.clone();
            for (side, short) in grown.iter_mut().zip(&short) {
                *side += if *short { (*side / 3).max(4) } else { 0 };
            }
            let full = grown.iter().try_fold(1, |states: usize, side| states.checked_mul(*side)).is_none_or(|states| states > max_states);
            if !short.contains(&true) || full {
                let beyond: f64 = boundary_errors.iter().sum();
                let error = |(mean, before): (&f64, &f64)| (mean - before).abs().min(*mean) + mean * (left + beyond);
                let jobs = means.iter().zip(&last_means).map(|pair| ValueWithError { value: *pair.0, error: error(pair) }).collect();
                return self.means(jobs, sides.iter().product());
            }
            last_means = means;
            chain = TruncatedChain::new(self, grown.clone(), Some(&chain));
            sides = grown;
        }
    }
}

/// The truncated chain. Class 0 varies slowest.
struct TruncatedChain<'a> {
    can: &'a Can,
    sides: Vec<usize>,
    strides: Vec<usize>,
    /// For each network: departure rates of foreground and background, jobs/s, at `foreground *
    /// side + background`.
    departures: Vec<Vec<[f64; 2]>>,
    /// Unnormalized probabilities.
    states: Vec<f64>,
}

impl<'a> TruncatedChain<'a> {
    /// Starts from a smaller box, or from a uniform distribution.
    fn new(can: &'a Can, sides: Vec<usize>, from: Option<&TruncatedChain<'_>>) -> Self {
        let mut strides = vec![1; sides.len()];
        for class in (1..sides.len()).rev() {
            strides[class - 1] = strides[class] * sides[class];
        }
        let departures = (1..sides.len())
            .map(|class| {
                let rate = [can.speeds[class - 1] / can.sizes[0], can.speeds[class - 1] / can.sizes[class]];
                let pair = |foreground: usize, background: usize| {
                    let weighed = [can.weight * foreground as f64, background as f64];
                    let all = (weighed[0] + weighed[1]).max(f64::MIN_POSITIVE);
                    [rate[0] * weighed[0] / all, rate[1] * weighed[1] / all]
                };
                (0..sides[0] * sides[class]).map(|at| pair(at / sides[class], at % sides[class])).collect()
            })
            .collect();
        let mut states = vec![0.0; sides.iter().product()];
        match from {
            None => states.fill(1.0),
            Some(smaller) => {
                for (at, state) in smaller.states.iter().enumerate() {
                    let place: usize = (0..sides.len()).map(|class| smaller.jobs(at, class) * strides[class]).sum();
                    states[place] = *state;
                }
            }
        }
        TruncatedChain { can, sides, strides, departures, states }
    }

    fn jobs(&self, at: usize, class: usize) -> usize {
        at / self.strides[class] % self.sides[class]
    }

    /// Departure rate of each class in a state.
    fn departure_rates(&self, jobs: &[usize], leaves: &mut [f64]) {
        leaves[0] = 0.0;
        for (network, departures) in self.departures.iter().enumerate() {
            let [of_foreground, of_background] = departures[jobs[0] * self.sides[network + 1] + jobs[network + 1]];
            leaves[0] += of_foreground;
            leaves[network + 1] = of_background;
        }
    }

    /// Sweeps until the means have converged to `tolerance`; returns the estimated relative error.
    fn relax(&mut self, tolerance: f64) -> f64 {
        const SWEEPS: usize = 20_000;
        const MIN_RATIO: f64 = 0.9;
        let mut last = self.means_and_boundary_errors().0;
        let mut change = f64::INFINITY;
        let mut ratio = MIN_RATIO;
        let mut remaining = f64::INFINITY;
        for _ in 0..SWEEPS {
            self.sweep();
            for class in 0..=self.sides.len() {
                self.balance(class);
            }
            let means = self.means_and_boundary_errors().0;
            let now = means.iter().zip(&last).map(|(now, last)| (now - last).abs() / now.max(f64::MIN_POSITIVE)).fold(0.0, f64::max);
            // The remaining change if the changes keep their ratio. One small change may be chance,
            // and slow modes hide behind fast ones, so the ratio is bounded below.
            ratio = f64::max(now / change, 0.95 * ratio).clamp(MIN_RATIO, 0.9999);
            remaining = now * ratio / (1.0 - ratio);
            change = now;
            last = means;
            if remaining < tolerance {
                break;
            }
        }
        remaining
    }

    /// Gauss-Seidel: solves the balance equation of each state, in ascending and then descending
    /// order.
    fn sweep(&mut self) {
        for at in 0..self.states.len() {
            self.solve_state(at);
        }
        for at in (0..self.states.len()).rev() {
            self.solve_state(at);
        }
    }

    fn solve_state(&mut self, at: usize) {
        let classes = self.sides.len();
        let mut jobs = [0; Can::MAX_NETWORKS + 1];
        let mut rest = at;
        for (jobs, stride) in jobs.iter_mut().zip(&self.strides) {
            *jobs = rest / stride;
            rest %= stride;
        }
        let departures = |network: usize, foreground: usize, background: usize| {
            self.departures[network][foreground * self.sides[network + 1] + background]
        };
        let (mut into, mut out) = (0.0, 0.0);
        for class in 0..classes {
            let (rate, stride) = (self.can.arrivals[class], self.strides[class]);
            if jobs[class] > 0 {
                into += rate * self.states[at - stride];
            }
            if jobs[class] + 1 < self.sides[class] {
                out += rate;
                let leaves: f64 = if class == 0 {
                    (1..classes).map(|other| departures(other - 1, jobs[0] + 1, jobs[other])[0]).sum()
                } else {
                    departures(class - 1, jobs[0], jobs[class] + 1)[1]
                };
                into += leaves * self.states[at + stride];
            }
        }
        for class in 1..classes {
            let [of_foreground, of_background] = departures(class - 1, jobs[0], jobs[class]);
            out += of_foreground + of_background;
        }
        self.states[at] = into / out;
    }

    /// Corrects the total probability of each number of jobs of a class or, for the index after the
    /// last class, of all jobs.
    fn balance(&mut self, class: usize) {
        let classes = self.sides.len();
        let levels: usize = if class < classes { self.sides[class] } else { self.sides.iter().sum::<usize>() - classes + 1 };
        let mut masses = vec![0.0; levels];
        let mut ups = vec![0.0; levels];
        let mut downs = vec![0.0; levels];
        let (mut jobs, mut leaves) = (vec![0; classes], vec![0.0; classes]);
        let level = |jobs: &[usize]| if class < classes { jobs[class] } else { jobs.iter().sum() };
        for at in 0..self.states.len() {
            let state = self.states[at];
            self.departure_rates(&jobs, &mut leaves);
            let place = level(&jobs);
            masses[place] += state;
            for other in 0..classes {
                if class == other || class == classes {
                    downs[place] += leaves[other] * state;
                    if jobs[other] + 1 < self.sides[other] {
                        ups[place] += self.can.arrivals[other] * state;
                    }
                }
            }
            self.advance(&mut jobs);
        }
        // m'(j) up(j) = m'(j + 1) down(j + 1), with the flows of the current distribution.
        let mut factors = vec![1.0; levels];
        for place in 1..levels {
            let (up, down) = (factors[place - 1] * ups[place - 1], downs[place]);
            factors[place] = if down > 0.0 { up / down } else { 0.0 };
        }
        let total: f64 = masses.iter().zip(&factors).map(|(mass, factor)| mass * factor).sum();
        jobs.fill(0);
        for at in 0..self.states.len() {
            self.states[at] *= factors[level(&jobs)] / total;
            self.advance(&mut jobs);
        }
    }

    /// Advances to the numbers of jobs of the next state.
    fn advance(&self, jobs: &mut [usize]) {
        for class in (0..jobs.len()).rev() {
            jobs[class] += 1;
            if jobs[class] < self.sides[class] {
                return;
            }
            jobs[class] = 0;
        }
    }

    /// `E[Nᵢ]`, and an estimate of the relative error by the boundary of the box.
    fn means_and_boundary_errors(&self) -> (Vec<f64>, Vec<f64>) {
        let classes = self.sides.len();
        let mut marginals: Vec<Vec<f64>> = self.sides.iter().map(|side| vec![0.0; *side]).collect();
        let mut jobs = vec![0; classes];
        for state in &self.states {
            for (marginal, jobs) in marginals.iter_mut().zip(&jobs) {
                marginal[*jobs] += state;
            }
            self.advance(&mut jobs);
        }
        let total: f64 = marginals[0].iter().sum();
        let of = |marginal: &Vec<f64>| {
            let mean = marginal.iter().enumerate().map(|(jobs, mass)| jobs as f64 * mass).sum::<f64>() / total;
            let [.., before, last] = marginal[..] else { unreachable!("a side is at least 8") };
            // Extrapolates a geometric tail.
            let decay = (last / before.max(f64::MIN_POSITIVE)).min(0.999);
            let error = last / total * marginal.len() as f64 / (1.0 - decay).powi(2) / mean.max(f64::MIN_POSITIVE);
            (mean, if mean > 0.0 { error } else { 0.0 })
        };
        marginals.iter().map(of).unzip()
    }
}
