//! The same chain by brute force: the balance equations on a box of states, iterated.

use super::{Can, CanMeans, Number};

impl Can {
    /// The means from the chain cut off at a box of states, which has nothing in common with [`Can::solve`] but the rates (2) to (4): to check it,
    /// or where the series should not be trusted. It takes minutes where the series takes a blink.
    ///
    /// The box grows until what its faces hold matters less than `tolerance`, a part of each mean, or there are `most_states` of them. The
    /// errors add what the faces hold back, what the last box changed, and what further sweeps would. `order` is the number of states.
    ///
    /// Each box is swept by Gauss and Seidel; between the sweeps, what lies at each number of jobs, of a class or of all, is set right by the
    /// balance of flows across the cut above it, given how it is spread (aggregation after Koury, McAllister and Stewart 1984).
    pub fn solve_on_box(&self, tolerance: f64, most_states: usize) -> CanMeans {
        let mut sides: Vec<usize> = vec![8; self.sizes.len()];
        let mut chain = Chain::new(self, sides.clone(), None);
        let mut before = vec![f64::INFINITY; sides.len()];
        loop {
            let left = chain.relax(tolerance / 20.0);
            let (means, faces) = chain.means_and_faces();
            let short: Vec<bool> = faces.iter().map(|face| *face > tolerance / 4.0).collect();
            let mut grown = sides.clone();
            for (side, short) in grown.iter_mut().zip(&short) {
                *side += if *short { (*side / 3).max(4) } else { 0 };
            }
            let full = grown.iter().try_fold(1, |states: usize, side| states.checked_mul(*side)).is_none_or(|states| states > most_states);
            if !short.contains(&true) || full {
                let beyond: f64 = faces.iter().sum();
                let error = |(mean, before): (&f64, &f64)| (mean - before).abs().min(*mean) + mean * (left + beyond);
                let jobs = means.iter().zip(&before).map(|pair| Number { value: *pair.0, error: error(pair) }).collect();
                return self.means(jobs, sides.iter().product());
            }
            before = means;
            chain = Chain::new(self, grown.clone(), Some(&chain));
            sides = grown;
        }
    }
}

/// The chain on a box. Class 0 varies slowest.
struct Chain<'a> {
    can: &'a Can,
    sides: Vec<usize>,
    strides: Vec<usize>,
    /// For each network: what the foreground loses and the background loses, at `foreground * side + background`.
    lost: Vec<Vec<[f64; 2]>>,
    /// Probabilities, up to a factor.
    states: Vec<f64>,
}

impl<'a> Chain<'a> {
    /// As it was on a smaller box, or with something everywhere.
    fn new(can: &'a Can, sides: Vec<usize>, from: Option<&Chain<'_>>) -> Self {
        let mut strides = vec![1; sides.len()];
        for class in (1..sides.len()).rev() {
            strides[class - 1] = strides[class] * sides[class];
        }
        let lost = (1..sides.len())
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
        Chain { can, sides, strides, lost, states }
    }

    fn jobs(&self, at: usize, class: usize) -> usize {
        at / self.strides[class] % self.sides[class]
    }

    /// What each class loses in a state.
    fn leaves(&self, jobs: &[usize], leaves: &mut [f64]) {
        leaves[0] = 0.0;
        for (network, lost) in self.lost.iter().enumerate() {
            let [of_foreground, of_background] = lost[jobs[0] * self.sides[network + 1] + jobs[network + 1]];
            leaves[0] += of_foreground;
            leaves[network + 1] = of_background;
        }
    }

    /// Sweeps until the means are as near to those of the box as `tolerance`; returns how near, as a part of them.
    fn relax(&mut self, tolerance: f64) -> f64 {
        const SWEEPS: usize = 20_000;
        const QUICK: f64 = 0.9;
        let mut last = self.means_and_faces().0;
        let (mut change, mut shrinks, mut left) = (f64::INFINITY, QUICK, f64::INFINITY);
        for _ in 0..SWEEPS {
            self.sweep();
            for class in 0..=self.sides.len() {
                self.balance(class);
            }
            let means = self.means_and_faces().0;
            let now = means.iter().zip(&last).map(|(now, last)| (now - last).abs() / now.max(f64::MIN_POSITIVE)).fold(0.0, f64::max);
            // What is to come, if the changes go on shrinking as they did. One small change may be chance, and slow ones hide behind quick ones,
            // so that no shrinking is believed to be quick.
            shrinks = f64::max(now / change, 0.95 * shrinks).clamp(QUICK, 0.9999);
            (change, left, last) = (now, now * shrinks / (1.0 - shrinks), means);
            if left < tolerance {
                break;
            }
        }
        left
    }

    /// Solves each state's balance for it, upwards and then downwards.
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
        let mut jobs = [0; Can::MOST + 1];
        let mut rest = at;
        for (jobs, stride) in jobs.iter_mut().zip(&self.strides) {
            *jobs = rest / stride;
            rest %= stride;
        }
        let lost =
            |network: usize, foreground: usize, background: usize| self.lost[network][foreground * self.sides[network + 1] + background];
        let (mut into, mut out) = (0.0, 0.0);
        for class in 0..classes {
            let (rate, stride) = (self.can.arrivals[class], self.strides[class]);
            if jobs[class] > 0 {
                into += rate * self.states[at - stride];
            }
            if jobs[class] + 1 < self.sides[class] {
                out += rate;
                let leaves: f64 = if class == 0 {
                    (1..classes).map(|other| lost(other - 1, jobs[0] + 1, jobs[other])[0]).sum()
                } else {
                    lost(class - 1, jobs[0], jobs[class] + 1)[1]
                };
                into += leaves * self.states[at + stride];
            }
        }
        for class in 1..classes {
            let [of_foreground, of_background] = lost(class - 1, jobs[0], jobs[class]);
            out += of_foreground + of_background;
        }
        self.states[at] = into / out;
    }

    /// Sets the probabilities of each number of jobs of a class right, or, for the class after the last, of each number of all jobs.
    fn balance(&mut self, class: usize) {
        let classes = self.sides.len();
        let most: usize = if class < classes { self.sides[class] } else { self.sides.iter().sum::<usize>() - classes + 1 };
        let (mut masses, mut ups, mut downs) = (vec![0.0; most], vec![0.0; most], vec![0.0; most]);
        let (mut jobs, mut leaves) = (vec![0; classes], vec![0.0; classes]);
        let level = |jobs: &[usize]| if class < classes { jobs[class] } else { jobs.iter().sum() };
        for at in 0..self.states.len() {
            let state = self.states[at];
            self.leaves(&jobs, &mut leaves);
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
            self.step(&mut jobs);
        }
        // m'(j) up(j) = m'(j + 1) down(j + 1), with the flows of the masses as they were.
        let mut factors = vec![1.0; most];
        for place in 1..most {
            let (up, down) = (factors[place - 1] * ups[place - 1], downs[place]);
            factors[place] = if down > 0.0 { up / down } else { 0.0 };
        }
        let total: f64 = masses.iter().zip(&factors).map(|(mass, factor)| mass * factor).sum();
        jobs.fill(0);
        for at in 0..self.states.len() {
            self.states[at] *= factors[level(&jobs)] / total;
            self.step(&mut jobs);
        }
    }

    /// The next state's numbers of jobs.
    fn step(&self, jobs: &mut [usize]) {
        for class in (0..jobs.len()).rev() {
            jobs[class] += 1;
            if jobs[class] < self.sides[class] {
                return;
            }
            jobs[class] = 0;
        }
    }

    /// `E[Nᵢ]`, and how much more it would be, about, if the box went on beyond its face: as a part of it.
    fn means_and_faces(&self) -> (Vec<f64>, Vec<f64>) {
        let classes = self.sides.len();
        let mut marginals: Vec<Vec<f64>> = self.sides.iter().map(|side| vec![0.0; *side]).collect();
        let mut jobs = vec![0; classes];
        for state in &self.states {
            for (marginal, jobs) in marginals.iter_mut().zip(&jobs) {
                marginal[*jobs] += state;
            }
            self.step(&mut jobs);
        }
        let total: f64 = marginals[0].iter().sum();
        let of = |marginal: &Vec<f64>| {
            let mean = marginal.iter().enumerate().map(|(jobs, mass)| jobs as f64 * mass).sum::<f64>() / total;
            let [.., before, last] = marginal[..] else { unreachable!("a side is at least 8") };
            // A geometric tail goes on as it ends.
            let falls = (last / before.max(f64::MIN_POSITIVE)).min(0.999);
            let face = last / total * marginal.len() as f64 / (1.0 - falls).powi(2) / mean.max(f64::MIN_POSITIVE);
            (mean, if mean > 0.0 { face } else { 0.0 })
        };
        marginals.iter().map(of).unzip()
    }
}
