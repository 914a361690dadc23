//! Plays a simulation in independent strands, and says what they found together.

use super::{
    Can, CanMeans, Number, Sizes,
    event_simulation::Events,
    jump_chain::Jumps,
    replication::{Strand, ratio},
    simulation::CanRun,
};
use crate::{TheoryError, aimd::positive};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// What a simulation found; errors are half the width of 95 % intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct CanPlayed {
    /// Of jobs. A foreground job is there until all its parts are done. `order` is the number of
    /// events.
    pub means: CanMeans,
    /// The part of the foreground's work that each network does.
    pub split: Vec<Number>,
    /// With static splitting, foreground tasks in each network; else empty.
    pub tasks: Vec<Number>,
    /// Streams in each network, and the part of them that was turned away; nothing where none come.
    pub streams: Vec<Option<[Number; 2]>>,
}

impl CanRun {
    /// Plays about so many foreground jobs (of all jobs, the foreground's part by the rates; where
    /// there is no foreground, of the jobs of all).
    ///
    /// They are played in 20 independent strands, so that intervals need not trust a single one to
    /// forget what it was. The beginnings, in which they forget that they began empty, do not
    /// count: a tenth, or where that is longer what the load lets expect, but no more than nine
    /// times what counts. A run that is not very long against that tends to too low a mean and too
    /// narrow an interval: where the load is high or sizes vary much, it is rare long queues that
    /// make the mean.
    pub fn play(&self, seed: u64, jobs: u64) -> Result<CanPlayed, TheoryError> {
        const STRANDS: usize = 20;
        self.check()?;
        let mut seeds = Pcg64Mcg::seed_from_u64(seed);
        let seeds: Vec<u64> = (0..STRANDS).map(|_| seeds.random()).collect();
        let all: f64 = self.can.arrivals.iter().sum();
        let early = self.memory();
        let foreground = if self.can.arrivals[0] > 0.0 { self.can.arrivals[0] } else { all };
        let each = ((jobs as f64 * all / foreground / STRANDS as f64).ceil() as u64).max(10);
        let next = AtomicUsize::new(0);
        let strands: Vec<Mutex<Strand>> = (0..STRANDS).map(|_| Mutex::default()).collect();
        let work = || {
            while let Some((seed, strand)) = {
                let place = next.fetch_add(1, Ordering::Relaxed);
                seeds.get(place).zip(strands.get(place))
            } {
                let played = self.strand(*seed, early.clamp(each / 9, each.saturating_mul(9)), each);
                *strand.lock().unwrap_or_else(PoisonError::into_inner) = played;
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(STRANDS) {
                scope.spawn(work);
            }
            work();
        });
        let strands: Vec<Strand> = strands.into_iter().map(|strand| strand.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
        Ok(self.played(&strands))
    }

    /// Whether there is a stationary state, with the streams that take from the networks, and with
    /// static splitting.
    fn check(&self) -> Result<(), TheoryError> {
        let can = &self.can;
        positive("the sum of all arrival rates", can.arrivals.iter().sum())?;
        let left: Vec<f64> =
            can.speeds.iter().zip(&self.streams).map(|(speed, streams)| speed - streams.map_or(0.0, |s| s.rate * s.mean())).collect();
        for (place, left) in left.iter().enumerate() {
            let foreground = self.split.as_ref().map_or(0.0, |split| split[place] * can.work(0));
            let load = (can.work(place + 1) + foreground) / left;
            if load >= 1.0 {
                let part = if self.split.is_some() { "and the foreground's part " } else { "" };
                return Err(TheoryError::Overloaded { what: format!("the background {part}in network {}", place + 1), load });
            }
        }
        let load = (0..can.sizes.len()).map(|class| can.work(class)).sum::<f64>() / left.iter().sum::<f64>();
        if load >= 1.0 { Err(TheoryError::Overloaded { what: "all classes together".into(), load }) } else { Ok(()) }
    }

    /// How many arrivals it takes to forget the beginning: thrice the relaxation time 1/(μ (1 −
    /// √ρ)²) of the single queue, of all classes or of one background, that takes longest; with (1
    /// + scv)/2 times as much work left over of a job as of an exponential one.
    fn memory(&self) -> u64 {
        /// Where the variance is infinite, or as good as that.
        const MOST_SCV: f64 = 32.0;
        let can = &self.can;
        let slow = |work: f64, rate: f64, speed: f64| {
            let relaxation = work / rate.max(f64::MIN_POSITIVE) / speed / (1.0 - (work / speed).sqrt()).powi(2);
            if rate > 0.0 { relaxation } else { 0.0 }
        };
        let all: f64 = can.arrivals.iter().sum();
        let work: f64 = (0..can.sizes.len()).map(|class| can.work(class)).sum();
        let one = (1..can.sizes.len()).map(|class| slow(can.work(class), can.arrivals[class], can.speeds[class - 1]));
        let longest = one.fold(slow(work, all, can.speeds.iter().sum()), f64::max);
        let scv = self.sizes.iter().map(|sizes| sizes.scv().min(MOST_SCV)).fold(0.0, f64::max);
        (3.0 * longest * all * (1.0 + scv) / 2.0).ceil() as u64
    }

    /// Plays one strand of so many arrivals that do not count, and so many that do.
    fn strand(&self, seed: u64, early: u64, arrivals: u64) -> Strand {
        let memoryless = self.sizes.iter().all(|sizes| *sizes == Sizes::EXPONENTIAL);
        let plain = self.split.is_none() && self.modulations.iter().all(Option::is_none) && self.streams.iter().all(Option::is_none);
        if memoryless && plain {
            let can = &self.can;
            match can.arrivals.len() {
                2 => after(early, arrivals, Jumps::<2>::new(can, seed), Jumps::play),
                3 => after(early, arrivals, Jumps::<3>::new(can, seed), Jumps::play),
                4 => after(early, arrivals, Jumps::<4>::new(can, seed), Jumps::play),
                _ => after(early, arrivals, Jumps::<{ Can::MOST + 1 }>::new(can, seed), Jumps::play),
            }
        } else {
            after(early, arrivals, Events::new(self, seed), Events::play)
        }
    }

    fn played(&self, strands: &[Strand]) -> CanPlayed {
        let over_time = |part: &dyn Fn(&Strand) -> f64| ratio(strands, part, &|strand| strand.time);
        let (classes, networks) = (self.can.arrivals.len(), self.streams.len());
        let jobs = (0..classes).map(|class| over_time(&|strand| strand.areas[class])).collect();
        let split = |network: usize| ratio(strands, &|strand| strand.served[network], &|strand| strand.served.iter().sum());
        let tasks = |network: usize| over_time(&|strand| strand.tasks[network]);
        let streams = |network: usize| {
            self.streams[network].map(|_| {
                let blocked = ratio(strands, &|strand| strand.blocked[network], &|strand| strand.offered[network]);
                [over_time(&|strand| strand.streams[network]), blocked]
            })
        };
        CanPlayed {
            means: self.can.means(jobs, strands.iter().map(|strand| strand.events as usize).sum()),
            split: (0..networks).map(split).collect(),
            tasks: if self.split.is_some() { (0..networks).map(tasks).collect() } else { Vec::new() },
            streams: (0..networks).map(streams).collect(),
        }
    }
}

/// Plays early arrivals, which do not count, and then those that do.
fn after<S>(early: u64, arrivals: u64, mut system: S, play: fn(&mut S, u64) -> Strand) -> Strand {
    play(&mut system, early);
    play(&mut system, arrivals)
}
