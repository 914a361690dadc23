//! The index: papers and what of them can be repeated.

use crate::{
    claim::PaperClaim, embedded, engine_kind::EngineKind, equations::EquationTable, error::PaperError, experiment::Experiment,
    plan::EnginePlan,
};
use outcome::NUMBERS;
use scenario::Variant;
use serde::Deserialize;

/// A paper and what of it can be repeated.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its folder under `papers/`, the first part of its experiments' identifiers.
    #[serde(skip)]
    pub key: String,
    /// Its title.
    pub title: String,
    /// Its authors.
    pub authors: String,
    /// Tables and figures that scenarios answer, and what goes beyond the paper's.
    #[serde(rename = "experiment", default)]
    pub experiments: Vec<Experiment>,
    /// Tables and figures that equations answer without a scenario.
    #[serde(rename = "model", default)]
    pub equation_tables: Vec<EquationTable>,
}

/// What an identifier names.
#[derive(Debug, Clone)]
pub enum PaperEntry {
    /// Scenarios, and what outcomes say about them.
    Experiment(Experiment),
    /// Equations.
    Equations(EquationTable),
}

/// An entry in the list of a paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryName<'a> {
    /// The name within the paper.
    pub id: &'a str,
    /// What it shows.
    pub title: &'a str,
    /// Why it cannot be answered yet; absent: it can.
    pub awaits: Option<&'a str>,
}

/// Every paper, in the order of their keys.
///
/// # Errors
/// If an index is wrong, which the tests of this crate exclude for the embedded ones.
pub fn papers() -> Result<Vec<Paper>, PaperError> {
    let mut papers = Vec::new();
    for (key, text) in embedded::indexes() {
        let mut paper: Paper = toml_file::read_toml(text, &embedded::index_path(&key), |_| Ok(()))?;
        paper.key = key;
        papers.push(paper);
    }
    papers.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(papers)
}

impl Paper {
    /// The paper and the entry that `id` names, such as `li/fig-3`.
    ///
    /// # Errors
    /// If there is no such entry; the error lists those that exist.
    pub fn find(id: &str) -> Result<(Paper, PaperEntry), PaperError> {
        let papers = papers()?;
        let found = papers.iter().find_map(|paper| {
            let id = id.strip_prefix(&paper.key)?.strip_prefix('/')?;
            let experiment = paper.experiments.iter().find(|experiment| experiment.id == id).cloned().map(PaperEntry::Experiment);
            let equations = || paper.equation_tables.iter().find(|table| table.id == id).cloned().map(PaperEntry::Equations);
            Some((paper.clone(), experiment.or_else(equations)?))
        });
        found.ok_or_else(|| {
            let there: Vec<String> = papers.iter().flat_map(|paper| paper.entries().map(|entry| paper.identifier(entry.id))).collect();
            PaperError::NoSuch { asked: id.into(), there: there.join(", ") }
        })
    }

    /// Its entries: experiments, then tables that equations answer.
    pub fn entries(&self) -> impl Iterator<Item = EntryName<'_>> {
        let experiments = self.experiments.iter().map(|one| EntryName { id: &one.id, title: &one.title, awaits: one.awaits.as_deref() });
        let equations = self.equation_tables.iter().map(|one| EntryName { id: &one.id, title: &one.title, awaits: None });
        experiments.chain(equations)
    }

    /// The identifier of an entry: `li/fig-3`.
    pub fn identifier(&self, id: &str) -> String {
        format!("{}/{id}", self.key)
    }

    /// What each of `engines` plays of one of this paper's experiments.
    ///
    /// # Errors
    /// If the experiment's file or settings are wrong, or if it names a case or a number that does
    /// not exist.
    pub fn plans(&self, experiment: &Experiment, engines: &[EngineKind]) -> Result<Vec<EnginePlan>, PaperError> {
        let known = self.variants(experiment, &[], &[])?;
        self.check(experiment, &known)?;
        engines.iter().map(|engine| self.plan(experiment, *engine)).collect()
    }

    fn plan(&self, experiment: &Experiment, engine: EngineKind) -> Result<EnginePlan, PaperError> {
        let own = experiment.overrides.iter().find(|own| own.name == engine);
        let sets = own.map_or(&[][..], |own| &own.sets);
        let mut variants = self.variants(experiment, sets, &[])?;
        let variations = if own.is_none_or(|own| own.varied) { &experiment.variations[..] } else { &[] };
        for variation in variations {
            for variant in self.variants(experiment, sets, &variation.sets)? {
                variants.push(Variant { case: variation.of(&variant.case), ..variant });
            }
        }
        Ok(EnginePlan { engine, variants, seeds: own.and_then(|own| own.seeds).unwrap_or(experiment.seeds) })
    }

    /// The cases of an experiment, with the changes of an engine and of a variation after its own.
    fn variants(&self, experiment: &Experiment, engine: &[String], variation: &[String]) -> Result<Vec<Variant>, PaperError> {
        let sets = experiment.sets.iter().chain(engine).chain(variation);
        embedded::variants(&self.identifier(&experiment.id), &format!("{}/{}", self.key, experiment.file), sets)
    }

    /// Checks that every case and every number that an experiment names exists.
    fn check(&self, experiment: &Experiment, known: &[Variant]) -> Result<(), PaperError> {
        let wrong = |what: String| PaperError::Wrong { experiment: self.identifier(&experiment.id), what };
        let printed = experiment.printed.iter().map(|printed| &printed.case);
        let claimed = experiment.claims.iter().flat_map(PaperClaim::cases);
        if let Some(case) = printed.chain(claimed).find(|case| !known.iter().any(|variant| variant.case == **case)) {
            return Err(wrong(format!("{} has no case {case:?}", experiment.file)));
        }
        let intervals = known.first().map_or(&[][..], |variant| &variant.scenario.intervals);
        experiment.claims.iter().try_for_each(|claim| claim.check_time(intervals)).map_err(wrong)?;
        let printed = experiment.printed.iter().map(|printed| &printed.number);
        let claimed = experiment.claims.iter().map(|claim| &claim.number);
        if let Some(number) = printed.chain(claimed).chain(&experiment.numbers).find(|number| !NUMBERS.contains(&number.as_str())) {
            return Err(wrong(format!("an outcome has no number {number:?}: it has {}", NUMBERS.join(", "))));
        }
        Ok(())
    }
}
