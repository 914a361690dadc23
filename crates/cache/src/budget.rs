//! How much may be held, in memory and on disk, by all that the process holds together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A bound in bytes, and what has been taken of it.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Budget { limit, taken: AtomicU64::new(0) })
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// A share of nothing, to grow.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

/// What somebody has taken of a budget. Dropping it gives all back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Share {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it this many bytes, or leaves it as it is when there is no room for that.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            let fits = |taken: u64| taken.checked_add(more).filter(|taken| *taken <= self.budget.limit);
            if self.budget.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
                return false;
            }
        } else {
            self.budget.taken.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_more_than_the_limit_and_all_comes_back(wanted in prop::collection::vec((0_usize..4, 0_u64..100), 0..60)) {
            let budget = Budget::new(120);
            let mut shares: Vec<Share> = (0..4).map(|_| budget.share()).collect();
            for (index, bytes) in wanted {
                let before = shares[index].bytes();
                let fits = budget.taken() - before + bytes <= 120;
                prop_assert_eq!(shares[index].resize(bytes), fits);
                prop_assert_eq!(shares[index].bytes(), if fits { bytes } else { before });
                prop_assert_eq!(budget.taken(), shares.iter().map(Share::bytes).sum::<u64>());
            }
            drop(shares);
            prop_assert_eq!(budget.taken(), 0);
        }
    }
}
