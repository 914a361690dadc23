//! What packets say to a question about a stationary state: long simulated runs, looked at often.

use super::{
    paired::{PAYLOAD, setting},
    side_by_side,
};
use crate::PaperError;
use sim::{Settings, Sim};

/// Seeds played side by side, and how long each, s.
const SEEDS: u64 = 4;
const SECONDS: u32 = 25_000;
/// Looks at each run, at most.
const LOOKS: usize = 100_000;
/// The first of them, one in so many, are of how it began.
const BEGINNING: usize = 50;

/// What a proxy without a bound holds, packets, over the runs of a file under `papers/` with these changes: the looks of one seed after those of the
/// other, each in the order of time.
pub(super) fn held(path: &str, sets: &[&str]) -> Result<Vec<f64>, PaperError> {
    let sets =
        [format!("duration={SECONDS}s"), "split.1.buffer=unlimited".into()].into_iter().chain(sets.iter().map(|set| (*set).to_owned()));
    let scenario = &setting(path, &sets.collect::<Vec<_>>())?;
    let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
    let sim = Sim::with(Settings { looks: LOOKS, ..Settings::default() });
    let seeds: Vec<u64> = (1..=SEEDS).collect();
    let runs = side_by_side(&seeds, |seed| -> Result<Vec<f64>, PaperError> {
        let (outcome, _) = sim.play(scenario, *seed, &()).map_err(|error| wrong(error.to_string()))?;
        let held = outcome.series.into_iter().find(|series| series.what == "held").map_or_else(Vec::new, |series| series.v);
        Ok(held[held.len() / BEGINNING..].iter().map(|bytes| bytes / PAYLOAD).collect())
    });
    Ok(runs.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

/// What a reader must know of them.
pub(super) fn note() -> String {
    format!("Packets: {SEEDS} simulated runs of {SECONDS} s each, looked at up to {LOOKS} times.")
}
