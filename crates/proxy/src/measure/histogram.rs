//! Histograms with fixed bounds. Each bucket keeps its last observation as an exemplar.

use serde::{Deserialize, Serialize};

/// An observation that stands for its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exemplar {
    /// The observed value.
    pub value: f64,
    /// The flow that it was observed of.
    pub flow: FlowId,
    /// When, in seconds since the Unix epoch.
    pub time_s: f64,
}

/// The number of a flow, unique among the flows of this host's proxies for some weeks. It is
/// written as 16 hexadecimal digits, in exemplars, in the log and in flow records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowId(pub u64);

impl FlowId {
    /// The number before the first flow of a worker: the low bits of the time in seconds (22 bits),
    /// the worker (10 bits), and 32 bits for its flows.
    pub(crate) fn before_first(unix_s: u64, worker: usize) -> Self {
        FlowId((unix_s << 42) | ((worker as u64 & 0x3ff) << 32))
    }

    /// The next flow of the same worker.
    pub(crate) fn next(self) -> Self {
        FlowId((self.0 & !0xffff_ffff) | u64::from((self.0 as u32).wrapping_add(1)))
    }
}

impl std::fmt::Display for FlowId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A histogram. The upper bounds of its buckets are an argument of `observe`: they
/// are the same for all histograms of a kind. It allocates nothing before its first observation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Observations of each bucket, not cumulated; the last bucket has no upper bound.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
    /// The last observation of each bucket.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl Histogram {
    /// Adds an observation. A value equal to a bound is in the bucket below it.
    pub(crate) fn observe(&mut self, bounds: &[f64], exemplar: Exemplar) {
        let bucket = self.add(bounds, exemplar.value);
        if self.exemplars.is_empty() {
            self.exemplars = vec![None; bounds.len() + 1];
        }
        self.exemplars[bucket] = Some(exemplar);
    }

    /// Adds an observation without an exemplar; returns its bucket.
    pub(crate) fn add(&mut self, bounds: &[f64], value: f64) -> usize {
        if self.counts.is_empty() {
            self.counts = vec![0; bounds.len() + 1];
        }
        let bucket = bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
        bucket
    }

    /// Whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl std::ops::AddAssign<&Histogram> for Histogram {
    /// Adds the observations of another histogram with the same bounds. One with other bounds, of
    /// another version of this program, is left out.
    fn add_assign(&mut self, other: &Histogram) {
        if self.is_empty() {
            return self.clone_from(other);
        }
        if self.counts.len() != other.counts.len() {
            return;
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours += theirs);
        self.sum += other.sum;
        if self.exemplars.is_empty() {
            return self.exemplars.clone_from(&other.exemplars);
        }
        for (ours, theirs) in self.exemplars.iter_mut().zip(&other.exemplars) {
            let newer = |theirs: &Exemplar| ours.is_none_or(|ours| ours.time_s < theirs.time_s);
            if theirs.as_ref().is_some_and(newer) {
                *ours = *theirs;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 3] = [0.1, 1.0, 10.0];

    fn seen(value: f64, flow: u64, time_s: f64) -> Exemplar {
        Exemplar { value, flow: FlowId(flow), time_s }
    }

    #[test]
    fn observations_fall_into_the_bucket_of_the_first_bound_that_is_not_less() {
        let mut histogram = Histogram::default();
        assert!(histogram.is_empty() && histogram.exemplars.is_empty());
        for (flow, value) in [0.1, 0.100_001, 1.0, 10.5, 0.0].into_iter().enumerate() {
            histogram.observe(&BOUNDS, seen(value, flow as u64, 0.0));
        }
        assert_eq!(histogram.counts, [2, 2, 0, 1]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum - 11.700_001).abs() < 1e-9);
        let flows: Vec<_> = histogram.exemplars.iter().map(|exemplar| exemplar.map(|exemplar| exemplar.flow.0)).collect();
        assert_eq!(flows, [Some(4), Some(2), None, Some(3)]);
    }

    #[test]
    fn histograms_add_up_and_keep_the_newest_exemplars() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.observe(&BOUNDS, seen(0.5, 1, 20.0));
        other.observe(&BOUNDS, seen(0.6, 2, 10.0));
        other.observe(&BOUNDS, seen(5.0, 3, 10.0));
        let mut sum = Histogram::default();
        sum += &one;
        sum += &other;
        assert_eq!((sum.counts.as_slice(), sum.sum), ([0, 2, 1, 0].as_slice(), 6.1));
        assert_eq!(sum.exemplars[1].unwrap().flow, FlowId(1));
        assert_eq!(sum.exemplars[2].unwrap().flow, FlowId(3));
        let before = sum.clone();
        sum += &Histogram { counts: vec![1], sum: 1.0, exemplars: Vec::new() };
        assert_eq!(sum, before, "other bounds");
    }

    #[test]
    fn flows_of_workers_and_starts_have_different_numbers() {
        let first = FlowId::before_first(1_700_000_000, 3);
        assert_eq!(first.next().0, first.0 + 1);
        assert_ne!(first.next(), FlowId::before_first(1_700_000_000, 4).next());
        assert_ne!(first.next(), FlowId::before_first(1_700_000_001, 3).next());
        // The count of flows does not reach into the number of the worker.
        assert_eq!(FlowId(first.0 | 0xffff_ffff).next(), first);
        assert_eq!(FlowId(0xab).to_string(), "00000000000000ab");
    }
}
