//! Advice on a path.

use crate::{
    errors::{RunError, cannot_answer, engine_error, value_error},
    interruptible::interruptible,
    scenario_file::{ScenarioFile, Sets},
};
use advise::{AdviceVerdict, Advisor, BufferResult};
use outcome::{Engine as _, EngineError, Outcome};
use pyo3::prelude::*;
use runner::{FailedRuns, RunOptions, RunOrder, SeedRange, run_all_until, sort_answers};
use scenario::Variant;
use std::sync::{Arc, atomic::AtomicBool};

/// How candidates are played.
struct Trials {
    seeds: u64,
    jobs: Option<usize>,
    cancelled: Arc<AtomicBool>,
}

impl Trials {
    /// The simulator's outcomes of each variant with each seed.
    fn simulate(&self, variants: &[Variant]) -> Result<Vec<Outcome>, FailedRuns> {
        let planned =
            runner::plan(variants, SeedRange { first: None, count: self.seeds }, RunOrder::ByVariant, |_, _| Box::new(sim::Sim::default()));
        let options = RunOptions { jobs: self.jobs, tries: 1, progress: false };
        let (outcomes, failed) = sort_answers(run_all_until(planned, options, &self.cancelled));
        failed.into_iter().next().map_or(Ok(outcomes), Err)
    }
}

/// The outcomes of the equations for the candidates that they cover.
fn by_equations(candidates: &[Variant]) -> Vec<Outcome> {
    let answer = |variant: &Variant| {
        let outcome = theory::Theory.run(&variant.scenario, variant.scenario.seed, &()).ok()?;
        Some(Outcome { case: variant.case.clone(), ..outcome })
    };
    candidates.iter().filter_map(answer).collect()
}

/// Why there is no advice.
enum NoAdvice {
    Failed(FailedRuns),
    CannotTell(String),
}

/// Advice on the path of a scenario: as JSON, and as text.
#[pyfunction]
#[pyo3(signature = (file, *, case, sets, seeds, jobs))]
pub(crate) fn path_advice(
    py: Python<'_>,
    file: &ScenarioFile,
    case: Option<&str>,
    sets: Sets,
    seeds: u64,
    jobs: Option<usize>,
) -> PyResult<(String, String)> {
    let variant = file.only(py, case, &sets)?;
    let advisor = Advisor::new(&variant.scenario).map_err(value_error)?;
    let trials = Trials { seeds, jobs, cancelled: Arc::default() };
    let found = interruptible(py, &trials.cancelled, || {
        let candidates = advisor.candidates();
        let outcomes = trials.simulate(&candidates).map_err(NoAdvice::Failed)?;
        let advice = advisor.advice(&outcomes, &by_equations(&candidates)).map_err(|why| NoAdvice::CannotTell(why.to_string()))?;
        let buffers: Vec<BufferResult> = match advice.verdict {
            AdviceVerdict::Split => {
                let outcomes = trials.simulate(&advisor.buffers(&advice.split.candidate)).map_err(NoAdvice::Failed)?;
                advisor.buffer_results(advice.objective, &outcomes)
            }
            AdviceVerdict::DoesNotPay | AdviceVerdict::CannotTell => Vec::new(),
        };
        Ok((report::advice_json(&advice, &buffers), report::advice_text(&advice, &buffers, Some(100))))
    })?;
    found.map_err(|why| match why {
        NoAdvice::Failed(FailedRuns { error: EngineError::Failed(text), .. }) => RunError::new_err(text),
        NoAdvice::Failed(failed) => engine_error(py, &failed.cases.join(", "), &failed.error),
        NoAdvice::CannotTell(why) => cannot_answer(py, &why),
    })
}
