//! The most connections of a worker, by the limit of open files.

use super::types::{ListenerConfig, ProxyConfig};
use intercept::leg;
use multipath::BondDescriptors;

impl ProxyConfig {
    /// Descriptors of a worker that are reserved for listeners, pipes, and connections that arrive
    /// while the gate is being shut.
    const RESERVED_FILES: u64 = 400;

    /// Number of flows that a worker has descriptors for: each needs two, or as many as the bond
    /// needs.
    pub(crate) fn flows_of_a_worker(&self) -> usize {
        let accepts = self.listen.iter().any(ListenerConfig::takes_streams);
        let plain = BondDescriptors { per_stream: 2, shared: 0 };
        let needed = self.bond.as_ref().map_or(plain, |bond| bond.descriptors(self.networks.len(), accepts));
        (leg::open_files().saturating_sub(Self::RESERVED_FILES + needed.shared as u64) / needed.per_stream as u64).max(1) as usize
    }

    /// The most flows of a worker. Flows beyond its soft limit are those that arrive while the gate
    /// is being shut.
    pub(crate) fn hard_limit_of_a_worker(&self) -> usize {
        self.flows_of_a_worker() + Self::RESERVED_FILES as usize / 4
    }

    /// Number of flows at which a worker is full.
    pub(crate) fn soft_limit_of_a_worker(&self) -> usize {
        let most = self.flows_of_a_worker();
        self.max_flows.map_or(most, |flows| flows.div_ceil(self.threads.max(1)).min(most))
    }
}
