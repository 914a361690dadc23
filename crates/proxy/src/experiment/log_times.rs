//! Times of connections, by their logarithms.

use serde::{Deserialize, Serialize};

/// Number, mean and variance of the logarithms of times (Welford's algorithm).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, f64, f64)", into = "(u64, f64, f64)")]
pub(crate) struct LogTimes {
    pub(super) count: u64,
    pub(super) mean: f64,
    pub(super) squares: f64,
}

impl From<(u64, f64, f64)> for LogTimes {
    fn from((count, mean, squares): (u64, f64, f64)) -> Self {
        LogTimes { count, mean, squares }
    }
}

impl From<LogTimes> for (u64, f64, f64) {
    fn from(times: LogTimes) -> Self {
        (times.count, times.mean, times.squares)
    }
}

impl LogTimes {
    /// Of times in seconds.
    #[cfg(test)]
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut all = LogTimes::default();
        values.into_iter().for_each(|value| all.add(value));
        all
    }

    /// Adds a time in seconds.
    pub(crate) fn add(&mut self, seconds: f64) {
        // A clock that is set backwards may make a time 0.
        let value = seconds.max(1e-6).ln();
        self.count += 1;
        let difference = value - self.mean;
        self.mean += difference / self.count as f64;
        self.squares += difference * (value - self.mean);
    }

    /// The number of times.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The geometric mean, seconds; absent without a time.
    pub(crate) fn geometric_mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.mean.exp())
    }
}

/// Times of both groups: unsplit, split.
pub(crate) type TimesOfGroups = [LogTimes; 2];
