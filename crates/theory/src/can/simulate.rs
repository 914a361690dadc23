//! Runs a simulation as independent replications in parallel, and combines their results.

use super::{
    Can, CanMeans, SizeDistribution, ValueWithError,
    event_simulation::EventSimulation,
    jump_chain::JumpChain,
    replication::{Replication, ratio},
    simulation::CanSimulation,
};
use crate::error::{TheoryError, positive};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// The results of a simulation. Errors are half widths of 95 % confidence intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct CanSimulationResult {
    /// Means of jobs. A foreground job stays until all its parts are done. `order` is the number of
    /// events.
    pub means: CanMeans,
    /// Fraction of the foreground's work that each network does.
    pub split: Vec<ValueWithError>,
    /// With static splitting: mean number of foreground tasks in each network; else empty.
    pub tasks: Vec<ValueWithError>,
    /// For each network with streams: their mean number, and the fraction that was blocked.
    pub streams: Vec<Option<[ValueWithError; 2]>>,
}

impl CanSimulation {
    /// Simulates about `jobs` foreground jobs (and other jobs in proportion to the arrival rates;
    /// without a foreground, `jobs` of all classes).
    ///
    /// There are 20 independent replications, so the confidence intervals do not rely on the mixing
    /// of a single one. Each starts empty with a warm-up, which does not count: a tenth of its
    /// length or, if that is longer, what the load requires, but at most nine times its length. A
    /// run that is not much longer than the warm-up underestimates the mean and the interval: at
    /// high load, or with highly variable sizes, rare long queues dominate the mean.
    ///
    /// # Errors
    /// When there is no stationary state.
    pub fn run(&self, seed: u64, jobs: u64) -> Result<CanSimulationResult, TheoryError> {
        const REPLICATIONS: usize = 20;
        self.check()?;
        let (each, warm_up) = self.arrivals_and_warm_up(jobs, REPLICATIONS);
        let replications = self.replications(seed, REPLICATIONS, |seed| self.replicate(seed, warm_up, each));
        Ok(self.combine(&replications))
    }

    /// Arrivals of a replication that count, so that all have about `jobs` foreground jobs, and
    /// those of its warm-up.
    pub(super) fn arrivals_and_warm_up(&self, jobs: u64, replications: usize) -> (u64, u64) {
        let all: f64 = self.can.arrivals.iter().sum();
        let foreground = if self.can.arrivals[0] > 0.0 { self.can.arrivals[0] } else { all };
        let each = ((jobs as f64 * all / foreground / replications as f64).ceil() as u64).max(10);
        (each, self.warm_up().clamp(each / 9, each.saturating_mul(9)))
    }

    /// Runs independent replications on all threads, in the order of their seeds, which are drawn
    /// from `seed`.
    pub(super) fn replications(&self, seed: u64, count: usize, replicate: impl Fn(u64) -> Replication + Sync) -> Vec<Replication> {
        let mut seeds = Pcg64Mcg::seed_from_u64(seed);
        let seeds: Vec<u64> = (0..count).map(|_| seeds.random()).collect();
        let next = AtomicUsize::new(0);
        let replications: Vec<Mutex<Replication>> = (0..count).map(|_| Mutex::default()).collect();
        let work = || {
            while let Some((seed, replication)) = {
                let place = next.fetch_add(1, Ordering::Relaxed);
                seeds.get(place).zip(replications.get(place))
            } {
                let result = replicate(*seed);
                *replication.lock().unwrap_or_else(PoisonError::into_inner) = result;
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(count) {
                scope.spawn(work);
            }
            work();
        });
        replications.into_iter().map(|replication| replication.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Checks that there is a stationary state, with streams and static splitting.
    pub(super) fn check(&self) -> Result<(), TheoryError> {
        let can = &self.can;
        positive("the sum of all arrival rates", can.arrivals.iter().sum())?;
        let left: Vec<f64> =
            can.speeds.iter().zip(&self.streams).map(|(speed, streams)| speed - streams.map_or(0.0, |s| s.rate * s.mean())).collect();
        for (network, left) in left.iter().enumerate() {
            let foreground = self.split.as_ref().map_or(0.0, |split| split[network] * can.work(0));
            let load = (can.work(network + 1) + foreground) / left;
            if load >= 1.0 {
                let part = if self.split.is_some() { "and the foreground's part " } else { "" };
                return Err(TheoryError::Overloaded { what: format!("the background {part}in network {}", network + 1), load });
            }
        }
        let load = (0..can.sizes.len()).map(|class| can.work(class)).sum::<f64>() / left.iter().sum::<f64>();
        if load >= 1.0 { Err(TheoryError::Overloaded { what: "all classes together".into(), load }) } else { Ok(()) }
    }

    /// Length of the warm-up, arrivals: three times the relaxation time 1/(μ (1 − √ρ)²) of the
    /// slowest single queue, of all classes or of one background, times (1 + scv)/2, the residual
    /// work of a job over that of an exponential one.
    fn warm_up(&self) -> u64 {
        /// Bound for distributions with infinite or very large variance.
        const MAX_SCV: f64 = 32.0;
        let can = &self.can;
        let relaxation_time = |work: f64, rate: f64, speed: f64| {
            let time = work / rate.max(f64::MIN_POSITIVE) / speed / (1.0 - (work / speed).sqrt()).powi(2);
            if rate > 0.0 { time } else { 0.0 }
        };
        let all: f64 = can.arrivals.iter().sum();
        let work: f64 = (0..can.sizes.len()).map(|class| can.work(class)).sum();
        let backgrounds = (1..can.sizes.len()).map(|class| relaxation_time(can.work(class), can.arrivals[class], can.speeds[class - 1]));
        let longest = backgrounds.fold(relaxation_time(work, all, can.speeds.iter().sum()), f64::max);
        let scv = self.sizes.iter().map(|sizes| sizes.scv().min(MAX_SCV)).fold(0.0, f64::max);
        (3.0 * longest * all * (1.0 + scv) / 2.0).ceil() as u64
    }

    /// Runs one replication: a warm-up, and then the arrivals that count.
    fn replicate(&self, seed: u64, warm_up: u64, arrivals: u64) -> Replication {
        let memoryless = self.sizes.iter().all(|sizes| *sizes == SizeDistribution::EXPONENTIAL);
        let plain = self.split.is_none() && self.modulations.iter().all(Option::is_none) && self.streams.iter().all(Option::is_none);
        if memoryless && plain {
            let can = &self.can;
            match can.arrivals.len() {
                2 => run_after(warm_up, arrivals, JumpChain::<2>::new(can, seed), JumpChain::run),
                3 => run_after(warm_up, arrivals, JumpChain::<3>::new(can, seed), JumpChain::run),
                4 => run_after(warm_up, arrivals, JumpChain::<4>::new(can, seed), JumpChain::run),
                _ => run_after(warm_up, arrivals, JumpChain::<{ Can::MAX_NETWORKS + 1 }>::new(can, seed), JumpChain::run),
            }
        } else {
            run_after(warm_up, arrivals, EventSimulation::new(self, seed), EventSimulation::run)
        }
    }

    fn combine(&self, replications: &[Replication]) -> CanSimulationResult {
        let over_time = |part: &dyn Fn(&Replication) -> f64| ratio(replications, part, &|replication| replication.time);
        let (classes, networks) = (self.can.arrivals.len(), self.streams.len());
        let jobs = (0..classes).map(|class| over_time(&|replication| replication.areas[class])).collect();
        let split = |network: usize| {
            ratio(replications, &|replication| replication.served[network], &|replication| replication.served.iter().sum())
        };
        let tasks = |network: usize| over_time(&|replication| replication.tasks[network]);
        let streams = |network: usize| {
            self.streams[network].map(|_| {
                let blocked = ratio(replications, &|replication| replication.blocked[network], &|replication| replication.offered[network]);
                [over_time(&|replication| replication.streams[network]), blocked]
            })
        };
        CanSimulationResult {
            means: self.can.means(jobs, replications.iter().map(|replication| replication.events as usize).sum()),
            split: (0..networks).map(split).collect(),
            tasks: if self.split.is_some() { (0..networks).map(tasks).collect() } else { Vec::new() },
            streams: (0..networks).map(streams).collect(),
        }
    }
}

/// Runs a warm-up, and then the arrivals that count.
fn run_after<S>(warm_up: u64, arrivals: u64, mut system: S, run: fn(&mut S, u64) -> Replication) -> Replication {
    run(&mut system, warm_up);
    run(&mut system, arrivals)
}
