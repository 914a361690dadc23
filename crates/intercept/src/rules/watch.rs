//! Notices when rules of the table are missing, and when another program has changed nftables.
//!
//! The kernel numbers the generations of its ruleset: each change of any table increments the
//! number. While it stays the same, nothing needs to be read, so that a check costs one short
//! message.

use super::{
    TABLE,
    nfnetlink::{INET, NftablesSocket},
};
use std::io;

/// What has changed since the last check.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableChange {
    /// The number of rules in the table, 0 if there is no table.
    pub(super) rules: usize,
    /// Whether another program has changed something in nftables.
    pub(super) by_others: bool,
}

/// Watches nftables in the network namespace of the calling thread.
///
/// Call [`has_changed`](Self::has_changed) after each change of our own, [`check`](Self::check)
/// often.
#[derive(Debug)]
pub(super) struct TableWatch {
    /// The generation at the last check. `None`: the next check reports a change by others.
    seen: Option<u32>,
    /// Number of our own changes since then.
    own: u32,
}

impl TableWatch {
    /// Begins with the present state: later changes are reported.
    pub(super) fn begin() -> Self {
        // If the kernel does not answer, the first check reports a change by others.
        let seen = NftablesSocket::open().and_then(|nftables| nftables.generation()).ok();
        TableWatch { seen, own: 0 }
    }

    /// Counts one change of our own: a batch of commands of which at least one changed something.
    pub(super) fn has_changed(&mut self) {
        self.own += 1;
    }

    /// Makes the next check report a change by others, because the last one could not be handled.
    pub(super) fn report_again(&mut self) {
        self.seen = None;
    }

    /// What has changed since the last check. `None` if nothing has, or the rules changed while
    /// they were read: the next check reports that.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) fn check(&mut self) -> io::Result<Option<TableChange>> {
        let nftables = NftablesSocket::open()?;
        let generation = nftables.generation()?;
        if self.seen == Some(generation) {
            return Ok(None);
        }
        let mut rules = 0;
        if !nftables.rules(INET, TABLE, None, |_| rules += 1)? {
            return Ok(None);
        }
        let by_others = self.seen.is_none_or(|seen| seen.wrapping_add(self.own) != generation);
        (self.seen, self.own) = (Some(generation), 0);
        Ok(Some(TableChange { rules, by_others }))
    }
}
