//! Moves bytes between two sockets and bounds how many it holds.
//!
//! [`Direction`] relays one way, by `splice` through a [`Pipe`] or by copying, with the pipes and
//! the buffer in [`Scratch`] that all connections of an event loop share. [`Reactor`] is the epoll
//! of such a loop, [`Slab`] has what its events belong to. The split connections of the crate
//! `proxy` and the bonded ones of the crate `multipath` both build on these.
//!
//! When an end of file is passed on, what a failure of a leg means, and which connections exist is
//! left to them.

mod direction;
mod ending;
mod flow;
mod leg_side;
mod pipe;
mod plain_leg;
mod reactor;
mod readiness;
mod scratch;
mod slab;

pub use direction::{Direction, Fault, Pumped};
pub use ending::Ending;
pub use flow::{DirectionStats, FlowRecord, FlowStats, MultipathView, PathView, UNKNOWN_ADDRESS};
pub use leg_side::LegSide;
pub use pipe::{Filled, Pipe};
pub use plain_leg::{PlainLeg, dial_first};
pub use reactor::{EventBatch, Reactor, Token};
pub use readiness::Readiness;
pub use scratch::Scratch;
pub use slab::Slab;
