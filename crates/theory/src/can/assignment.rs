//! Whole files assigned to one of two networks on arrival: the optimum, as a Markov decision
//! process, and simpler rules. It shows what splitting gains over the best rule that does not
//! split.
//!
//! The state is the number of foreground and background jobs in each network. Networks share fairly
//! and sizes are exponential, as in the CAN model's chain. The decision, at each arrival of a
//! foreground job, is its network; the cost is the number of foreground jobs.
//!
//! *Truncation.* A job that does not fit into the box is turned away at the price of what it would
//! cost if files were assigned at random ([`SharedNetwork`]). So the truncated chain is exact for
//! random assignment, and the error for other rules is that of a price at the boundary only.

use super::{
    Can, ValueWithError,
    assignment_chain::{AssignmentBox, AssignmentChain},
    decision_process::Relaxation,
    shared_network::SharedNetwork,
};
use crate::error::TheoryError;

/// How the network of a file is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentRule {
    /// The optimum of the decision process.
    Optimal,
    /// The network with the smallest index 2a(m + 1) + bn, where m foreground and n background jobs
    /// are. It is the first step of policy iteration from [`Random`](AssignmentRule::Random): what
    /// the job costs itself and others if all later ones are assigned at random. a and b are known
    /// in closed form from the network's own loads.
    Index,
    /// The same with the mean of the index if only the number of all jobs in each network is known.
    IndexOfTotals,
    /// The network in which the file's expected time is shortest, if later files are assigned at
    /// random: what a file would choose for itself.
    ShortestExpectedDelay,
    /// The network in which the file gets the largest rate at its arrival.
    LargestRate,
    /// By fixed probabilities, the best ones ([`Can::best_random_assignment`]).
    Random,
}

/// Relative change by an enlargement of the box at which it is large enough.
const PRECISION: f64 = 5e-4;
/// Relative distance of the bounds of the truncated chain's mean.
const WIDTH: f64 = 5e-5;
/// Most states of the truncated chain.
const MAX_STATES: usize = 250_000;

impl Can {
    /// Mean sojourn time of foreground jobs that are assigned as a whole, s. The error adds the
    /// distance of the bounds of the truncated chain's mean and the change by the last enlargement
    /// of its box, which estimates the effect of the truncation.
    ///
    /// # Errors
    /// When there are not two networks, or no foreground, or its weight is not 1.
    pub fn assigned(&self, rule: AssignmentRule) -> Result<ValueWithError, TheoryError> {
        let networks = self.assigned_networks()?;
        let time = |jobs: f64, error: f64| ValueWithError { value: jobs / self.arrivals[0], error: error / self.arrivals[0] };
        if rule == AssignmentRule::Random {
            return Ok(time(networks.iter().map(SharedNetwork::mean_foreground).sum(), 0.0));
        }
        let mut space = AssignmentBox::new(self);
        let mut last = f64::INFINITY;
        loop {
            let [low, high] = self.solve_assignment(rule, &networks, &space).0;
            let (jobs, half) = ((low + high) / 2.0, (high - low) / 2.0);
            let change = (jobs - last).abs();
            last = jobs;
            space = space.larger();
            if change < PRECISION * jobs || space.states() > MAX_STATES {
                return Ok(time(jobs, change.min(jobs) + half));
            }
        }
    }

    /// Checks that there are two networks and a foreground with weight 1. `files` is what the error
    /// is about.
    pub(super) fn check_two_networks(&self, files: &str) -> Result<(), TheoryError> {
        let outside = |what: &str, value: f64, bounds| Err(TheoryError::Outside { what: format!("{what} of {files}"), value, bounds });
        if self.speeds.len() != 2 {
            return outside("the number of networks", self.speeds.len() as f64, "2");
        }
        if self.arrivals[0] <= 0.0 {
            return outside("the arrival rate", self.arrivals[0], "positive");
        }
        if self.weight == 1.0 { Ok(()) } else { outside("the weight", self.weight, "1") }
    }

    /// The two networks, each with its part of files that are assigned at random.
    pub(super) fn assigned_networks(&self) -> Result<[SharedNetwork; 2], TheoryError> {
        self.check_two_networks("assigned files")?;
        let shares = self.best_random_assignment();
        Ok([0, 1].map(|network| SharedNetwork::new(self, network, shares[network])))
    }

    /// Bounds of the mean number of foreground jobs of the truncated chain, and the decisions.
    pub(super) fn solve_assignment(
        &self,
        rule: AssignmentRule,
        networks: &[SharedNetwork; 2],
        space: &AssignmentBox,
    ) -> ([f64; 2], Vec<u8>) {
        let chain = AssignmentChain::new(self, networks, space);
        let improves = rule == AssignmentRule::Optimal;
        let start = if improves { AssignmentRule::Index } else { rule };
        let decisions = chain.each_state(|jobs| start.decide(networks, jobs));
        let values = chain.each_state(|jobs| (0..2).map(|i| networks[i].relative_value(jobs[i][0], jobs[i][1])).sum());
        let mut relaxation = Relaxation::new(&chain, values, decisions);
        (relaxation.run(improves, WIDTH), relaxation.into_decisions())
    }
}

impl AssignmentRule {
    /// The network, 0 or 1, of a file that finds these foreground and background jobs in each; the
    /// first of equal ones.
    ///
    /// # Panics
    /// For the optimum and for random assignment, which are no functions of the jobs alone.
    fn decide(self, networks: &[SharedNetwork; 2], jobs: [[usize; 2]; 2]) -> u8 {
        let cost = |network: usize| {
            let (network, [foreground, background]) = (&networks[network], jobs[network]);
            match self {
                AssignmentRule::Index => network.price_of_foreground(foreground, background),
                AssignmentRule::IndexOfTotals => network.price_at_total(foreground + background),
                AssignmentRule::ShortestExpectedDelay => network.expected_delay(foreground, background),
                AssignmentRule::LargestRate => 1.0 / network.rate_on_arrival(foreground, background),
                AssignmentRule::Optimal | AssignmentRule::Random => unreachable!("no function of the jobs"),
            }
        };
        u8::from(cost(0) > cost(1) * (1.0 + 1e-12))
    }
}
