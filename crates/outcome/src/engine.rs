//! The interface of engines, which answer scenarios.

use crate::Outcome;
use scenario::Scenario;

/// An engine plays a scenario and returns its outcome.
pub trait Engine: Sync {
    /// Name in tables and on the command line.
    fn name(&self) -> &'static str;

    /// Whether a run takes the time that it simulates and needs the machine for itself, so that
    /// only a few runs go side by side.
    fn runs_in_real_time(&self) -> bool {
        false
    }

    /// Checks whether the engine can answer `scenario` as it is written. No engine approximates silently.
    ///
    /// # Errors
    /// [`EngineError::CannotAnswer`] or [`EngineError::WrongScenario`], with the key.
    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError>;

    /// Plays `scenario` with `seed`, and reports to `progress`.
    ///
    /// # Errors
    /// The engine cannot answer the scenario, the run failed, or `progress` asked for its end.
    fn run(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError>;
}

/// Receives the progress of a run.
pub trait Progress: Sync {
    /// Called from time to time. `done` goes from 0 to 1; `what` describes the present step.
    fn at(&self, done: f64, what: &str);

    /// Whether the run should end early.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores progress.
impl Progress for () {
    fn at(&self, _: f64, _: &str) {}
}

/// Why an engine gave no outcome.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has no answer to this scenario. Another engine may.
    #[error("{engine} cannot answer {key}: {why}")]
    CannotAnswer {
        /// Name of the engine.
        engine: &'static str,
        /// The key that it cannot answer.
        key: String,
        /// Why, and which engine can.
        why: String,
    },
    /// The scenario names something that does not exist.
    #[error("{key}: {why}")]
    WrongScenario {
        /// The key.
        key: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The run failed: what was attempted, on what, why, the cure.
    #[error("{0}")]
    Failed(String),
    /// [`Progress::cancelled`] asked for the end.
    #[error("interrupted")]
    Cancelled,
}

impl EngineError {
    /// The error of an engine that has no answer to a key of a scenario.
    ///
    /// # Errors
    /// Always: `why` says what is in the way, and which engine can answer.
    pub fn cannot<T>(engine: &'static str, key: impl Into<String>, why: impl Into<String>) -> Result<T, EngineError> {
        Err(EngineError::CannotAnswer { engine, key: key.into(), why: why.into() })
    }
}
