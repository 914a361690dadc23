//! An experiment of a paper: a table or figure that scenarios answer.

use crate::{claim::PaperClaim, engine_kind::EngineKind, seed_mean::SeedMean, source::ResultSource, variation::Variation};
use outcome::Outcome;
use serde::{Deserialize, Deserializer};

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
    /// The engines that play it: a name or a list.
    #[serde(default = "lab", deserialize_with = "one_or_many")]
    pub on: Vec<EngineKind>,
    /// What is different for single engines.
    #[serde(rename = "engine", default)]
    pub overrides: Vec<EngineOverride>,
    /// Other settings under which all its cases are played again.
    #[serde(rename = "vary", default)]
    pub variations: Vec<Variation>,
    /// The number of seeds that its numbers are means over.
    #[serde(default = "ten")]
    pub seeds: u64,
    /// The numbers that it is about, by their names in an outcome.
    pub numbers: Vec<String>,
    /// Whether the numbers are compared with the bound of fair sharing.
    #[serde(default)]
    pub bound: bool,
    /// Why it cannot be answered yet, and what is missing; absent: it can be answered.
    #[serde(default)]
    pub awaits: Option<String>,
    /// Numbers that the paper prints.
    #[serde(default)]
    pub printed: Vec<PrintedValue>,
    /// What the paper claims.
    #[serde(rename = "claim", default)]
    pub claims: Vec<PaperClaim>,
}

/// What is different where a certain engine plays an experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineOverride {
    /// The engine.
    pub name: EngineKind,
    /// Further changes to the file, with one value each so that cases keep their names.
    #[serde(default)]
    pub sets: Vec<String>,
    /// The number of seeds, where it differs.
    #[serde(default)]
    pub seeds: Option<u64>,
    /// Whether it plays the variations as well.
    #[serde(default = "yes")]
    pub varied: bool,
    /// The reason.
    pub why: String,
}

/// A number that the paper prints.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintedValue {
    /// The case here that it corresponds to.
    pub case: String,
    /// The name of the number in an outcome.
    pub number: String,
    /// The printed value, in the unit of an outcome.
    pub value: f64,
    /// Where it is printed, and how it differs from the number here.
    pub note: String,
}

impl Experiment {
    /// The engines that play it by default: all that it names except the lab, which needs root and
    /// as much time as the scenarios last. The lab if it names no other.
    pub fn default_engines(&self) -> Vec<EngineKind> {
        let quick: Vec<EngineKind> = self.on.iter().copied().filter(|engine| *engine != EngineKind::Lab).collect();
        if quick.is_empty() { self.on.clone() } else { quick }
    }
}

impl PrintedValue {
    /// The same number from a source here.
    pub fn here(&self, source: &ResultSource, outcomes: &[Outcome]) -> Option<SeedMean> {
        SeedMean::of_all(source.valid(&self.case, outcomes).map(|outcome| outcome.number(&self.number)))
    }
}

fn ten() -> u64 {
    10
}

fn yes() -> bool {
    true
}

fn lab() -> Vec<EngineKind> {
    vec![EngineKind::Lab]
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EngineKind>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected \"lab\", \"sim\", \"compose\" or \"theory\", or a list of them")]
    enum Names {
        One(EngineKind),
        Many(Vec<EngineKind>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::Many(names) => names,
    })
}
