//! How much sooner split connections were than unsplit ones: the ratio of their geometric mean
//! times, with an interval.
//!
//! Times of transfers are skewed, and their ratio is what an operator asks for. So everything is
//! computed from logarithms: the difference of their means is the logarithm of the ratio, and its
//! interval follows from Welch's t-test, which lets the groups have different variances. Over
//! several size classes the differences are averaged with the weights n·m/(n+m) of group sizes n
//! and m: the sizes differ from group to group by chance alone, and a class without one of the
//! groups has no weight.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// The confidence level of intervals.
const LEVEL: f64 = 0.95;

/// Number, mean and variance of the logarithms of times (Welford's algorithm).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LogTimes {
    count: u64,
    mean: f64,
    squares: f64,
}

impl LogTimes {
    /// Adds a time in seconds.
    pub(crate) fn add(&mut self, seconds: f64) {
        // A clock that is set backwards may make a time 0.
        let value = seconds.max(1e-6).ln();
        self.count += 1;
        let difference = value - self.mean;
        self.mean += difference / self.count as f64;
        self.squares += difference * (value - self.mean);
    }

    /// The number of times.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The geometric mean, seconds; absent without a time.
    pub(crate) fn geometric_mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.mean.exp())
    }

    /// The variance of the mean; absent below two times.
    fn variance_of_mean(&self) -> Option<f64> {
        (self.count > 1).then(|| self.squares / (self.count - 1) as f64 / self.count as f64)
    }
}

/// A ratio and its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Time of unsplit connections by time of split ones: above 1, split ones were sooner.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Times of both groups: unsplit, split.
pub(crate) type Pair = [LogTimes; 2];

/// The gain over these strata; absent if no stratum has two times of each group.
pub(crate) fn gain(strata: &[Pair]) -> Option<Gain> {
    let parts: Vec<Part> = strata.iter().filter_map(Part::of).collect();
    let weights: f64 = parts.iter().map(|part| part.weight).sum();
    if parts.is_empty() {
        return None;
    }
    let mean = |of: &dyn Fn(&Part) -> f64| parts.iter().map(|part| part.weight / weights * of(part)).sum::<f64>();
    let difference = mean(&|part| part.difference);
    let terms =
        || parts.iter().flat_map(|part| part.variances.map(|(variance, count)| ((part.weight / weights).powi(2) * variance, count)));
    let variance: f64 = terms().map(|(variance, _)| variance).sum();
    // Welch and Satterthwaite; without any variance the interval has no width.
    let spread: f64 = terms().map(|(variance, count)| variance.powi(2) / (count - 1) as f64).sum();
    let quantile = StudentsT::new(0.0, 1.0, variance.powi(2) / spread).map_or(0.0, |law| law.inverse_cdf(0.5 + LEVEL / 2.0));
    let half = quantile * variance.sqrt();
    Some(Gain { ratio: difference.exp(), low: (difference - half).exp(), high: (difference + half).exp() })
}

/// The geometric means of both groups over the strata that [`gain`] compares, with its weights,
/// seconds.
pub(crate) fn compared_times(strata: &[Pair]) -> Option<[f64; 2]> {
    let compared = || strata.iter().filter_map(|pair| Some((Part::of(pair)?.weight, pair)));
    let weights: f64 = compared().map(|(weight, _)| weight).sum();
    let of = |group: usize| compared().map(|(weight, pair)| weight / weights * pair[group].mean).sum::<f64>().exp();
    compared().next().map(|_| [of(0), of(1)])
}

/// How many times of each group [`gain`] compares.
pub(crate) fn compared_counts(strata: &[Pair]) -> [u64; 2] {
    let compared = || strata.iter().filter(|pair| Part::of(pair).is_some());
    [0, 1].map(|group: usize| compared().map(|pair| pair[group].count).sum())
}

/// The part of one stratum.
struct Part {
    weight: f64,
    /// Mean logarithm of unsplit times less that of split ones.
    difference: f64,
    /// Variance of each mean, and the number of its times.
    variances: [(f64, u64); 2],
}

impl Part {
    fn of(pair: &Pair) -> Option<Self> {
        let [unsplit, split] = pair;
        let variances = [(unsplit.variance_of_mean()?, unsplit.count), (split.variance_of_mean()?, split.count)];
        let [n, m] = [unsplit.count as f64, split.count as f64];
        Some(Part { weight: n * m / (n + m), difference: unsplit.mean - split.mean, variances })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _};
    use rand_pcg::Pcg64;

    fn times(values: &[f64]) -> LogTimes {
        let mut all = LogTimes::default();
        values.iter().for_each(|value| all.add(*value));
        all
    }

    /// The log of a time with a normal distribution, by the sum of twelve uniform numbers.
    fn lognormal(random: &mut Pcg64, mean: f64, deviation: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        (mean + deviation * normal).exp()
    }

    #[test]
    fn the_gain_is_the_ratio_of_geometric_means() {
        let pair = [times(&[2.0, 8.0, 4.0]), times(&[1.0, 4.0, 2.0])];
        let found = gain(&[pair]).unwrap();
        assert!((found.ratio - 2.0).abs() < 1e-12 && found.low < 2.0 && 2.0 < found.high, "{found:?}");
        // R: t.test(log(c(2,8,4)), log(c(1,4,2)))$conf.int is -0.8782 … 2.2645.
        assert!((found.low.ln() + 0.8782).abs() < 1e-3 && (found.high.ln() - 2.2645).abs() < 1e-3, "{found:?}");
        let means = compared_times(&[pair]).unwrap();
        assert!((means[0] - 4.0).abs() < 1e-12 && (means[1] - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_group_with_one_time_has_no_gain() {
        assert_eq!(gain(&[[times(&[2.0]), times(&[1.0, 2.0])]]), None);
        assert_eq!(gain(&[]), None);
        assert_eq!(compared_times(&[Pair::default()]), None);
        let same = gain(&[[times(&[2.0, 2.0]), times(&[1.0, 1.0])]]).unwrap();
        assert_eq!((same.low, same.high), (same.ratio, same.ratio));
    }

    #[test]
    fn a_class_that_one_group_has_more_of_does_not_count_as_gain() {
        // Split and unsplit take the same time, and only the split group has many large transfers.
        let small = [times(&[1.0, 1.1, 0.9, 1.0]), times(&[1.0, 1.1, 0.9])];
        let large = [times(&[99.0, 101.0]), times(&[98.0, 102.0, 100.0, 99.0, 101.0, 100.0])];
        let found = gain(&[small, large]).unwrap();
        assert!((found.ratio - 1.0).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn intervals_cover_the_gain_about_as_often_as_they_say() {
        let mut random = Pcg64::seed_from_u64(5);
        let covers = |random: &mut Pcg64| {
            let mut strata = [Pair::default(); 2];
            for (pair, size) in strata.iter_mut().zip([0.0, 3.0]) {
                for _ in 0..12 {
                    pair[0].add(lognormal(random, size + 0.7, 0.9));
                    pair[1].add(lognormal(random, size, 0.4));
                }
            }
            let found = gain(&strata).unwrap();
            found.low <= 0.7f64.exp() && 0.7f64.exp() <= found.high
        };
        let covered = (0..2000).filter(|_| covers(&mut random)).count();
        // 95 % of 2000 is 1900, with a standard deviation of 10.
        assert!((1860..=1940).contains(&covered), "{covered} of 2000");
    }
}
