//! The scenario file: what the network is and what is sent over it, [`Scenario`] and its parts.
//!
//! This crate knows neither sockets nor clocks nor files: text comes in as a string, randomness
//! from the seed. What an engine answers is in `outcome`.

mod case_name;
mod check;
mod explicit;
mod file;
mod flows;
mod law;
mod links;
mod model;
mod networks;
mod parallel;
mod random;
mod schedule;
mod sources;
mod split;
mod tcp;

pub use case_name::{case_parts, short_case, short_keys};
pub use explicit::Explicit;
pub use file::{Assignment, ScenarioFile, Variant};
pub use flows::{Draw, FlowGroup, FlowSpec, Opens};
pub use law::{Law, Shape, SizeLaw, SpanLaw};
pub use links::{Gilbert, Link, Loss, Queue, QueueKind, RateChange};
pub use model::{Control, Leg, Scenario};
pub use networks::{Bond, Foreground, Network, Scheduler};
pub use parallel::{Job, Jobs, Parallel};
pub use random::{Purpose, stream};
pub use schedule::{PlannedTransfer, TransferSchedule};
pub use sources::{Arrivals, Cross, Offer, Times, Writes};
pub use split::{Backpressure, Buffer, Split, SplitMode};
pub use tcp::Tcp;
