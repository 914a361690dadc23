//! The system played job by job, for sizes of any law. All jobs of a queue are served alike, so a queue has one clock, which runs as fast as one
//! of its jobs is served, and a job is done when the clock has gone on by its size. So an event touches a clock a queue and the top of a heap,
//! however many jobs there are.
//!
//! The foreground is one queue, whose clock runs as fast as all networks' shares together; with static splitting it is a queue a network.
//! What happens outside the queues (arrivals, streams, changes of phase) is all exponential, and drawn as one.

use super::{replication::Strand, simulation::CanRun};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{cmp::Ordering, collections::BinaryHeap};

/// The system, and when what happens next.
pub(super) struct Events<'a> {
    run: &'a CanRun,
    random: Pcg64Mcg,
    /// The foreground's, one or one a network, and then the backgrounds'.
    queues: Vec<Queue>,
    /// How many jobs of each class there are.
    jobs: Vec<usize>,
    /// The phase of each class's arrivals.
    phases: Vec<usize>,
    /// How many streams there are in each network.
    streams: Vec<usize>,
    /// With static splitting: of each file, how many parts are still to do, and which places are free.
    parts: Vec<usize>,
    free: Vec<usize>,
    /// How often a second something happens outside the queues, and how long until it next does.
    outside: f64,
    until: f64,
    /// The foreground's service in each network, size a second.
    serves: Vec<f64>,
}

/// Jobs that are served alike.
#[derive(Debug, Default)]
struct Queue {
    clock: f64,
    /// How fast it runs now.
    rate: f64,
    ends: BinaryHeap<End>,
    /// The mean size of its jobs.
    size: f64,
}

/// When a job ends on its queue's clock, and of which file it is; the earliest is the greatest.
#[derive(Debug, Clone, Copy)]
struct End {
    at: f64,
    file: usize,
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at)
    }
}

impl Queue {
    /// How long until its next job is done, if nothing changes.
    fn span(&self) -> f64 {
        match self.ends.peek() {
            // Rounding may have passed it by a hair.
            Some(end) if self.rate > 0.0 => ((end.at - self.clock) / self.rate).max(0.0),
            _ => f64::INFINITY,
        }
    }

    fn add(&mut self, size: f64, file: usize) {
        self.ends.push(End { at: self.clock + size, file });
    }

    fn next(&mut self) -> usize {
        /// How many mean sizes a clock may go on: 2⁻⁵³ of it is then less than 10⁻⁹ of a size.
        const LONG: f64 = 1e6;
        let file = self.ends.pop().map_or(0, |end| end.file);
        if self.ends.is_empty() {
            self.clock = 0.0;
        } else if self.clock > LONG * self.size {
            let clock = std::mem::take(&mut self.clock);
            let ends = std::mem::take(&mut self.ends).into_vec();
            self.ends = ends.into_iter().map(|end| End { at: end.at - clock, file: end.file }).collect();
        }
        file
    }
}

impl<'a> Events<'a> {
    pub(super) fn new(run: &'a CanRun, seed: u64) -> Self {
        let (classes, networks) = (run.can.arrivals.len(), run.streams.len());
        let queue = |class: usize, part: f64| Queue { size: part * run.can.sizes[class], ..Queue::default() };
        let mut queues: Vec<Queue> = match &run.split {
            None => vec![queue(0, 1.0)],
            Some(split) => split.iter().map(|part| queue(0, *part)).collect(),
        };
        queues.extend((1..classes).map(|class| queue(class, 1.0)));
        let mut system = Events {
            run,
            random: Pcg64Mcg::seed_from_u64(seed),
            queues,
            jobs: vec![0; classes],
            phases: vec![0; classes],
            streams: vec![0; networks],
            parts: Vec::new(),
            free: Vec::new(),
            outside: 0.0,
            until: 0.0,
            serves: vec![0.0; networks],
        };
        for class in 0..classes {
            if let Some(modulation) = &run.modulations[class] {
                system.phases[class] = pick(&mut system.random, &modulation.parts);
            }
        }
        system.wait();
        system
    }

    /// Plays on for so many arrivals of jobs.
    pub(super) fn play(&mut self, arrivals: u64) -> Strand {
        let mut strand = Strand::new(self.jobs.len());
        let mut left = arrivals;
        while left > 0 {
            self.share();
            let (mut span, mut first) = (self.until, None);
            for (place, queue) in self.queues.iter().enumerate() {
                let its = queue.span();
                if its < span {
                    (span, first) = (its, Some(place));
                }
            }
            self.pass(span, &mut strand);
            match first {
                Some(queue) => self.leave(queue),
                None => left -= u64::from(self.happen(&mut strand)),
            }
        }
        strand
    }

    /// Sets how fast the clocks run.
    fn share(&mut self) {
        let can = &self.run.can;
        let own = self.queues.len() - self.streams.len();
        let dynamic = self.run.split.is_none();
        let mut all = 0.0;
        for network in 0..self.streams.len() {
            let taken = self.run.streams[network].map_or(0.0, |streams| streams.rate * self.streams[network] as f64);
            let foreground = if dynamic { self.jobs[0] } else { self.queues[network].ends.len() };
            let weighed = can.weight * foreground as f64;
            let present = weighed + self.jobs[network + 1] as f64;
            let share = if present > 0.0 { (can.speeds[network] - taken).max(0.0) / present } else { 0.0 };
            self.queues[own + network].rate = share;
            if !dynamic {
                self.queues[network].rate = can.weight * share;
            }
            all += can.weight * share;
            self.serves[network] = weighed * share;
        }
        if dynamic {
            self.queues[0].rate = all;
        }
    }

    /// Lets time go by in which nothing happens.
    fn pass(&mut self, span: f64, strand: &mut Strand) {
        strand.events += 1;
        strand.time += span;
        self.until -= span;
        for queue in &mut self.queues {
            queue.clock += queue.rate * span;
        }
        for (area, jobs) in strand.areas.iter_mut().zip(&self.jobs) {
            *area += *jobs as f64 * span;
        }
        for network in 0..self.streams.len() {
            strand.served[network] += self.serves[network] * span;
            strand.streams[network] += self.streams[network] as f64 * span;
            if self.run.split.is_some() {
                strand.tasks[network] += self.queues[network].ends.len() as f64 * span;
            }
        }
    }

    /// The next job of a queue is done.
    fn leave(&mut self, queue: usize) {
        let own = self.queues.len() - self.streams.len();
        let file = self.queues[queue].next();
        if queue >= own {
            self.jobs[queue - own + 1] -= 1;
        } else if self.run.split.is_none() {
            self.jobs[0] -= 1;
        } else {
            self.parts[file] -= 1;
            if self.parts[file] == 0 {
                self.free.push(file);
                self.jobs[0] -= 1;
            }
        }
    }

    /// Something happens outside the queues; returns whether it is an arrival of a job.
    fn happen(&mut self, strand: &mut Strand) -> bool {
        let run = self.run;
        let mut point = self.random.random::<f64>() * self.outside;
        let mut within = |rate: f64| {
            point -= rate;
            point < 0.0
        };
        let mut arrives = None;
        'found: {
            for class in 0..self.jobs.len() {
                if within(self.arrival_rate(class)) {
                    arrives = Some(class);
                    break 'found;
                }
                if let Some(modulation) = &run.modulations[class] {
                    let switches = &modulation.switches[self.phases[class]];
                    if within(switches.iter().sum()) {
                        self.phases[class] = pick(&mut self.random, switches);
                        break 'found;
                    }
                }
            }
            for (network, streams) in run.streams.iter().enumerate() {
                let Some(streams) = streams else { continue };
                if within(streams.arrivals) {
                    strand.offered[network] += 1.0;
                    if self.streams[network] < streams.most {
                        self.streams[network] += 1;
                    } else {
                        strand.blocked[network] += 1.0;
                    }
                    break 'found;
                }
                if within(self.streams[network] as f64 / streams.mean_s) {
                    self.streams[network] -= 1;
                    break 'found;
                }
            }
            // What rounding leaves over is nobody's.
        }
        if let Some(class) = arrives {
            self.arrive(class);
        }
        self.wait();
        arrives.is_some()
    }

    fn arrive(&mut self, class: usize) {
        let own = self.queues.len() - self.streams.len();
        let size = self.run.can.sizes[class] * self.run.sizes[class].draw(&mut self.random);
        self.jobs[class] += 1;
        match &self.run.split {
            _ if class > 0 => self.queues[own + class - 1].add(size, 0),
            None => self.queues[0].add(size, 0),
            Some(split) => {
                let file = self.free.pop().unwrap_or_else(|| {
                    self.parts.push(0);
                    self.parts.len() - 1
                });
                // Of nothing there is no task.
                for (queue, part) in self.queues.iter_mut().zip(split).filter(|(_, part)| **part > 0.0) {
                    queue.add(size * part, file);
                    self.parts[file] += 1;
                }
            }
        }
    }

    fn arrival_rate(&self, class: usize) -> f64 {
        let factor = self.run.modulations[class].as_ref().map_or(1.0, |modulation| modulation.factors[self.phases[class]]);
        self.run.can.arrivals[class] * factor
    }

    /// Draws how long it is until something happens outside the queues.
    fn wait(&mut self) {
        let switching = |class: usize| -> f64 {
            self.run.modulations[class].as_ref().map_or(0.0, |modulation| modulation.switches[self.phases[class]].iter().sum())
        };
        let streaming = |network: usize| -> f64 {
            self.run.streams[network].map_or(0.0, |streams| streams.arrivals + self.streams[network] as f64 / streams.mean_s)
        };
        self.outside = (0..self.jobs.len()).map(|class| self.arrival_rate(class) + switching(class)).sum::<f64>()
            + (0..self.streams.len()).map(streaming).sum::<f64>();
        self.until = -(1.0 - self.random.random::<f64>()).ln() / self.outside;
    }
}

/// A place, by weights.
fn pick(random: &mut Pcg64Mcg, weights: &[f64]) -> usize {
    let mut point = random.random::<f64>() * weights.iter().sum::<f64>();
    let chosen = weights.iter().position(|weight| {
        point -= weight;
        point < 0.0
    });
    chosen.unwrap_or(weights.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_has_gone_far_is_set_back() {
        let mut queue = Queue { clock: 2e6, size: 1.0, ..Queue::default() };
        for (size, file) in [(1.5, 1), (0.25, 2), (1.0, 3)] {
            queue.add(size, file);
        }
        assert_eq!(queue.next(), 2);
        assert_eq!((queue.clock, queue.ends.peek().unwrap().at), (0.0, 1.0));
        assert_eq!((queue.next(), queue.next(), queue.ends.len()), (3, 1, 0));
    }
}
