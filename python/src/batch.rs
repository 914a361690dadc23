//! Single runs, which return the whole outcome, and batches of a sweep, which return numbers only.

use crate::{
    controller::{ControllerArgument, Failure, external},
    engines::engine,
    errors::{engine_error, value_error},
    interruptible::interruptible,
    outcome_data::OutcomeData,
    scenario_file::{ScenarioFile, Sets},
};
use numpy::{IntoPyArray as _, PyArrayMethods as _};
use outcome::{EngineError, Outcome, RunRow};
use pyo3::{exceptions::PyKeyboardInterrupt, prelude::*, types::PyDict};
use runner::{PlannedRun, RunError, RunOptions, run_all_until, run_each};
use scenario::Variant;
use std::{
    collections::BTreeMap,
    mem,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

/// Ends batches that run on other threads.
#[pyclass(frozen, module = "tandem._tandem")]
pub(crate) struct Cancel {
    flag: Arc<AtomicBool>,
}

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Cancel { flag: Arc::default() }
    }

    /// No run starts any more, and those that run end early.
    fn cancel(&self) {
        self.flag.store(true, Relaxed);
    }
}

/// Plays the only variant of a scenario with one seed (absent: its own). Raises the exception of a
/// controller that is written in Python.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called from one place, by keywords")]
#[pyo3(signature = (file, *, case, sets, on, seed, tries, capture, progress, controllers))]
pub(crate) fn run(
    py: Python<'_>,
    file: &ScenarioFile,
    case: Option<&str>,
    sets: Sets,
    on: &str,
    seed: Option<u64>,
    tries: u32,
    capture: Option<PathBuf>,
    progress: bool,
    controllers: Vec<ControllerArgument>,
) -> PyResult<OutcomeData> {
    let variant = file.only(py, case, &sets)?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let failure = Failure::of_run(&cancelled);
    let engine = engine(on, capture, external(controllers, &failure))?;
    let answer = interruptible(py, &cancelled, || {
        let planned = PlannedRun { engine, variant: &variant, seed: seed.unwrap_or(variant.scenario.seed) };
        run_all_until(vec![planned], RunOptions { jobs: Some(1), tries, progress }, &cancelled).pop()
    })?;
    if let Some(exception) = failure.take() {
        return Err(exception);
    }
    match answer {
        Some(Ok(outcome)) => Ok(OutcomeData::new(outcome, variant.scenario.about)),
        Some(Err(RunError { case, error })) => Err(engine_error(py, &case, &error)),
        None => Err(engine_error(py, "", &EngineError::Cancelled)),
    }
}

/// What came of a run of a batch.
#[derive(Default)]
struct Played {
    /// The numbers; none if the run has failed, or was not played.
    row: Option<RunRow>,
    error: Option<RunError>,
    /// Time of the run. With several runs side by side: from the end of the one before.
    seconds: f64,
}

impl Played {
    fn of(answer: Result<Outcome, RunError>, seconds: f64) -> Self {
        match answer {
            Ok(outcome) => Played { row: Some(RunRow::from(&outcome)), error: None, seconds },
            Err(error) => Played { row: None, error: Some(error), seconds },
        }
    }
}

/// Plays runs, each given by the changes that make its variant, its engine and its seed (absent:
/// that of the variant). Returns arrays with an element for each: `valid`, `seconds`, `numbers` (a
/// row of [`outcome::NUMBERS`] each, NaN where one is missing), and `errors`, where it failed.
///
/// With `each`, that function is called after each run instead, on any thread, with the place of
/// the run among `items`, and arrays with one element.
///
/// Raises `KeyboardInterrupt` once it is cancelled.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called from one place, by keywords")]
#[pyo3(signature = (file, *, variants, items, jobs, tries, cancel, each))]
pub(crate) fn play<'py>(
    py: Python<'py>,
    file: &ScenarioFile,
    variants: Vec<(Option<String>, Sets)>,
    items: Vec<(String, usize, Option<u64>)>,
    jobs: Option<usize>,
    tries: u32,
    cancel: &Cancel,
    each: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let variants = variants.iter().map(|(case, sets)| file.only(py, case.as_deref(), sets)).collect::<PyResult<Vec<Variant>>>()?;
    let plan = |(on, variant, seed): &(String, usize, Option<u64>)| {
        let variant = variants.get(*variant).ok_or_else(|| value_error("an item names a variant that is not there"))?;
        Ok(PlannedRun { engine: engine(on, None, Vec::new())?, variant, seed: seed.unwrap_or(variant.scenario.seed) })
    };
    let planned = items.iter().map(plan).collect::<PyResult<Vec<_>>>()?;
    let runs: Mutex<Vec<Played>> = Mutex::new(planned.iter().map(|_| Played::default()).collect());
    let last = Mutex::new(Instant::now());
    let options = RunOptions { jobs, tries, progress: false };
    interruptible(py, &cancel.flag, || {
        run_each(planned, options, &cancel.flag, &|index, answer| {
            let now = Instant::now();
            let before = mem::replace(&mut *last.lock().unwrap_or_else(PoisonError::into_inner), now);
            let played = Played::of(answer, now.saturating_duration_since(before).as_secs_f64());
            match &each {
                None => runs.lock().unwrap_or_else(PoisonError::into_inner)[index] = played,
                Some(each) => Python::attach(|py| {
                    if let Err(error) = answers(py, &[played]).and_then(|found| each.call1(py, (index, found))) {
                        error.write_unraisable(py, Some(each.bind(py)));
                    }
                }),
            }
        });
    })?;
    if cancel.flag.load(Relaxed) {
        return Err(PyKeyboardInterrupt::new_err("the sweep was cancelled"));
    }
    let runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers(py, if each.is_none() { &runs } else { &[] })
}

/// The answers to runs, as [`play`] returns them.
fn answers<'py>(py: Python<'py>, runs: &[Played]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    let valid: Vec<bool> = runs.iter().map(|run| run.row.as_ref().is_some_and(|row| row.valid)).collect();
    found.set_item("valid", valid.into_pyarray(py))?;
    let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    found.set_item("seconds", seconds.into_pyarray(py))?;
    let numbers: Vec<f64> = runs.iter().flat_map(|run| numbers_of(&run.row)).collect();
    found.set_item("numbers", numbers.into_pyarray(py).reshape([runs.len(), outcome::NUMBERS.len()])?)?;
    found.set_item("errors", error_dict(py, runs)?)?;
    Ok(found)
}

fn numbers_of(row: &Option<RunRow>) -> Vec<f64> {
    match row {
        Some(row) => row.numbers.iter().map(|number| number.unwrap_or(f64::NAN)).collect(),
        None => vec![f64::NAN; outcome::NUMBERS.len()],
    }
}

/// The exceptions of the runs that failed, by their places.
fn error_dict<'py>(py: Python<'py>, runs: &[Played]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    // The same error of many runs is one exception.
    let mut known: BTreeMap<String, Py<PyAny>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        let Some(RunError { error, .. }) = &run.error else { continue };
        let exception = known.entry(error.to_string()).or_insert_with(|| engine_error(py, "", error).into_value(py).into_any());
        found.set_item(index, exception.bind(py))?;
    }
    Ok(found)
}
