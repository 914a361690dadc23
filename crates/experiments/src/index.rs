//! The index: papers, their experiments, and what was printed.

use crate::{Claim, Model};
use include_dir::{Dir, include_dir};
use scenario::{Assignment, FileError, NUMBERS, ScenarioFile, Variant};
use serde::Deserialize;

pub(crate) static PAPERS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../papers");
/// A paper's own file in its folder.
const INDEX: &str = "paper.toml";

/// A paper, and which of it can be done again.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its folder under `papers/`, the first part of its experiments' names.
    #[serde(skip)]
    pub key: String,
    /// Its title.
    pub title: String,
    /// Who wrote it.
    pub authors: String,
    /// Its tables and figures, and what goes beyond them.
    #[serde(rename = "experiment", default)]
    pub experiments: Vec<Experiment>,
    /// Those that no scenario says: what equations answer by themselves.
    #[serde(rename = "model", default)]
    pub models: Vec<Model>,
}

/// A table or figure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name within the paper: `fig-3`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Its scenario, a file beside the index.
    pub file: String,
    /// Changes to the file, as on the command line: `split.1.shaper=false,true`.
    #[serde(default)]
    pub sets: Vec<String>,
    /// Which engine plays it.
    #[serde(default)]
    pub on: Player,
    /// How many seeds its numbers are means over.
    #[serde(default = "ten")]
    pub seeds: u64,
    /// The numbers that it is about, by their names in an outcome.
    pub numbers: Vec<String>,
    /// Whether the bound of fair sharing stands beside them.
    #[serde(default)]
    pub bound: bool,
    /// Why it can't be answered yet, and by what it will; absent: it can.
    #[serde(default)]
    pub awaits: Option<String>,
    /// Numbers in the paper.
    #[serde(default)]
    pub printed: Vec<Printed>,
    /// What the paper says of them.
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
}

/// Who plays an experiment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Player {
    /// The real kernel.
    #[default]
    Lab,
    /// Packets in virtual time.
    Sim,
    /// The equations.
    Theory,
}

/// One thing that an identifier names.
#[derive(Debug, Clone)]
pub enum Entry {
    /// Scenarios, and what outcomes say to them.
    Experiment(Experiment),
    /// Equations.
    Model(Model),
}

/// A number in the paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Of which case here.
    pub case: String,
    /// Which number of an outcome.
    pub number: String,
    /// What the paper prints.
    pub value: f64,
    /// Where, and in what it is something else than here.
    pub note: String,
}

fn ten() -> u64 {
    10
}

/// What is wrong with the papers' data, or with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// There is no such paper or experiment.
    #[error("there is no experiment {asked:?}; there are {there}")]
    NoSuch {
        /// What was asked for.
        asked: String,
        /// What there is.
        there: String,
    },
    /// An index is wrong.
    #[error("{0}")]
    Index(#[from] FileError),
    /// The equations have no answer.
    #[error("{0}")]
    Theory(#[from] theory::TheoryError),
    /// An index names something that is not there.
    #[error("{experiment}: {what}")]
    Wrong {
        /// Where.
        experiment: String,
        /// What is wrong.
        what: String,
    },
}

/// Every paper, in the order of their names.
pub fn papers() -> Result<Vec<Paper>, PaperError> {
    let mut papers = Vec::new();
    for folder in PAPERS.dirs() {
        let key = folder.path().to_string_lossy().into_owned();
        let Some(text) = folder.get_file(folder.path().join(INDEX)).and_then(include_dir::File::contents_utf8) else { continue };
        let mut paper: Paper = scenario::read_toml(text, &format!("papers/{key}/{INDEX}"), |_| Ok(()))?;
        paper.key = key;
        papers.push(paper);
    }
    papers.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(papers)
}

impl Paper {
    /// The paper and what of it `id` names, such as `li/fig-3`.
    pub fn find(id: &str) -> Result<(Paper, Entry), PaperError> {
        let papers = papers()?;
        let found = papers.iter().find_map(|paper| {
            let id = id.strip_prefix(&paper.key)?.strip_prefix('/')?;
            let experiment = paper.experiments.iter().find(|experiment| experiment.id == id).cloned().map(Entry::Experiment);
            let model = || paper.models.iter().find(|model| model.id == id).cloned().map(Entry::Model);
            Some((paper.clone(), experiment.or_else(model)?))
        });
        found.ok_or_else(|| {
            let there: Vec<String> = papers.iter().flat_map(|paper| paper.names().map(|(id, ..)| format!("{}/{id}", paper.key))).collect();
            PaperError::NoSuch { asked: id.into(), there: there.join(", ") }
        })
    }

    /// The identifiers, titles, and what is awaited.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
        let experiments = self.experiments.iter().map(|one| (one.id.as_str(), one.title.as_str(), one.awaits.as_deref()));
        experiments.chain(self.models.iter().map(|one| (one.id.as_str(), one.title.as_str(), None)))
    }

    /// Every scenario that one of its experiments plays.
    pub fn variants(&self, experiment: &Experiment) -> Result<Vec<Variant>, PaperError> {
        let wrong = |what: String| PaperError::Wrong { experiment: format!("{}/{}", self.key, experiment.id), what };
        let path = format!("{}/{}", self.key, experiment.file);
        let text = PAPERS
            .get_file(&path)
            .and_then(include_dir::File::contents_utf8)
            .ok_or_else(|| wrong(format!("there is no file papers/{path}")))?;
        let sets: Vec<Assignment> = experiment.sets.iter().map(|set| set.parse()).collect::<Result<_, String>>().map_err(wrong)?;
        let variants = ScenarioFile::parse(text, &format!("papers/{path}"))?.variants(&sets)?;
        let known = |case: &str| variants.iter().any(|variant| variant.case == case);
        let cases = experiment.printed.iter().map(|printed| &printed.case);
        let claimed = experiment.claims.iter().flat_map(|claim| [&claim.case, &claim.than]);
        if let Some(case) = cases.chain(claimed).find(|case| !known(case)) {
            return Err(wrong(format!("{path} has no case {case:?}")));
        }
        let numbers = experiment.printed.iter().map(|printed| &printed.number);
        let claimed = experiment.claims.iter().map(|claim| &claim.number);
        if let Some(number) = numbers.chain(claimed).chain(&experiment.numbers).find(|number| !NUMBERS.contains(&number.as_str())) {
            return Err(wrong(format!("an outcome has no number {number:?}: it has {}", NUMBERS.join(", "))));
        }
        Ok(variants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_can_be_read() {
        let papers = papers().unwrap();
        assert!(!papers.is_empty());
        for paper in &papers {
            for experiment in &paper.experiments {
                let id = format!("{}/{}", paper.key, experiment.id);
                assert!(matches!(Paper::find(&id).unwrap().1, Entry::Experiment(_)), "{id}");
                assert!(!paper.variants(experiment).unwrap().is_empty(), "{id}");
            }
            for model in &paper.models {
                let id = format!("{}/{}", paper.key, model.id);
                assert!(matches!(Paper::find(&id).unwrap().1, Entry::Model(_)), "{id}");
            }
        }
    }

    #[test]
    fn what_there_is_not_is_told_with_what_there_is() {
        let error = Paper::find("li/fig-99").unwrap_err().to_string();
        assert!(error.contains("\"li/fig-99\"") && error.contains("li/fig-3"), "{error}");
    }
}
