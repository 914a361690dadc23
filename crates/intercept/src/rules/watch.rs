//! Whether the rules in the table are still as many as were installed, and whether another program
//! has changed something in nftables: asked of the kernel itself.
//!
//! nftables numbers its states: each change of any table has the next generation. While the
//! generation is the same, nothing needs a look, so that looking often costs one short message.

use super::{
    TABLE,
    nfnetlink::{INET, NftablesSocket},
};
use std::io;

/// What has become of the table since the last look.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableChange {
    /// The number of rules in the table, 0 where there is no table.
    pub(super) rules: usize,
    /// Another program has changed something in nftables since the last look.
    pub(super) by_others: bool,
}

/// Looks at the nftables of the network namespace that it is asked in.
#[derive(Debug)]
pub(super) struct TableWatch {
    /// The generation of the last look.
    seen: Option<u32>,
    /// Changes of our own since then.
    own: u32,
}

impl TableWatch {
    /// Begins with the present state: what others change from now on is seen.
    pub(super) fn begin() -> Self {
        // Where it cannot be asked, the first look is taken for a change by others.
        let seen = NftablesSocket::open().and_then(|nftables| nftables.generation()).ok();
        TableWatch { seen, own: 0 }
    }

    /// Takes note of a change of our own: a batch of commands of which at least one changed something.
    pub(super) fn has_changed(&mut self) {
        self.own += 1;
    }

    /// Has the next look find a change by others: the last one could not be heeded.
    pub(super) fn look_again(&mut self) {
        self.seen = None;
    }

    /// None when nothing in nftables has changed since the last look, or something changes now.
    pub(super) fn look(&mut self) -> io::Result<Option<TableChange>> {
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
