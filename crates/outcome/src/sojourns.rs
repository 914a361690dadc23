//! Sojourn times of random transfers: mean and confidence interval of each class.
//!
//! Intervals are from twenty consecutive batches of the run, since transfers that are close in time
//! share queues and are not independent samples.

use crate::{numbers::SOJOURNS, statistics::half_width};
use std::collections::BTreeMap;

/// Number of batches.
const BATCHES: usize = 20;

/// Sojourn times by class and batch.
#[derive(Debug, Clone)]
pub struct Sojourns {
    /// Number of foreground transfers that are measured.
    jobs: u64,
    /// The sum of the times in seconds, and their number.
    times: Vec<[(f64, u64); BATCHES]>,
}

impl Sojourns {
    /// No times yet, for `classes` classes and `jobs` measured foreground transfers.
    pub fn new(classes: usize, jobs: u64) -> Self {
        Sojourns { jobs, times: vec![[(0.0, 0); BATCHES]; classes] }
    }

    /// The batch of a transfer that begins after `number` measured foreground transfers.
    pub fn batch(&self, number: u64) -> usize {
        ((number * BATCHES as u64 / self.jobs.max(1)) as usize).min(BATCHES - 1)
    }

    /// Adds the time of a transfer that has ended.
    pub fn add(&mut self, class: usize, batch: usize, time_s: f64) {
        let (sum, count) = &mut self.times[class][batch];
        *sum += time_s;
        *count += 1;
    }

    /// The mean time of a class in seconds, half the width of its 95 % interval, and the number of
    /// transfers.
    fn time(&self, class: usize) -> Option<(f64, f64, u64)> {
        let batches = &self.times[class];
        let (sum, count) = batches.iter().fold((0.0, 0), |all, batch| (all.0 + batch.0, all.1 + batch.1));
        let (mean, share) = (sum / count as f64, count as f64 / BATCHES as f64);
        let deviations: Vec<f64> = batches.iter().map(|(sum, count)| (sum - mean * *count as f64) / share).collect();
        (count > 0).then(|| (mean, half_width(&deviations), count))
    }

    /// The means and intervals of all classes.
    pub fn means(&self) -> Means {
        let times: Vec<_> = (0..self.times.len()).map(|class| self.time(class)).collect();
        Means {
            ci95: SOJOURNS.iter().zip(&times).filter_map(|(name, time)| Some(((*name).to_string(), (*time)?.1))).collect(),
            jobs: times.iter().map(|time| time.map_or(0, |(.., count)| count)).collect(),
            sojourn_s: times.iter().map(|time| time.map(|(mean, ..)| mean)).collect(),
        }
    }
}

/// Mean sojourn times of all classes, as an outcome has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Means {
    /// In seconds; none for a class without transfers.
    pub sojourn_s: Vec<Option<f64>>,
    /// Number of transfers of each class.
    pub jobs: Vec<u64>,
    /// Half widths of 95 % intervals, by the names of [`SOJOURNS`].
    pub ci95: BTreeMap<String, f64>,
}
