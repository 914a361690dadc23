//! What the commands that play scenarios have in common: options, engines, the choice of variants,
//! and the failure that follows from engines' errors.

use crate::Failure;
use clap::{Args, ValueEnum};
use outcome::{Engine, EngineError, Outcome};
use runner::{FailedRuns, PlannedRun, RunOptions};
use scenario::{Assignment, ScenarioFile, Variant};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// How to execute runs.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RunFlags {
    /// How many runs side by side (default: as many as two cores carry)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// How often a run is repeated at most, until the machine keeps up with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// Draws no progress bars
    #[arg(long)]
    quiet: bool,
}

impl RunFlags {
    /// The options of the runner; no progress bars beside JSON.
    pub(crate) fn options(self, json: bool) -> RunOptions {
        RunOptions { jobs: self.jobs, tries: self.tries, progress: !self.quiet && !json }
    }
}

/// The engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// The real kernel, in network namespaces
    Lab,
    /// Packets in virtual time
    Sim,
    /// The equations: the steady state of one connection, split or not
    Theory,
    /// The bound: what fair sharing of the bottleneck allows at best
    Bound,
}

impl EngineName {
    /// The engine. `capture` is where the lab writes captures: the beginning of their file names.
    pub(crate) fn engine(self, capture: Option<PathBuf>) -> Box<dyn Engine + Send> {
        match self {
            EngineName::Sim => Box::new(sim::Sim::default()),
            EngineName::Theory => Box::new(theory::Theory),
            EngineName::Bound => Box::new(bound::FairShareBound),
            EngineName::Lab => Box::new(lab::Lab { capture }),
        }
    }
}

/// Reads a scenario file and makes its variants.
pub(crate) fn read_variants(path: &Path, sets: &[Assignment]) -> Result<Vec<Variant>, Failure> {
    let text = fs::read_to_string(path).map_err(|why| Failure::Usage(format!("cannot read the scenario {}: {why}", path.display())))?;
    ScenarioFile::parse(&text, &path.display().to_string())
        .and_then(|file| file.variants(sets))
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// The variants of these cases; all if none is named.
pub(crate) fn select_cases(variants: Vec<Variant>, cases: &[String]) -> Result<Vec<Variant>, Failure> {
    if let Some(case) = cases.iter().find(|case| !variants.iter().any(|variant| variant.case == **case)) {
        if variants.iter().all(|variant| variant.case.is_empty()) {
            return Err(Failure::Usage(format!("there is no case {case:?}: this scenario has no cases, so leave --case out")));
        }
        return Err(Failure::Usage(format!("there is no case {case:?} in this scenario; there are {}", case_names(&variants))));
    }
    let is_wanted = |variant: &Variant| cases.is_empty() || cases.contains(&variant.case);
    Ok(variants.into_iter().filter(is_wanted).collect())
}

/// The names of the variants' cases, quoted.
pub(crate) fn case_names(variants: &[Variant]) -> String {
    variants.iter().map(|variant| format!("{:?}", variant.case)).collect::<Vec<_>>().join(", ")
}

/// Executes runs. The failure is that of the first error; the other errors go to stderr.
pub(crate) fn run_all(runs: Vec<PlannedRun<'_>>, options: RunOptions) -> (Vec<Outcome>, Option<Failure>) {
    let (outcomes, errors) = runner::sort_answers(runner::run_all(runs, options));
    for error in errors.iter().skip(1) {
        eprintln!("tandem: {error}");
    }
    (outcomes, errors.into_iter().next().map(failure))
}

/// The failure that an engine's error is; its text names the cases.
pub(crate) fn failure(failed: FailedRuns) -> Failure {
    let text = failed.to_string();
    match failed.error {
        EngineError::CannotAnswer { .. } => Failure::CannotTell(text),
        EngineError::WrongScenario { .. } => Failure::Usage(text),
        EngineError::Failed(_) | EngineError::Cancelled => Failure::Failed(text),
    }
}
