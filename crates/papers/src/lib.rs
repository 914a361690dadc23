//! The papers' tables and figures. Each is a scenario file together with what the paper printed and
//! claimed; the data are in the folder `papers/`, one folder for each paper, and are embedded in
//! the program.
//!
//! [`papers`] and [`Paper::find`] are the index. An [`Experiment`] is answered by outcomes:
//! [`Paper::plans`] lists what each engine plays, and [`Experiment::rows`], [`PrintedValue::here`]
//! and [`Experiment::judge`] evaluate the outcomes. An [`EquationTable`] is answered by equations
//! alone ([`EquationTable::compute`]).
//!
//! This crate executes no plan and formats no table: crates `runner` and `report` do.

mod claim;
mod embedded;
mod engine_kind;
mod equations;
mod error;
mod experiment;
mod index;
mod plan;
mod record;
mod rows;
mod seed_mean;
mod source;
mod summary;
mod variation;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_outcomes;

pub use claim::{CasePair, ClaimVerdict, ClaimedRatio, Judgement, PaperClaim, SAME_WITHIN};
pub use engine_kind::EngineKind;
pub use equations::{Computation, ComputedFigure, ComputedLine, ComputedPlot, ComputedRow, ComputedTable, EquationTable};
pub use error::PaperError;
pub use experiment::{EngineOverride, Experiment, PrintedValue};
pub use index::{EntryName, Paper, PaperEntry, papers};
pub use plan::{EnginePlan, LeftOutCase};
pub use record::{EQUATIONS, Record, RecordedRun, round_as_recorded};
pub use rows::{BOUNDED_NUMBERS, BoundComparison, CaseRow, JudgedClaim};
pub use seed_mean::SeedMean;
pub use source::ResultSource;
pub use summary::{ClaimSummary, SummaryVerdict};
pub use variation::Variation;
