//! The far tail of the proxy's unbounded buffer by multilevel splitting on the exact path.
//!
//! A busy period begins when the buffer leaves 0. Paths that reach a level of the buffer are
//! continued from there, several each, with new losses (both loss processes are memoryless, so the
//! state at the level is all that counts). P(Q > q) is the product of: busy periods per second, the
//! fractions of paths that reach each level from the one below, and the mean time above q until the
//! buffer is empty. With levels that are fixed beforehand the estimate has no bias but that of the
//! first factor, which is a ratio of sums over a long path.

use crate::{
    error::TheoryError,
    estimate::Mean,
    split::TandemModel,
    trajectory::{SegmentEnd, TandemState, Trajectory, TrajectorySegment},
};
use outcome::half_width;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use units::Phase;

/// The effort of an estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplittingEffort {
    /// The smallest probability.
    pub until: f64,
    /// Paths from each level.
    pub paths: usize,
    /// Independent repetitions, for the confidence intervals.
    pub replicas: u64,
}

/// P(Q > q) at several levels, from independent replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct TailLevels {
    /// The levels, packets, ascending; the first is 0.
    pub packets: Vec<f64>,
    /// For each replica, the probability at each level.
    pub replicas: Vec<Vec<f64>>,
}

/// The share of the paths of the pilot run that reach the next level.
const REACH: f64 = 0.2;
/// Paths of the pilot run, which finds the levels.
const PILOT_PATHS: usize = 600;
/// Segments before the first busy period that counts.
const WARM_UP: usize = 2000;

impl TailLevels {
    /// A number computed from the probabilities at all levels: from their means over the replicas, and
    /// with an interval from the replicas' own.
    pub fn of(&self, number: impl Fn(&[f64]) -> f64) -> Mean {
        let count = self.replicas.len() as f64;
        let means: Vec<f64> =
            (0..self.packets.len()).map(|level| self.replicas.iter().map(|replica| replica[level]).sum::<f64>() / count).collect();
        let each: Vec<f64> = self.replicas.iter().map(|replica| number(replica)).collect();
        Mean { mean: number(&means), half: half_width(&each) }
    }

    /// P(Q > q) at level `level`.
    pub fn probability(&self, level: usize) -> Mean {
        self.of(|probabilities| probabilities[level])
    }

    /// The level whose probability is nearest to `probability` in logarithms.
    pub fn nearest(&self, probability: f64) -> usize {
        let distance = |level: usize| (self.probability(level).mean / probability).ln().abs();
        (0..self.packets.len()).min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(0)
    }

    /// −ln P gained between two levels over the gain of `of` their packets: a decay rate.
    pub fn decay(&self, [from, to]: [usize; 2], of: impl Fn(f64) -> f64) -> Mean {
        let width = of(self.packets[to]) - of(self.packets[from]);
        self.of(|probabilities| (probabilities[from] / probabilities[to]).ln() / width)
    }

    /// The slope of ln(−ln P) over ln q between two levels: 1 for an exponential tail, the shape of a
    /// Weibull tail.
    pub fn shape(&self, [from, to]: [usize; 2]) -> Mean {
        let width = (self.packets[to] / self.packets[from]).ln();
        self.of(|probabilities| (probabilities[to].ln() / probabilities[from].ln()).ln() / width)
    }
}

impl TandemModel {
    /// P(Q > q) of an unbounded buffer, from its levels down to a probability of `effort.until`.
    ///
    /// # Errors
    /// [`Unstable`](TheoryError::Unstable) at a load of 1 or more.
    pub fn tail_by_splitting(&self, effort: SplittingEffort, seed: u64) -> Result<TailLevels, TheoryError> {
        self.tail_decay()?;
        let split = TandemModel { buffer: f64::INFINITY, ..*self };
        let packets = split.pilot_levels(effort.until, seed.wrapping_mul(1000));
        let replica = |replica: u64| split.replica(&packets, effort.paths, seed.wrapping_mul(1000).wrapping_add(replica));
        let replicas = (1..=effort.replicas).map(replica).collect();
        Ok(TailLevels { packets, replicas })
    }

    /// The levels, such that a fifth of the paths from one reach the next.
    fn pilot_levels(&self, until: f64, seed: u64) -> Vec<f64> {
        let random = &mut Pcg64Mcg::seed_from_u64(seed);
        let (mut pool, busy_per_s) = self.busy_starts(PILOT_PATHS, random);
        let mut levels = vec![0.0];
        let mut reach = 1.0;
        loop {
            let level = levels[levels.len() - 1];
            let mut maxima = Vec::new();
            let mut above_s = 0.0;
            for path in 0..PILOT_PATHS {
                let excursion = Excursion::play(self, pool[path % pool.len()], level, f64::INFINITY, random);
                maxima.push(excursion.largest);
                above_s += excursion.above_s / PILOT_PATHS as f64;
            }
            if busy_per_s * reach * above_s < until {
                return levels;
            }
            maxima.sort_unstable_by(f64::total_cmp);
            let next = maxima[((1.0 - REACH) * PILOT_PATHS as f64) as usize];
            let entered = (0..PILOT_PATHS).filter_map(|path| Excursion::play(self, pool[path % pool.len()], level, next, random).entered);
            pool = entered.collect();
            reach *= REACH;
            levels.push(next);
            if pool.is_empty() {
                return levels;
            }
        }
    }

    /// The probabilities at the levels, from `paths` paths each.
    fn replica(&self, levels: &[f64], paths: usize, seed: u64) -> Vec<f64> {
        let random = &mut Pcg64Mcg::seed_from_u64(seed);
        let (mut pool, busy_per_s) = self.busy_starts(paths, random);
        let mut reach = 1.0;
        let mut probabilities = Vec::new();
        for (index, level) in levels.iter().enumerate() {
            let next = levels.get(index + 1).copied().unwrap_or(f64::INFINITY);
            let mut entered = Vec::new();
            let mut above_s = 0.0;
            for path in 0..if pool.is_empty() { 0 } else { paths } {
                let excursion = Excursion::play(self, pool[path % pool.len()], *level, next, random);
                above_s += excursion.above_s / paths as f64;
                entered.extend(excursion.entered);
            }
            probabilities.push(busy_per_s * reach * above_s);
            reach *= entered.len() as f64 / paths as f64;
            pool = entered;
        }
        probabilities
    }

    /// States in which busy periods begin, and the number of these per second.
    fn busy_starts(&self, count: usize, random: &mut Pcg64Mcg) -> (Vec<TandemState>, f64) {
        let [x, y] = self.isolated_means();
        let mut path = Trajectory::renewed(*self, TandemState { x, y, q: 0.0 }, random);
        let (mut starts, mut time_s, mut steps) = (Vec::new(), 0.0, 0);
        while starts.len() < count {
            let segment = path.step();
            steps += 1;
            if steps > WARM_UP {
                if segment.phase == Phase::Free && segment.from.q <= 0.0 {
                    starts.push(segment.from);
                }
                time_s += segment.span;
            }
        }
        (starts, count as f64 / time_s)
    }
}

/// A path from a state until the buffer is empty.
struct Excursion {
    /// Time above the level, s.
    above_s: f64,
    /// The state in which it first reaches the next level.
    entered: Option<TandemState>,
    /// The largest content of the buffer.
    largest: f64,
}

impl Excursion {
    fn play(split: &TandemModel, from: TandemState, level: f64, next: f64, random: &mut Pcg64Mcg) -> Excursion {
        let mut path = Trajectory::renewed(*split, from, random);
        let mut excursion = Excursion { above_s: 0.0, entered: None, largest: from.q };
        loop {
            let segment = path.step();
            excursion.above_s += segment.time_above(level);
            excursion.largest = excursion.largest.max(segment.largest_content());
            if excursion.entered.is_none() {
                excursion.entered = segment.reaches_content(next);
            }
            if segment.ends == SegmentEnd::Empty {
                return excursion;
            }
        }
    }
}

impl Trajectory {
    /// A trajectory from a state with new losses, independent of all others from `random`.
    pub(crate) fn renewed(split: TandemModel, from: TandemState, random: &mut Pcg64Mcg) -> Trajectory {
        Trajectory::new(split, from, random.random::<u64>())
    }
}

/// Of segments of the free phase, in which the content is a parabola.
impl TrajectorySegment {
    /// First and second derivative of the content at its start.
    fn content_slopes(&self) -> [f64; 2] {
        [self.from.x - self.from.y, self.slopes[0] - self.slopes[1]]
    }

    /// When the content is `level`, in order, if that is inside the segment.
    fn crossings(&self, level: f64) -> Vec<f64> {
        let ([d, e], gap) = (self.content_slopes(), self.from.q - level);
        let square = d * d - 2.0 * e * gap;
        if square < 0.0 {
            return Vec::new();
        }
        // The root of larger absolute value first: the other follows without cancellation.
        let sum = -(d + square.sqrt().copysign(d));
        let mut roots = vec![if e == 0.0 { f64::INFINITY } else { sum / e }, if sum == 0.0 { f64::INFINITY } else { 2.0 * gap / sum }];
        roots.retain(|t| *t > 0.0 && *t < self.span);
        roots.sort_unstable_by(f64::total_cmp);
        roots
    }

    fn time_above(&self, level: f64) -> f64 {
        let [d, e] = self.content_slopes();
        let mut ends = vec![0.0];
        ends.extend(self.crossings(level));
        ends.push(self.span);
        let is_above = |t: f64| self.from.q + (d + e * t / 2.0) * t > level;
        ends.windows(2).filter(|ends| is_above(f64::midpoint(ends[0], ends[1]))).map(|ends| ends[1] - ends[0]).sum()
    }

    fn largest_content(&self) -> f64 {
        let [d, e] = self.content_slopes();
        let top = -d / e;
        let inside = if e < 0.0 && top > 0.0 && top < self.span { self.from.q + d * top / 2.0 } else { 0.0 };
        self.from.q.max(self.to.q).max(inside)
    }

    /// The state in which the content first rises to `level`; none if it does not.
    fn reaches_content(&self, level: f64) -> Option<TandemState> {
        if self.largest_content() < level || self.from.q >= level {
            return None;
        }
        let at = self.crossings(level).first().copied().unwrap_or(self.span);
        Some(TandemState { q: level, ..self.at(at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Aimd, LossRate};

    #[test]
    fn it_agrees_with_samples_where_there_are_enough_of_them() {
        for (losses, gap_s) in [(LossRate::PerSecond(0.4), 10.0), (LossRate::PerPacket(1e-4), 10.0)] {
            let split = TandemModel::new(Aimd::new(0.04, losses).unwrap(), Aimd::new(0.035, losses).unwrap());
            let tail = split.tail_by_splitting(SplittingEffort { until: 1e-4, paths: 500, replicas: 20 }, 1).unwrap();
            assert!(tail.packets.windows(2).all(|pair| pair[0] < pair[1]) && tail.packets.len() > 4, "{:?}", tail.packets);
            let [x, y] = split.isolated_means();
            let held: Vec<f64> =
                split.trajectory(TandemState { x, y, q: 0.0 }, 9).samples(gap_s, 9).skip(100).take(200_000).map(|state| state.q).collect();
            for (level, packets) in tail.packets.iter().enumerate() {
                let share = held.iter().filter(|q| **q > *packets).count() as f64 / held.len() as f64;
                let found = tail.probability(level);
                // Samples depend on each other: their error is several times that of as many
                // independent ones.
                let error = 6.0 * (share * (1.0 - share) / held.len() as f64).sqrt() + 2.0 * found.half;
                assert!((found.mean - share).abs() < error, "P(Q > {packets}) = {found:?}, sampled {share}");
            }
        }
    }

    #[test]
    fn the_time_above_a_level_is_that_of_the_parabola() {
        let split = TandemModel::new(Aimd::new(1.0, LossRate::PerSecond(0.2)).unwrap(), Aimd::new(0.8, LossRate::PerSecond(0.2)).unwrap());
        let mut path = split.trajectory(TandemState { x: 8.0, y: 1.0, q: 0.0 }, 3);
        for _ in 0..200 {
            let segment = path.step();
            if segment.phase != Phase::Free {
                continue;
            }
            let level = f64::midpoint(segment.from.q, segment.largest_content());
            let steps = 20_000;
            let above = (0..steps).filter(|step| segment.at(segment.span * (f64::from(*step) + 0.5) / f64::from(steps)).q > level).count();
            let counted = segment.span * above as f64 / f64::from(steps);
            assert!((segment.time_above(level) - counted).abs() <= 3.0 * segment.span / f64::from(steps), "{segment:?}");
        }
    }
}
