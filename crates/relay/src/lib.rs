//! Moves bytes between two sockets and bounds how many it holds.
//!
//! [`Direction`] relays one way, by `splice` through a [`Pipe`] or by copying, with the pipes and the
//! buffer in [`Scratch`] that all connections of an event loop share. The split connections of the
//! crate `proxy` and the bonded ones of the crate `multipath` both build on it.
//!
//! When an end of file is passed on, what a failure of a leg means, and which connections exist is
//! left to them.

mod direction;
mod ending;
mod flow;
mod pipe;
mod readiness;
mod scratch;

pub use direction::{Direction, Fault, Limits, Pumped};
pub use ending::Ending;
pub use flow::{DirectionStats, FlowRecord, FlowStats, MultipathView, PathView, UNKNOWN_ADDRESS};
pub use pipe::{Filled, Pipe};
pub use readiness::Readiness;
pub use scratch::Scratch;
