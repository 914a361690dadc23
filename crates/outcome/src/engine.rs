//! What answers a scenario.

use crate::Outcome;
use scenario::Scenario;

/// An engine plays a scenario and returns its outcome.
pub trait Engine: Sync {
    /// Its name in tables and on the command line.
    fn name(&self) -> &'static str;

    /// Whether a run takes the time that it simulates and needs the machine for itself, so that
    /// only a few runs go side by side.
    fn runs_in_real_time(&self) -> bool {
        false
    }

    /// Whether it can answer `scenario` as it is written; no engine approximates in silence.
    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError>;

    /// Plays `scenario` with `seed`, telling `progress` how far it is.
    fn run(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError>;
}

/// Hears how far a run is.
pub trait Progress: Sync {
    /// `done` of 1 is done; `what` is a few words on what goes on.
    fn at(&self, done: f64, what: &str);

    /// Whether somebody has asked for the run to end early.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody listens.
impl Progress for () {
    fn at(&self, _: f64, _: &str) {}
}

/// Why an engine gave no outcome.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It has no answer to this scenario; another engine may.
    #[error("{engine} cannot answer {key}: {why}")]
    CannotAnswer {
        /// Who.
        engine: &'static str,
        /// The key it can't answer.
        key: String,
        /// Why, and who can.
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
    /// It tried and failed: what was attempted, on what, why, the cure.
    #[error("{0}")]
    Failed(String),
    /// Somebody asked for the end.
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
