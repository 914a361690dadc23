//! Samples of the proxy's buffer in the stationary state, from long simulated runs.

use super::{
    paired_run::{PAYLOAD, setting},
    parallel_map::parallel_map,
};
use crate::error::PaperError;
use sim::{Sim, TcpSettings};

/// The number of seeds by default.
pub(super) const SEEDS: u64 = 4;
/// The simulated time of each, s.
const SECONDS: u32 = 25_000;
/// The most samples of each run.
const SAMPLES: usize = 100_000;
/// One part in this many, at the beginning of a run, is discarded as its transient.
const TRANSIENT: usize = 50;

/// Samples of an unlimited buffer, packets, from runs of the file at `path` under `papers/` with these
/// changes: seed after seed, each in the order of time.
pub(super) fn held(path: &str, sets: &[&str], seeds: u64) -> Result<Vec<f64>, PaperError> {
    let sets =
        [format!("duration={SECONDS}s"), "split.1.buffer=unlimited".into()].into_iter().chain(sets.iter().map(|set| (*set).to_owned()));
    let scenario = &setting(path, &sets.collect::<Vec<_>>())?;
    let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
    let sim = Sim::with(TcpSettings { max_samples: SAMPLES, ..TcpSettings::default() });
    let seeds: Vec<u64> = (1..=seeds).collect();
    let runs = parallel_map(&seeds, |seed| -> Result<Vec<f64>, PaperError> {
        let (outcome, _) = sim.play(scenario, *seed, &()).map_err(|error| wrong(error.to_string()))?;
        let held = outcome.series.into_iter().find(|series| series.what == "held").map_or_else(Vec::new, |series| series.v);
        Ok(held[held.len() / TRANSIENT..].iter().map(|bytes| bytes / PAYLOAD).collect())
    });
    Ok(runs.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

/// What a reader must know about the samples.
pub(super) fn note(seeds: u64) -> String {
    format!("Packets: {seeds} simulated runs of {SECONDS} s each, sampled up to {SAMPLES} times.")
}
