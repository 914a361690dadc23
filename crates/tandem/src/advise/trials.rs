//! The runs behind advice: by the simulator, and by the equations.

use crate::{
    CommandError,
    runs::{self, RunFlags},
};
use outcome::{Engine as _, Outcome};
use runner::{RunOptions, RunOrder, SeedRange};
use scenario::Variant;
use std::thread;

/// How the candidates are played.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trials {
    /// Number of seeds.
    pub(super) seeds: u64,
    pub(super) flags: RunFlags,
    /// Whether the command prints JSON.
    pub(super) json: bool,
}

impl Trials {
    /// Returns the simulator's outcomes of each variant with each seed.
    pub(super) fn simulate(&self, variants: &[Variant]) -> Result<Vec<Outcome>, CommandError> {
        let seeds = SeedRange { first: None, count: self.seeds };
        let planned = runner::plan(variants, seeds, RunOrder::ByVariant, |_, _| Box::new(sim::Sim::default()));
        let options = self.flags.options(self.json);
        // Runs in virtual time have no deadlines, so that every core can take one.
        let jobs = options.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from));
        let (outcomes, failure) = runs::run_all(planned, RunOptions { jobs, ..options });
        failure.map_or(Ok(outcomes), Err)
    }
}

/// Returns the outcomes of the equations for the candidates that they cover.
pub(super) fn by_equations(candidates: &[Variant]) -> Vec<Outcome> {
    let answer = |variant: &Variant| {
        let outcome = theory::Theory.run(&variant.scenario, variant.scenario.seed, &()).ok()?;
        Some(Outcome { case: variant.case.clone(), ..outcome })
    };
    candidates.iter().filter_map(answer).collect()
}
