//! `--check`: what a start would need, tried and told.

use crate::{Failure, service::usage};
use clap::ValueEnum;
use proxy::{
    Config,
    check::{self, Trial, TrialResult},
};
use std::net::SocketAddr;

/// How far `--check` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// What a start would need, as this host is now: interfaces, routes, ports, the other end of a bond
    All,
    /// The configuration alone, whatever interfaces and ports there are at the moment
    Config,
}

/// Checks a configuration, prints what was tried, and fails where something cannot work. `name` is
/// what the proxy is called, if it has a name.
pub(crate) fn run(how: Check, config: &Config, name: Option<&str>, metrics: Option<SocketAddr>, fine: &str) -> Result<(), Failure> {
    config.check().map_err(usage)?;
    if how == Check::All {
        let trials = check::try_start(config, name, metrics);
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
