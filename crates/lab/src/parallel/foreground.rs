//! Starts what carries the foreground of a scenario: a bond, Multipath TCP, or a single network.

use super::{
    network::{OnStreamEnd, ParallelNetworks},
    transfers::TransferRoute,
};
use crate::{LabError, network::NetworkOptions};
use proxy::FlowRecord;
use scenario::{FlowSpec, Opens, Parallel, Scenario, TransferScheduler};

impl ParallelNetworks {
    /// Builds the networks of `scenario` and what carries its foreground: the ends of a bond, or
    /// Multipath TCP. No transfer of the scenario is started.
    ///
    /// # Errors
    /// If the scenario has no networks in parallel, or a host, device, capture or end of a bond
    /// cannot be made.
    pub fn build(scenario: &Scenario, seed: u64, options: &NetworkOptions) -> Result<Self, LabError> {
        let parallel = scenario.parallel().ok_or_else(|| LabError::NoNetworks { scenario: scenario.name.clone() })?;
        let mut networks = ParallelNetworks::without_bonds(&parallel, seed, options)?;
        start(&mut networks, &parallel, &scenario.flow_specs(seed), scenario.control.sender_name(), |_| |_, _: &FlowRecord| {})?;
        Ok(networks)
    }
}

/// Starts what carries the foreground, and returns the route of its transfers. If the scenario
/// lists flows, only hosts that open one get a bond; otherwise the sender opens all transfers.
/// `on_end` makes the callback of each bond, from the host that opens its streams.
pub(super) fn start<F: OnStreamEnd>(
    networks: &mut ParallelNetworks,
    parallel: &Parallel<'_>,
    flows: &[FlowSpec],
    control: &str,
    on_end: impl Fn(Opens) -> F,
) -> Result<TransferRoute, LabError> {
    match parallel.bond.settings() {
        Some(settings) => {
            let has_bond = |opens: &Opens| match flows {
                [] => *opens == Opens::Sender,
                _ => flows.iter().any(|flow| flow.opens == *opens),
            };
            for opens in [Opens::Sender, Opens::Receiver].into_iter().filter(has_bond) {
                networks.start_bond(parallel, opens, settings, control, on_end(opens))?;
            }
            Ok(TransferRoute::Bond)
        }
        None if parallel.bond.scheduler == TransferScheduler::Mptcp => {
            networks.enable_multipath_tcp()?;
            Ok(TransferRoute::Multipath)
        }
        None => Ok(TransferRoute::Network(parallel.best())),
    }
}
