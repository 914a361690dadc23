//! Number types of the power series: `f64`, and double-double arithmetic with twice its digits.

use std::ops::{Add, Div, Mul, Sub};

/// A number type for the series and its extrapolation.
pub(super) trait Real:
    Copy + PartialEq + From<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The nearest `f64`.
    fn rounded(self) -> f64;

    /// `self + a b`, for long sums: the result may need [`Real::normalized`] at the end.
    fn plus_product(self, a: Self, b: Self) -> Self;

    /// The same number in normal form.
    fn normalized(self) -> Self;
}

impl Real for f64 {
    fn rounded(self) -> f64 {
        self
    }

    fn plus_product(self, a: f64, b: f64) -> f64 {
        self + a * b
    }

    fn normalized(self) -> f64 {
        self
    }
}

/// Double-double: the unevaluated sum of two `f64`, the second at most half a unit in the
/// last place of the first. About 31 digits (Dekker 1971, *A floating-point technique for extending
/// the available precision*; sums after Knuth).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DoubleDouble {
    high: f64,
    low: f64,
}

/// a + b and its rounding error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// The same for |a| ≥ |b|.
fn quick_two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    (sum, b - (sum - a))
}

/// Splits into two numbers of 26 bits.
fn halves(a: f64) -> (f64, f64) {
    const SPLITTER: f64 = 134_217_729.0; // 2²⁷ + 1
    let scaled = SPLITTER * a;
    let high = scaled - (scaled - a);
    (high, a - high)
}

/// a b and its rounding error. (A fused multiply-add would take two operations, but is a slow
/// library call if the target processor is unknown.)
fn two_product(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    let ((ah, al), (bh, bl)) = (halves(a), halves(b));
    (product, ((ah * bh - product) + ah * bl + al * bh) + al * bl)
}

impl DoubleDouble {
    fn new((high, low): (f64, f64)) -> Self {
        DoubleDouble { high, low }
    }
}

impl From<f64> for DoubleDouble {
    fn from(high: f64) -> Self {
        DoubleDouble { high, low: 0.0 }
    }
}

impl Add for DoubleDouble {
    type Output = DoubleDouble;

    fn add(self, other: DoubleDouble) -> DoubleDouble {
        let (high, error) = two_sum(self.high, other.high);
        let (low, lower) = two_sum(self.low, other.low);
        let (high, low) = quick_two_sum(high, error + low);
        DoubleDouble::new(quick_two_sum(high, low + lower))
    }
}

impl Sub for DoubleDouble {
    type Output = DoubleDouble;

    fn sub(self, other: DoubleDouble) -> DoubleDouble {
        self + DoubleDouble { high: -other.high, low: -other.low }
    }
}

impl Mul for DoubleDouble {
    type Output = DoubleDouble;

    fn mul(self, other: DoubleDouble) -> DoubleDouble {
        let (high, low) = two_product(self.high, other.high);
        DoubleDouble::new(quick_two_sum(high, low + (self.high * other.low + self.low * other.high)))
    }
}

impl Div for DoubleDouble {
    type Output = DoubleDouble;

    fn div(self, other: DoubleDouble) -> DoubleDouble {
        // Long division: each digit divides the remainder of the one before.
        let first = self.high / other.high;
        let left = self - other * DoubleDouble::from(first);
        let second = left.high / other.high;
        let left = left - other * DoubleDouble::from(second);
        DoubleDouble::new(quick_two_sum(first, second)) + DoubleDouble::from(left.high / other.high)
    }
}

impl Real for DoubleDouble {
    fn rounded(self) -> f64 {
        self.high + self.low
    }

    fn plus_product(self, a: DoubleDouble, b: DoubleDouble) -> DoubleDouble {
        let (product, error) = two_product(a.high, b.high);
        let (high, lost) = two_sum(self.high, product);
        DoubleDouble { high, low: self.low + (lost + (error + (a.high * b.low + a.low * b.high))) }
    }

    fn normalized(self) -> DoubleDouble {
        DoubleDouble::new(quick_two_sum(self.high, self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_has_31_digits() {
        let third = DoubleDouble::from(1.0) / DoubleDouble::from(3.0);
        let left = DoubleDouble::from(1.0) - third * DoubleDouble::from(3.0);
        assert!(left.rounded().abs() < 1e-31, "{left:?}");
        assert_eq!(third.rounded(), 1.0 / 3.0);
    }

    #[test]
    fn cancellation_leaves_the_small_part() {
        let (large, small) = (DoubleDouble::from(1e20), DoubleDouble::from(1e-5));
        assert_eq!((large + small - large).rounded(), 1e-5);
        // (1 + 2⁻⁵²)² − 1 − 2⁻⁵¹ = 2⁻¹⁰⁴
        let near = DoubleDouble::from(1.0 + f64::EPSILON);
        let one = DoubleDouble::from(-1.0).plus_product(near, near) - DoubleDouble::from(2.0 * f64::EPSILON);
        assert_eq!(one.normalized().rounded(), f64::EPSILON * f64::EPSILON);
    }

    #[test]
    fn a_series_for_e_sums_to_its_digits() {
        let (mut term, mut sum) = (DoubleDouble::from(1.0), DoubleDouble::from(1.0));
        for n in 1..30 {
            term = term / DoubleDouble::from(f64::from(n));
            sum = sum + term;
        }
        // e − fl(e), from its digits 2.718281828459045 235360287471352662…
        assert!(((sum - DoubleDouble::from(std::f64::consts::E)).rounded() - 1.445_646_891_729_250_2e-16).abs() < 1e-30);
    }
}
