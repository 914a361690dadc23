//! What an engine answers to a scenario: [`Outcome`], the [`Engine`] interface, and what all
//! engines compute alike from what they have [`Seen`] of a run.

mod counted_jobs;
mod curve;
mod engine;
mod outcome;
mod seen;
mod sojourns;

pub use counted_jobs::CountedJobs;
pub use engine::{Engine, EngineError, Progress};
pub use outcome::{
    Dist, FlowOutcome, LegOutcome, LinkOutcome, NUMBERS, NetworkOutcome, OVER_CAN, Outcome, Phases, ProxyOutcome, ReorderOutcome, SOJOURNS,
    Series, ShaperOutcome, add_ci95, half_width, jain,
};
pub use seen::{FlowSeen, LegLook, LegSeen, LinkLook, Seen};
pub use sojourns::{Means, Sojourns};
