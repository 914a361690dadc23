//! Laws of job sizes: those that scenarios have, and lists.

use crate::{TheoryError, aimd::positive};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use scenario::Shape;
use std::sync::Arc;

/// A law of job sizes, scaled to mean 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes(Law);

#[derive(Debug, Clone, PartialEq)]
enum Law {
    Shaped(Shape),
    Listed(Arc<[f64]>),
}

impl From<Shape> for Sizes {
    /// As a scenario has it.
    fn from(shape: Shape) -> Self {
        Sizes(Law::Shaped(shape))
    }
}

impl Sizes {
    /// All alike.
    pub const DETERMINISTIC: Sizes = Sizes(Law::Shaped(Shape::Deterministic));
    /// Exponential.
    pub const EXPONENTIAL: Sizes = Sizes(Law::Shaped(Shape::Exponential));

    /// Two exponential phases with balanced means, of this squared coefficient of variation, at least 1; the paper's has 16.
    pub fn hyperexponential(scv: f64) -> Result<Self, TheoryError> {
        within("the squared coefficient of variation of hyperexponential sizes", scv, "at least 1", scv >= 1.0)?;
        Ok(Shape::Hyperexponential { scv }.into())
    }

    /// P(B > x) = (1 + x/(a − 1))⁻ᵃ with a > 1: the paper's Pareto-3 with a = 3, and with a = 2 what its Pareto-2 rows follow.
    pub fn lomax(a: f64) -> Result<Self, TheoryError> {
        within("the exponent of Lomax sizes", a, "above 1", a > 1.0)?;
        Ok(Shape::Lomax { exponent: a }.into())
    }

    /// P(B > x) = ((a − 1)/(a x))ᵃ from (a − 1)/a on, with a > 1: with a = 2 the Pareto-2 law as the paper states it.
    pub fn pareto(a: f64) -> Result<Self, TheoryError> {
        within("the exponent of Pareto sizes", a, "above 1", a > 1.0)?;
        Ok(Shape::Pareto { exponent: a }.into())
    }

    /// This part of the mean for all alike and the rest exponential: files of a least size, in the paper's experiments half of the mean.
    pub fn shifted(part: f64) -> Result<Self, TheoryError> {
        within("the constant part of shifted exponential sizes", part, "from 0 to 1", (0.0..=1.0).contains(&part))?;
        Ok(Shape::ShiftedExponential { constant: part }.into())
    }

    /// One of these positive numbers, each as often as the others, over their mean.
    pub fn listed(sizes: &[f64]) -> Result<Self, TheoryError> {
        if sizes.is_empty() {
            return Err(TheoryError::Outside { what: "the number of listed sizes".into(), value: 0.0, bounds: "at least 1" });
        }
        for size in sizes {
            positive("a listed size", *size)?;
        }
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        Ok(Sizes(Law::Listed(sizes.iter().map(|size| size / mean).collect())))
    }

    /// As [`Sizes::listed`], from a text with a number a line; empty lines and what follows a # do not count.
    pub fn from_text(text: &str) -> Result<Self, TheoryError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty());
        let sizes: Result<Vec<f64>, TheoryError> = lines.map(|line| line.parse().map_err(|_| TheoryError::NotASize(line.into()))).collect();
        Sizes::listed(&sizes?)
    }

    /// The squared coefficient of variation, which may be infinite.
    pub fn scv(&self) -> f64 {
        match &self.0 {
            Law::Shaped(shape) => shape.scv(),
            Law::Listed(sizes) => sizes.iter().map(|size| (size - 1.0).powi(2)).sum::<f64>() / sizes.len() as f64,
        }
    }

    /// Draws a size.
    pub(super) fn draw(&self, random: &mut Pcg64Mcg) -> f64 {
        match &self.0 {
            Law::Shaped(shape) => shape.draw(random),
            Law::Listed(sizes) => sizes[random.random_range(0..sizes.len())],
        }
    }
}

/// An error unless `holds`.
pub(super) fn within(what: impl Into<String>, value: f64, bounds: &'static str, holds: bool) -> Result<(), TheoryError> {
    if holds && value.is_finite() { Ok(()) } else { Err(TheoryError::Outside { what: what.into(), value, bounds }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn sizes_have_the_mean_and_the_tail_that_they_say() {
        const N: usize = 400_000;
        let mut random = Pcg64Mcg::seed_from_u64(3);
        let lomax_3 = Sizes::lomax(3.0).unwrap();
        for (sizes, scv) in [
            (Sizes::DETERMINISTIC, 0.0),
            (Sizes::EXPONENTIAL, 1.0),
            (Sizes::hyperexponential(16.0).unwrap(), 16.0),
            (lomax_3.clone(), 3.0),
            (Sizes::shifted(0.25).unwrap(), 0.5625),
            (Sizes::listed(&[1.0, 2.0, 9.0]).unwrap(), 38.0 / 48.0),
            (Sizes::pareto(6.0).unwrap(), 1.0 / 24.0),
        ] {
            assert!((sizes.scv() - scv).abs() < 1e-12, "{sizes:?}: {}", sizes.scv());
            let drawn: Vec<f64> = (0..N).map(|_| sizes.draw(&mut random)).collect();
            let mean = drawn.iter().sum::<f64>() / N as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / N as f64;
            assert!((mean - 1.0).abs() < 0.03, "{sizes:?}: mean {mean}");
            // The fourth moment of Lomax-3 is infinite, so its variance comes slowly.
            let width = if sizes == lomax_3 { 1.0 } else { 0.05 };
            assert!((variance - scv).abs() <= width * scv.max(0.01), "{sizes:?}: {variance}");
        }
        for (sizes, x, tail) in [(Sizes::lomax(2.0).unwrap(), 3.0, 1.0 / 16.0), (Sizes::pareto(2.0).unwrap(), 3.0, 1.0 / 36.0)] {
            let above = (0..N).filter(|_| sizes.draw(&mut random) > x).count() as f64 / N as f64;
            assert!((above - tail).abs() < 0.002, "{sizes:?}: {above}");
        }
    }

    #[test]
    fn a_text_lists_sizes() {
        assert_eq!(Sizes::from_text("# bytes\n100\n\n 300 # large\n").unwrap(), Sizes::listed(&[1.0, 3.0]).unwrap());
        assert_eq!(Sizes::from_text("1\nmany\n").unwrap_err().to_string(), "\"many\" is not a size");
    }

    #[test]
    fn a_law_that_is_none_is_named() {
        for (sizes, says) in [
            (Sizes::hyperexponential(0.5), "0.5, and must be at least 1"),
            (Sizes::lomax(1.0), "1, and must be above 1"),
            (Sizes::pareto(f64::NAN), "NaN, and must be above 1"),
            (Sizes::shifted(1.5), "1.5, and must be from 0 to 1"),
            (Sizes::listed(&[]), "number of listed sizes is 0"),
            (Sizes::listed(&[1.0, -2.0]), "a listed size is -2"),
        ] {
            let error = sizes.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
