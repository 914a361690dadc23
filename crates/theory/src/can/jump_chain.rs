//! Simulation with exponential sizes and Poisson arrivals by the embedded jump chain: the next
//! event is drawn by the rates (2) to (4), and the time until it is replaced by its mean. That is
//! faster than drawing it, and reduces the variance.

use super::{Can, replication::Replication};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The jump chain of D classes.
pub(super) struct JumpChain<const D: usize> {
    random: Pcg64Mcg,
    /// Cumulative arrival rates, by class.
    cumulative_arrivals: [f64; D],
    /// Of each network, at the index of its background's class.
    departures: [DepartureRates; D],
    /// Change of the numbers of jobs by each event, arrivals first.
    steps: Vec<([i32; D], [f64; D])>,
    jobs: [i32; D],
}

/// Departure rates of the foreground and of the background in a network, jobs/s.
struct DepartureRates {
    /// Of a job alone in the network.
    rates: [f64; 2],
    weight: f64,
    /// Table for small numbers of jobs, at `foreground * BACKGROUND + background`.
    table: Vec<[f64; 2]>,
}

impl DepartureRates {
    /// Row length: 63 cache lines, so that neighbouring rows do not map to the same cache sets.
    const BACKGROUND: usize = 252;
    const FOREGROUND: usize = 64;

    fn new(can: &Can, class: usize) -> Self {
        if class == 0 {
            return DepartureRates { rates: [0.0; 2], weight: 1.0, table: Vec::new() };
        }
        let speed = can.speeds[class - 1];
        let mut departures =
            DepartureRates { rates: [speed / can.sizes[0], speed / can.sizes[class]], weight: can.weight, table: Vec::new() };
        let all = (0..DepartureRates::FOREGROUND)
            .flat_map(|foreground| (0..DepartureRates::BACKGROUND).map(move |background| (foreground, background)));
        departures.table = all.map(|(foreground, background)| departures.compute(foreground as f64, background as f64)).collect();
        departures
    }

    fn compute(&self, foreground: f64, background: f64) -> [f64; 2] {
        let weighed = self.weight * foreground;
        let all = (weighed + background).max(f64::MIN_POSITIVE);
        [self.rates[0] * weighed / all, self.rates[1] * background / all]
    }

    #[inline(always)]
    fn at(&self, foreground: i32, background: i32) -> [f64; 2] {
        let (row, place) = (foreground as usize, background as usize);
        if row < DepartureRates::FOREGROUND && place < DepartureRates::BACKGROUND {
            self.table[row * DepartureRates::BACKGROUND + place]
        } else {
            self.compute(f64::from(foreground), f64::from(background))
        }
    }
}

impl<const D: usize> JumpChain<D> {
    pub(super) fn new(can: &Can, seed: u64) -> Self {
        let mut sum = 0.0;
        let cumulative_arrivals = std::array::from_fn(|class| {
            sum += can.arrivals[class];
            sum
        });
        let step = |event: usize, class: usize| if event % D == class { if event < D { 1 } else { -1 } } else { 0 };
        let steps = (0..2 * D).map(|event| {
            let jobs: [i32; D] = std::array::from_fn(|class| step(event, class));
            (jobs, jobs.map(f64::from))
        });
        JumpChain {
            random: Pcg64Mcg::seed_from_u64(seed),
            cumulative_arrivals,
            departures: std::array::from_fn(|class| DepartureRates::new(can, class)),
            steps: steps.collect(),
            jobs: [0; D],
        }
    }

    /// Simulates this many arrivals, which are half of the events.
    pub(super) fn run(&mut self, arrivals: u64) -> Replication {
        let mut replication = Replication::new(D);
        let mut left = arrivals.saturating_mul(2);
        while left > 0 {
            // Partial sums limit the rounding error of adding small times to large ones.
            let events = left.min(1 << 20);
            self.run_events(events, &mut replication);
            left -= events;
        }
        replication
    }

    /// Simulates this many events.
    fn run_events(&mut self, events: u64, replication: &mut Replication) {
        // 2⁻⁵³
        const UNIT: f64 = f64::EPSILON / 2.0;
        let mut time = 0.0;
        let mut areas = [0.0; D];
        let mut served = [0.0; D];
        let mut jobs = self.jobs;
        let mut numbers = jobs.map(f64::from);
        for _ in 0..events {
            let rates: [[f64; 2]; D] =
                std::array::from_fn(|class| if class == 0 { [0.0; 2] } else { self.departures[class].at(jobs[0], jobs[class]) });
            let mut edge = self.cumulative_arrivals[D - 1];
            let mut ends = [0.0; D];
            edge += rates.iter().map(|rate| rate[0]).sum::<f64>();
            ends[0] = edge;
            for class in 1..D {
                edge += rates[class][1];
                ends[class] = edge;
            }
            let span = 1.0 / edge;
            time += span;
            for class in 0..D {
                areas[class] += numbers[class] * span;
                served[class] += rates[class][0] * span;
            }
            // Strictly below the last edge. An event with rate 0 has the same edge as the one
            // before and is never chosen.
            let point = (self.random.next_u64() >> 11) as f64 * UNIT * edge;
            let arrivals: usize = self.cumulative_arrivals.iter().map(|edge| usize::from(point >= *edge)).sum();
            let departed: usize = ends[..D - 1].iter().map(|edge| usize::from(point >= *edge)).sum();
            let (step, numbers_step) = &self.steps[arrivals + departed];
            for class in 0..D {
                jobs[class] += step[class];
                numbers[class] += numbers_step[class];
            }
        }
        self.jobs = jobs;
        replication.events += events;
        replication.time += time;
        for class in 0..D {
            replication.areas[class] += areas[class];
            if class > 0 {
                replication.served[class - 1] += served[class];
            }
        }
    }
}
