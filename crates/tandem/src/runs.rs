//! Shared by the commands that run scenarios: options, engines, the selection of variants, and the
//! conversion of engine errors.

use crate::CommandError;
use clap::{Args, ValueEnum};
use outcome::{Engine, EngineError, Outcome};
use runner::{FailedRuns, PlannedRun, RunOptions};
use scenario::{Assignment, ScenarioFile, Variant};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Options for the execution of runs.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RunFlags {
    /// Concurrent runs [default: in the lab as many as two cores sustain, else one per core]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Maximum attempts per run; a run is repeated while the machine cannot keep up with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// Draw no progress bars
    #[arg(long)]
    quiet: bool,
}

impl RunFlags {
    /// Returns the options of the runner. With JSON output there are no progress bars.
    pub(crate) fn options(self, json: bool) -> RunOptions {
        RunOptions { jobs: self.jobs, tries: self.tries, progress: !self.quiet && !json }
    }
}

/// An engine, as --on names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Real kernel and real proxy, in network namespaces with emulated links
    Lab,
    /// Packet simulator, in virtual time
    Sim,
    /// Equations: steady state of one connection, end to end or split
    Theory,
    /// Lower bound on transfer times under fair sharing of the bottleneck
    Bound,
    /// The slowest segment of a split path, each played alone by the packet simulator
    Compose,
}

impl EngineName {
    /// Returns the engine. `capture` is the prefix of the lab's capture file names.
    pub(crate) fn engine(self, capture: Option<PathBuf>) -> Box<dyn Engine + Send> {
        match self {
            EngineName::Sim => Box::new(sim::Sim::default()),
            EngineName::Theory => Box::new(theory::Theory),
            EngineName::Bound => Box::new(bound::FairShareBound),
            EngineName::Compose => Box::new(compose::Compose::default()),
            EngineName::Lab => Box::new(lab::Lab { capture, ..lab::Lab::default() }),
        }
    }
}

/// Reads a scenario file and returns the variants of these cases with these changes, or all
/// variants if `cases` is empty.
pub(crate) fn read_variants(path: &Path, sets: &[Assignment], cases: &[String]) -> Result<Vec<Variant>, CommandError> {
    let text = files::read_text(path, toml_file::LARGEST_FILE)
        .map_err(|why| CommandError::Usage(format!("cannot read the scenario {}: {why}", path.display())))?;
    let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let open = move |name: &str| {
        let file = files::open(&directory.join(name), scenario::LARGEST_NAMED_FILE)?;
        Ok(Box::new(BufReader::new(file)) as Box<dyn BufRead>)
    };
    let file = ScenarioFile::parse_with(&text, &path.display().to_string(), Arc::new(open))
        .map_err(|error| CommandError::Usage(error.to_string()))?;
    let variants = file.select(sets, cases).map_err(|error| CommandError::Usage(error.to_string()))?;
    if !variants.is_empty() {
        return Ok(variants);
    }
    // The names with the changes, where those work in all cases.
    let known = match file.variants(sets) {
        Ok(variants) => variants.into_iter().map(|variant| variant.case).filter(|case| !case.is_empty()).collect(),
        Err(_) => file.case_names(),
    };
    let wrong = quoted(cases.iter().map(String::as_str));
    Err(CommandError::Usage(if known.is_empty() {
        format!("there is no case {wrong}: this scenario has no cases; leave --case out")
    } else {
        format!("there is no case {wrong} in this scenario; it has {}", quoted(known.iter().map(String::as_str)))
    }))
}

/// Returns the names of the variants' cases, quoted.
pub(crate) fn case_names(variants: &[Variant]) -> String {
    quoted(variants.iter().map(|variant| variant.case.as_str()))
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Executes runs. Returns the outcomes and the first error; prints further errors to stderr.
pub(crate) fn run_all(runs: Vec<PlannedRun<'_>>, options: RunOptions) -> (Vec<Outcome>, Option<CommandError>) {
    let (outcomes, errors) = runner::sort_answers(runner::run_all(runs, options));
    for error in errors.iter().skip(1) {
        eprintln!("tandem: {error}");
    }
    (outcomes, errors.into_iter().next().map(failure))
}

/// Converts an engine's error; the text names the cases.
pub(crate) fn failure(failed: FailedRuns) -> CommandError {
    let text = failed.to_string();
    match failed.error {
        EngineError::CannotAnswer { .. } => CommandError::CannotTell(text),
        EngineError::WrongScenario { .. } => CommandError::Usage(text),
        EngineError::Failed(_) | EngineError::Cancelled => CommandError::Failed(text),
    }
}
