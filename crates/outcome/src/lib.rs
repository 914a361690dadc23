//! The answers of engines to scenarios: [`Outcome`], the [`Engine`] interface, and the computation
//! of an outcome from the measurements of a run, which all engines share.

mod accounts;
mod counted_jobs;
mod curve;
mod engine;
mod link_outcome;
mod numbers;
mod outcome;
mod run_figures;
mod run_table;
mod samples;
mod sojourns;
mod statistics;
mod web;

pub use counted_jobs::CountedJobs;
pub use engine::{Engine, EngineError, Progress};
pub use link_outcome::{LinkOutcome, ReverseLinkOutcome};
pub use numbers::{NUMBERS, OVER_CAN, SOJOURNS, add_ci95};
pub use outcome::{
    AgentOutcome, FlowOutcome, IntervalOutcome, LegOutcome, NetworkOutcome, Outcome, Phases, ProxyOutcome, ReorderOutcome, Series,
    ShaperOutcome, schema,
};
pub use run_table::{RunColumn, RunRow, RunTable};
pub use samples::{FlowSamples, LegSample, LegSamples, LinkSample, RunSamples};
pub use sojourns::{Means, Sojourns};
pub use statistics::{Dist, half_width, jain};
pub use web::{ExchangeOutcome, PageOutcome, TimePercentiles, WebProgress, WebSamples};
