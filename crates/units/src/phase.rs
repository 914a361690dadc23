//! What a proxy is doing for one direction of a connection.

use serde::{Deserialize, Serialize};

/// What a proxy is doing for one direction of a flow (Baccelli et al. §19.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Bytes wait in the proxy, and there is room for more: each leg goes at its own rate.
    Free,
    /// Nothing waits: the outgoing leg goes no faster than the incoming one brings.
    Starvation,
    /// There is no room: the incoming leg is held to the rate of the outgoing one.
    Backpressure,
}
