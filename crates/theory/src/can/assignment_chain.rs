//! The truncated chain of files that are assigned as a whole to one of two networks.

use super::{Can, decision_process::DecisionChain, shared_network::SharedNetwork};

/// A box of states.
#[derive(Debug, Clone)]
pub(super) struct AssignmentBox {
    /// Ratio by which the probability of one more job falls: of foreground and background in each
    /// network.
    ratios: [[f64; 2]; 2],
    /// Enlargements so far.
    enlarged: u32,
}

impl AssignmentBox {
    /// The smallest box for this system.
    ///
    /// A rule that balances the networks makes them one queue with the total load R and all
    /// capacity, so that the number of jobs in a network with a part p of the capacity has the
    /// ratio R^(1/p); it is at least the load of the background alone.
    pub(super) fn new(can: &Can) -> Self {
        /// Part of the foreground that a network is taken to get at least.
        const LEAST_SHARE: f64 = 0.25;
        let shares = can.best_random_assignment();
        let capacity: f64 = can.speeds.iter().sum();
        let totals = [0, 1].map(|network| {
            let background = can.work(network + 1) / can.speeds[network];
            can.load().powf(capacity / can.speeds[network]).max(background)
        });
        let ratios = [0, 1].map(|network| {
            let (total, work) = (totals[network], can.work(0) * shares[network].max(LEAST_SHARE));
            let part = work / (work + can.work(network + 1));
            [total * part / (1.0 - total * (1.0 - part)), total * (1.0 - part) / (1.0 - total * part)]
        });
        AssignmentBox { ratios, enlarged: 0 }
    }

    /// The next larger box.
    pub(super) fn larger(&self) -> Self {
        AssignmentBox { enlarged: self.enlarged + 1, ..self.clone() }
    }

    /// Numbers of foreground and background jobs of each network, from 0, that are in the box: by
    /// these ratios, a hundredth of the probability is beyond a side, and less by [`Self::STEP`]
    /// with each enlargement.
    pub(super) fn sides(&self) -> [[usize; 2]; 2] {
        let side = |ratio: f64| {
            let beyond = 1e-2f64.ln() + f64::from(self.enlarged) * AssignmentBox::STEP.ln();
            // A small ratio is an estimate too: each enlargement adds a job.
            ((beyond / ratio.ln()).ceil() as usize).max(AssignmentBox::LEAST + self.enlarged as usize)
        };
        self.ratios.map(|ratios| ratios.map(|ratio| if ratio > 0.0 { side(ratio) } else { 1 }))
    }

    const STEP: f64 = 0.1;
    const LEAST: usize = 4;

    /// Number of states.
    pub(super) fn states(&self) -> usize {
        self.sides().iter().flatten().product()
    }
}

/// What a network with certain numbers of jobs adds to the flow of a state.
struct NetworkState {
    /// Foreground and background jobs.
    jobs: [usize; 2],
    /// Foreground jobs, and the price of background jobs that are turned away.
    cost: f64,
    /// Distance to the state with one more foreground or background job; 0: the box ends here.
    up: [usize; 2],
    /// Distance to the state with one less.
    down: [usize; 2],
    /// Arrival rate of background jobs that fit.
    joins: f64,
    /// Departure rates.
    leaves: [f64; 2],
    /// The sum of these rates.
    rate: f64,
    /// Price of a foreground job that is turned away; 0 if it fits.
    price: f64,
}

/// The truncated chain. The first network varies slowest.
pub(super) struct AssignmentChain {
    /// Arrival rate of foreground jobs.
    arrivals: f64,
    networks: [Vec<NetworkState>; 2],
}

impl AssignmentChain {
    pub(super) fn new(can: &Can, networks: &[SharedNetwork; 2], space: &AssignmentBox) -> Self {
        let sides = space.sides();
        let strides = [sides[1][0] * sides[1][1], 1];
        let of = |network: usize| {
            let [foreground, background] = sides[network];
            let (side, stride, shared) = ([foreground, background], strides[network], &networks[network]);
            let rates = [can.speeds[network] / can.sizes[0], can.speeds[network] / can.sizes[network + 1]];
            let state = |at: usize| {
                let jobs = [at / background, at % background];
                let fits = [0, 1].map(|class| jobs[class] + 1 < side[class]);
                let distances = [background * stride, stride];
                let leaves = [0, 1].map(|class| rates[class] * jobs[class] as f64 / (jobs[0] + jobs[1]).max(1) as f64);
                let joins = if fits[1] { can.arrivals[network + 1] } else { 0.0 };
                let turned_away = can.arrivals[network + 1] - joins;
                NetworkState {
                    jobs,
                    cost: jobs[0] as f64 + turned_away * shared.price_of_background(jobs[0], jobs[1]),
                    up: [0, 1].map(|class| if fits[class] { distances[class] } else { 0 }),
                    down: [0, 1].map(|class| if jobs[class] > 0 { distances[class] } else { 0 }),
                    joins,
                    leaves,
                    rate: joins + leaves[0] + leaves[1],
                    price: if fits[0] { 0.0 } else { shared.price_of_foreground(jobs[0], jobs[1]) },
                }
            };
            (0..foreground * background).map(state).collect()
        };
        AssignmentChain { arrivals: can.arrivals[0], networks: [of(0), of(1)] }
    }

    /// A value for each state, by its foreground and background jobs in each network.
    pub(super) fn each_state<T>(&self, of: impl Fn([[usize; 2]; 2]) -> T) -> Vec<T> {
        let [first, second] = &self.networks;
        first.iter().flat_map(|a| second.iter().map(move |b| [a.jobs, b.jobs])).map(of).collect()
    }

    #[inline(always)]
    fn at(&self, state: usize) -> [&NetworkState; 2] {
        let second = self.networks[1].len();
        [&self.networks[0][state / second], &self.networks[1][state % second]]
    }
}

impl DecisionChain for AssignmentChain {
    fn states(&self) -> usize {
        self.networks[0].len() * self.networks[1].len()
    }

    #[inline(always)]
    fn cost(&self, state: usize, decision: u8) -> f64 {
        let networks = self.at(state);
        networks[0].cost + networks[1].cost + self.arrivals * networks[usize::from(decision)].price
    }

    #[inline(always)]
    fn drift(&self, values: &[f64], state: usize, decision: u8) -> (f64, f64) {
        let networks = self.at(state);
        let own = values[state];
        let joined = networks[usize::from(decision)].up[0];
        let mut drift = self.arrivals * (values[state + joined] - own);
        let mut rate = if joined > 0 { self.arrivals } else { 0.0 };
        for network in networks {
            drift += network.joins * (values[state + network.up[1]] - own)
                + network.leaves[0] * (values[state - network.down[0]] - own)
                + network.leaves[1] * (values[state - network.down[1]] - own);
            rate += network.rate;
        }
        (drift, rate)
    }

    #[inline(always)]
    fn best(&self, values: &[f64], state: usize) -> u8 {
        let [first, second] = self.at(state).map(|network| values[state + network.up[0]] + network.price);
        u8::from(second < first)
    }
}
