//! The answers of engines to scenarios: [`Outcome`], the [`Engine`] interface, and the computation
//! of an outcome from the measurements of a run, which all engines share.

mod counted_jobs;
mod curve;
mod engine;
mod link_outcome;
mod outcome;
mod samples;
mod sojourns;
mod web;

pub use counted_jobs::CountedJobs;
pub use engine::{Engine, EngineError, Progress};
pub use link_outcome::{LinkOutcome, ReverseLinkOutcome};
pub use outcome::{
    AgentOutcome, Dist, FlowOutcome, IntervalOutcome, LegOutcome, NUMBERS, NetworkOutcome, OVER_CAN, Outcome, Phases, ProxyOutcome,
    ReorderOutcome, SOJOURNS, Series, ShaperOutcome, add_ci95, half_width, jain, schema,
};
pub use samples::{FlowSamples, LegSample, LegSamples, LinkSample, RunSamples};
pub use sojourns::{Means, Sojourns};
pub use web::{ExchangeOutcome, PageOutcome, TimePercentiles, WebSamples};
