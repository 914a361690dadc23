//! `--check`: what a start would need, tried and told.

use crate::Failure;
use clap::ValueEnum;
use intercept::check::{Trial, TrialResult};

/// How far `--check` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// What a start would need, as this host is now: interfaces, routes, ports, the other end of a bond
    All,
    /// The configuration alone, whatever interfaces and ports there are at the moment
    Config,
}

/// Prints what is tried of a configuration that has been checked, and fails where something cannot
/// work; otherwise says `fine`.
pub(crate) fn run(how: Check, tried: impl FnOnce() -> Vec<Trial>, fine: &str) -> Result<(), Failure> {
    if how == Check::All {
        let trials = tried();
        print(&trials);
        let failed = trials.iter().filter(|trial| trial.fails()).count();
        if failed > 0 {
            return Err(Failure::Failed(format!("this cannot work here: {failed} of {} trials failed", trials.len())));
        }
    }
    outln!("{fine}");
    Ok(())
}

fn print(trials: &[Trial]) {
    for Trial { attempt, subject, result } in trials {
        match result {
            TrialResult::Works(found) => outln!("\u{2713} {attempt} {subject}: {found}"),
            TrialResult::Doubtful { why, cure } => outln!("~ {attempt} {subject}: {why}; {cure}"),
            TrialResult::Fails { why, cure } => outln!("\u{2717} {attempt} {subject}: {why}; {cure}"),
        }
    }
}
