//! What outcomes say about an experiment: its numbers as means over the seeds, compared with the
//! bound of fair sharing, and its claims. Outcomes that are not valid do not count: their numbers
//! are artefacts of a machine that did not keep up.

use crate::{
    claim::{Judgement, PaperClaim},
    experiment::Experiment,
    plan::EnginePlan,
    seed_mean::SeedMean,
    source::ResultSource,
    variation::Variation,
};
use bound::FairShareBound;
use outcome::{Engine, Outcome};

/// The numbers that have a bound, by their names in an outcome.
pub const BOUNDED_NUMBERS: [&str; 2] = ["mean_flow_s", "completion_s"];

/// The results of a case from one source.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseRow {
    /// The case, without the variation.
    pub case: String,
    /// The engine and the variation.
    pub source: ResultSource,
    /// The experiment's numbers, in its order; absent where a seed lacks one.
    pub numbers: Vec<Option<SeedMean>>,
    /// A comparison for each of [`BOUNDED_NUMBERS`]; empty if the experiment asks for no bound.
    pub bounds: Vec<Option<BoundComparison>>,
    /// The number of seeds with a valid outcome.
    pub valid: usize,
    /// The number of seeds.
    pub seeds: usize,
}

/// A number compared with the least that fair sharing allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundComparison {
    /// The least that fair sharing allows.
    pub least: SeedMean,
    /// The ratio of the number to it, seed by seed.
    pub ratio: SeedMean,
}

/// A claim, judged by the outcomes of one source.
#[derive(Debug, Clone)]
pub struct JudgedClaim<'a> {
    /// The claim.
    pub claim: &'a PaperClaim,
    /// The source.
    pub source: ResultSource,
    /// The judgement; absent if no seed has the number in all cases.
    pub judgement: Option<Judgement>,
}

impl Experiment {
    /// The sources of these outcomes: the experiment as it stands before its variations, and its
    /// engines in its order before others.
    pub fn sources(&self, outcomes: &[Outcome]) -> Vec<ResultSource> {
        let mut engines: Vec<&str> = self.on.iter().map(|engine| engine.name()).collect();
        for outcome in outcomes {
            if !engines.contains(&outcome.engine.as_str()) {
                engines.push(&outcome.engine);
            }
        }
        let variations = std::iter::once("").chain(self.variations.iter().map(|variation| variation.name.as_str()));
        let all = variations
            .flat_map(|variation| engines.iter().map(move |engine| ResultSource { engine: (*engine).into(), variation: variation.into() }));
        let cases = self.cases(outcomes);
        all.filter(|source| cases.iter().any(|case| outcomes.iter().any(|outcome| source.has(outcome, case)))).collect()
    }

    /// Whether this is the name of a case under a variation.
    pub fn is_varied(&self, case: &str) -> bool {
        self.variations.iter().any(|variation| Variation::without(&variation.name, case).is_some())
    }

    /// The cases of these outcomes, without their variations, in order of first appearance.
    fn cases<'a>(&self, outcomes: &'a [Outcome]) -> Vec<&'a str> {
        let mut cases: Vec<&str> = Vec::new();
        for outcome in outcomes {
            let varied = self.variations.iter().find_map(|variation| Variation::without(&variation.name, &outcome.case));
            let case = varied.unwrap_or(&outcome.case);
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    /// A row for each case and source; the rows of a case follow each other.
    pub fn rows(&self, plans: &[EnginePlan], outcomes: &[Outcome]) -> Vec<CaseRow> {
        let sources = self.sources(outcomes);
        let rows = self.cases(outcomes).into_iter().flat_map(|case| sources.iter().map(move |source| (case, source)));
        rows.filter_map(|(case, source)| self.row(case, source, plans, outcomes)).collect()
    }

    fn row(&self, case: &str, source: &ResultSource, plans: &[EnginePlan], outcomes: &[Outcome]) -> Option<CaseRow> {
        let seeds = outcomes.iter().filter(|outcome| source.has(outcome, case)).count();
        if seeds == 0 {
            return None;
        }
        let valid: Vec<&Outcome> = source.valid(case, outcomes).collect();
        let number = |number: &String| SeedMean::of_all(valid.iter().map(|outcome| outcome.number(number)));
        let plan = plans.iter().find(|plan| plan.engine.name() == source.engine);
        // Each seed has its own bound, since it draws the access delays.
        let bound = |outcome: &&Outcome| {
            let variant = plan?.variants.iter().find(|variant| variant.case == outcome.case)?;
            FairShareBound.run(&variant.scenario, outcome.seed, &()).ok()
        };
        let bounds: Vec<Option<Outcome>> = if self.bound { valid.iter().map(bound).collect() } else { Vec::new() };
        let compared = |number: &str| {
            let least = || bounds.iter().map(|bound| bound.as_ref()?.number(number));
            let ratios = valid.iter().zip(least()).map(|(outcome, least)| Some(outcome.number(number)? / least?));
            Some(BoundComparison { least: SeedMean::of_all(least())?, ratio: SeedMean::of_all(ratios)? })
        };
        Some(CaseRow {
            case: case.into(),
            source: source.clone(),
            numbers: self.numbers.iter().map(number).collect(),
            bounds: if self.bound { BOUNDED_NUMBERS.map(compared).to_vec() } else { Vec::new() },
            valid: valid.len(),
            seeds,
        })
    }

    /// Every claim judged by every source that there are outcomes of; the judgements of a claim
    /// follow each other.
    pub fn judge(&self, outcomes: &[Outcome]) -> Vec<JudgedClaim<'_>> {
        let sources = self.sources(outcomes);
        let mut judged = Vec::new();
        for claim in &self.claims {
            for source in &sources {
                judged.push(JudgedClaim { claim, source: source.clone(), judgement: claim.judge(source, outcomes) });
            }
        }
        judged
    }
}
