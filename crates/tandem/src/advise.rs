//! `tandem advise`: whether splitting a path pays, and with which proxy settings.

use crate::{
    CommandError, output,
    runs::{self, RunFlags},
};
use advise::{AdviceVerdict, Advisor};
use clap::Args;
use outcome::{Engine, Outcome};
use runner::{RunOptions, RunOrder, SeedRange};
use scenario::{Assignment, Variant};
use std::{path::PathBuf, thread};

/// Advise whether to split a path: where, with which controller and buffer, and the gain
///
/// Simulates the scenario as written, end to end with other controllers, and split at each position
/// with each controller, all with the same seeds. Where the equations apply, prints the gain that
/// they predict beside it. The path needs at least two links: a proxy stands between two links.
#[derive(Debug, Args)]
pub(crate) struct AdviseCommand {
    /// Scenario file: the path, and the flows over it
    file: PathBuf,
    /// Override a key of the scenario: link.2.loss.per_packet=0.01
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Assignment>,
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: RunFlags,
}

impl AdviseCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut variants = runs::read_variants(&self.file, &self.sets, &[])?;
        if variants.len() > 1 {
            let (count, names) = (variants.len(), runs::case_names(&variants));
            let text = format!("tandem: {} has {count} cases; advice is given for the first one of {names}", self.file.display());
            eprintln!("{}", report::wrap(&text, output::width()));
        }
        let scenario = variants.remove(0).scenario;
        let advisor = Advisor::new(&scenario).map_err(|why| CommandError::Usage(format!("{}: {why}", self.file.display())))?;
        let candidates = advisor.candidates();
        let outcomes = self.simulate(&candidates)?;
        let advice = advisor.advice(&outcomes, &by_equations(&candidates)).map_err(|why| CommandError::CannotTell(why.to_string()))?;
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

    /// Returns the simulator's outcomes of each variant with each seed.
    fn simulate(&self, variants: &[Variant]) -> Result<Vec<Outcome>, CommandError> {
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
fn by_equations(candidates: &[Variant]) -> Vec<Outcome> {
    let answer = |variant: &Variant| {
        let outcome = theory::Theory.run(&variant.scenario, variant.scenario.seed, &()).ok()?;
        Some(Outcome { case: variant.case.clone(), ..outcome })
    };
    candidates.iter().filter_map(answer).collect()
}
