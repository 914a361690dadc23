//! Queues with known means, which get the same jobs as a simulation of the CAN model: its control
//! variates.
//!
//! The controls are M/G/1 processor-sharing queues. Their means are insensitive to the size
//! distribution, E\[Nₖ\] = ρₖ/(c − Σρ), so that they are exact for each distribution. They get
//! the same arrivals and the same sizes:
//!
//! - all classes in one queue with the capacity of all networks, which near saturation has almost
//!   the same congestion as the model: one control for each class;
//! - the background of each network alone in it;
//! - the foreground alone over all networks.

use super::{Can, job_queue::JobQueue};

/// A processor-sharing queue with a known mean.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    pub(super) queue: JobQueue,
    /// Number of jobs of each of its classes.
    pub(super) jobs: Vec<usize>,
    /// Its classes: the only one, or all.
    only: Option<usize>,
    speed: f64,
}

impl ControlQueue {
    fn new(can: &Can, only: Option<usize>, speed: f64) -> Self {
        let classes = only.map_or(can.sizes.len(), |_| 1);
        ControlQueue { queue: JobQueue { size: can.sizes[0], ..JobQueue::default() }, jobs: vec![0; classes], only, speed }
    }

    /// The controls of a system.
    pub(super) fn all_of(can: &Can) -> Vec<ControlQueue> {
        let total: f64 = can.speeds.iter().sum();
        let mut controls = vec![ControlQueue::new(can, None, total)];
        for (class, rate) in can.arrivals.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            debug_assert!(*rate > 0.0, "a class without arrivals has no queue");
            controls.push(ControlQueue::new(can, Some(class), class.checked_sub(1).map_or(total, |network| can.speeds[network])));
        }
        controls
    }

    /// `E[N]` of each of its classes, by insensitivity.
    pub(super) fn means(&self, can: &Can) -> Vec<f64> {
        let works: Vec<f64> = match self.only {
            Some(class) => vec![can.work(class)],
            None => (0..can.sizes.len()).map(|class| can.work(class)).collect(),
        };
        let left = self.speed - works.iter().sum::<f64>();
        works.into_iter().map(|work| work / left).collect()
    }

    pub(super) fn arrive(&mut self, class: usize, size: f64) {
        if self.only.is_none_or(|only| only == class) {
            let place = if self.only.is_some() { 0 } else { class };
            self.queue.add(size, place);
            self.jobs[place] += 1;
            self.share();
        }
    }

    pub(super) fn depart(&mut self) {
        let place = self.queue.pop();
        self.jobs[place] -= 1;
        self.share();
    }

    fn share(&mut self) {
        self.queue.rate = self.speed / self.jobs.iter().sum::<usize>().max(1) as f64;
    }
}
