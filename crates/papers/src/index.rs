//! The index: papers and what of them can be repeated.

use crate::{
    claim::PaperClaim, embedded, engine_kind::EngineKind, equations::EquationTable, error::PaperError, experiment::Experiment,
    plan::EnginePlan,
};
use outcome::NUMBERS;
use scenario::{Scenario, Variant};
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
    /// The engines that can run it; empty: equations answer it.
    pub engines: &'a [EngineKind],
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

impl PaperEntry {
    /// Its name within the paper.
    pub fn id(&self) -> &str {
        match self {
            PaperEntry::Experiment(experiment) => &experiment.id,
            PaperEntry::Equations(table) => &table.id,
        }
    }
}

/// Every entry of every paper, in the order of the indexes.
fn all_entries() -> Result<Vec<(Paper, PaperEntry)>, PaperError> {
    let mut all = Vec::new();
    for paper in papers()? {
        let experiments = paper.experiments.iter().cloned().map(PaperEntry::Experiment);
        let tables = paper.equation_tables.iter().cloned().map(PaperEntry::Equations);
        all.extend(experiments.chain(tables).map(|entry| (paper.clone(), entry)));
    }
    Ok(all)
}

/// The error for an identifier that does not exist.
fn no_such(asked: &str, all: &[(Paper, PaperEntry)]) -> PaperError {
    let identifiers = all.iter().map(|(paper, entry)| paper.identifier(entry.id()));
    let closeness = |identifier: String| (strsim::normalized_damerau_levenshtein(asked, &identifier), identifier);
    let nearest = identifiers.map(closeness).max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(closeness, _)| *closeness > 0.5);
    PaperError::NoSuch { asked: asked.into(), nearest: nearest.map(|(_, identifier)| identifier) }
}

impl Paper {
    /// The paper and the entry that `id` names, such as `li/fig-3`.
    ///
    /// # Errors
    /// If there is no such entry; the error names the nearest one.
    pub fn find(id: &str) -> Result<(Paper, PaperEntry), PaperError> {
        let mut all = all_entries()?;
        match all.iter().position(|(paper, entry)| paper.identifier(entry.id()) == id) {
            Some(at) => Ok(all.swap_remove(at)),
            None => Err(no_such(id, &all)),
        }
    }

    /// The entries that `asked` selects: the one with this identifier, else all whose identifiers
    /// begin with it (`joshi`, `li/fig`), in the order of the index.
    ///
    /// # Errors
    /// If there are none; the error names the nearest one.
    pub fn select(asked: &str) -> Result<Vec<(Paper, PaperEntry)>, PaperError> {
        let mut all = all_entries()?;
        let is_exact = |(paper, entry): &(Paper, PaperEntry)| paper.identifier(entry.id()) == asked;
        if let Some(at) = all.iter().position(is_exact) {
            return Ok(vec![all.swap_remove(at)]);
        }
        let (found, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(paper, entry)| paper.identifier(entry.id()).starts_with(asked));
        if found.is_empty() { Err(no_such(asked, &others)) } else { Ok(found) }
    }

    /// Its entries: experiments, then tables that equations answer.
    pub fn entries(&self) -> impl Iterator<Item = EntryName<'_>> {
        let experiments = self.experiments.iter().map(|one| EntryName {
            id: &one.id,
            title: &one.title,
            engines: &one.on,
            awaits: one.awaits.as_deref(),
        });
        let equations = self.equation_tables.iter().map(|one| EntryName { id: &one.id, title: &one.title, engines: &[], awaits: None });
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
        let scenario = known.first().map(|variant| &variant.scenario);
        let lasting = |scenario: &Scenario| scenario.intervals.iter().filter(|interval| scenario.lasts_for(interval)).copied().collect();
        let intervals: Vec<_> = scenario.map(lasting).unwrap_or_default();
        experiment.claims.iter().try_for_each(|claim| claim.check_time(&intervals)).map_err(wrong)?;
        let printed = experiment.printed.iter().map(|printed| &printed.number);
        let claimed = experiment.claims.iter().map(|claim| &claim.number);
        if let Some(number) = printed.chain(claimed).chain(&experiment.numbers).find(|number| !NUMBERS.contains(&number.as_str())) {
            return Err(wrong(format!("an outcome has no number {number:?}: it has {}", NUMBERS.join(", "))));
        }
        Ok(())
    }
}
