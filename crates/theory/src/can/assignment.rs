//! Whole files assigned to one of two networks on arrival, as a Markov decision process: what
//! splitting gains over the best rule that does not split.
//!
//! The state is the number of foreground and background jobs in each network. Networks share fairly
//! and sizes are exponential, as in the CAN model's chain. The decision, at each arrival of a
//! foreground job, is its network; the cost is the number of foreground jobs. The truncated chain is
//! made uniform in time and solved by relative value iteration (Puterman 1994, §8.5), whose smallest
//! and largest differences enclose the mean cost.

use super::{Can, ValueWithError};
use crate::error::TheoryError;

/// How the network of a file is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentRule {
    /// The optimum of the decision process.
    Optimal,
    /// The network in which the file gets the largest rate at its arrival.
    LargestRate,
}

/// Most foreground jobs in a network, plus one.
const FOREGROUND: usize = 10;
/// Most background jobs in a network, plus one.
const BACKGROUND: usize = 20;
/// Relative distance of the bounds of the mean at which the iteration ends.
const PRECISION: f64 = 1e-3;
const MAX_SWEEPS: usize = 20_000;

impl Can {
    /// Mean sojourn time of foreground jobs that are assigned as a whole, s. The error covers the
    /// iteration; the truncation to 9 foreground and 19 background jobs in each network is not in it,
    /// and is negligible for loads up to 0.6 of each network.
    ///
    /// # Errors
    /// When there are not two networks, or there is no foreground.
    pub fn assigned(&self, rule: AssignmentRule) -> Result<ValueWithError, TheoryError> {
        let networks = self.speeds.len();
        if networks != 2 || self.arrivals[0] <= 0.0 {
            return Err(TheoryError::Outside {
                what: "the number of networks of assigned files".into(),
                value: networks as f64,
                bounds: "2",
            });
        }
        let mut values = vec![0.0; FOREGROUND * FOREGROUND * BACKGROUND * BACKGROUND];
        let mut next = values.clone();
        let (mut low, mut high) = (0.0, f64::INFINITY);
        for _ in 0..MAX_SWEEPS {
            (low, high) = self.iterate(rule, &values, &mut next);
            std::mem::swap(&mut values, &mut next);
            if high - low < PRECISION * low {
                break;
            }
        }
        let (jobs, half) = ((high + low) / 2.0, (high - low) / 2.0);
        Ok(ValueWithError { value: jobs / self.arrivals[0], error: half / self.arrivals[0] })
    }

    /// One iteration; returns the smallest and the largest difference.
    fn iterate(&self, rule: AssignmentRule, values: &[f64], next: &mut [f64]) -> (f64, f64) {
        let strides = [[FOREGROUND * BACKGROUND * BACKGROUND, BACKGROUND], [BACKGROUND * BACKGROUND, 1]];
        let fastest = self.sizes.iter().map(|size| 1.0 / size).fold(0.0, f64::max);
        let clock = self.arrivals.iter().sum::<f64>() + self.speeds.iter().sum::<f64>() * fastest;
        let reference = values[0];
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for (at, next) in next.iter_mut().enumerate() {
            let own = values[at];
            let jobs = [0, 1].map(|network: usize| {
                let [of_foreground, of_background] = strides[network];
                [at / of_foreground % FOREGROUND, at / of_background % BACKGROUND]
            });
            let mut flow = 0.0;
            // After the arrival of a file in either network, if there is room.
            let after = [0, 1].map(|network: usize| (jobs[network][0] + 1 < FOREGROUND).then(|| values[at + strides[network][0]]));
            let rate = |network: usize| self.speeds[network] / (jobs[network][0] + jobs[network][1] + 1) as f64;
            let arrived = match (after, rule) {
                ([Some(first), Some(second)], AssignmentRule::Optimal) => first.min(second),
                ([Some(first), Some(second)], AssignmentRule::LargestRate) => {
                    if rate(0) >= rate(1) {
                        first
                    } else {
                        second
                    }
                }
                ([first, second], _) => first.or(second).unwrap_or(own),
            };
            flow += self.arrivals[0] * (arrived - own);
            for network in 0..2 {
                let ([foreground, background], [of_foreground, of_background]) = (jobs[network], strides[network]);
                if background + 1 < BACKGROUND {
                    flow += self.arrivals[network + 1] * (values[at + of_background] - own);
                }
                let each = self.speeds[network] / (foreground + background).max(1) as f64;
                if foreground > 0 {
                    flow += each * foreground as f64 / self.sizes[0] * (values[at - of_foreground] - own);
                }
                if background > 0 {
                    flow += each * background as f64 / self.sizes[network + 1] * (values[at - of_background] - own);
                }
            }
            let difference = (jobs[0][0] + jobs[1][0]) as f64 + flow / clock;
            low = low.min(difference);
            high = high.max(difference);
            *next = own + difference - reference;
        }
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_beats_the_best_assignment_which_beats_a_simple_rule() {
        let can = Can::new(0.3, &[0.2, 0.4]).unwrap();
        let split = can.solve().sojourn_s[0].unwrap().value;
        let [best, simple] = [AssignmentRule::Optimal, AssignmentRule::LargestRate].map(|rule| can.assigned(rule).unwrap());
        assert!(best.error < 2e-3 && best.value <= simple.value + 2e-3 && split < 0.8 * best.value, "{split} {best:?} {simple:?}");
    }

    #[test]
    fn over_equal_networks_the_shorter_queue_is_optimal() {
        let can = Can::new(0.6, &[0.0, 0.0]).unwrap();
        let [best, simple] = [AssignmentRule::Optimal, AssignmentRule::LargestRate].map(|rule| can.assigned(rule).unwrap());
        assert!((best.value - simple.value).abs() < 2e-3, "{best:?} {simple:?}");
        // Better than a coin, whose queues have a load of 0.3 each; a file of mean 1 over one network takes at least 1.
        assert!(best.value > 1.0 && best.value < 1.0 / 0.7, "{best:?}");
        assert!(Can::new(0.3, &[0.2]).unwrap().assigned(AssignmentRule::Optimal).is_err());
    }
}
