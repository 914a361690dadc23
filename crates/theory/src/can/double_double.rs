//! What the power series is computed in: `f64`, or twice its digits.

use std::ops::{Add, Div, Mul, Sub};

/// A number that series and extrapolations are computed in.
pub(super) trait Real:
    Copy + PartialEq + From<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The nearest `f64`.
    fn rounded(self) -> f64;

    /// `self + a b`, for sums of many: its parts may overlap until [`Real::settled`].
    fn plus_product(self, a: Self, b: Self) -> Self;

    /// The same number in its normal form.
    fn settled(self) -> Self;
}

impl Real for f64 {
    fn rounded(self) -> f64 {
        self
    }

    fn plus_product(self, a: f64, b: f64) -> f64 {
        self + a * b
    }

    fn settled(self) -> f64 {
        self
    }
}

/// The unevaluated sum of two `f64`s, the second at most half a unit in the last place of the first: about 31 digits (Dekker 1971, *A
/// floating-point technique for extending the available precision*; the sums after Knuth).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Double {
    high: f64,
    low: f64,
}

/// a + b, and what rounding takes from it.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// The same where |a| ≥ |b|.
fn quick_two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    (sum, b - (sum - a))
}

/// Two numbers of 26 bits each whose sum it is.
fn halves(a: f64) -> (f64, f64) {
    const SPLITTER: f64 = 134_217_729.0; // 2²⁷ + 1
    let scaled = SPLITTER * a;
    let high = scaled - (scaled - a);
    (high, a - high)
}

/// a b, and what rounding takes from it. (A fused multiplication would be two operations, but is a slow call where the processor is not known.)
fn two_product(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    let ((ah, al), (bh, bl)) = (halves(a), halves(b));
    (product, ((ah * bh - product) + ah * bl + al * bh) + al * bl)
}

impl Double {
    fn new((high, low): (f64, f64)) -> Self {
        Double { high, low }
    }
}

impl From<f64> for Double {
    fn from(high: f64) -> Self {
        Double { high, low: 0.0 }
    }
}

impl Add for Double {
    type Output = Double;

    fn add(self, other: Double) -> Double {
        let (high, error) = two_sum(self.high, other.high);
        let (low, lower) = two_sum(self.low, other.low);
        let (high, low) = quick_two_sum(high, error + low);
        Double::new(quick_two_sum(high, low + lower))
    }
}

impl Sub for Double {
    type Output = Double;

    fn sub(self, other: Double) -> Double {
        self + Double { high: -other.high, low: -other.low }
    }
}

impl Mul for Double {
    type Output = Double;

    fn mul(self, other: Double) -> Double {
        let (high, low) = two_product(self.high, other.high);
        Double::new(quick_two_sum(high, low + (self.high * other.low + self.low * other.high)))
    }
}

impl Div for Double {
    type Output = Double;

    fn div(self, other: Double) -> Double {
        // Two digits of a long division, the second of what the first leaves.
        let first = self.high / other.high;
        let left = self - other * Double::from(first);
        let second = left.high / other.high;
        let left = left - other * Double::from(second);
        Double::new(quick_two_sum(first, second)) + Double::from(left.high / other.high)
    }
}

impl Real for Double {
    fn rounded(self) -> f64 {
        self.high + self.low
    }

    fn plus_product(self, a: Double, b: Double) -> Double {
        let (product, error) = two_product(a.high, b.high);
        let (high, lost) = two_sum(self.high, product);
        Double { high, low: self.low + (lost + (error + (a.high * b.low + a.low * b.high))) }
    }

    fn settled(self) -> Double {
        Double::new(quick_two_sum(self.high, self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_has_31_digits() {
        let third = Double::from(1.0) / Double::from(3.0);
        let left = Double::from(1.0) - third * Double::from(3.0);
        assert!(left.rounded().abs() < 1e-31, "{left:?}");
        assert_eq!(third.rounded(), 1.0 / 3.0);
    }

    #[test]
    fn what_cancels_leaves_the_small_part() {
        let (large, small) = (Double::from(1e20), Double::from(1e-5));
        assert_eq!((large + small - large).rounded(), 1e-5);
        // (1 + 2⁻⁵²)² − 1 − 2⁻⁵¹ = 2⁻¹⁰⁴
        let near = Double::from(1.0 + f64::EPSILON);
        let one = Double::from(-1.0).plus_product(near, near) - Double::from(2.0 * f64::EPSILON);
        assert_eq!(one.settled().rounded(), f64::EPSILON * f64::EPSILON);
    }

    #[test]
    fn a_series_for_e_sums_to_its_digits() {
        let (mut term, mut sum) = (Double::from(1.0), Double::from(1.0));
        for n in 1..30 {
            term = term / Double::from(f64::from(n));
            sum = sum + term;
        }
        // e − fl(e), from its digits 2.718281828459045 235360287471352662…
        assert!((sum - Double::from(std::f64::consts::E)).rounded() - 1.445_646_891_729_250_2e-16 < 1e-30);
    }
}
