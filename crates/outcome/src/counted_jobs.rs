//! Which transfers of a run over networks in parallel count, and from when to when the networks are
//! measured. The simulator and the lab measure alike.
//!
//! Of transfers that come by chance, a tenth as many as are measured come before these and do not
//! count: the networks begin empty. What comes between the first and the last that count, of
//! whatever class, counts. The run goes on until all of it has ended, and meanwhile other transfers
//! go on coming.

use crate::sojourns::{Means, Sojourns};
use scenario::Parallel;

/// One foreground transfer of this many that count comes before them and does not.
const WARM_UP: u64 = 10;

/// Counts the transfers of a run. `M` is what an engine notes of its networks at the beginning and
/// at the end of the measurement.
///
/// Call [`arrive`](Self::arrive) for each transfer that begins, in order, and
/// [`end`](Self::end) with what it returned when the transfer ends. The run is over when
/// [`is_over`](Self::is_over), or when its time is.
#[derive(Debug)]
pub struct CountedJobs<M> {
    /// Foreground transfers that come before those that count, that count, and that have come.
    /// Without a foreground no transfer is counted by itself.
    warm_up: u64,
    jobs: u64,
    seen: u64,
    /// Transfers that count and have not ended.
    open: u64,
    sojourns: Sojourns,
    began: Option<M>,
    stopped: Option<M>,
}

impl<M> CountedJobs<M> {
    /// Those of these networks.
    pub fn new(parallel: &Parallel<'_>) -> Self {
        let jobs = parallel.foreground.map_or(0, |foreground| foreground.jobs);
        let sojourns = Sojourns::new(parallel.classes(), jobs);
        CountedJobs { warm_up: jobs / WARM_UP, jobs, seen: 0, open: 0, sojourns, began: None, stopped: None }
    }

    /// Whether transfers come by chance and are counted; otherwise all flows are given.
    pub fn has_foreground(&self) -> bool {
        self.jobs > 0
    }

    /// A transfer of a class (0: the foreground) begins. Returns the part of the run that it counts
    /// in, if it counts. `mark` is asked for the state of the networks where the measurement begins
    /// or ends with this transfer.
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
        Some(self.sojourns.part(number))
    }

    /// A transfer of a class has ended after this time in seconds; none when it failed. `part` is
    /// what [`arrive`](Self::arrive) returned for it.
    pub fn end(&mut self, class: usize, part: Option<usize>, time_s: Option<f64>) {
        let Some(part) = part else { return };
        self.open -= 1;
        if let Some(time_s) = time_s {
            self.sojourns.add(class, part, time_s);
        }
    }

    /// The measurement begins, whatever comes.
    pub fn begin(&mut self, mark: M) {
        self.began = Some(mark);
    }

    /// The run ends, and the measurement with it where no transfer has ended it before.
    pub fn stop(&mut self, mark: impl FnOnce() -> M) {
        if self.stopped.is_none() {
            self.stopped = Some(mark());
        }
    }

    /// Whether everything that counts has ended.
    pub fn is_over(&self) -> bool {
        self.stopped.is_some() && self.open == 0
    }

    /// The share of the foreground transfers that have come, 0 to 1.
    pub fn progress(&self) -> f64 {
        (self.seen as f64 / (self.warm_up + self.jobs).max(1) as f64).min(1.0)
    }

    /// What the engine noted at the beginning of the measurement and at its end.
    pub fn marks(&self) -> (Option<&M>, Option<&M>) {
        (self.began.as_ref(), self.stopped.as_ref())
    }

    /// How long transfers took, by class; empty where all flows are given.
    pub fn means(&self) -> Means {
        if self.has_foreground() { self.sojourns.means() } else { Means::default() }
    }
}
