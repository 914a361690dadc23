//! Event-driven simulation of the CAN model, for any size distribution.
//!
//! All jobs of a queue are served at the same rate. So a queue has one virtual clock that advances
//! by the service of one of its jobs, and a job departs when the clock has advanced by its size. An
//! event touches one clock per queue and the top of one heap, however many jobs there are.
//!
//! The foreground is one queue, whose clock advances by the service of all networks together; with
//! static splitting it is one queue per network. The events outside the queues (arrivals, streams,
//! changes of phase) are all exponential, and drawn as one.

use super::{control_queue::ControlQueue, job_queue::JobQueue, replication::Replication, simulation::CanSimulation};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The system and its next events.
pub(super) struct EventSimulation<'a> {
    run: &'a CanSimulation,
    random: Pcg64Mcg,
    /// Of the foreground, one or one per network; then of the backgrounds.
    queues: Vec<JobQueue>,
    /// Number of jobs of each class.
    jobs: Vec<usize>,
    /// Phase of each class's arrivals.
    phases: Vec<usize>,
    /// Number of streams in each network.
    streams: Vec<usize>,
    /// With static splitting: unfinished parts of each file.
    parts: Vec<usize>,
    /// Unused indices of `parts`.
    free_files: Vec<usize>,
    /// Total rate of events outside the queues, 1/s.
    outside_rate: f64,
    /// Time until the next of them, s.
    until_outside: f64,
    /// Service of the foreground in each network, size/s.
    foreground_service: Vec<f64>,
    /// Queues with known means that get the same jobs.
    controls: Vec<ControlQueue>,
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum NextEvent {
    /// A job of this queue departs.
    Departure(usize),
    /// A job of this control queue departs.
    ControlDeparture(usize),
    /// An event outside the queues.
    Outside,
}

impl<'a> EventSimulation<'a> {
    pub(super) fn new(run: &'a CanSimulation, seed: u64) -> Self {
        let (classes, networks) = (run.can.arrivals.len(), run.streams.len());
        let queue = |class: usize, part: f64| JobQueue { size: part * run.can.sizes[class], ..JobQueue::default() };
        let mut queues: Vec<JobQueue> = match &run.split {
            None => vec![queue(0, 1.0)],
            Some(split) => split.iter().map(|part| queue(0, *part)).collect(),
        };
        queues.extend((1..classes).map(|class| queue(class, 1.0)));
        let mut system = EventSimulation {
            run,
            random: Pcg64Mcg::seed_from_u64(seed),
            queues,
            jobs: vec![0; classes],
            phases: vec![0; classes],
            streams: vec![0; networks],
            parts: Vec::new(),
            free_files: Vec::new(),
            outside_rate: 0.0,
            until_outside: 0.0,
            foreground_service: vec![0.0; networks],
            controls: Vec::new(),
        };
        for class in 0..classes {
            if let Some(modulation) = &run.modulations[class] {
                system.phases[class] = pick_weighted(&mut system.random, &modulation.parts);
            }
        }
        system.draw_outside_event();
        system
    }

    /// Adds control queues, which get the same jobs.
    pub(super) fn with_controls(mut self, controls: Vec<ControlQueue>) -> Self {
        self.controls = controls;
        self
    }

    /// Simulates this many arrivals of jobs.
    pub(super) fn run(&mut self, arrivals: u64) -> Replication {
        let mut replication = Replication::new(self.jobs.len());
        let mut left = arrivals;
        while left > 0 {
            let (span, event) = self.next_event();
            self.advance(span, &mut replication);
            left -= u64::from(self.handle(event, &mut replication));
        }
        replication
    }

    /// Simulates this much time, s, and the control queues.
    pub(super) fn run_for(&mut self, time: f64) -> Replication {
        let mut replication = Replication::new(self.jobs.len());
        replication.controls = vec![0.0; self.controls.iter().map(|control| control.jobs.len()).sum()];
        while replication.time < time {
            let (span, event) = self.next_event();
            let left = time - replication.time;
            self.advance(span.min(left), &mut replication);
            if span > left {
                break;
            }
            self.handle(event, &mut replication);
        }
        replication
    }

    /// Time until the next event, if nothing happens before, and what it is.
    fn next_event(&mut self) -> (f64, NextEvent) {
        self.set_rates();
        let mut next = (self.until_outside, NextEvent::Outside);
        for (place, queue) in self.queues.iter().enumerate() {
            let departs_in = queue.time_to_departure();
            if departs_in < next.0 {
                next = (departs_in, NextEvent::Departure(place));
            }
        }
        for (place, control) in self.controls.iter().enumerate() {
            let departs_in = control.queue.time_to_departure();
            if departs_in < next.0 {
                next = (departs_in, NextEvent::ControlDeparture(place));
            }
        }
        next
    }

    /// Handles an event whose time has come; returns whether it is an arrival of a job.
    fn handle(&mut self, event: NextEvent, replication: &mut Replication) -> bool {
        match event {
            NextEvent::Departure(queue) => self.depart(queue),
            NextEvent::ControlDeparture(control) => self.controls[control].depart(),
            NextEvent::Outside => return self.outside_event(replication),
        }
        false
    }

    /// Sets the rates of the clocks.
    fn set_rates(&mut self) {
        let can = &self.run.can;
        let own = self.queues.len() - self.streams.len();
        let dynamic = self.run.split.is_none();
        let mut all = 0.0;
        for network in 0..self.streams.len() {
            let taken = self.run.streams[network].map_or(0.0, |streams| streams.rate * self.streams[network] as f64);
            let foreground = if dynamic { self.jobs[0] } else { self.queues[network].departures.len() };
            let weighed = can.weight * foreground as f64;
            let present = weighed + self.jobs[network + 1] as f64;
            let share = if present > 0.0 { (can.speeds[network] - taken).max(0.0) / present } else { 0.0 };
            self.queues[own + network].rate = share;
            if !dynamic {
                self.queues[network].rate = can.weight * share;
            }
            all += can.weight * share;
            self.foreground_service[network] = weighed * share;
        }
        if dynamic {
            self.queues[0].rate = all;
        }
    }

    /// Advances time by `span` without events.
    fn advance(&mut self, span: f64, replication: &mut Replication) {
        replication.events += 1;
        replication.time += span;
        self.until_outside -= span;
        for queue in &mut self.queues {
            queue.clock += queue.rate * span;
        }
        let mut areas = replication.controls.iter_mut();
        for control in &mut self.controls {
            control.queue.clock += control.queue.rate * span;
            // During the warm-up there are no areas.
            for (jobs, area) in control.jobs.iter().zip(&mut areas) {
                *area += *jobs as f64 * span;
            }
        }
        for (area, jobs) in replication.areas.iter_mut().zip(&self.jobs) {
            *area += *jobs as f64 * span;
        }
        for network in 0..self.streams.len() {
            replication.served[network] += self.foreground_service[network] * span;
            replication.streams[network] += self.streams[network] as f64 * span;
            if self.run.split.is_some() {
                replication.tasks[network] += self.queues[network].departures.len() as f64 * span;
            }
        }
    }

    /// The next job of a queue departs.
    fn depart(&mut self, queue: usize) {
        let own = self.queues.len() - self.streams.len();
        let file = self.queues[queue].pop();
        if queue >= own {
            self.jobs[queue - own + 1] -= 1;
        } else if self.run.split.is_none() {
            self.jobs[0] -= 1;
        } else {
            self.parts[file] -= 1;
            if self.parts[file] == 0 {
                self.free_files.push(file);
                self.jobs[0] -= 1;
            }
        }
    }

    /// Handles the next event outside the queues; returns whether it is an arrival of a job.
    fn outside_event(&mut self, replication: &mut Replication) -> bool {
        let run = self.run;
        let mut point = self.random.random::<f64>() * self.outside_rate;
        let mut chosen = |rate: f64| {
            point -= rate;
            point < 0.0
        };
        let mut arriving = None;
        'found: {
            for class in 0..self.jobs.len() {
                if chosen(self.arrival_rate(class)) {
                    arriving = Some(class);
                    break 'found;
                }
                if let Some(modulation) = &run.modulations[class] {
                    let switches = &modulation.switches[self.phases[class]];
                    if chosen(switches.iter().sum()) {
                        self.phases[class] = pick_weighted(&mut self.random, switches);
                        break 'found;
                    }
                }
            }
            for (network, streams) in run.streams.iter().enumerate() {
                let Some(streams) = streams else { continue };
                if chosen(streams.arrivals) {
                    replication.offered[network] += 1.0;
                    if self.streams[network] < streams.max {
                        self.streams[network] += 1;
                    } else {
                        replication.blocked[network] += 1.0;
                    }
                    break 'found;
                }
                if chosen(self.streams[network] as f64 / streams.mean_s) {
                    self.streams[network] -= 1;
                    break 'found;
                }
            }
            // Rounding may leave a remainder, which is no event.
        }
        if let Some(class) = arriving {
            self.arrive(class);
        }
        self.draw_outside_event();
        arriving.is_some()
    }

    fn arrive(&mut self, class: usize) {
        let own = self.queues.len() - self.streams.len();
        let size = self.run.can.sizes[class] * self.run.sizes[class].draw(&mut self.random);
        self.jobs[class] += 1;
        for control in &mut self.controls {
            control.arrive(class, size);
        }
        match &self.run.split {
            _ if class > 0 => self.queues[own + class - 1].add(size, 0),
            None => self.queues[0].add(size, 0),
            Some(split) => {
                let file = self.free_files.pop().unwrap_or_else(|| {
                    self.parts.push(0);
                    self.parts.len() - 1
                });
                // A part of size 0 is no task.
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

    /// Draws the time until the next event outside the queues.
    fn draw_outside_event(&mut self) {
        let switching = |class: usize| -> f64 {
            self.run.modulations[class].as_ref().map_or(0.0, |modulation| modulation.switches[self.phases[class]].iter().sum())
        };
        let streaming = |network: usize| -> f64 {
            self.run.streams[network].map_or(0.0, |streams| streams.arrivals + self.streams[network] as f64 / streams.mean_s)
        };
        self.outside_rate = (0..self.jobs.len()).map(|class| self.arrival_rate(class) + switching(class)).sum::<f64>()
            + (0..self.streams.len()).map(streaming).sum::<f64>();
        self.until_outside = -(1.0 - self.random.random::<f64>()).ln() / self.outside_rate;
    }
}

/// A random index, by weights.
fn pick_weighted(random: &mut Pcg64Mcg, weights: &[f64]) -> usize {
    let mut point = random.random::<f64>() * weights.iter().sum::<f64>();
    let chosen = weights.iter().position(|weight| {
        point -= weight;
        point < 0.0
    });
    chosen.unwrap_or(weights.len() - 1)
}
