//! Helper of the tests, in `src/` and here.

use outcome::Outcome;

/// A valid outcome with this goodput, and without flows.
pub(crate) fn outcome(engine: &str, case: &str, seed: u64, goodput_bps: f64) -> Outcome {
    Outcome { engine: engine.into(), case: case.into(), seed, valid: true, goodput_bps, ..Outcome::default() }
}
