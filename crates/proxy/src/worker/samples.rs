//! Samples of a worker's open flows: phases, bytes held, what legs have sent.

use super::{Worker, WorkerSlot};
use std::time::Duration;

/// Interval of sampling. A younger flow is not sampled, so that short flows cost nothing.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The most flows that are sampled at a time, about a millisecond of system calls. With more flows,
/// each is sampled less often, and a sample stands for more time.
const MOST_AT_ONCE: usize = 128;

impl Worker {
    /// Samples the flows that are next in turn, when that is due.
    pub(super) fn take_samples(&mut self) {
        let now = self.scratch.now;
        if now < self.next_samples || self.flows.is_empty() {
            return;
        }
        self.next_samples = now + SAMPLE_INTERVAL;
        let (bound, mut sampled) = (self.flows.bound(), 0);
        for step in 0..bound {
            let slot = (self.next_sampled + step) % bound;
            let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { continue };
            let measurements = &mut self.measurements;
            let add = |stats: &_, samples: &mut _| measurements.sample(stats, samples, now);
            sampled += usize::from(connection.sample(SAMPLE_INTERVAL, now, add));
            if sampled == MOST_AT_ONCE {
                self.next_sampled = slot + 1;
                return;
            }
        }
    }
}
