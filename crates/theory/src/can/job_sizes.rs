//! Distributions of job sizes: those of scenarios, and lists.

use crate::error::{TheoryError, positive};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use scenario::Shape;
use std::sync::Arc;

/// A distribution of job sizes, scaled to mean 1.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeDistribution(Distribution);

#[derive(Debug, Clone, PartialEq)]
enum Distribution {
    Shaped(Shape),
    Listed(Arc<[f64]>),
}

impl From<Shape> for SizeDistribution {
    /// The distribution of a scenario.
    fn from(shape: Shape) -> Self {
        SizeDistribution(Distribution::Shaped(shape))
    }
}

impl SizeDistribution {
    /// All sizes are equal.
    pub const DETERMINISTIC: SizeDistribution = SizeDistribution(Distribution::Shaped(Shape::Deterministic));
    /// Exponential.
    pub const EXPONENTIAL: SizeDistribution = SizeDistribution(Distribution::Shaped(Shape::Exponential));

    /// Two exponential phases with balanced means, with this squared coefficient of variation, at
    /// least 1; 16 in the paper.
    ///
    /// # Errors
    /// When `scv` is below 1.
    pub fn hyperexponential(scv: f64) -> Result<Self, TheoryError> {
        check_range("the squared coefficient of variation of hyperexponential sizes", scv, "at least 1", scv >= 1.0)?;
        Ok(Shape::Hyperexponential { scv }.into())
    }

    /// P(B > x) = (1 + x/(a − 1))⁻ᵃ with a > 1. a = 3 is the paper's Pareto-3; a = 2 is what its
    /// Pareto-2 rows follow.
    ///
    /// # Errors
    /// When `a` is not above 1.
    pub fn lomax(a: f64) -> Result<Self, TheoryError> {
        check_range("the exponent of Lomax sizes", a, "above 1", a > 1.0)?;
        Ok(Shape::Lomax { exponent: a }.into())
    }

    /// P(B > x) = ((a − 1)/(a x))ᵃ for x ≥ (a − 1)/a, with a > 1. a = 2 is the Pareto-2 law as
    /// stated in the paper.
    ///
    /// # Errors
    /// When `a` is not above 1.
    pub fn pareto(a: f64) -> Result<Self, TheoryError> {
        check_range("the exponent of Pareto sizes", a, "above 1", a > 1.0)?;
        Ok(Shape::Pareto { exponent: a }.into())
    }

    /// A constant plus an exponential: `part` of the mean is constant. Files with a minimum size,
    /// half of the mean in the paper's experiments.
    ///
    /// # Errors
    /// When `part` is not from 0 to 1.
    pub fn shifted(part: f64) -> Result<Self, TheoryError> {
        check_range("the constant part of shifted exponential sizes", part, "from 0 to 1", (0.0..=1.0).contains(&part))?;
        Ok(Shape::ShiftedExponential { constant: part }.into())
    }

    /// The empirical distribution of these positive sizes, over their mean.
    ///
    /// # Errors
    /// When there are none, or one is not positive.
    pub fn listed(sizes: &[f64]) -> Result<Self, TheoryError> {
        if sizes.is_empty() {
            return Err(TheoryError::Outside { what: "the number of listed sizes".into(), value: 0.0, bounds: "at least 1" });
        }
        for size in sizes {
            positive("a listed size", *size)?;
        }
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        Ok(SizeDistribution(Distribution::Listed(sizes.iter().map(|size| size / mean).collect())))
    }

    /// As [`SizeDistribution::listed`], from a text with one number per line. Empty lines are
    /// skipped; `#` starts a comment.
    ///
    /// # Errors
    /// As [`SizeDistribution::listed`], or when a line is not a number.
    pub fn from_text(text: &str) -> Result<Self, TheoryError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty());
        let sizes: Result<Vec<f64>, TheoryError> = lines.map(|line| line.parse().map_err(|_| TheoryError::NotASize(line.into()))).collect();
        SizeDistribution::listed(&sizes?)
    }

    /// The squared coefficient of variation; may be infinite.
    pub fn scv(&self) -> f64 {
        match &self.0 {
            Distribution::Shaped(shape) => shape.scv(),
            Distribution::Listed(sizes) => sizes.iter().map(|size| (size - 1.0).powi(2)).sum::<f64>() / sizes.len() as f64,
        }
    }

    /// Draws a size.
    pub(super) fn draw(&self, random: &mut Pcg64Mcg) -> f64 {
        match &self.0 {
            Distribution::Shaped(shape) => shape.draw(random),
            Distribution::Listed(sizes) => sizes[random.random_range(0..sizes.len())],
        }
    }
}

/// An error unless `holds` and the value is finite.
pub(super) fn check_range(what: impl Into<String>, value: f64, bounds: &'static str, holds: bool) -> Result<(), TheoryError> {
    if holds && value.is_finite() { Ok(()) } else { Err(TheoryError::Outside { what: what.into(), value, bounds }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn sizes_have_the_stated_mean_and_tail() {
        const N: usize = 400_000;
        let mut random = Pcg64Mcg::seed_from_u64(3);
        let lomax_3 = SizeDistribution::lomax(3.0).unwrap();
        for (sizes, scv) in [
            (SizeDistribution::DETERMINISTIC, 0.0),
            (SizeDistribution::EXPONENTIAL, 1.0),
            (SizeDistribution::hyperexponential(16.0).unwrap(), 16.0),
            (lomax_3.clone(), 3.0),
            (SizeDistribution::shifted(0.25).unwrap(), 0.5625),
            (SizeDistribution::listed(&[1.0, 2.0, 9.0]).unwrap(), 38.0 / 48.0),
            (SizeDistribution::pareto(6.0).unwrap(), 1.0 / 24.0),
        ] {
            assert!((sizes.scv() - scv).abs() < 1e-12, "{sizes:?}: {}", sizes.scv());
            let drawn: Vec<f64> = (0..N).map(|_| sizes.draw(&mut random)).collect();
            let mean = drawn.iter().sum::<f64>() / N as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / N as f64;
            assert!((mean - 1.0).abs() < 0.03, "{sizes:?}: mean {mean}");
            // The fourth moment of Lomax-3 is infinite, so its sample variance converges slowly.
            let width = if sizes == lomax_3 { 1.0 } else { 0.05 };
            assert!((variance - scv).abs() <= width * scv.max(0.01), "{sizes:?}: {variance}");
        }
        for (sizes, x, tail) in
            [(SizeDistribution::lomax(2.0).unwrap(), 3.0, 1.0 / 16.0), (SizeDistribution::pareto(2.0).unwrap(), 3.0, 1.0 / 36.0)]
        {
            let above = (0..N).filter(|_| sizes.draw(&mut random) > x).count() as f64 / N as f64;
            assert!((above - tail).abs() < 0.002, "{sizes:?}: {above}");
        }
    }

    #[test]
    fn a_text_lists_sizes() {
        assert_eq!(SizeDistribution::from_text("# bytes\n100\n\n 300 # large\n").unwrap(), SizeDistribution::listed(&[1.0, 3.0]).unwrap());
        assert_eq!(SizeDistribution::from_text("1\nmany\n").unwrap_err().to_string(), "\"many\" is not a size");
    }

    #[test]
    fn invalid_distributions_are_refused() {
        for (sizes, says) in [
            (SizeDistribution::hyperexponential(0.5), "0.5, and must be at least 1"),
            (SizeDistribution::lomax(1.0), "1, and must be above 1"),
            (SizeDistribution::pareto(f64::NAN), "NaN, and must be above 1"),
            (SizeDistribution::shifted(1.5), "1.5, and must be from 0 to 1"),
            (SizeDistribution::listed(&[]), "number of listed sizes is 0"),
            (SizeDistribution::listed(&[1.0, -2.0]), "a listed size is -2"),
        ] {
            let error = sizes.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
