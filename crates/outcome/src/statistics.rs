//! Statistics of samples: percentiles, Jain's index, Student's interval of a mean.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A distribution over time (buffers) or over bytes (delays).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Dist {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Dist {
    /// The distribution of `samples` with equal weights; all zero if there are none.
    pub fn of(samples: &mut [f64]) -> Self {
        if samples.is_empty() {
            return Dist::default();
        }
        samples.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| samples[((samples.len() - 1) as f64 * q).round() as usize];
        Dist { mean: samples.iter().sum::<f64>() / samples.len() as f64, p50: at(0.5), p99: at(0.99), max: samples[samples.len() - 1] }
    }
}

/// Jain's index of fairness: 1 if all shares are equal, 1/n if one has all. None for fewer than two
/// shares, or if all are 0.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (shares.len() > 1 && squares > 0.0).then(|| shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares))
}

/// Half the width of the 95 % confidence interval of the mean of `values`, by Student's t; infinite
/// for a single value.
pub fn half_width(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return f64::INFINITY;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975)) * (variance / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_of_known_shares() {
        assert_eq!(jain(&[2.0; 5]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!((jain(&[1.0]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn percentiles_of_a_known_sample() {
        let dist = Dist::of(&mut (0..=100).rev().map(f64::from).collect::<Vec<_>>());
        assert_eq!((dist.mean, dist.p50, dist.p99, dist.max), (50.0, 50.0, 99.0, 100.0));
    }
}
