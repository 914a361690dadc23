//! Moves bytes between two sockets and bounds how many it holds.
//!
//! [`Direction`] relays one way: zero-copy, by `splice` through a [`Pipe`], or by copying. Its
//! bound exerts backpressure on the sender. [`Scratch`] has the pipes and the buffer that all
//! connections of an event loop share. With a [`buffer_law`], the bound follows the flow.
//! [`Reactor`] wraps the epoll of an event loop, [`Slab`] holds the objects that its events refer
//! to. The split connections of the crate `proxy` and the bonded ones of the crate `multipath` both
//! build on these.
//!
//! These crates decide when an end of file is passed on, what the failure of a leg means, and which
//! connections exist.

mod buffer_budget;
mod buffer_control;
pub mod buffer_law;
mod buffer_rise;
mod dial_race;
mod direction;
mod ending;
mod flow;
mod leg_side;
mod pipe;
mod plain_leg;
mod reactor;
mod readiness;
mod relay_fault;
mod scratch;
mod slab;
mod squeeze;

pub use buffer_budget::{BufferBudget, BufferCap, BufferRoom, LEAST_SHARE, share_of};
pub use buffer_control::{BufferControl, SendingSide};
pub use dial_race::{DialRace, OpenAttempt};
pub use direction::{Direction, Pumped};
pub use ending::Ending;
pub use flow::{DirectionStats, FlowMeasurements, FlowRecord, FlowStats, MultipathView, PathView, PhaseTimes, ProfileId, UNKNOWN_ADDRESS};
pub use leg_side::LegSide;
pub use pipe::{Filled, Pipe};
pub use plain_leg::PlainLeg;
pub use reactor::{EventBatch, Reactor, Token};
pub use readiness::Readiness;
pub use relay_fault::RelayFault;
pub use scratch::Scratch;
pub use slab::Slab;
