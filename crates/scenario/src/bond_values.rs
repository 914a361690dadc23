//! Values of the keys of `[bond]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::Span;

/// The most networks in parallel.
pub(crate) const MOST_NETWORKS: usize = 4;

/// The interval over which throughput is measured (τ of Hoekstra, van der Mei and Bosman): a number of
/// round trips, or a time such as `"100ms"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "is neither a number of round trips, such as 4, nor a time, such as \"100ms\"")]
pub enum MeasurementInterval {
    /// Round trips.
    RoundTrips(f64),
    /// A fixed time.
    Fixed(Span),
}

impl MeasurementInterval {
    /// Whether it is longer than 0.
    pub(crate) fn is_positive(self) -> bool {
        match self {
            MeasurementInterval::RoundTrips(rtts) => rtts > 0.0 && rtts.is_finite(),
            MeasurementInterval::Fixed(span) => span > Span::ZERO,
        }
    }
}

/// The part of a transfer that each network gets, in the order of the networks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<f64>", into = "Vec<f64>")]
#[schemars(with = "Vec<f64>")]
pub struct SplitFractions {
    count: usize,
    fractions: [f64; MOST_NETWORKS],
}

impl SplitFractions {
    /// The fractions, one for each network.
    pub fn as_slice(&self) -> &[f64] {
        &self.fractions[..self.count]
    }

    /// What is wrong with them for this many networks, and the cure.
    pub(crate) fn fault(&self, networks: usize) -> Option<String> {
        let sum: f64 = self.as_slice().iter().sum();
        if self.count != networks {
            return Some(format!("has {} fractions for {networks} networks: give one for each", self.count));
        }
        if self.as_slice().iter().any(|fraction| !(0.0..=1.0).contains(fraction)) || (sum - 1.0).abs() > 1e-9 {
            return Some(format!("has the sum {sum}: give fractions from 0 to 1 whose sum is 1"));
        }
        None
    }
}

impl TryFrom<Vec<f64>> for SplitFractions {
    type Error = String;

    fn try_from(given: Vec<f64>) -> Result<Self, String> {
        let mut fractions = [0.0; MOST_NETWORKS];
        fractions
            .get_mut(..given.len())
            .ok_or_else(|| format!("has {} fractions, but there are at most {MOST_NETWORKS} networks", given.len()))?
            .copy_from_slice(&given);
        Ok(SplitFractions { count: given.len(), fractions })
    }
}

impl From<SplitFractions> for Vec<f64> {
    fn from(of: SplitFractions) -> Self {
        of.as_slice().to_vec()
    }
}
