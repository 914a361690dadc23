//! The same system played job by job, for sizes of any law. Sharing is fair, so all jobs of a class in a network are served alike: a class has one
//! clock, which runs as fast as one of its jobs is served, and a job is done when the clock has gone on by its size. The foreground's clock
//! runs as fast as all networks' shares together. So an event touches a clock a class and the end of a sorted list, however many jobs there are.
//!
//! E[N] is a time average, and E[S] follows by Little's law.

use crate::{Can, CanMeans, Number};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use scenario::half_width;
use std::sync::Arc;

/// A law of job sizes, of mean 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Sizes {
    /// All alike.
    Deterministic,
    /// Exponential.
    Exponential,
    /// Two phases with balanced means, of this squared coefficient of variation (at least 1).
    Hyperexponential(f64),
    /// P(B > x) = (1 + x/(a − 1))⁻ᵃ: the paper's Pareto-3 with a = 3, and what its Pareto-2 rows follow with a = 2.
    Lomax(f64),
    /// P(B > x) = ((a − 1)/(a x))ᵃ from (a − 1)/a on: the Pareto-2 law as the paper states it with a = 2.
    Pareto(f64),
    /// This part of the mean for all alike, the rest exponential: files of a least size.
    Shifted(f64),
    /// One of these, each as often as the others; scaled to the mean.
    Listed(Arc<[f64]>),
}

impl Sizes {
    fn draw(&self, random: &mut Pcg64Mcg) -> f64 {
        let mut uniform = || 1.0 - random.random::<f64>();
        match self {
            Sizes::Deterministic => 1.0,
            Sizes::Exponential => -uniform().ln(),
            Sizes::Hyperexponential(scv) => {
                let p = (1.0 + ((scv - 1.0) / (scv + 1.0)).sqrt()) / 2.0;
                let rate = if uniform() <= p { 2.0 * p } else { 2.0 * (1.0 - p) };
                -uniform().ln() / rate
            }
            Sizes::Lomax(a) => (a - 1.0) * (uniform().powf(-1.0 / a) - 1.0),
            Sizes::Pareto(a) => (a - 1.0) / a * uniform().powf(-1.0 / a),
            Sizes::Shifted(part) => part - (1.0 - part) * uniform().ln(),
            Sizes::Listed(sizes) => {
                let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
                sizes[random.random_range(0..sizes.len())] / mean
            }
        }
    }
}

/// Parts that intervals come from.
const PARTS: usize = 40;

impl Can {
    /// Plays about so many foreground jobs (of all jobs, the foreground's part by the rates) with sizes of a law; the error is half the width of
    /// the 95 % interval. `order` is the number of events.
    pub fn simulate(&self, sizes: &Sizes, seed: u64, jobs: u64) -> CanMeans {
        let all: f64 = self.arrivals.iter().sum();
        let arrivals = (jobs as f64 * all / self.arrivals[0].max(all * 1e-9)).ceil() as u64;
        let each = (arrivals / PARTS as u64).max(1);
        let mut system = System::new(self, sizes, seed);
        // The first part forgets that all began empty.
        let parts: Vec<Part> = (0..=PARTS).map(|_| system.play(each)).skip(1).collect();
        let time: f64 = parts.iter().map(|part| part.time).sum();
        let jobs: Vec<Number> = (0..self.arrivals.len())
            .map(|class| {
                let value = parts.iter().map(|part| part.areas[class]).sum::<f64>() / time;
                let share = time / PARTS as f64;
                let deviations: Vec<f64> = parts.iter().map(|part| (part.areas[class] - value * part.time) / share).collect();
                Number { value, error: half_width(&deviations) }
            })
            .collect();
        self.means(jobs, parts.iter().map(|part| part.events).sum())
    }
}

/// Time, ∫ N dt of each class, and events, over a part.
struct Part {
    time: f64,
    areas: Vec<f64>,
    events: usize,
}

struct System<'a> {
    can: &'a Can,
    sizes: &'a Sizes,
    random: Pcg64Mcg,
    /// For each class: how far its clock has gone, and when on it its jobs end, the next one last.
    clocks: Vec<f64>,
    ends: Vec<Vec<f64>>,
    /// How many jobs there are: the lengths of `ends`, or all that is known where sizes are exponential.
    jobs: Vec<usize>,
    until_arrival: f64,
}

impl<'a> System<'a> {
    fn new(can: &'a Can, sizes: &'a Sizes, seed: u64) -> Self {
        let classes = can.arrivals.len();
        let mut system = System {
            can,
            sizes,
            random: Pcg64Mcg::seed_from_u64(seed),
            clocks: vec![0.0; classes],
            ends: vec![Vec::new(); classes],
            jobs: vec![0; classes],
            until_arrival: 0.0,
        };
        system.until_arrival = system.gap();
        system
    }

    fn gap(&mut self) -> f64 {
        -(1.0 - self.random.random::<f64>()).ln() / self.can.arrivals.iter().sum::<f64>()
    }

    /// What one job of each class is served a second.
    fn rates(&self, rates: &mut [f64]) {
        rates[0] = 0.0;
        for (network, speed) in self.can.speeds.iter().enumerate() {
            let present = self.jobs[0] + self.jobs[network + 1];
            let share = if present > 0 { speed / present as f64 } else { 0.0 };
            rates[network + 1] = share;
            rates[0] += share;
        }
    }

    fn play(&mut self, arrivals: u64) -> Part {
        if *self.sizes == Sizes::Exponential { self.jumps(arrivals) } else { self.events(arrivals) }
    }

    /// Exponential sizes need no clocks: the next event is drawn by the rates, and the time until it counts by its mean.
    fn jumps(&mut self, arrivals: u64) -> Part {
        let classes = self.jobs.len();
        let mut part = Part { time: 0.0, areas: vec![0.0; classes], events: 0 };
        let all: f64 = self.can.arrivals.iter().sum();
        let mut rates = vec![0.0; classes];
        let mut left = arrivals;
        while left > 0 {
            self.rates(&mut rates);
            let mut total = all;
            for (class, rate) in rates.iter_mut().enumerate() {
                *rate *= self.jobs[class] as f64 / self.can.sizes[class];
                total += *rate;
            }
            let span = 1.0 / total;
            part.time += span;
            for class in 0..classes {
                part.areas[class] += self.jobs[class] as f64 * span;
            }
            part.events += 1;
            let mut point = self.random.random::<f64>() * total;
            if point < all {
                left -= 1;
                let mut class = 0;
                while class + 1 < classes && point >= self.can.arrivals[class] {
                    point -= self.can.arrivals[class];
                    class += 1;
                }
                self.jobs[class] += 1;
            } else {
                point -= all;
                let class = (0..classes).find(|class| {
                    point -= rates[*class];
                    point < 0.0
                });
                // What rounding leaves over is nobody's.
                if let Some(class) = class.filter(|class| self.jobs[*class] > 0) {
                    self.jobs[class] -= 1;
                }
            }
        }
        part
    }

    fn events(&mut self, arrivals: u64) -> Part {
        let classes = self.jobs.len();
        let mut part = Part { time: 0.0, areas: vec![0.0; classes], events: 0 };
        let mut rates = vec![0.0; classes];
        let mut left = arrivals;
        while left > 0 {
            self.rates(&mut rates);
            let mut next = (self.until_arrival, None);
            for (class, rate) in rates.iter().enumerate() {
                if let Some(end) = self.ends[class].last() {
                    let span = (end - self.clocks[class]) / rate;
                    if span < next.0 {
                        next = (span, Some(class));
                    }
                }
            }
            let (span, leaves) = (next.0.max(0.0), next.1);
            part.time += span;
            part.events += 1;
            for (class, rate) in rates.iter().enumerate() {
                part.areas[class] += self.jobs[class] as f64 * span;
                self.clocks[class] += rate * span;
            }
            self.until_arrival -= span;
            match leaves {
                Some(class) => {
                    self.ends[class].pop();
                    self.jobs[class] -= 1;
                    if self.jobs[class] == 0 {
                        // A clock that never went back to 0 would lose digits.
                        self.clocks[class] = 0.0;
                    }
                }
                None => {
                    left -= 1;
                    self.arrive();
                }
            }
        }
        part
    }

    fn arrive(&mut self) {
        let all: f64 = self.can.arrivals.iter().sum();
        let mut point = self.random.random::<f64>() * all;
        let mut class = 0;
        while class + 1 < self.jobs.len() && point >= self.can.arrivals[class] {
            point -= self.can.arrivals[class];
            class += 1;
        }
        let end = self.clocks[class] + self.can.sizes[class] * self.sizes.draw(&mut self.random);
        let ends = &mut self.ends[class];
        let place = ends.partition_point(|other| *other > end);
        ends.insert(place, end);
        self.jobs[class] += 1;
        self.until_arrival = self.gap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: (f64, [f64; 2]) = (0.1, [0.5, 0.7]);

    fn simulated(sizes: &Sizes, jobs: u64) -> Number {
        Can::new(CELL.0, &CELL.1).unwrap().simulate(sizes, 5, jobs).sojourn_s[0].unwrap()
    }

    #[test]
    fn sizes_have_the_mean_and_the_tail_that_they_say() {
        let mut random = Pcg64Mcg::seed_from_u64(3);
        const N: usize = 400_000;
        let listed = Sizes::Listed([1.0, 2.0, 9.0].into());
        for (sizes, scv) in [
            (Sizes::Deterministic, 0.0),
            (Sizes::Exponential, 1.0),
            (Sizes::Hyperexponential(16.0), 16.0),
            (Sizes::Lomax(3.0), 3.0),
            (Sizes::Shifted(0.25), 0.5625),
            (listed, 38.0 / 48.0),
        ] {
            let drawn: Vec<f64> = (0..N).map(|_| sizes.draw(&mut random)).collect();
            let mean = drawn.iter().sum::<f64>() / N as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / N as f64;
            assert!((mean - 1.0).abs() < 0.03, "{sizes:?}: mean {mean}");
            // The fourth moment of Lomax-3 is infinite, so its variance comes slowly.
            let width = if sizes == Sizes::Lomax(3.0) { 1.0 } else { 0.05 };
            assert!((variance - scv).abs() <= width * scv.max(0.01), "{sizes:?}: {variance}");
        }
        for (sizes, tail) in [(Sizes::Lomax(2.0), 0.25), (Sizes::Pareto(2.0), 0.25)] {
            let above = (0..N).filter(|_| sizes.draw(&mut random) > 1.0).count() as f64 / N as f64;
            assert!((above - tail).abs() < 0.005, "{sizes:?}: {above}");
        }
    }

    #[test]
    fn exponential_sizes_are_the_chain_with_clocks_and_without() {
        let chain = Can::new(CELL.0, &CELL.1).unwrap().solve().sojourn_s[0].unwrap().value;
        let jumps = simulated(&Sizes::Exponential, 400_000);
        // Shifted by nothing it is the same law, and takes the other way.
        let events = simulated(&Sizes::Shifted(0.0), 400_000);
        for found in [jumps, events] {
            assert!((found.value - chain).abs() < 1.6 * found.error && found.error < 0.02 * chain, "{found:?} of {chain}");
        }
    }

    #[test]
    fn the_papers_rows_of_other_laws_come_out() {
        // Table I, (0.1; 0.5, 0.7).
        for (sizes, printed) in
            [(Sizes::Deterministic, 1.16), (Sizes::Lomax(3.0), 1.18), (Sizes::Hyperexponential(16.0), 1.20), (Sizes::Lomax(2.0), 1.19)]
        {
            let found = simulated(&sizes, 400_000);
            assert!((found.value - printed).abs() < 0.006 + 1.6 * found.error, "{sizes:?}: {found:?}, printed {printed}");
        }
    }

    #[test]
    fn a_network_alone_is_insensitive() {
        // Processor sharing: the mean time does not depend on the law.
        for sizes in [Sizes::Deterministic, Sizes::Hyperexponential(16.0), Sizes::Exponential] {
            let found = Can::new(0.3, &[0.3]).unwrap().simulate(&sizes, 1, 400_000).sojourn_s[0].unwrap();
            assert!((found.value - 2.5).abs() < 1.6 * found.error, "{sizes:?}: {found:?}");
        }
    }
}
