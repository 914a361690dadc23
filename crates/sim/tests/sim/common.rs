//! Helpers that the tests share.

use outcome::{Engine, EngineError, Outcome};
use scenario::{Scenario, ScenarioFile};
use sim::{RunCounters, Sim, TcpSettings};

/// Parses a scenario; the text needs no name.
pub(crate) fn scenario(text: &str) -> Scenario {
    ScenarioFile::parse(&format!("name = \"test\"\n{text}"), "test").unwrap().variants(&[]).unwrap().remove(0).scenario
}

/// Runs a scenario with Linux's settings.
pub(crate) fn run(text: &str) -> Outcome {
    play(text, 1, TcpSettings::default()).0
}

/// Runs a scenario; also returns the internal counters of the run.
pub(crate) fn play(text: &str, seed: u64, settings: TcpSettings) -> (Outcome, RunCounters) {
    Sim::with(settings).play(&scenario(text), seed, &()).unwrap()
}

/// The key for which the simulator refuses a scenario.
pub(crate) fn refused(text: &str) -> String {
    match Sim::default().can_answer(&scenario(text)).unwrap_err() {
        EngineError::CannotAnswer { key, .. } | EngineError::WrongScenario { key, .. } => key,
        other => panic!("{other}"),
    }
}

/// Asserts that `a` equals `b` within a fraction of `b`.
#[track_caller]
pub(crate) fn near(a: f64, b: f64, relative: f64) {
    assert!((a - b).abs() <= relative * b.abs(), "{a} is not {b}");
}
