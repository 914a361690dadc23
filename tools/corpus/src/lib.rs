//! The detector's labelled corpus of packet traces, and a check of the detector against it.
//!
//! `plan` lists the runs: a middlebox, a direction and a condition each. `generate` plays them and
//! writes the traces, also as `trace_edits` changes them, and a `label`. `check` compares the
//! detector's verdicts with the labels. `termination` has a table of its own: aborted downloads.

mod check;
mod generate;
mod label;
mod plan;
mod termination;
mod trace_edits;

pub use check::CheckCorpus;
pub use generate::GenerateCorpus;
pub use termination::TerminationTable;
