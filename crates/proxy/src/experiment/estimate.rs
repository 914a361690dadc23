//! How much sooner split connections were than unsplit ones: the ratio of their geometric mean
//! times, with an interval.
//!
//! Times of transfers are skewed, and their ratio is what an operator asks for. So everything is
//! computed from logarithms: the difference of their means is the logarithm of the ratio. Over
//! several size classes the differences are averaged with the weights a·b/(a+b) of group weights a
//! and b: the sizes differ from group to group by chance alone, and a class without one of the
//! groups has no weight.
//!
//! Clients are not trusted: one can open as many connections as it likes, and be as slow as it
//! likes in the group that it wants to harm. Three things bound what it can do:
//!
//! - **Weights.** A client has at most [`CLIENT_SHARE`] of the weight of a group, a prefix of
//!   clients at most [`PREFIX_SHARE`]; with few of them, [`FEW`] times its equal share. Beyond
//!   that, its connections share its weight ([`weights`]).
//! - **Bounds.** Where three clients or more have times of a size class, a client's mean time is
//!   moved to the nearest value within a generous range around their median ([`bound`]).
//! - **The interval.** It is the widest one of three: of Welch's t-test over connections, which
//!   lets the groups have different variances, and of the jackknife (Efron and Tibshirani, *An
//!   Introduction to the Bootstrap*, 1993, §11) over clients and over prefixes. The jackknife
//!   leaves out one at a time: if the estimate without one is another, the interval is as wide as
//!   twice the difference at least. So what the others show alone is always in the interval,
//!   whatever a single client or prefix does.
//!
//! A robust mean alone (a median, Hodges and Lehmann's estimator) would not do: all times of a
//! group may be equal but for those with a loss, which are what makes the means differ. Nor would
//! an interval of ranks: it has no bound for what one client's many connections do to it.

use super::clients::ClientTimes;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, StudentsT};
use std::{collections::BTreeMap, ops::Range};

/// The confidence level of intervals.
const LEVEL: f64 = 0.95;
/// The largest share of a group's weight that a client has, and a prefix.
const CLIENT_SHARE: f64 = 0.05;
const PREFIX_SHARE: f64 = 0.1;
/// With few clients or prefixes, one may have this many times an equal share.
const FEW: f64 = 1.5;
/// From so many on, clients and prefixes are left out one at a time.
pub(crate) const FEWEST_LEFT_OUT: usize = 5;
/// The least number of clients whose median bounds their times.
const FEWEST_FOR_MEDIAN: usize = 3;
/// The range around the median: standard deviations (by the median deviation), and the least ratio.
const DEVIATIONS: f64 = 3.0;
const LEAST_RATIO: f64 = 10.0;
/// The median deviation of a normal distribution times this is its standard deviation.
const MEDIAN_DEVIATION: f64 = 1.4826;
/// A difference of the shares of connections that have a time, from which on the groups are not
/// comparable, and by how many standard deviations it must be larger.
const DIFFERENCE: f64 = 0.1;
const CERTAINTY: f64 = 3.0;
/// The least weight of each group, in connections, for that.
const FEWEST_ENDS: f64 = 20.0;

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

/// The comparison of both groups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) gain: Gain,
    /// The geometric means of both groups, seconds.
    pub(crate) times: [f64; 2],
    /// How many times of each group are compared.
    pub(crate) counts: [u64; 2],
    /// Of how many clients, and of how many prefixes of clients.
    pub(crate) clients: u64,
    pub(crate) prefixes: u64,
}

/// By size class and group: the weight of the times, and the sum of weight times logarithm.
type Sums = Vec<[[f64; 2]; 2]>;

/// The comparison over these size classes; absent if none has two times of each group.
pub(crate) fn compare(clients: &[&ClientTimes], sizes: Range<usize>) -> Option<Comparison> {
    let has_times = |of: &&&ClientTimes| of.times[sizes.clone()].iter().flatten().any(|times| times.count > 0);
    let clients: Vec<&ClientTimes> = clients.iter().filter(has_times).copied().collect();
    let count = |of: &ClientTimes, group: usize| of.times[sizes.clone()].iter().map(|pair| pair[group].count).sum::<u64>() as f64;
    let counts: Vec<[f64; 2]> = clients.iter().map(|of| [0, 1].map(|group| count(of, group))).collect();
    let weights = weights(&clients, &counts);
    let strata: Vec<Stratum> = sizes.filter_map(|size| Stratum::of(&clients, &weights, size)).collect();
    let total = sums(&strata, |_| 0).remove(&0)?;
    let [unsplit, split] = means(&total)?;
    let by_client = sums(&strata, |client| client);
    let by_prefix = sums(&strata, |client| usize::from(clients[client].prefix));
    let half = [&by_client, &by_prefix].map(|units| jackknife(&total, units.values())).into_iter().fold(welch(&strata), f64::max);
    let difference = unsplit - split;
    Some(Comparison {
        gain: Gain { ratio: difference.exp(), low: (difference - half).exp(), high: (difference + half).exp() },
        times: [unsplit.exp(), split.exp()],
        counts: [0, 1].map(|group: usize| strata.iter().map(|stratum| stratum.groups[group].count).sum()),
        clients: by_client.len() as u64,
        prefixes: by_prefix.len() as u64,
    })
}

/// Whether more connections of one group have a time than of the other, and not by chance.
pub(crate) fn has_unlike_ends(clients: &[&ClientTimes]) -> bool {
    let counts: Vec<[f64; 2]> = clients.iter().map(|of| of.ended.map(|count| count as f64)).collect();
    let weights = weights(clients, &counts);
    let [unsplit, split] = [0, 1].map(|group: usize| {
        let each = || clients.iter().zip(&counts).zip(&weights).map(|((of, counts), weight)| (of, counts[group], weight[group]));
        let weight: f64 = each().map(|(_, count, weight)| weight * count).sum();
        let share = each().map(|(of, _, weight)| weight * of.timed(group) as f64).sum::<f64>() / weight;
        let squares: f64 = each().map(|(_, count, weight)| weight * weight * count).sum();
        let of_clients: f64 = each().map(|(of, count, weight)| (weight * (of.timed(group) as f64 - share * count)).powi(2)).sum();
        // Agresti and Coull: with one more of each kind, a share of 0 or 1 has a variance too.
        let number = weight.powi(2) / squares;
        let likely = (share * number + 1.0) / (number + 2.0);
        (weight, share, (likely * (1.0 - likely) / (number + 2.0)).max(of_clients / weight.powi(2)))
    });
    let is_enough = unsplit.0.min(split.0) >= FEWEST_ENDS;
    is_enough && (unsplit.1 - split.1).abs() > DIFFERENCE + CERTAINTY * (unsplit.2 + split.2).sqrt()
}

/// The weight of one connection of each client, by group: 1, or less where the client or its prefix
/// has too many of these `counts`.
fn weights(clients: &[&ClientTimes], counts: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut weights = vec![[0.0; 2]; clients.len()];
    for group in [0, 1] {
        let of_clients: Vec<f64> = counts.iter().map(|counts| counts[group]).collect();
        let most = largest(&of_clients, CLIENT_SHARE);
        let mut prefixes: BTreeMap<u16, f64> = BTreeMap::new();
        for (client, count) in clients.iter().zip(&of_clients) {
            *prefixes.entry(client.prefix).or_default() += count.min(most);
        }
        let most_of_prefix = largest(&prefixes.values().copied().collect::<Vec<_>>(), PREFIX_SHARE);
        for ((client, count), weight) in clients.iter().zip(&of_clients).zip(&mut weights) {
            let of_client = (most / count).min(1.0);
            weight[group] = of_client * (most_of_prefix / prefixes[&client.prefix]).min(1.0);
        }
    }
    weights
}

/// The most that a value may count, so that its share of the sum is at most `share`, or [`FEW`]
/// times the equal share.
fn largest(values: &[f64], share: f64) -> f64 {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
    values.sort_by(f64::total_cmp);
    let share = share.max(FEW / values.len() as f64);
    let mut rest: f64 = values.iter().sum();
    for (limited, value) in values.iter().rev().enumerate() {
        // With so many limited ones, each has this.
        let most = share * rest / (1.0 - share * limited as f64);
        if *value <= most {
            return most;
        }
        rest -= value;
    }
    f64::INFINITY
}

/// The times of one client, of a size class and a group.
struct Term {
    client: usize,
    /// Of all its times together.
    weight: f64,
    /// The mean logarithm, within the range.
    mean: f64,
}

/// The times of one group, of a size class.
struct GroupTimes {
    terms: Vec<Term>,
    count: u64,
    /// The variance of the mean, and the number of equal weights that would have it.
    variance: f64,
    number: f64,
}

/// Both groups of a size class.
struct Stratum {
    groups: [GroupTimes; 2],
}

impl Stratum {
    /// None if it cannot be compared: a group has less than two times, or, of many clients, one has
    /// most of the weight and would decide alone.
    fn of(clients: &[&ClientTimes], weights: &[[f64; 2]], size: usize) -> Option<Self> {
        let groups = [0, 1].map(|group| GroupTimes::of(clients, weights, size, group));
        let is_decided_by_one = |times: &GroupTimes| {
            let total: f64 = times.terms.iter().map(|term| term.weight).sum();
            times.terms.len() < FEWEST_FOR_MEDIAN || times.terms.iter().any(|term| term.weight > total / 2.0)
        };
        let can_decide = clients.len() < FEWEST_LEFT_OUT || !groups.iter().any(is_decided_by_one);
        (can_decide && groups.iter().all(|times| times.count > 1)).then_some(Stratum { groups })
    }

    /// Of the total.
    fn weight(&self) -> f64 {
        let [a, b] = [0, 1].map(|group: usize| self.groups[group].terms.iter().map(|term| term.weight).sum::<f64>());
        a * b / (a + b)
    }
}

impl GroupTimes {
    fn of(clients: &[&ClientTimes], weights: &[[f64; 2]], size: usize, group: usize) -> Self {
        let times = |client: usize| clients[client].times[size][group];
        let has_times = |client: &usize| times(*client).count > 0;
        let term = |client| Term { client, weight: weights[client][group] * times(client).count as f64, mean: times(client).mean };
        let mut terms: Vec<Term> = (0..clients.len()).filter(has_times).map(term).collect();
        if clients.len() >= FEWEST_LEFT_OUT && terms.len() >= FEWEST_FOR_MEDIAN {
            bound(&mut terms);
        }
        let weight: f64 = terms.iter().map(|term| term.weight).sum();
        let mean = terms.iter().map(|term| term.weight * term.mean).sum::<f64>() / weight;
        let (mut squares, mut of_weights) = (0.0, 0.0);
        for term in &terms {
            let (each, times) = (weights[term.client][group], times(term.client));
            squares += each * each * (times.squares + times.count as f64 * (term.mean - mean).powi(2));
            of_weights += each * term.weight;
        }
        let number = weight * weight / of_weights;
        let count = terms.iter().map(|term| times(term.client).count).sum();
        GroupTimes { terms, count, variance: squares / (weight * weight) * number / (number - 1.0), number }
    }
}

/// Moves the means of clients into a range around their median.
fn bound(terms: &mut [Term]) {
    let center = median(terms.iter().map(|term| (term.mean, term.weight)).collect());
    let deviation = median(terms.iter().map(|term| ((term.mean - center).abs(), term.weight)).collect());
    let most = (DEVIATIONS * MEDIAN_DEVIATION * deviation).max(LEAST_RATIO.ln());
    terms.iter_mut().for_each(|term| term.mean = term.mean.clamp(center - most, center + most));
}

/// The median of values with weights.
fn median(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    let reaches = |(_, weight): &&(f64, f64)| {
        below += weight;
        below >= half
    };
    values.iter().find(reaches).map_or(0.0, |(value, _)| *value)
}

/// The sums of units of clients: all of them, single ones, or prefixes.
fn sums(strata: &[Stratum], unit: impl Fn(usize) -> usize) -> BTreeMap<usize, Sums> {
    let mut units: BTreeMap<usize, Sums> = BTreeMap::new();
    for (index, stratum) in strata.iter().enumerate() {
        for (group, times) in stratum.groups.iter().enumerate() {
            for term in &times.terms {
                let sums = &mut units.entry(unit(term.client)).or_insert_with(|| vec![Default::default(); strata.len()])[index][group];
                sums[0] += term.weight;
                sums[1] += term.weight * term.mean;
            }
        }
    }
    units
}

/// The mean logarithms of both groups over the size classes that both have.
fn means(sums: &Sums) -> Option<[f64; 2]> {
    let mut total = [0.0; 3];
    for [unsplit, split] in sums {
        // What is left of a weight from which all was subtracted.
        if unsplit[0].min(split[0]) > 1e-9 {
            let weight = unsplit[0] * split[0] / (unsplit[0] + split[0]);
            let parts = [weight, weight * unsplit[1] / unsplit[0], weight * split[1] / split[0]];
            total.iter_mut().zip(parts).for_each(|(total, part)| *total += part);
        }
    }
    (total[0] > 0.0).then(|| [total[1] / total[0], total[2] / total[0]])
}

/// Half of the width of Welch's interval, which takes each connection by itself.
fn welch(strata: &[Stratum]) -> f64 {
    let weights: f64 = strata.iter().map(Stratum::weight).sum();
    let (mut variance, mut spread) = (0.0, 0.0);
    for stratum in strata {
        for times in &stratum.groups {
            let part = (stratum.weight() / weights).powi(2) * times.variance;
            variance += part;
            spread += part.powi(2) / (times.number - 1.0);
        }
    }
    // Welch and Satterthwaite; without any variance the interval has no width.
    quantile(variance.powi(2) / spread) * variance.sqrt()
}

/// Half of the width of the interval by the estimates without one unit each.
fn jackknife<'a>(total: &Sums, units: impl ExactSizeIterator<Item = &'a Sums>) -> f64 {
    let number = units.len();
    if number < FEWEST_LEFT_OUT {
        return 0.0;
    }
    let difference = |sums: &Sums| means(sums).map(|[unsplit, split]| unsplit - split);
    let Some(all) = difference(total) else { return 0.0 };
    let without = |unit: &Sums| {
        let mut rest = total.clone();
        let pairs = rest.iter_mut().flatten().flatten().zip(unit.iter().flatten().flatten());
        pairs.for_each(|(total, of_unit)| *total -= of_unit);
        difference(&rest)
    };
    let squares: f64 = units.filter_map(without).map(|difference| (difference - all).powi(2)).sum();
    let freedom = (number - 1) as f64;
    quantile(freedom) * (squares * freedom / number as f64).sqrt()
}

/// The quantile of Student's distribution for the level.
fn quantile(freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(0.0, |law| law.inverse_cdf(0.5 + LEVEL / 2.0))
}

#[cfg(test)]
mod tests;
