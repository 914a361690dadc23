//! Means of Markov chains with decisions on a truncated state space (Puterman 1994, chapter 8).
//!
//! Policy iteration: the relative values h of the decisions are relaxed by Gauss-Seidel sweeps in
//! both directions, whose convergence [`FixedPoint`] accelerates, with h = 0 in the first state;
//! then the decisions are improved. The mean cost g follows from the equation of the first state,
//! by the expected times until that state: a change of g by δ changes h by −δ times these.
//!
//! For any h, the smallest and the largest of c(s) + Σ q(s, s′) (h(s′) − h(s)) over all states
//! enclose the mean cost of the truncated chain. So the result does not depend on how h was found.

use super::fixed_point::FixedPoint;

/// A truncated Markov chain with a decision in each state. Each state leads to the first one.
pub(super) trait DecisionChain {
    /// Number of states.
    fn states(&self) -> usize;

    /// Cost rate.
    fn cost(&self, state: usize, decision: u8) -> f64;

    /// Σ q(s, s′) (h(s′) − h(s)), and Σ q(s, s′).
    fn drift(&self, values: &[f64], state: usize, decision: u8) -> (f64, f64);

    /// The decision with the smallest sum of cost and drift.
    fn best(&self, values: &[f64], state: usize) -> u8;
}

/// Relative values and decisions.
pub(super) struct Relaxation<'a, C> {
    chain: &'a C,
    values: Vec<f64>,
    decisions: Vec<u8>,
}

/// Pairs of sweeps between two steps of acceleration.
const SWEEPS: usize = 3;
/// Bounds the time; what is reached then has its error.
const MAX_ROUNDS: usize = 2000;

impl<'a, C: DecisionChain> Relaxation<'a, C> {
    /// Starts from these values and decisions.
    pub(super) fn new(chain: &'a C, values: Vec<f64>, decisions: Vec<u8>) -> Self {
        Relaxation { chain, values, decisions }
    }

    /// Relaxes until the bounds of the mean cost differ by less than `tolerance`, relatively, and
    /// returns them: of the decisions, or of the optimum if they are improved.
    pub(super) fn run(&mut self, improve: bool, tolerance: f64) -> [f64; 2] {
        let first = self.values[0];
        self.values.iter_mut().for_each(|value| *value -= first);
        let times = self.times();
        let from_first = 1.0 + self.chain.drift(&times, 0, self.decisions[0]).0;
        let mut mean = self.flow(0);
        let mut bounds = self.bounds();
        let mut solver = FixedPoint::default();
        for _ in 0..MAX_ROUNDS {
            let enough = |bounds: [f64; 2], tolerance: f64| bounds[1] - bounds[0] <= tolerance * bounds[0].abs();
            // Decisions by values that are far from those of the last ones need not be better.
            if improve && enough(bounds, 3.0 * tolerance) {
                self.improve();
                bounds = self.bounds();
                solver = FixedPoint::default();
            }
            if enough(bounds, tolerance) {
                break;
            }
            let argument = [&self.values[..], &[mean]].concat();
            for _ in 0..SWEEPS {
                self.sweep(mean);
            }
            let change = (self.flow(0) - mean) / from_first;
            self.values.iter_mut().zip(&times).for_each(|(value, time)| *value -= change * time);
            let mut next = solver.next(&argument, [&self.values[..], &[mean + change]].concat());
            mean = next.pop().unwrap_or(mean);
            self.values = next;
            bounds = self.bounds();
        }
        bounds
    }

    /// The decisions.
    pub(super) fn into_decisions(self) -> Vec<u8> {
        self.decisions
    }

    /// Expected times until the first state, with the decisions at the start, about to a percent.
    fn times(&self) -> Vec<f64> {
        const PRECISION: f64 = 1e-3;
        let mut times = vec![0.0; self.chain.states()];
        let mut solver = FixedPoint::default();
        let mut last = 0.0;
        for _ in 0..MAX_ROUNDS {
            let argument = times.clone();
            for _ in 0..SWEEPS {
                for state in (1..times.len()).chain((1..times.len()).rev()) {
                    let (drift, rate) = self.chain.drift(&times, state, self.decisions[state]);
                    times[state] += (1.0 + drift) / rate;
                }
            }
            times = solver.next(&argument, times);
            let from_first = self.chain.drift(&times, 0, self.decisions[0]).0;
            if (from_first - last).abs() < PRECISION * from_first {
                break;
            }
            last = from_first;
        }
        times
    }

    fn flow(&self, state: usize) -> f64 {
        let decision = self.decisions[state];
        self.chain.cost(state, decision) + self.chain.drift(&self.values, state, decision).0
    }

    /// Relaxes all states but the first in ascending and then in descending order, with this mean
    /// cost.
    fn sweep(&mut self, mean: f64) {
        let states = self.chain.states();
        for state in (1..states).chain((1..states).rev()) {
            let decision = self.decisions[state];
            let (drift, rate) = self.chain.drift(&self.values, state, decision);
            self.values[state] += (self.chain.cost(state, decision) + drift - mean) / rate;
        }
    }

    fn improve(&mut self) {
        for (state, decision) in self.decisions.iter_mut().enumerate() {
            *decision = self.chain.best(&self.values, state);
        }
    }

    /// Bounds of the mean cost of the decisions; that of the optimum if they have just been
    /// improved.
    fn bounds(&self) -> [f64; 2] {
        let flows = (0..self.chain.states()).map(|state| self.flow(state));
        flows.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], flow| [low.min(flow), high.max(flow)])
    }
}
