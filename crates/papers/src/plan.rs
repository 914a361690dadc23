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

    /// Keeps the cases whose names begin with one of `prefixes`; all of them if there are none. A
    /// prefix that is the name of a case selects only this case, with its variations: `score` does
    /// not select `score-paper`.
    pub fn select_cases(&mut self, prefixes: &[String]) {
        let is_name = |prefix: &String| self.variants.iter().any(|variant| variant.case == *prefix);
        let names: Vec<bool> = prefixes.iter().map(is_name).collect();
        let is_wanted = |case: &str| {
            let mut selectors = prefixes.iter().zip(&names);
            selectors.any(|(prefix, is_name)| {
                case.strip_prefix(prefix.as_str()).is_some_and(|rest| !is_name || rest.is_empty() || rest.starts_with(", "))
            })
        };
        self.variants.retain(|variant| prefixes.is_empty() || is_wanted(&variant.case));
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

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;

    #[test]
    fn the_name_of_a_case_wins_over_a_prefix() {
        let text = "name = \"x\"\nduration = \"1s\"\n[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n[[flow]]\n";
        let scenario = ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        let variant = |case: &&str| Variant::new(*case, scenario.clone());
        let cases = ["a=score", "a=score-paper", "a=score, slow", "a=score-paper, slow", "b"];
        let plan = EnginePlan { engine: EngineKind::Sim, variants: cases.iter().map(variant).collect(), seeds: 1 };
        let selected = |prefixes: &[&str]| {
            let mut plan = plan.clone();
            plan.select_cases(&prefixes.iter().map(|prefix| (*prefix).to_owned()).collect::<Vec<_>>());
            plan.variants.into_iter().map(|variant| variant.case).collect::<Vec<_>>()
        };
        assert_eq!(selected(&["a=score"]), ["a=score", "a=score, slow"]);
        assert_eq!(selected(&["a=score, slow"]), ["a=score, slow"]);
        assert_eq!(selected(&["a=sc"]), cases[..4]);
        assert_eq!(selected(&["b", "a=score-paper"]), ["a=score-paper", "a=score-paper, slow", "b"]);
        assert_eq!(selected(&[]), cases);
    }
}
