//! What an engine plays of an experiment.

use crate::engine_kind::EngineKind;
use outcome::{Engine, EngineError};
use scenario::Variant;
use std::collections::BTreeSet;

/// What an engine plays of an experiment.
#[derive(Debug, Clone)]
pub struct EnginePlan {
    /// The engine.
    pub engine: EngineKind,
    /// The cases as they stand, then those under each variation.
    pub variants: Vec<Variant>,
    /// The number of seeds.
    pub seeds: u64,
}

/// A case that an engine cannot answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOutCase {
    /// The case.
    pub case: String,
    /// The engine's reason.
    pub why: String,
}

impl EnginePlan {
    /// Leaves out the cases that `engine` cannot answer as they are written, and returns them.
    /// Cases with another fault stay: the engine reports it when it plays them.
    pub fn answerable(mut self, engine: &dyn Engine) -> (EnginePlan, Vec<LeftOutCase>) {
        let mut left_out = Vec::new();
        self.variants.retain(|variant| match engine.can_answer(&variant.scenario) {
            Err(why @ EngineError::CannotAnswer { .. }) => {
                left_out.push(LeftOutCase { case: variant.case.clone(), why: why.to_string() });
                false
            }
            _ => true,
        });
        (self, left_out)
    }

    /// Keeps the cases whose names begin with one of `prefixes`; all of them if there are none.
    pub fn select_cases(&mut self, prefixes: &[String]) {
        let is_wanted = |variant: &Variant| prefixes.is_empty() || prefixes.iter().any(|prefix| variant.case.starts_with(prefix));
        self.variants.retain(is_wanted);
    }

    /// A sentence for each reason for which cases are left out.
    pub fn left_out_notes(&self, left_out: &[LeftOutCase]) -> Vec<String> {
        let reasons: BTreeSet<&str> = left_out.iter().map(|case| case.why.as_str()).collect();
        let note = |reason: &str| {
            let cases = left_out.iter().filter(|case| case.why == reason).count();
            format!("{} leaves out {cases} of the cases: {reason}", self.engine)
        };
        reasons.into_iter().map(note).collect()
    }
}
