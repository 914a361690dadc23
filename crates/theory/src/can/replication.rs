//! Sums over an independent replication of a simulation, and ratio estimates over all replications.

use super::ValueWithError;
use outcome::half_width;

/// Sums over a replication.
#[derive(Debug, Clone, Default)]
pub(super) struct Replication {
    pub(super) events: u64,
    pub(super) time: f64,
    /// ∫ N dt of each class.
    pub(super) areas: Vec<f64>,
    /// Foreground work done by each network.
    pub(super) served: Vec<f64>,
    /// ∫ of the number of foreground tasks in each network dt.
    pub(super) tasks: Vec<f64>,
    /// ∫ of the number of streams in each network dt.
    pub(super) streams: Vec<f64>,
    /// Streams that arrived at each network, and those that were blocked.
    pub(super) offered: Vec<f64>,
    pub(super) blocked: Vec<f64>,
    /// ∫ N dt of each class in each control queue.
    pub(super) controls: Vec<f64>,
}

impl Replication {
    pub(super) fn new(classes: usize) -> Self {
        let networks = || vec![0.0; classes - 1];
        Replication {
            areas: vec![0.0; classes],
            served: networks(),
            tasks: networks(),
            streams: networks(),
            offered: networks(),
            blocked: networks(),
            ..Replication::default()
        }
    }
}

/// A ratio of sums over the replications, with its error; 0 if the denominator is 0.
pub(super) fn ratio(
    replications: &[Replication],
    part: &dyn Fn(&Replication) -> f64,
    whole: &dyn Fn(&Replication) -> f64,
) -> ValueWithError {
    let all: f64 = replications.iter().map(whole).sum();
    if all == 0.0 {
        return ValueWithError { value: 0.0, error: 0.0 };
    }
    let value = replications.iter().map(part).sum::<f64>() / all;
    let share = all / replications.len() as f64;
    let deviations: Vec<f64> = replications.iter().map(|replication| (part(replication) - value * whole(replication)) / share).collect();
    ValueWithError { value, error: half_width(&deviations) }
}
