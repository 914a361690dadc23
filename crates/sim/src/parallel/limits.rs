//! Limits of a transfer over networks in parallel.

use scenario::Scenario;

/// The most connections of a transfer over a network.
pub(crate) const MAX_WEIGHT: usize = 4;
/// The most connections of a transfer.
pub(super) const MAX_CONNECTIONS: usize = MAX_WEIGHT * Scenario::MOST_NETWORKS;
