//! How many connections a worker can have, by the limit of open files.

use super::types::{Config, Listen};
use intercept::leg;
use multipath::BondDescriptors;

impl Config {
    /// Descriptors of a worker that are not for flows: listeners, pipes, connections that arrive
    /// while the gate shuts.
    const RESERVED_FILES: u64 = 400;

    /// How many flows a worker has descriptors for: two each, or as many as its bond needs.
    pub(crate) fn flows_of_a_worker(&self) -> usize {
        let accepts = self.listen.iter().any(Listen::takes_streams);
        let plain = BondDescriptors { per_stream: 2, shared: 0 };
        let needed = self.bond.as_ref().map_or(plain, |bond| bond.descriptors(self.networks.len(), accepts));
        (leg::open_files().saturating_sub(Self::RESERVED_FILES + needed.shared as u64) / needed.per_stream as u64).max(1) as usize
    }

    /// How many flows a worker can have at all. Those beyond the soft limit arrive before the
    /// firewall lets connections pass.
    pub(crate) fn hard_limit_of_a_worker(&self) -> usize {
        self.flows_of_a_worker() + Self::RESERVED_FILES as usize / 4
    }

    /// How many flows a worker takes before it is full.
    pub(crate) fn soft_limit_of_a_worker(&self) -> usize {
        let most = self.flows_of_a_worker();
        self.max_flows.map_or(most, |flows| flows.div_ceil(self.threads.max(1)).min(most))
    }
}
