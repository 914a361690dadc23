//! The system with exponential sizes and Poisson arrivals, played from jump to jump: the next event is drawn by the rates (2) to (4), and the
//! time until it counts by its mean, which is quicker than to draw it and varies less.

use super::{Can, replication::Strand};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The chain of D classes.
pub(super) struct Jumps<const D: usize> {
    random: Pcg64Mcg,
    /// Sums of the arrival rates up to each class.
    edges: [f64; D],
    /// Of each network, in the place of its background's class.
    shares: [Shares; D],
    /// What each event, arrivals first, does to the numbers of jobs.
    steps: Vec<([i32; D], [f64; D])>,
    jobs: [i32; D],
}

/// What a network takes from the foreground and from its background, jobs a second.
struct Shares {
    rates: [f64; 2],
    weight: f64,
    /// Of few jobs, at `foreground * Shares::BACKGROUND + background`.
    known: Vec<[f64; 2]>,
}

impl Shares {
    /// Rows of 63 cache lines, so that neighbouring rows do not compete for the same ones.
    const BACKGROUND: usize = 252;
    const FOREGROUND: usize = 64;

    fn new(can: &Can, class: usize) -> Self {
        if class == 0 {
            return Shares { rates: [0.0; 2], weight: 1.0, known: Vec::new() };
        }
        let speed = can.speeds[class - 1];
        let mut shares = Shares { rates: [speed / can.sizes[0], speed / can.sizes[class]], weight: can.weight, known: Vec::new() };
        let all = (0..Shares::FOREGROUND).flat_map(|foreground| (0..Shares::BACKGROUND).map(move |background| (foreground, background)));
        shares.known = all.map(|(foreground, background)| shares.of(foreground as f64, background as f64)).collect();
        shares
    }

    fn of(&self, foreground: f64, background: f64) -> [f64; 2] {
        let weighed = self.weight * foreground;
        let all = (weighed + background).max(f64::MIN_POSITIVE);
        [self.rates[0] * weighed / all, self.rates[1] * background / all]
    }

    #[inline(always)]
    fn at(&self, foreground: i32, background: i32) -> [f64; 2] {
        let (row, place) = (foreground as usize, background as usize);
        if row < Shares::FOREGROUND && place < Shares::BACKGROUND {
            self.known[row * Shares::BACKGROUND + place]
        } else {
            self.of(f64::from(foreground), f64::from(background))
        }
    }
}

impl<const D: usize> Jumps<D> {
    pub(super) fn new(can: &Can, seed: u64) -> Self {
        let mut sum = 0.0;
        let edges = std::array::from_fn(|class| {
            sum += can.arrivals[class];
            sum
        });
        let step = |event: usize, class: usize| if event % D == class { if event < D { 1 } else { -1 } } else { 0 };
        let steps = (0..2 * D).map(|event| {
            let jobs: [i32; D] = std::array::from_fn(|class| step(event, class));
            (jobs, jobs.map(f64::from))
        });
        Jumps {
            random: Pcg64Mcg::seed_from_u64(seed),
            edges,
            shares: std::array::from_fn(|class| Shares::new(can, class)),
            steps: steps.collect(),
            jobs: [0; D],
        }
    }

    /// Plays on for so many arrivals, which are half of the events.
    pub(super) fn play(&mut self, arrivals: u64) -> Strand {
        let mut strand = Strand::new(D);
        let mut left = arrivals.saturating_mul(2);
        while left > 0 {
            // Sums of sums, so that small times do not drown in large ones.
            let events = left.min(1 << 20);
            self.some(events, &mut strand);
            left -= events;
        }
        strand
    }

    fn some(&mut self, events: u64, strand: &mut Strand) {
        // 2⁻⁵³
        const UNIT: f64 = f64::EPSILON / 2.0;
        let (mut time, mut areas, mut served) = (0.0, [0.0; D], [0.0; D]);
        let mut jobs = self.jobs;
        let mut numbers = jobs.map(f64::from);
        for _ in 0..events {
            let shares: [[f64; 2]; D] =
                std::array::from_fn(|class| if class == 0 { [0.0; 2] } else { self.shares[class].at(jobs[0], jobs[class]) });
            let mut edge = self.edges[D - 1];
            let mut ends = [0.0; D];
            edge += shares.iter().map(|share| share[0]).sum::<f64>();
            ends[0] = edge;
            for class in 1..D {
                edge += shares[class][1];
                ends[class] = edge;
            }
            let span = 1.0 / edge;
            time += span;
            for class in 0..D {
                areas[class] += numbers[class] * span;
                served[class] += shares[class][0] * span;
            }
            // Below the last edge, so that what cannot leave is never chosen: an event of rate 0 has its edge where the one before has.
            let point = (self.random.next_u64() >> 11) as f64 * UNIT * edge;
            let arrivals: usize = self.edges.iter().map(|edge| usize::from(point >= *edge)).sum();
            let departures: usize = ends[..D - 1].iter().map(|edge| usize::from(point >= *edge)).sum();
            let (step, numbers_step) = &self.steps[arrivals + departures];
            for class in 0..D {
                jobs[class] += step[class];
                numbers[class] += numbers_step[class];
            }
        }
        self.jobs = jobs;
        strand.events += events;
        strand.time += time;
        for class in 0..D {
            strand.areas[class] += areas[class];
            if class > 0 {
                strand.served[class - 1] += served[class];
            }
        }
    }
}
