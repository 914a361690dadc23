//! The exceptions of the package.

use outcome::EngineError;
use pyo3::{
    create_exception,
    exceptions::{PyException, PyRuntimeError, PyValueError},
    prelude::*,
};
use toml_file::FileError;

create_exception!(
    tandem,
    ScenarioError,
    PyValueError,
    "A scenario that cannot be played: the message names the key, what is wrong and the cure."
);
create_exception!(
    tandem,
    CannotAnswerError,
    PyException,
    "The engine has no answer to this scenario; the message names the key. Another engine may have one."
);
create_exception!(tandem, RunError, PyRuntimeError, "A run that failed: the message says at what and why.");

/// The exception of an error in a scenario, with the attributes `key`, `line` (or `None`) and
/// `reason`.
pub(crate) fn scenario_error(py: Python<'_>, error: &FileError) -> PyErr {
    let exception = ScenarioError::new_err(error.to_string());
    let value = exception.value(py);
    let set = value.setattr("key", &error.key).and_then(|()| value.setattr("line", error.line));
    match set.and_then(|()| value.setattr("reason", &error.message)) {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// The exception of an engine's error in a case (empty: the scenario has no cases).
pub(crate) fn engine_error(case: &str, error: &EngineError) -> PyErr {
    let text = if case.is_empty() { error.to_string() } else { format!("case {case:?}: {error}") };
    match error {
        EngineError::CannotAnswer { .. } => CannotAnswerError::new_err(text),
        EngineError::WrongScenario { .. } => ScenarioError::new_err(text),
        EngineError::Failed(_) | EngineError::Cancelled => RunError::new_err(text),
    }
}

/// The exception of a value that is not accepted.
pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
