//! `tandem advise`: whether to split a path.

use crate::{
    Failure, output,
    runs::{self, RunFlags},
};
use advise::{AdviceVerdict, Advisor};
use clap::Args;
use outcome::{Engine, Outcome};
use runner::{RunOptions, RunOrder, SeedRange};
use scenario::{Assignment, Variant};
use std::{path::PathBuf, thread};

/// Whether to split this path, where, with which controller and how much buffer, and what it gains
///
/// Simulates the scenario as it is, end to end with other controllers, and split at each place with each controller, all with the same
/// seeds. Where the equations apply, their gain stands beside. The path needs at least two links: a proxy stands between them.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// The scenario: the path, and who sends what over it
    file: PathBuf,
    /// Changes a key: link.2.loss.per_packet=0.01
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Assignment>,
    /// With how many seeds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: RunFlags,
}

impl Advise {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut variants = runs::read_variants(&self.file, &self.sets)?;
        if variants.len() > 1 {
            let (count, names) = (variants.len(), runs::case_names(&variants));
            eprintln!("tandem: {} has {count} cases, and the advice is for the first ({names})", self.file.display());
        }
        let scenario = variants.remove(0).scenario;
        let advisor = Advisor::new(&scenario).map_err(|why| Failure::Usage(format!("{}: {why}", self.file.display())))?;
        let candidates = advisor.candidates();
        let outcomes = self.simulate(&candidates)?;
        let advice = advisor.advice(&outcomes, &by_equations(&candidates)).map_err(|why| Failure::CannotTell(why.to_string()))?;
        let buffers = match advice.verdict {
            AdviceVerdict::Split => advisor.buffer_results(advice.objective, &self.simulate(&advisor.buffers(&advice.split.candidate))?),
            AdviceVerdict::DoesNotPay | AdviceVerdict::CannotTell => Vec::new(),
        };
        if self.json {
            out!("{}", report::advice_json(&advice, &buffers));
        } else {
            out!("{}", report::advice_text(&advice, &buffers, output::width()));
        }
        Ok(())
    }

    /// The outcomes of the simulator, with every seed.
    fn simulate(&self, variants: &[Variant]) -> Result<Vec<Outcome>, Failure> {
        let seeds = SeedRange { first: None, count: self.seeds };
        let planned = runner::plan(variants, seeds, RunOrder::ByVariant, |_, _| Box::new(sim::Sim::default()));
        let options = self.flags.options(self.json);
        // Runs in virtual time cannot be late: as many as there are cores.
        let jobs = options.jobs.or_else(|| thread::available_parallelism().ok().map(usize::from));
        let (outcomes, failure) = runs::run_all(planned, RunOptions { jobs, ..options });
        failure.map_or(Ok(outcomes), Err)
    }
}

/// The outcomes of the equations, for the candidates that they can answer.
fn by_equations(candidates: &[Variant]) -> Vec<Outcome> {
    let answer = |variant: &Variant| {
        let outcome = theory::Theory.run(&variant.scenario, variant.scenario.seed, &()).ok()?;
        Some(Outcome { case: variant.case.clone(), ..outcome })
    };
    candidates.iter().filter_map(answer).collect()
}
