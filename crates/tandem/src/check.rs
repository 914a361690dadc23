//! `--check`: tests the requirements of a start, and prints the results.

use crate::{CommandError, test_connection::try_connections};
use clap::ValueEnum;
use intercept::check::{Trial, TrialResult};
use proxy::Service;

/// What `--check` tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckScope {
    /// The configuration, and this host as it is now: interfaces, routes, ports, the other end of a
    /// bond
    All,
    /// The configuration alone, independent of the state of this host
    Config,
}

/// Tries what a proxy needs of this host, and then connections through a copy of it.
pub(crate) fn try_proxy(service: &Service) -> Vec<Trial> {
    let mut trials = proxy::check::try_service(service);
    // What lacks already would fail again, with a worse message.
    if !trials.iter().any(Trial::fails) {
        trials.extend(try_connections(&service.config));
    }
    trials
}

/// Prints the results of `run_trials` for a configuration that is known to be valid.
///
/// # Errors
/// At least one trial failed.
pub(crate) fn run(scope: CheckScope, run_trials: impl FnOnce() -> Vec<Trial>) -> Result<(), CommandError> {
    if scope == CheckScope::All {
        let trials = run_trials();
        print(&trials);
        let failed = trials.iter().filter(|trial| trial.fails()).count();
        if failed > 0 {
            return Err(CommandError::Failed(format!(
                "the configuration cannot be used on this host: {failed} of {} checks failed",
                trials.len()
            )));
        }
    }
    outln!("the configuration can be used");
    Ok(())
}

/// Prints a line for each trial.
pub(crate) fn print(trials: &[Trial]) {
    for Trial { attempt, subject, result } in trials {
        match result {
            TrialResult::Works(found) => outln!("\u{2713} {attempt} {subject}: {found}"),
            TrialResult::Doubtful { why, cure } => outln!("~ {attempt} {subject}: {why}; {cure}"),
            TrialResult::Fails { why, cure } => outln!("\u{2717} {attempt} {subject}: {why}; {cure}"),
        }
    }
}
