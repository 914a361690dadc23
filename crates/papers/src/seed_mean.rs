//! Means over seeds.

use outcome::half_width;

/// A mean over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeedMean {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % interval; infinite with one seed.
    pub half: f64,
    /// The number of seeds.
    pub seeds: usize,
}

impl SeedMean {
    /// The mean of `values`; none if there are none.
    pub fn of(values: &[f64]) -> Option<SeedMean> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (!values.is_empty()).then(|| SeedMean { mean, half: half_width(values), seeds: values.len() })
    }

    /// The mean if every seed has the number. A mean over the other seeds would be biased: those
    /// without a number are often the ones that did worst.
    pub(crate) fn of_all(values: impl Iterator<Item = Option<f64>>) -> Option<SeedMean> {
        SeedMean::of(&values.collect::<Option<Vec<f64>>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_a_seed_lacks_has_no_mean() {
        assert_eq!(SeedMean::of_all([Some(1.0), None].into_iter()), None);
        assert_eq!(SeedMean::of(&[]), None);
        assert_eq!(SeedMean::of(&[2.0]).map(|mean| (mean.mean, mean.half)), Some((2.0, f64::INFINITY)));
    }
}
