//! Which transfers of a run over networks in parallel count, and the period in which the networks are
//! measured. The simulator and the lab share it.
//!
//! A warm-up of a tenth as many foreground transfers as are measured does not count, since the networks
//! begin empty. Every transfer between the first and the last that count, of any class, counts. The run
//! lasts until all of these have ended; meanwhile other transfers arrive.

use crate::sojourns::{Means, Sojourns};
use scenario::Parallel;

/// Foreground transfers that count for each one of the warm-up.
const WARM_UP: u64 = 10;

/// Counts the transfers of a run. `M` is the state of the networks that an engine records at the
/// beginning and at the end of the measurement.
///
/// Call [`arrive`](Self::arrive) for each transfer that begins, in order, and
/// [`end`](Self::end) with what it returned when the transfer ends. The run is over when
/// [`is_over`](Self::is_over), or when its time is.
#[derive(Debug)]
pub struct CountedJobs<M> {
    /// Foreground transfers of the warm-up.
    warm_up: u64,
    /// Foreground transfers that count; 0 without a foreground.
    jobs: u64,
    /// Foreground transfers that have begun.
    seen: u64,
    /// Transfers that count and have not ended.
    open: u64,
    sojourns: Sojourns,
    began: Option<M>,
    stopped: Option<M>,
}

impl<M> CountedJobs<M> {
    /// The count for these networks.
    pub fn new(parallel: &Parallel<'_>) -> Self {
        let jobs = parallel.foreground.map_or(0, |foreground| foreground.jobs);
        let sojourns = Sojourns::new(parallel.classes(), jobs);
        CountedJobs { warm_up: jobs / WARM_UP, jobs, seen: 0, open: 0, sojourns, began: None, stopped: None }
    }

    /// Whether random transfers are counted; otherwise all flows are listed.
    pub fn has_foreground(&self) -> bool {
        self.jobs > 0
    }

    /// A transfer of a class (0: the foreground) begins. Returns its batch, if it counts. `mark` is
    /// called for the state of the networks if the measurement begins or ends with this transfer.
    pub fn arrive(&mut self, class: usize, mut mark: impl FnMut() -> M) -> Option<usize> {
        let is_foreground = class == 0;
        self.seen += u64::from(is_foreground);
        if is_foreground && self.seen == self.warm_up + 1 && self.began.is_none() {
            self.began = Some(mark());
        }
        if self.began.is_none() || self.stopped.is_some() || self.jobs == 0 {
            return None;
        }
        let number = self.seen - self.warm_up - 1;
        if is_foreground && number + 1 == self.jobs {
            self.stopped = Some(mark());
        }
        self.open += 1;
        Some(self.sojourns.batch(number))
    }

    /// A transfer of a class has ended after this time in seconds; none if it failed. `batch` is what
    /// [`arrive`](Self::arrive) returned for it.
    pub fn end(&mut self, class: usize, batch: Option<usize>, time_s: Option<f64>) {
        let Some(batch) = batch else { return };
        self.open -= 1;
        if let Some(time_s) = time_s {
            self.sojourns.add(class, batch, time_s);
        }
    }

    /// Begins the measurement now instead of after the warm-up.
    pub fn begin(&mut self, mark: M) {
        self.began = Some(mark);
    }

    /// The run ends, and the measurement with it unless a transfer has ended it before.
    pub fn stop(&mut self, mark: impl FnOnce() -> M) {
        if self.stopped.is_none() {
            self.stopped = Some(mark());
        }
    }

    /// Whether every transfer that counts has ended.
    pub fn is_over(&self) -> bool {
        self.stopped.is_some() && self.open == 0
    }

    /// Share of the foreground transfers that have begun, 0 to 1.
    pub fn progress(&self) -> f64 {
        (self.seen as f64 / (self.warm_up + self.jobs).max(1) as f64).min(1.0)
    }

    /// The states at the beginning of the measurement and at its end.
    pub fn marks(&self) -> (Option<&M>, Option<&M>) {
        (self.began.as_ref(), self.stopped.as_ref())
    }

    /// Sojourn times by class; empty if all flows are listed.
    pub fn means(&self) -> Means {
        if self.has_foreground() { self.sojourns.means() } else { Means::default() }
    }
}
