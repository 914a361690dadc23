//! How heavy is a tail? Several answers, since one alone misleads: Hill's estimator takes a Weibull tail of shape ½ for a Pareto one.
//!
//! Samples are in the order of time and may depend on each other, as those of a queue do: every interval is from parts of the series, not
//! from a formula for independent samples. Queues have an atom at 0: what is 0 is left out, here everywhere.

use crate::{Mean, TheoryError};
use outcome::half_width;
use std::fmt;

/// Parts of a series that intervals come from.
const PARTS: usize = 20;
/// Fewer samples than this in a part say nothing.
const LEAST: usize = 50;

/// A Weibull law fitted by maximum likelihood: P(X > x) = exp(−(x/scale)^shape).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weibull {
    /// Below 1: heavier than exponential.
    pub shape: Mean,
    /// Where P(X > scale) = 1/e.
    pub scale: f64,
}

/// A tail beside the exponential one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// It falls more slowly.
    Heavier,
    /// It falls faster.
    Lighter,
    /// The samples do not tell.
    Open,
}

/// What the samples say together.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What follows.
    pub weight: Weight,
    /// The slope of ln(−ln P(X > x)) over ln x beyond the median: the shape of a Weibull tail, 1 of an exponential one.
    pub slope: Mean,
    /// Maximum over sum of the squares, with all samples: near 0 where the second moment is finite.
    pub max_over_sum: f64,
    /// Hill's estimate from the largest percent, which is no verdict.
    pub hill: Mean,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            Weight::Heavier => "heavier than exponential",
            Weight::Lighter => "lighter than exponential",
            Weight::Open => "exponential, or too little to tell",
        };
        write!(f, "{weight} (slope {:.2} ± {:.2}, where 1 is exponential)", self.slope.mean, self.slope.half)
    }
}

/// The positive ones, or that there are too few.
fn positive(samples: &[f64]) -> Result<Vec<f64>, TheoryError> {
    let positive: Vec<f64> = samples.iter().copied().filter(|x| *x > 0.0).collect();
    if positive.len() < PARTS * LEAST {
        return Err(TheoryError::TooFew { have: positive.len(), need: PARTS * LEAST });
    }
    Ok(positive)
}

/// An estimate from all, with an interval from those of the parts.
fn by_parts(samples: &[f64], of: impl Fn(&[f64]) -> f64) -> Mean {
    let parts: Vec<f64> = samples.chunks_exact(samples.len() / PARTS).take(PARTS).map(&of).collect();
    Mean { mean: of(samples), half: half_width(&parts) }
}

fn descending(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted
}

/// Fits a Weibull law to the positive samples: Newton's method on Σ x^k ln x / Σ x^k − 1/k − mean(ln x) = 0.
pub fn weibull(samples: &[f64]) -> Result<Weibull, TheoryError> {
    let samples = positive(samples)?;
    let shape = by_parts(&samples, shape_of);
    let mean = samples.iter().map(|x| x.powf(shape.mean)).sum::<f64>() / samples.len() as f64;
    Ok(Weibull { shape, scale: mean.powf(1.0 / shape.mean) })
}

fn shape_of(samples: &[f64]) -> f64 {
    // Of x over the largest: nothing overflows, and the shape is the same.
    let most = samples.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let logs: Vec<f64> = samples.iter().map(|x| (x / most).ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let mut k = 1.0;
    for _ in 0..100 {
        let (mut a, mut b, mut c) = (0.0, 0.0, 0.0);
        for log in &logs {
            let power = (k * log).exp();
            a += power;
            b += power * log;
            c += power * log * log;
        }
        let step = (b / a - 1.0 / k - mean) / (c / a - (b / a).powi(2) + 1.0 / (k * k));
        // A step too far would leave the positive numbers.
        k = (k - step).max(k / 4.0);
        if step.abs() < 1e-12 * k {
            break;
        }
    }
    k
}

/// Hill's estimate of γ from the `k` largest of the positive samples: (1/k) Σ ln X₍ᵢ₎ − ln X₍ₖ₊₁₎. A Pareto tail has 1/γ as its index; of any other
/// tail it goes to 0, so slowly that it looks like a Pareto one's.
pub fn hill(samples: &[f64], k: usize) -> Result<Mean, TheoryError> {
    let samples = positive(samples)?;
    let share = k.max(1) as f64 / samples.len() as f64;
    Ok(by_parts(&samples, |part| {
        let sorted = descending(part);
        let k = ((share * part.len() as f64).round() as usize).clamp(1, part.len() - 1);
        sorted[..k].iter().map(|x| x.ln()).sum::<f64>() / k as f64 - sorted[k].ln()
    }))
}

/// Rₙ(p) = max |X|ᵖ / Σ |X|ᵖ over the first n samples, for each n: it goes to 0 where, and only where, the p-th moment is finite (Embrechts,
/// Klüppelberg and Mikosch 1997, §6.2.6).
pub fn max_over_sum(samples: &[f64], p: f64) -> Vec<f64> {
    let (mut most, mut sum) = (0.0, 0.0);
    samples
        .iter()
        .map(|x| {
            let power: f64 = x.abs().powf(p);
            most = f64::max(most, power);
            sum += power;
            if sum > 0.0 { most / sum } else { 1.0 }
        })
        .collect()
}

/// The mean excess E[X − u | X > u] over a threshold, by what lies above it; absent where nothing does. Constant of an exponential law, growing
/// of a heavier one, in proportion to u of a Pareto tail.
pub fn mean_excess(samples: &[f64], threshold: f64) -> Option<f64> {
    let above: Vec<f64> = samples.iter().filter(|x| **x > threshold).map(|x| x - threshold).collect();
    (!above.is_empty()).then(|| above.iter().sum::<f64>() / above.len() as f64)
}

/// The slope of ln(−ln P(X > x)) over ln x between two probabilities, the greater first: the shape of a Weibull tail there, 1 of an exponential one.
pub fn slope(samples: &[f64], from: f64, to: f64) -> Result<Mean, TheoryError> {
    let samples = positive(samples)?;
    Ok(by_parts(&samples, |part| slope_of(part, from, to)))
}

/// The least-squares slope, as far out as one part in twenty samples.
fn slope_of(samples: &[f64], from: f64, to: f64) -> f64 {
    const POINTS: usize = 40;
    let sorted = descending(samples);
    let n = sorted.len() as f64;
    let rarest = to.max(20.0 / n).min(from / 2.0);
    let points: Vec<(f64, f64)> = (0..POINTS)
        .map(|point| {
            let tail = from * (rarest / from).powf(point as f64 / (POINTS - 1) as f64);
            (sorted[((tail * n) as usize).min(sorted.len() - 1)].ln(), (-tail.ln()).ln())
        })
        .collect();
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / POINTS as f64;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let (mut xy, mut xx) = (0.0, 0.0);
    for point in &points {
        xy += (point.0 - x) * (point.1 - y);
        xx += (point.0 - x).powi(2);
    }
    xy / xx
}

/// Is the tail heavier than an exponential one? By the slope and its interval; never by Hill's number.
pub fn verdict(samples: &[f64]) -> Result<Verdict, TheoryError> {
    let positive = positive(samples)?;
    // From the median to where one sample in a thousand lies above.
    let slope = by_parts(&positive, |part| slope_of(part, 0.5, 1e-3));
    let weight = match () {
        () if slope.mean + slope.half < 1.0 => Weight::Heavier,
        () if slope.mean - slope.half > 1.0 => Weight::Lighter,
        () => Weight::Open,
    };
    let hill = hill(&positive, positive.len() / 100)?;
    Ok(Verdict { weight, slope, max_over_sum: max_over_sum(&positive, 2.0).last().copied().unwrap_or(1.0), hill })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    const N: usize = 100_000;

    /// Independent samples by the inverse of P(X > x).
    fn drawn(inverse: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut random = Pcg64Mcg::seed_from_u64(7);
        (0..N).map(|_| inverse(1.0 - random.random::<f64>())).collect()
    }

    fn weibull_half() -> Vec<f64> {
        drawn(|u| u.ln().powi(2))
    }

    #[test]
    fn a_weibull_law_is_found_again_and_its_interval_has_the_truth() {
        for shape in [0.5, 1.0, 2.0] {
            let fitted = weibull(&drawn(|u| 3.0 * (-u.ln()).powf(1.0 / shape))).unwrap();
            assert!((fitted.shape.mean - shape).abs() < 2.0 * fitted.shape.half && fitted.shape.half < 0.02 * shape, "{fitted:?}");
            assert!((fitted.scale / 3.0 - 1.0).abs() < 0.03, "{fitted:?}");
        }
    }

    #[test]
    fn hill_alone_takes_a_weibull_tail_for_a_pareto_one() {
        let (weibull, pareto) = (weibull_half(), drawn(|u| u.powf(-1.0 / 1.5)));
        // Of the Pareto law it finds 1/1.5; of the Weibull law, whose gamma is 0, something that looks as good.
        let truth = hill(&pareto, 1000).unwrap();
        assert!((truth.mean - 1.0 / 1.5).abs() < 2.0 * truth.half, "{truth:?}");
        let misled = hill(&weibull, 1000).unwrap();
        assert!(misled.mean > 0.3 && misled.mean < 0.6 && misled.half < 0.1, "{misled:?}");
        // The others tell: the second moment of the one is finite, and the fit is good.
        assert!(max_over_sum(&weibull, 2.0)[N - 1] < 0.05);
        assert!(max_over_sum(&pareto, 2.0)[N - 1] > 0.05);
        let excess = |samples: &[f64], u: f64| mean_excess(samples, u).unwrap();
        assert!(excess(&pareto, 100.0) / excess(&pareto, 10.0) > 5.0 && excess(&weibull, 100.0) / excess(&weibull, 10.0) < 5.0);
    }

    #[test]
    fn verdicts_are_beside_the_exponential_law() {
        assert_eq!(verdict(&weibull_half()).unwrap().weight, Weight::Heavier);
        assert_eq!(verdict(&drawn(|u| u.powf(-1.0 / 1.5))).unwrap().weight, Weight::Heavier);
        assert_eq!(verdict(&drawn(|u| -u.ln())).unwrap().weight, Weight::Open);
        let gaussian = verdict(&drawn(|u| (-u.ln()).sqrt())).unwrap();
        assert_eq!(gaussian.weight, Weight::Lighter);
        assert!((gaussian.slope.mean - 2.0).abs() < 0.1, "{gaussian}");
    }

    #[test]
    fn intervals_know_that_samples_depend_on_each_other() {
        // Each sample ten times over says no more than once.
        let once: Vec<f64> = weibull_half()[..N / 10].to_vec();
        let tenfold: Vec<f64> = once.iter().flat_map(|x| [*x; 10]).collect();
        let (a, b) = (weibull(&once).unwrap().shape, weibull(&tenfold).unwrap().shape);
        assert!((a.mean - b.mean).abs() < 1e-9 && b.half > 0.9 * a.half, "{a:?} {b:?}");
    }

    #[test]
    fn too_few_samples_say_nothing() {
        assert!(weibull(&[1.0, 2.0, 0.0]).unwrap_err().to_string().contains("2 positive samples"));
    }
}
