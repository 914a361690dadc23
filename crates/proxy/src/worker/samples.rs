//! Samples of a worker's open flows: phases, bytes held, what legs have sent.

use super::{Worker, WorkerSlot};
use crate::measure::{ProfileUse, ProfileUses};
use intercept::{NamedProfile, leg};
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
        let uses = self.profile_uses();
        let (bound, mut sampled) = (self.flows.bound(), 0);
        for step in 0..bound {
            let slot = (self.next_sampled + step) % bound;
            let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { continue };
            let measurements = &mut self.measurements;
            let add = |stats: &_, samples: &mut _| measurements.sample(stats, samples, &uses, now);
            sampled += usize::from(connection.sample(SAMPLE_INTERVAL, now, add));
            if sampled == MOST_AT_ONCE {
                self.next_sampled = slot + 1;
                return;
            }
        }
    }

    /// What is known of the legs with each profile.
    fn profile_uses(&self) -> ProfileUses {
        let of = |(index, (name, profile, _)): (usize, NamedProfile<'_>)| {
            let control = profile.control.as_deref().unwrap_or_default();
            let by_model = leg::sets_window_by_model(control);
            let profile_use = ProfileUse { link: self.context.link_uses.of(&name), is_share: control.ends_with("share"), by_model };
            (self.measurements.profiles.of(index), profile_use)
        };
        ProfileUses(self.config.policy.profiles().enumerate().map(of).collect())
    }
}
