//! How long transfers take that come by chance: mean and interval, class by class.
//!
//! Intervals are from twenty parts of the run, one after the other: neighbours in time share their queues, and are no independent samples.

use crate::outcome::{SOJOURNS, half_width};
use std::collections::BTreeMap;

/// How many parts of a run its intervals are from.
const PARTS: usize = 20;

/// Times of transfers, by class and part of the run.
#[derive(Debug, Clone)]
pub struct Sojourns {
    /// How many of the foreground are measured.
    jobs: u64,
    /// Times, s: their sum and number.
    times: Vec<[(f64, u64); PARTS]>,
}

impl Sojourns {
    /// Of so many classes, and so many transfers of the foreground that are measured.
    pub fn new(classes: usize, jobs: u64) -> Self {
        Sojourns { jobs, times: vec![[(0.0, 0); PARTS]; classes] }
    }

    /// The part of the run that a transfer counts in that comes after `number` of the foreground that count.
    pub fn part(&self, number: u64) -> usize {
        ((number * PARTS as u64 / self.jobs.max(1)) as usize).min(PARTS - 1)
    }

    /// A transfer has ended.
    pub fn add(&mut self, class: usize, part: usize, time_s: f64) {
        let (sum, count) = &mut self.times[class][part];
        *sum += time_s;
        *count += 1;
    }

    /// The mean time of a class's transfers, s, half the width of its 95 % interval, and how many they are.
    fn time(&self, class: usize) -> Option<(f64, f64, u64)> {
        let parts = &self.times[class];
        let (sum, count) = parts.iter().fold((0.0, 0), |all, part| (all.0 + part.0, all.1 + part.1));
        let (mean, share) = (sum / count as f64, count as f64 / PARTS as f64);
        let deviations: Vec<f64> = parts.iter().map(|(sum, count)| (sum - mean * *count as f64) / share).collect();
        (count > 0).then(|| (mean, half_width(&deviations), count))
    }

    /// What they came to.
    pub fn means(&self) -> Means {
        let times: Vec<_> = (0..self.times.len()).map(|class| self.time(class)).collect();
        Means {
            ci95: SOJOURNS.iter().zip(&times).filter_map(|(name, time)| Some(((*name).to_string(), (*time)?.1))).collect(),
            jobs: times.iter().map(|time| time.map_or(0, |(.., count)| count)).collect(),
            sojourn_s: times.iter().map(|time| time.map(|(mean, ..)| mean)).collect(),
        }
    }
}

/// Mean times of transfers, class by class, as an outcome has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Means {
    /// Seconds; none of a class that never came.
    pub sojourn_s: Vec<Option<f64>>,
    /// How many transfers that is the mean of.
    pub jobs: Vec<u64>,
    /// Half the widths of 95 % intervals, by name.
    pub ci95: BTreeMap<String, f64>,
}
