//! Tail heaviness of samples, by several estimators. One alone misleads: Hill's estimator takes a
//! Weibull tail with shape ½ for a Pareto tail.
//!
//! Samples are in the order of time and may be dependent, like those of a queue. Confidence
//! intervals come from batches of the series, not from formulas for independent samples. Queues
//! have an atom at 0: zeroes are left out everywhere.

use crate::{error::TheoryError, estimate::Mean};
use outcome::half_width;
use std::fmt;

/// Batches of a series, for the confidence intervals.
const BATCHES: usize = 20;
/// Fewest samples of a batch.
const MIN_BATCH: usize = 50;

/// A Weibull law fitted by maximum likelihood: P(X > x) = exp(−(x/scale)^shape).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weibull {
    /// Shape; below 1 the tail is heavier than exponential.
    pub shape: Mean,
    /// Scale: P(X > scale) = 1/e.
    pub scale: f64,
}

/// A tail compared with an exponential one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailWeight {
    /// It decays more slowly.
    Heavier,
    /// It decays faster.
    Lighter,
    /// Not significantly different.
    Undecided,
}

/// The result of all estimators.
#[derive(Debug, Clone, PartialEq)]
pub struct TailVerdict {
    /// The tail's weight, by `slope`.
    pub weight: TailWeight,
    /// Slope of ln(−ln P(X > x)) over ln x beyond the median: the shape of a Weibull tail, 1 for an
    /// exponential one.
    pub slope: Mean,
    /// Maximum over sum of the squares of all samples: near 0 if the second moment is finite.
    pub max_over_sum: f64,
    /// Hill's estimate from the largest percent; not used for `weight`.
    pub hill: Mean,
}

impl fmt::Display for TailVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = match self.weight {
            TailWeight::Heavier => "heavier than exponential",
            TailWeight::Lighter => "lighter than exponential",
            TailWeight::Undecided => "not significantly different from exponential",
        };
        write!(f, "{weight} (slope {:.2} ± {:.2}, where 1 is exponential)", self.slope.mean, self.slope.half)
    }
}

/// The positive samples, if there are enough.
fn positive(samples: &[f64]) -> Result<Vec<f64>, TheoryError> {
    let positive: Vec<f64> = samples.iter().copied().filter(|x| *x > 0.0).collect();
    if positive.len() < BATCHES * MIN_BATCH {
        return Err(TheoryError::TooFew { have: positive.len(), need: BATCHES * MIN_BATCH });
    }
    Ok(positive)
}

/// An estimate from all samples, with a confidence interval from the batches.
fn with_interval(samples: &[f64], of: impl Fn(&[f64]) -> f64) -> Mean {
    let batches: Vec<f64> = samples.chunks_exact(samples.len() / BATCHES).take(BATCHES).map(&of).collect();
    Mean { mean: of(samples), half: half_width(&batches) }
}

fn descending(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted
}

/// Fits a Weibull law to the positive samples: Newton's method on Σ x^k ln x / Σ x^k − 1/k −
/// mean(ln x) = 0.
///
/// # Errors
/// When there are too few positive samples.
pub fn weibull(samples: &[f64]) -> Result<Weibull, TheoryError> {
    let samples = positive(samples)?;
    let shape = with_interval(&samples, shape_of);
    let mean = samples.iter().map(|x| x.powf(shape.mean)).sum::<f64>() / samples.len() as f64;
    Ok(Weibull { shape, scale: mean.powf(1.0 / shape.mean) })
}

fn shape_of(samples: &[f64]) -> f64 {
    // Scaled by the largest sample, which avoids overflow and keeps the shape.
    let most = samples.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let logs: Vec<f64> = samples.iter().map(|x| (x / most).ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let mut k = 1.0;
    for _ in 0..100 {
        let mut a = 0.0;
        let mut b = 0.0;
        let mut c = 0.0;
        for log in &logs {
            let power = (k * log).exp();
            a += power;
            b += power * log;
            c += power * log * log;
        }
        let step = (b / a - 1.0 / k - mean) / (c / a - (b / a).powi(2) + 1.0 / (k * k));
        // Keeps k positive.
        k = (k - step).max(k / 4.0);
        if step.abs() < 1e-12 * k {
            break;
        }
    }
    k
}

/// Hill's estimate of γ from the `k` largest of the positive samples: (1/k) Σ ln X₍ᵢ₎ − ln X₍ₖ₊₁₎.
/// The index of a Pareto tail is 1/γ. For lighter tails it converges to 0, but so slowly that it
/// looks like a Pareto tail.
///
/// # Errors
/// When there are too few positive samples.
pub fn hill(samples: &[f64], k: usize) -> Result<Mean, TheoryError> {
    let samples = positive(samples)?;
    let share = k.max(1) as f64 / samples.len() as f64;
    Ok(with_interval(&samples, |batch| {
        let sorted = descending(batch);
        let k = ((share * batch.len() as f64).round() as usize).clamp(1, batch.len() - 1);
        sorted[..k].iter().map(|x| x.ln()).sum::<f64>() / k as f64 - sorted[k].ln()
    }))
}

/// [`hill`] for several numbers of the largest samples, ascending: the Hill plot.
///
/// # Errors
/// When there are too few positive samples.
pub fn hill_curve(samples: &[f64], counts: &[usize]) -> Result<Vec<(usize, Mean)>, TheoryError> {
    let samples = positive(samples)?;
    let logs = |samples: &[f64]| -> Vec<f64> { descending(samples).iter().map(|x| x.ln()).collect() };
    let of = |logs: &[f64], count: usize| {
        let k = count.clamp(1, logs.len() - 1);
        logs[..k].iter().sum::<f64>() / k as f64 - logs[k]
    };
    let all = logs(&samples);
    let batches: Vec<Vec<f64>> = samples.chunks_exact(samples.len() / BATCHES).take(BATCHES).map(logs).collect();
    let estimate = |count: &usize| {
        let each: Vec<f64> = batches.iter().map(|batch| of(batch, (count / BATCHES).max(1))).collect();
        (*count, Mean { mean: of(&all, *count), half: half_width(&each) })
    };
    Ok(counts.iter().filter(|count| **count < samples.len()).map(estimate).collect())
}

/// Points (ln x, ln(−ln P(X > x))) of the positive samples, from the median to a tail of ten samples:
/// a straight line for a Weibull law, with its shape as the slope.
///
/// # Errors
/// When there are too few positive samples.
pub fn weibull_curve(samples: &[f64]) -> Result<Vec<(f64, f64)>, TheoryError> {
    const POINTS: i32 = 80;
    let sorted = descending(&positive(samples)?);
    let (count, rarest) = (sorted.len() as f64, 10.0 / sorted.len() as f64);
    let point = |index: i32| {
        let tail = 0.5 * (rarest / 0.5).powf(f64::from(index) / f64::from(POINTS - 1));
        (sorted[(tail * count) as usize].ln(), (-tail.ln()).ln())
    };
    Ok((0..POINTS).map(point).collect())
}

/// Rₙ(p) = max |X|ᵖ / Σ |X|ᵖ over the first n samples, for each n. It converges to 0 if and only if
/// the p-th moment is finite (Embrechts, Klüppelberg and Mikosch 1997, §6.2.6).
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

/// The mean excess E[X − u | X > u] over a threshold u; `None` if no sample lies above. Constant
/// for an exponential law, growing for a heavier one, proportional to u for a Pareto tail.
pub fn mean_excess(samples: &[f64], threshold: f64) -> Option<f64> {
    let above: Vec<f64> = samples.iter().filter(|x| **x > threshold).map(|x| x - threshold).collect();
    (!above.is_empty()).then(|| above.iter().sum::<f64>() / above.len() as f64)
}

/// The slope of ln(−ln P(X > x)) over ln x between two probabilities, `from` > `to`: the shape of a
/// Weibull tail, 1 for an exponential one.
///
/// # Errors
/// When there are too few positive samples.
pub fn slope(samples: &[f64], from: f64, to: f64) -> Result<Mean, TheoryError> {
    let samples = positive(samples)?;
    Ok(with_interval(&samples, |batch| slope_of(batch, from, to)))
}

/// The least-squares slope, up to a tail of twenty samples.
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

/// Whether the tail is heavier than an exponential one: by the slope and its confidence interval,
/// not by Hill's estimate.
///
/// # Errors
/// When there are too few positive samples.
pub fn verdict(samples: &[f64]) -> Result<TailVerdict, TheoryError> {
    let positive = positive(samples)?;
    // From the median to the 99.9th percentile.
    let slope = with_interval(&positive, |batch| slope_of(batch, 0.5, 1e-3));
    let weight = match () {
        () if slope.mean + slope.half < 1.0 => TailWeight::Heavier,
        () if slope.mean - slope.half > 1.0 => TailWeight::Lighter,
        () => TailWeight::Undecided,
    };
    let hill = hill(&positive, positive.len() / 100)?;
    Ok(TailVerdict { weight, slope, max_over_sum: max_over_sum(&positive, 2.0).last().copied().unwrap_or(1.0), hill })
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
    fn a_weibull_law_is_recovered_within_its_interval() {
        for shape in [0.5, 1.0, 2.0] {
            let fitted = weibull(&drawn(|u| 3.0 * (-u.ln()).powf(1.0 / shape))).unwrap();
            assert!((fitted.shape.mean - shape).abs() < 2.0 * fitted.shape.half && fitted.shape.half < 0.02 * shape, "{fitted:?}");
            assert!((fitted.scale / 3.0 - 1.0).abs() < 0.03, "{fitted:?}");
        }
    }

    #[test]
    fn hill_alone_takes_a_weibull_tail_for_a_pareto_one() {
        let (weibull, pareto) = (weibull_half(), drawn(|u| u.powf(-1.0 / 1.5)));
        // For the Pareto law it finds 1/1.5. The Weibull law has γ = 0, but the estimate looks as
        // good.
        let truth = hill(&pareto, 1000).unwrap();
        assert!((truth.mean - 1.0 / 1.5).abs() < 2.0 * truth.half, "{truth:?}");
        let misled = hill(&weibull, 1000).unwrap();
        assert!(misled.mean > 0.3 && misled.mean < 0.6 && misled.half < 0.1, "{misled:?}");
        // The other estimators tell them apart: only the Weibull law has a finite second moment.
        assert!(max_over_sum(&weibull, 2.0)[N - 1] < 0.05);
        assert!(max_over_sum(&pareto, 2.0)[N - 1] > 0.05);
        let excess = |samples: &[f64], u: f64| mean_excess(samples, u).unwrap();
        assert!(excess(&pareto, 100.0) / excess(&pareto, 10.0) > 5.0 && excess(&weibull, 100.0) / excess(&weibull, 10.0) < 5.0);
    }

    #[test]
    fn curves_are_those_of_the_law() {
        let samples = weibull_half();
        let curve = weibull_curve(&samples).unwrap();
        let slope = (curve[79].1 - curve[0].1) / (curve[79].0 - curve[0].0);
        assert!((slope - 0.5).abs() < 0.05, "{slope}");
        for (count, found) in hill_curve(&samples, &[100, 1000, 200_000]).unwrap() {
            let alone = hill(&samples, count).unwrap();
            assert!((found.mean - alone.mean).abs() < 1e-12 && (found.half - alone.half).abs() < 1e-12, "{found:?} {alone:?}");
        }
        assert_eq!(hill_curve(&samples, &[200_000]).unwrap(), []);
    }

    #[test]
    fn verdicts_compare_with_the_exponential_law() {
        assert_eq!(verdict(&weibull_half()).unwrap().weight, TailWeight::Heavier);
        assert_eq!(verdict(&drawn(|u| u.powf(-1.0 / 1.5))).unwrap().weight, TailWeight::Heavier);
        assert_eq!(verdict(&drawn(|u| -u.ln())).unwrap().weight, TailWeight::Undecided);
        let gaussian = verdict(&drawn(|u| (-u.ln()).sqrt())).unwrap();
        assert_eq!(gaussian.weight, TailWeight::Lighter);
        assert!((gaussian.slope.mean - 2.0).abs() < 0.1, "{gaussian}");
    }

    #[test]
    fn intervals_account_for_dependent_samples() {
        // Each sample repeated ten times has no more information.
        let once: Vec<f64> = weibull_half()[..N / 10].to_vec();
        let tenfold: Vec<f64> = once.iter().flat_map(|x| [*x; 10]).collect();
        let (a, b) = (weibull(&once).unwrap().shape, weibull(&tenfold).unwrap().shape);
        assert!((a.mean - b.mean).abs() < 1e-9 && b.half > 0.9 * a.half, "{a:?} {b:?}");
    }

    #[test]
    fn too_few_samples_are_refused() {
        assert!(weibull(&[1.0, 2.0, 0.0]).unwrap_err().to_string().contains("2 positive samples"));
    }
}
