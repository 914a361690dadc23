//! A histogram of how long packets were in a queue.

use units::Span;

/// Buckets of each power of two: a delay is exact to 1/32 of it.
const BUCKET_BITS: u32 = 5;

/// More buckets than there are, and a power of two: an index needs no check of its bounds.
const BUCKETS: usize = 2048;

/// Counts of delays. Adding one takes a few instructions, since each packet of a simulated or
/// emulated link is added.
#[derive(Debug, Clone)]
pub struct DelayHistogram {
    /// By [`bucket`].
    counts: Box<[u64; BUCKETS]>,
}

impl Default for DelayHistogram {
    fn default() -> Self {
        DelayHistogram { counts: Box::new([0; BUCKETS]) }
    }
}

/// The bucket of a delay, ns: delays up to 2^(`BUCKET_BITS` + 1) have a bucket of their own.
#[inline]
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(BUCKET_BITS + 1);
    ((shift as usize) << BUCKET_BITS) + (ns >> shift) as usize
}

/// The shortest delay of a bucket, ns.
fn delay_of(bucket: usize) -> u64 {
    let shift = (bucket >> BUCKET_BITS).saturating_sub(1);
    ((bucket - (shift << BUCKET_BITS)) as u64) << shift
}

impl DelayHistogram {
    /// Adds a delay.
    #[inline]
    pub fn add(&mut self, delay: Span) {
        self.counts[bucket(delay.0) % BUCKETS] += 1;
    }

    /// The delay that this share of the packets did not exceed, exact to 3 %; `None` without
    /// packets.
    pub fn quantile(&self, share: f64) -> Option<Span> {
        let total: u64 = self.counts.iter().sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += *count;
            seen >= rank
        });
        found.map(|bucket| Span(delay_of(bucket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_known_delays() {
        let mut histogram = DelayHistogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        (0..60).for_each(|ns| histogram.add(Span(ns)));
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(|share| histogram.quantile(share).unwrap().0), [0, 29, 56, 59]);
    }

    proptest! {
        #[test]
        fn a_bucket_is_narrow_and_begins_with_its_delay(ns in any::<u64>()) {
            let least = delay_of(bucket(ns));
            prop_assert!(least <= ns && ns - least <= ns >> BUCKET_BITS, "{ns} {least}");
            prop_assert_eq!(bucket(least), bucket(ns));
            prop_assert!(bucket(ns) < BUCKETS);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_delays(mut delays in prop::collection::vec(0u64..10_000_000_000, 1..300), share in 0.0..1.0f64) {
            let mut histogram = DelayHistogram::default();
            delays.iter().for_each(|ns| histogram.add(Span(*ns)));
            delays.sort_unstable();
            let exact = delays[((delays.len() as f64 * share).ceil() as usize).max(1) - 1];
            let found = histogram.quantile(share).unwrap().0;
            prop_assert!(found <= exact && exact - found <= exact >> BUCKET_BITS, "{found} {exact}");
        }
    }
}
