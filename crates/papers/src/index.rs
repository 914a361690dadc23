//! The index: papers, their experiments, and what was printed.

use crate::{Claim, Model, Part, Player};
use include_dir::{Dir, include_dir};
use outcome::NUMBERS;
use scenario::{Assignment, ScenarioFile, Variant};
use serde::{Deserialize, Deserializer};
use toml_file::FileError;

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
    /// Which engines play it: a name, or several.
    #[serde(default = "lab", deserialize_with = "one_or_many")]
    pub on: Vec<Player>,
    /// What is otherwise where one of them plays it.
    #[serde(rename = "engine", default)]
    pub apart: Vec<Apart>,
    /// Under which other settings all its cases are played once more.
    #[serde(rename = "vary", default)]
    pub variations: Vec<Variation>,
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

/// What is otherwise where an engine plays an experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apart {
    /// Which.
    pub name: Player,
    /// Further changes to the file, one value each, so that cases keep their names.
    #[serde(default)]
    pub sets: Vec<String>,
    /// With how many seeds, where not as many as the others.
    #[serde(default)]
    pub seeds: Option<u64>,
    /// Whether it plays the variations as well.
    #[serde(default = "yes")]
    pub varied: bool,
    /// Why.
    pub why: String,
}

/// Another setting under which all cases are played again.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variation {
    /// What it is called: it follows a case's name, after a comma.
    pub name: String,
    /// Its changes to the file, one value each.
    pub sets: Vec<String>,
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

fn yes() -> bool {
    true
}

fn lab() -> Vec<Player> {
    vec![Player::Lab]
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Player>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected \"lab\", \"sim\" or \"theory\", or a list of them")]
    enum Names {
        One(Player),
        Many(Vec<Player>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::Many(names) => names,
    })
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
        let mut paper: Paper = toml_file::read_toml(text, &format!("papers/{key}/{INDEX}"), |_| Ok(()))?;
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

    /// What each of `players` is to play of one of its experiments.
    pub fn parts(&self, experiment: &Experiment, players: &[Player]) -> Result<Vec<Part>, PaperError> {
        let known = self.variants(experiment, &[], &[])?;
        self.check(experiment, &known)?;
        let part = |player: &Player| {
            let apart = experiment.apart.iter().find(|apart| apart.name == *player);
            let sets = apart.map_or(&[][..], |apart| &apart.sets);
            let mut variants = self.variants(experiment, sets, &[])?;
            let variations = if apart.is_none_or(|apart| apart.varied) { &experiment.variations[..] } else { &[] };
            for variation in variations {
                for variant in self.variants(experiment, sets, &variation.sets)? {
                    variants.push(Variant { case: variation.of(&variant.case), ..variant });
                }
            }
            Ok(Part { player: *player, variants, seeds: apart.and_then(|apart| apart.seeds).unwrap_or(experiment.seeds) })
        };
        players.iter().map(part).collect()
    }

    /// The cases of an experiment, with these changes after its own.
    fn variants(&self, experiment: &Experiment, sets: &[String], more: &[String]) -> Result<Vec<Variant>, PaperError> {
        let path = format!("{}/{}", self.key, experiment.file);
        let text = PAPERS
            .get_file(&path)
            .and_then(include_dir::File::contents_utf8)
            .ok_or_else(|| self.wrong(experiment, format!("there is no file papers/{path}")))?;
        let sets = experiment.sets.iter().chain(sets).chain(more).map(|set| set.parse());
        let sets: Vec<Assignment> = sets.collect::<Result<_, String>>().map_err(|what| self.wrong(experiment, what))?;
        Ok(ScenarioFile::parse(text, &format!("papers/{path}"))?.variants(&sets)?)
    }

    /// Everything that an experiment names must be there.
    fn check(&self, experiment: &Experiment, known: &[Variant]) -> Result<(), PaperError> {
        let cases = experiment.printed.iter().map(|printed| &printed.case);
        let claimed = experiment.claims.iter().flat_map(Claim::cases);
        if let Some(case) = cases.chain(claimed).find(|case| !known.iter().any(|variant| variant.case == **case)) {
            return Err(self.wrong(experiment, format!("{} has no case {case:?}", experiment.file)));
        }
        let numbers = experiment.printed.iter().map(|printed| &printed.number);
        let claimed = experiment.claims.iter().map(|claim| &claim.number);
        if let Some(number) = numbers.chain(claimed).chain(&experiment.numbers).find(|number| !NUMBERS.contains(&number.as_str())) {
            return Err(self.wrong(experiment, format!("an outcome has no number {number:?}: it has {}", NUMBERS.join(", "))));
        }
        Ok(())
    }

    fn wrong(&self, experiment: &Experiment, what: String) -> PaperError {
        PaperError::Wrong { experiment: format!("{}/{}", self.key, experiment.id), what }
    }
}

impl Variation {
    /// What a case is called under it.
    pub fn of(&self, case: &str) -> String {
        if case.is_empty() { self.name.clone() } else { format!("{case}, {}", self.name) }
    }

    /// And what it is without it; absent where the name is not one under it.
    pub(crate) fn without<'a>(name: &str, varied: &'a str) -> Option<&'a str> {
        let rest = varied.strip_suffix(name)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_suffix(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::Engine;
    use std::collections::BTreeSet;

    #[test]
    fn every_experiment_can_be_read() {
        let papers = papers().unwrap();
        assert!(!papers.is_empty());
        for paper in &papers {
            for experiment in &paper.experiments {
                let id = format!("{}/{}", paper.key, experiment.id);
                assert!(matches!(Paper::find(&id).unwrap().1, Entry::Experiment(_)), "{id}");
                assert!(!experiment.on.is_empty(), "{id}");
                for part in paper.parts(experiment, &experiment.on).unwrap() {
                    let cases: BTreeSet<&str> = part.variants.iter().map(|variant| variant.case.as_str()).collect();
                    assert!(!cases.is_empty() && cases.len() == part.variants.len(), "{id}: two cases of one name");
                    let engine: &dyn Engine = match part.player {
                        Player::Theory => &theory::Theory,
                        Player::Sim => &sim::Sim::default(),
                        // What it can answer is the machine's.
                        Player::Lab => continue,
                    };
                    let (part, left_out) = part.answerable(engine);
                    assert!(!part.variants.is_empty(), "{id}: {} answers nothing of it: {left_out:?}", part.player);
                }
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
