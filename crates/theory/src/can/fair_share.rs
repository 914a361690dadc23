//! The best way for foreground jobs to use two networks if they get no more than their fair share
//! of each (Remark 1), as a Markov decision process.
//!
//! The state is that of the CAN model. The decision is, for each network, whether foreground jobs
//! use it. Of a network that they use they get their fair share, cᵢ k₀/(k₀ + kᵢ); a part of it
//! cannot be better than both, since the flow is linear in it. What they leave, the background
//! gets. The CAN model always uses both.
//!
//! Every assignment of whole files is such a rule: m files in a network get cᵢ m/(m + kᵢ), which is
//! no more than the fair share of all k₀. So its mean is bounded by this optimum.

use super::{
    Can, ValueWithError,
    decision_process::{DecisionChain, Relaxation},
};
use crate::error::TheoryError;

/// Relative change by an enlargement of the box at which it is large enough.
const PRECISION: f64 = 5e-4;
/// Relative distance of the bounds of the truncated chain's mean.
const WIDTH: f64 = 5e-5;
/// Most states of the truncated chain.
const MAX_STATES: usize = 300_000;

impl Can {
    /// Mean sojourn time of foreground jobs that are split in the best way among those in which
    /// they get at most their fair share of two networks, s. The error adds the distance of the
    /// bounds of the truncated chain's mean and the change by the last enlargement of its box.
    ///
    /// # Errors
    /// When there are not two networks, or no foreground, or its weight is not 1.
    pub fn best_fair_split(&self) -> Result<ValueWithError, TheoryError> {
        self.check_two_networks("files that are split in the best way")?;
        let mut beyond = 1e-3;
        let mut last = f64::INFINITY;
        loop {
            let [low, high] = self.solve_fair_share(beyond).1;
            let (jobs, half) = ((low + high) / 2.0, (high - low) / 2.0);
            let change = (jobs - last).abs();
            last = jobs;
            beyond *= 0.1;
            let states: usize = FairShareChain::new(self, beyond).sides.iter().product();
            if change < PRECISION * jobs || states > MAX_STATES {
                let rate = self.arrivals[0];
                return Ok(ValueWithError { value: jobs / rate, error: (change.min(jobs) + half) / rate });
            }
        }
    }

    /// The truncated chain, bounds of its mean number of foreground jobs, and the decisions.
    fn solve_fair_share(&self, beyond: f64) -> (FairShareChain<'_>, [f64; 2], Vec<u8>) {
        let chain = FairShareChain::new(self, beyond);
        let states = chain.states();
        let mut relaxation = Relaxation::new(&chain, vec![0.0; states], vec![BOTH; states]);
        let bounds = relaxation.run(true, WIDTH);
        let decisions = relaxation.into_decisions();
        (chain, bounds, decisions)
    }
}

/// The decision to use both networks; bit i is for network i.
const BOTH: u8 = 3;

/// The chain truncated to a box. A job that does not fit is turned away.
struct FairShareChain<'a> {
    can: &'a Can,
    /// Numbers of jobs of each class, from 0, that are in the box.
    sides: [usize; 3],
}

impl<'a> FairShareChain<'a> {
    /// A box beyond each of whose sides there is about this probability.
    ///
    /// The foreground sees one queue with all capacity. A network is taken to be as busy as that,
    /// or as its background makes it.
    fn new(can: &'a Can, beyond: f64) -> Self {
        let all = can.load();
        let of_part = |total: f64, part: f64| total * part / (1.0 - total * (1.0 - part));
        let work: f64 = (0..3).map(|class| can.work(class)).sum();
        let mut ratios = [of_part(all, can.work(0) / work); 3];
        for network in [0, 1] {
            let (speed, own) = (can.speeds[network], can.work(network + 1));
            let foreground = can.work(0) * speed / can.speeds.iter().sum::<f64>();
            ratios[network + 1] = of_part(all.max(own / speed), own / (own + foreground));
        }
        let sides = ratios.map(|ratio| if ratio > 0.0 { ((beyond.ln() / ratio.ln()).ceil() as usize) + 4 } else { 1 });
        FairShareChain { can, sides }
    }

    fn strides(&self) -> [usize; 3] {
        [self.sides[1] * self.sides[2], self.sides[2], 1]
    }

    fn jobs(&self, state: usize) -> [usize; 3] {
        let strides = self.strides();
        [state / strides[0], state / strides[1] % self.sides[1], state % self.sides[2]]
    }
}

impl DecisionChain for FairShareChain<'_> {
    fn states(&self) -> usize {
        self.sides.iter().product()
    }

    fn cost(&self, state: usize, _: u8) -> f64 {
        self.jobs(state)[0] as f64
    }

    fn drift(&self, values: &[f64], state: usize, decision: u8) -> (f64, f64) {
        let (jobs, strides, own) = (self.jobs(state), self.strides(), values[state]);
        let (mut drift, mut rate) = (0.0, 0.0);
        for class in 0..3 {
            if jobs[class] + 1 < self.sides[class] {
                drift += self.can.arrivals[class] * (values[state + strides[class]] - own);
                rate += self.can.arrivals[class];
            }
        }
        for network in [0, 1] {
            let class = network + 1;
            let all = (jobs[0] + jobs[class]).max(1) as f64;
            let share = if decision >> network & 1 == 1 { jobs[0] as f64 / all } else { 0.0 };
            let left = if jobs[class] > 0 { 1.0 - share } else { 0.0 };
            for (class, part) in [(0, share), (class, left)] {
                if part > 0.0 {
                    let leaves = self.can.speeds[network] * part / self.can.sizes[class];
                    drift += leaves * (values[state - strides[class]] - own);
                    rate += leaves;
                }
            }
        }
        (drift, rate)
    }

    fn best(&self, values: &[f64], state: usize) -> u8 {
        let (jobs, strides) = (self.jobs(state), self.strides());
        // What a unit of a network's work on this class saves.
        let saves =
            |class: usize| if jobs[class] > 0 { (values[state] - values[state - strides[class]]) / self.can.sizes[class] } else { 0.0 };
        (0..2).map(|network| u8::from(saves(0) >= saves(network + 1)) << network).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::replication::{Replication, ratio};
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    #[test]
    fn over_equal_networks_no_use_of_the_fair_shares_beats_the_can_model() {
        for can in [Can::new(0.3, &[0.2, 0.2]).unwrap(), Can::new(0.9, &[0.3, 0.3]).unwrap()] {
            let (best, split) = (can.best_fair_split().unwrap(), can.solve().sojourn_s[0].unwrap());
            assert!((best.value - split.value).abs() < best.error && best.error < 1e-3 * best.value, "{can:?}: {best:?} {split:?}");
        }
    }

    /// Mean time of foreground jobs by a simulation without truncation, and half its 95 % interval.
    fn simulate(can: &Can, decide: impl Fn([usize; 3]) -> u8) -> (f64, f64) {
        const EVENTS: usize = 400_000;
        let replicate = |seed: u64| {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut jobs = [0usize; 3];
            let mut counted = Replication::new(3);
            for event in 0..EVENTS {
                let decision = decide(jobs);
                let mut rates = [can.arrivals[0], can.arrivals[1], can.arrivals[2], 0.0, 0.0, 0.0];
                for network in [0, 1] {
                    let all = (jobs[0] + jobs[network + 1]).max(1) as f64;
                    let share = if decision >> network & 1 == 1 { jobs[0] as f64 / all } else { 0.0 };
                    rates[3] += can.speeds[network] * share / can.sizes[0];
                    let left = if jobs[network + 1] > 0 { 1.0 - share } else { 0.0 };
                    rates[4 + network] = can.speeds[network] * left / can.sizes[network + 1];
                }
                let total: f64 = rates.iter().sum();
                if event > EVENTS / 10 {
                    counted.time += 1.0 / total;
                    counted.areas[0] += jobs[0] as f64 / total;
                }
                let mut point = random.random::<f64>() * total;
                let chosen = rates.iter().position(|rate| {
                    point -= rate;
                    point < 0.0
                });
                match chosen.unwrap_or(0) {
                    class @ 0..=2 => jobs[class] += 1,
                    departure => jobs[departure - 3] -= 1,
                }
            }
            counted
        };
        let replications: Vec<Replication> = (0..20).map(replicate).collect();
        let found = ratio(&replications, &|one| one.areas[0], &|one| one.time);
        (found.value / can.arrivals[0], found.error / can.arrivals[0])
    }

    #[test]
    fn over_unequal_networks_it_pays_to_leave_shares_of_the_busy_one_unused() {
        let can = Can::new(0.9, &[0.1, 0.7]).unwrap();
        let (best, split) = (can.best_fair_split().unwrap(), can.solve().sojourn_s[0].unwrap());
        assert!(best.value + best.error < 0.993 * split.value, "{best:?} {split:?}");
        // Without truncation: beyond the box both are used.
        let (chain, _, decisions) = can.solve_fair_share(1e-4);
        let (strides, sides) = (chain.strides(), chain.sides);
        let state = |jobs: [usize; 3]| (0..3).map(|class| jobs[class].min(sides[class] - 1) * strides[class]).sum::<usize>();
        let (time, half) = simulate(&can, |jobs| decisions[state(jobs)]);
        assert!((time - best.value).abs() < 2.0 * half + best.error, "{best:?}, simulated {time} ± {half}");
        let (time, half) = simulate(&can, |_| BOTH);
        assert!((time - split.value).abs() < 2.0 * half, "{split:?}, simulated {time} ± {half}");
        // A single file leaves the busy network to a long queue there.
        assert_eq!(decisions[state([1, 0, 8])], 1);
    }

    #[test]
    fn a_rule_that_leaves_a_network_unused_is_worse() {
        let can = Can::new(0.3, &[0.2, 0.5]).unwrap();
        let chain = FairShareChain::new(&can, 1e-4);
        let states = chain.states();
        let mut relaxation = Relaxation::new(&chain, vec![0.0; states], vec![1; states]);
        let [low, high] = relaxation.run(false, 1e-5);
        // One processor-sharing queue with loads 0.3 and 0.2, truncated.
        assert!((low + high) / 2.0 > 0.599 && high < 0.601, "{low} {high}");
    }
}
