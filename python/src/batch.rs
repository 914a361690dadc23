//! Single runs, which return the whole outcome, and batches of a sweep, which return numbers only.

use crate::{
    controller::{ControllerArgument, Failure, external},
    engines::engine,
    errors::{engine_error, value_error},
    interruptible::interruptible,
    outcome_data::OutcomeData,
    scenario_file::{ScenarioFile, Sets},
};
use numpy::{IntoPyArray as _, PyArray1, PyArray2, PyArrayMethods as _};
use outcome::{EngineError, Outcome, RunRow};
use pyo3::{exceptions::PyKeyboardInterrupt, prelude::*, types::PyDict};
use runner::{PlannedRun, RunError, RunOptions, run_each};
use scenario::Variant;
use std::{
    collections::BTreeMap,
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
        let answer = Mutex::new(None);
        let planned = PlannedRun { engine, variant: &variant, seed: seed.unwrap_or(variant.scenario.seed) };
        let options = RunOptions { jobs: Some(1), tries, progress };
        run_each(vec![planned], options, &cancelled, &|_, outcome| {
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        });
        answer.into_inner().unwrap_or_else(PoisonError::into_inner)
    })?;
    if let Some(exception) = failure.take() {
        return Err(exception);
    }
    match answer {
        Some(Ok(outcome)) => Ok(OutcomeData::new(outcome, variant.scenario.about)),
        Some(Err(RunError { case, error })) => Err(engine_error(&case, &error)),
        None => Err(engine_error("", &EngineError::Cancelled)),
    }
}

/// The answers to a batch.
struct Answers {
    /// The numbers of each run; none where the run has failed.
    rows: Vec<Option<RunRow>>,
    errors: Vec<Option<RunError>>,
    /// Time of each run. With several runs side by side: from the end of the one before.
    seconds: Vec<f64>,
    last: Instant,
}

impl Answers {
    fn add(&mut self, index: usize, answer: Result<Outcome, RunError>) {
        let now = Instant::now();
        self.seconds[index] = (now - self.last).as_secs_f64();
        self.last = now;
        match answer {
            Ok(outcome) => self.rows[index] = Some(RunRow::from(&outcome)),
            Err(error) => self.errors[index] = Some(error),
        }
    }
}

/// Plays runs, each given by the changes that make its variant, its engine and its seed (absent:
/// that of the variant). Returns arrays with an element for each: `seed`, `valid`, `seconds`,
/// `numbers` (a row of [`outcome::NUMBERS`] each, NaN where one is missing), and `errors`, where it
/// failed. Raises `KeyboardInterrupt` once it is cancelled.
#[pyfunction]
#[pyo3(signature = (file, *, variants, items, jobs, tries, cancel))]
pub(crate) fn play<'py>(
    py: Python<'py>,
    file: &ScenarioFile,
    variants: Vec<(Option<String>, Sets)>,
    items: Vec<(String, usize, Option<u64>)>,
    jobs: Option<usize>,
    tries: u32,
    cancel: &Cancel,
) -> PyResult<Bound<'py, PyDict>> {
    let variants = variants.iter().map(|(case, sets)| file.only(py, case.as_deref(), sets)).collect::<PyResult<Vec<Variant>>>()?;
    let plan = |(on, variant, seed): &(String, usize, Option<u64>)| {
        let variant = variants.get(*variant).ok_or_else(|| value_error("an item names a variant that is not there"))?;
        Ok(PlannedRun { engine: engine(on, None, Vec::new())?, variant, seed: seed.unwrap_or(variant.scenario.seed) })
    };
    let planned = items.iter().map(plan).collect::<PyResult<Vec<_>>>()?;
    let seeds: Vec<u64> = planned.iter().map(|run| run.seed).collect();
    let count = planned.len();
    let answers = Mutex::new(Answers {
        rows: vec![None; count],
        errors: (0..count).map(|_| None).collect(),
        seconds: vec![0.0; count],
        last: Instant::now(),
    });
    let options = RunOptions { jobs, tries, progress: false };
    interruptible(py, &cancel.flag, || {
        run_each(planned, options, &cancel.flag, &|index, answer| {
            answers.lock().unwrap_or_else(PoisonError::into_inner).add(index, answer);
        });
    })?;
    if cancel.flag.load(Relaxed) {
        return Err(PyKeyboardInterrupt::new_err("the sweep was cancelled"));
    }
    let Answers { rows, errors, seconds, .. } = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    let numbers: Vec<f64> = rows.iter().flat_map(numbers_of).collect();
    let found = PyDict::new(py);
    found.set_item("seed", seeds.into_pyarray(py))?;
    let valid: Vec<bool> = rows.iter().map(|row| row.as_ref().is_some_and(|row| row.valid)).collect();
    found.set_item("valid", valid.into_pyarray(py))?;
    let seconds: Bound<'py, PyArray1<f64>> = seconds.into_pyarray(py);
    found.set_item("seconds", seconds)?;
    let numbers: Bound<'py, PyArray2<f64>> = numbers.into_pyarray(py).reshape([count, outcome::NUMBERS.len()])?;
    found.set_item("numbers", numbers)?;
    found.set_item("errors", error_list(py, &errors)?)?;
    Ok(found)
}

fn numbers_of(row: &Option<RunRow>) -> Vec<f64> {
    match row {
        Some(row) => row.numbers.iter().map(|number| number.unwrap_or(f64::NAN)).collect(),
        None => vec![f64::NAN; outcome::NUMBERS.len()],
    }
}

/// The exceptions of the runs that failed, by their places.
fn error_list<'py>(py: Python<'py>, errors: &[Option<RunError>]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    // The same error of many runs is one exception.
    let mut known: BTreeMap<String, Py<PyAny>> = BTreeMap::new();
    for (index, error) in errors.iter().enumerate() {
        let Some(RunError { error, .. }) = error else { continue };
        let exception = known.entry(error.to_string()).or_insert_with(|| engine_error("", error).into_value(py).into_any());
        found.set_item(index, exception.bind(py))?;
    }
    Ok(found)
}
