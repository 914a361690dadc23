//! Byte budgets: how much memory or disk everything in the process may hold together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// An upper bound in bytes, and how much of it is in use.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes, all of them free.
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Budget { limit, used: AtomicU64::new(0) })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that can be in use at most.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// An empty share, to be grown with [`BudgetShare::try_resize`].
    pub(crate) fn share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: self.clone(), bytes: 0 }
    }
}

/// The part of a [`Budget`] that one owner uses. Dropping it returns its bytes.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    bytes: u64,
}

impl BudgetShare {
    /// Size of the share, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the size of the share. Returns false, and changes nothing, when the budget has not
    /// enough free bytes. Shrinking always succeeds.
    pub(crate) fn try_resize(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            let fits = |used: u64| used.checked_add(more).filter(|used| *used <= self.budget.limit);
            if self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
                return false;
            }
        } else {
            self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.try_resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_never_exceed_the_limit_and_return_their_bytes(
            steps in prop::collection::vec((0_usize..4, 0_u64..100), 0..60),
        ) {
            let budget = Budget::new(120);
            let mut shares: Vec<BudgetShare> = (0..4).map(|_| budget.share()).collect();
            for (index, bytes) in steps {
                let before = shares[index].bytes();
                let fits = budget.used() - before + bytes <= 120;
                prop_assert_eq!(shares[index].try_resize(bytes), fits);
                prop_assert_eq!(shares[index].bytes(), if fits { bytes } else { before });
                prop_assert_eq!(budget.used(), shares.iter().map(BudgetShare::bytes).sum::<u64>());
            }
            drop(shares);
            prop_assert_eq!(budget.used(), 0);
        }
    }
}
