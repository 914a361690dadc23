//! What the tests share.

use outcome::{Engine, EngineError, Outcome};
use scenario::{Scenario, ScenarioFile};
use sim::{RunCounters, TcpSettings, Sim};

/// A scenario from a file's text, which needs no name.
pub(crate) fn scenario(text: &str) -> Scenario {
    ScenarioFile::parse(&format!("name = \"test\"\n{text}"), "test").unwrap().variants(&[]).unwrap().remove(0).scenario
}

/// Its outcome with Linux's settings.
pub(crate) fn run(text: &str) -> Outcome {
    play(text, 1, TcpSettings::default()).0
}

/// Its outcome, and what it took.
pub(crate) fn play(text: &str, seed: u64, settings: TcpSettings) -> (Outcome, RunCounters) {
    Sim::with(settings).play(&scenario(text), seed, &()).unwrap()
}

/// The key that the simulator has no answer to.
pub(crate) fn refused(text: &str) -> String {
    match Sim::default().can_answer(&scenario(text)).unwrap_err() {
        EngineError::CannotAnswer { key, .. } | EngineError::WrongScenario { key, .. } => key,
        other => panic!("{other}"),
    }
}

/// Whether two numbers are alike, within a part of the second.
#[track_caller]
pub(crate) fn near(a: f64, b: f64, relative: f64) {
    assert!((a - b).abs() <= relative * b.abs(), "{a} is not {b}");
}
