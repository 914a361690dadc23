//! What a strand, an independent part of a simulation, adds up, and ratios over all strands.

use super::Number;
use outcome::half_width;

/// Sums over a strand, or a part of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Strand {
    pub(super) events: u64,
    pub(super) time: f64,
    /// ∫ N dt of each class.
    pub(super) areas: Vec<f64>,
    /// Of the foreground's work, what each network did.
    pub(super) served: Vec<f64>,
    /// ∫ dt of the foreground's tasks in each network.
    pub(super) tasks: Vec<f64>,
    /// ∫ dt of the streams in each network.
    pub(super) streams: Vec<f64>,
    /// Streams that came to each network, and that were turned away.
    pub(super) offered: Vec<f64>,
    pub(super) blocked: Vec<f64>,
}

impl Strand {
    pub(super) fn new(classes: usize) -> Self {
        let networks = || vec![0.0; classes - 1];
        Strand {
            areas: vec![0.0; classes],
            served: networks(),
            tasks: networks(),
            streams: networks(),
            offered: networks(),
            blocked: networks(),
            ..Strand::default()
        }
    }
}

/// A ratio of sums over the strands, with its interval; 0 where there is nothing to divide by.
pub(super) fn ratio(strands: &[Strand], part: &dyn Fn(&Strand) -> f64, whole: &dyn Fn(&Strand) -> f64) -> Number {
    let all: f64 = strands.iter().map(whole).sum();
    if all == 0.0 {
        return Number { value: 0.0, error: 0.0 };
    }
    let value = strands.iter().map(part).sum::<f64>() / all;
    let share = all / strands.len() as f64;
    let deviations: Vec<f64> = strands.iter().map(|strand| (part(strand) - value * whole(strand)) / share).collect();
    Number { value, error: half_width(&deviations) }
}
