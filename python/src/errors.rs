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
    "A scenario that cannot be played: the message names the key, what is wrong and the cure.\n\n\
     Attributes: `key` and `line` (`None` if it is not about a key, or not about a line of a text), and \
     `reason`, the message without them."
);
create_exception!(
    tandem,
    CannotAnswerError,
    PyException,
    "The engine has no answer to this scenario; the message names the key. Another engine may have one.\n\n\
     Attributes: `engine` and `key` (`None` if the error is not about one), and `reason`, the message \
     without them."
);
create_exception!(tandem, RunError, PyRuntimeError, "A run that failed: the message says at what and why.");

/// The exception with these attributes.
fn with<const N: usize>(py: Python<'_>, exception: PyErr, attributes: [(&str, Option<&str>); N]) -> PyErr {
    let value = exception.value(py);
    match attributes.into_iter().try_for_each(|(name, attribute)| value.setattr(name, attribute)) {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// The exception of an error in a scenario that has this text, about a key and a line if they are
/// known.
fn wrong_scenario(py: Python<'_>, text: String, key: Option<&str>, line: Option<usize>, reason: &str) -> PyErr {
    let exception = with(py, ScenarioError::new_err(text), [("key", key), ("reason", Some(reason))]);
    match exception.value(py).setattr("line", line) {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// The exception of an error in a scenario file.
pub(crate) fn scenario_error(py: Python<'_>, error: &FileError) -> PyErr {
    wrong_scenario(py, error.to_string(), Some(error.key.as_str()).filter(|key| !key.is_empty()), error.line, &error.message)
}

/// The exception of a case that a scenario does not have, or of one that has to be chosen.
pub(crate) fn case_error(py: Python<'_>, reason: &str) -> PyErr {
    wrong_scenario(py, reason.to_owned(), Some("case"), None, reason)
}

/// The exception of a question that no engine answers for a scenario, of no key in particular.
pub(crate) fn cannot_answer(py: Python<'_>, reason: &str) -> PyErr {
    with(py, CannotAnswerError::new_err(reason.to_owned()), [("engine", None), ("key", None), ("reason", Some(reason))])
}

/// The exception of an engine's error in a case (empty: the scenario has no cases).
pub(crate) fn engine_error(py: Python<'_>, case: &str, error: &EngineError) -> PyErr {
    let text = if case.is_empty() { error.to_string() } else { format!("case {case:?}: {error}") };
    match error {
        EngineError::CannotAnswer { engine, key, why } => {
            let attributes = [("engine", Some(*engine)), ("key", Some(key.as_str())), ("reason", Some(why.as_str()))];
            with(py, CannotAnswerError::new_err(text), attributes)
        }
        EngineError::WrongScenario { key, why } => wrong_scenario(py, text, Some(key.as_str()), None, why),
        EngineError::Failed(_) | EngineError::Cancelled => RunError::new_err(text),
    }
}

/// The exception of a value that is not accepted.
pub(crate) fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
