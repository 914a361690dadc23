//! The phase of a proxy in one direction of a connection.

use serde::{Deserialize, Serialize};

/// Phase of a proxy in one direction of a flow (Baccelli, Carofiglio and Foss §19.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The buffer is neither empty nor full: each leg sends at its own rate.
    Free,
    /// The buffer is empty: the outgoing leg is limited to the rate of the incoming one.
    Starvation,
    /// The buffer is full: the incoming leg is limited to the rate of the outgoing one.
    Backpressure,
}
