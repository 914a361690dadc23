//! Runs the plans of an experiment, and records what came out.

use crate::{
    CommandError,
    runs::{self, EngineName},
};
use outcome::Outcome;
use papers::{EngineKind, EnginePlan, Record, RecordedRun};
use runner::{RunOptions, RunOrder, SeedRange};
use std::{collections::BTreeSet, path::Path, time::Instant};

/// What came out of the runs of an experiment.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) outcomes: Vec<Outcome>,
    /// The circumstances, one for each engine.
    pub(super) runs: Vec<RecordedRun>,
    /// Cases that were left out, and why.
    pub(super) notes: Vec<String>,
    /// The first error; further ones have been printed.
    pub(super) failure: Option<CommandError>,
}

impl Played {
    pub(super) fn of(record: Record) -> Self {
        Played { outcomes: record.outcomes, runs: record.runs, ..Played::default() }
    }
}

/// Runs every case with every seed, one engine after the other, because the load of the others
/// would disturb the lab. `is_asked`: the engines were named by the user, so that one without a
/// case to run is an error.
pub(super) fn play(plans: Vec<EnginePlan>, seeds: Option<u64>, is_asked: bool, options: RunOptions) -> Played {
    let mut played = Played::default();
    for plan in plans {
        let engine = engine_name(plan.engine);
        let (plan, left_out) = plan.answerable(&*engine.engine(None));
        let left_out = plan.left_out_notes(&left_out);
        if plan.variants.is_empty() && (is_asked || played.outcomes.is_empty()) {
            let why = left_out.first().cloned().unwrap_or_else(|| format!("{} has no case to run", plan.engine));
            played.failure.get_or_insert(CommandError::CannotTell(why));
        }
        played.notes.extend(left_out);
        let (begun, count) = (Instant::now(), seeds.unwrap_or(plan.seeds));
        let planned = runner::plan(&plan.variants, SeedRange { first: None, count }, RunOrder::BySeed, |_, _| engine.engine(None));
        let (more, failed) = runs::run_all(planned, options);
        if !more.is_empty() {
            played.runs.push(circumstances(plan.engine.name(), count, begun));
        }
        played.outcomes.extend(more);
        played.failure = match (played.failure.take(), failed) {
            (Some(first), Some(later)) => {
                eprintln!("tandem: {later}");
                Some(first)
            }
            (first, later) => first.or(later),
        };
    }
    keep_one_series(&mut played.outcomes);
    played
}

/// Drops the series of all seeds but the first: they are drawn from one seed, and many seeds would
/// fill the memory.
fn keep_one_series(outcomes: &mut [Outcome]) {
    let mut first: BTreeSet<(String, String)> = BTreeSet::new();
    for outcome in outcomes {
        if !first.insert((outcome.engine.clone(), outcome.case.clone())) {
            outcome.series = Vec::new();
        }
    }
}

/// Adds the outcomes to the record of `id` below `papers`.
pub(super) fn record(papers: &Path, id: &str, plans: &[EnginePlan], played: &Played) -> Result<(), CommandError> {
    let mut record = Record::load(papers, id)?;
    for run in &played.runs {
        let outcomes: Vec<Outcome> = played.outcomes.iter().filter(|outcome| outcome.engine == run.engine).cloned().collect();
        record.add(run.clone(), &outcomes);
        if let Some(plan) = plans.iter().find(|plan| plan.engine.name() == run.engine) {
            let cases: Vec<String> = plan.variants.iter().map(|variant| variant.case.clone()).collect();
            record.keep_cases(&run.engine, &cases);
        }
    }
    if !played.runs.is_empty() {
        record.store(papers, id)?;
    }
    Ok(())
}

/// The circumstances of a run that has just ended.
pub(super) fn circumstances(engine: &str, seeds: u64, begun: Instant) -> RecordedRun {
    RecordedRun {
        engine: engine.into(),
        seeds,
        seconds: begun.elapsed().as_secs_f64(),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: measurements::machine(),
        date: time::OffsetDateTime::now_utc().date().to_string(),
    }
}

fn engine_name(engine: EngineKind) -> EngineName {
    match engine {
        EngineKind::Lab => EngineName::Lab,
        EngineKind::Sim => EngineName::Sim,
        EngineKind::Compose => EngineName::Compose,
        EngineKind::Theory => EngineName::Theory,
    }
}
