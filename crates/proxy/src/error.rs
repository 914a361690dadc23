//! Why a proxy did not start, and why a running one did not do what it was asked.

use crate::config::ConfigError;
use intercept::{EgressError, OpenError, RulesError};

/// Why a proxy did not start: what was attempted, on what, why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration can't work on any machine, or not on this one.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener, a rule, a link or a thread could not be set up.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Why a running proxy did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The new configuration can't work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Listeners and threads are there already.
    #[error("{0} can't be changed while the proxy runs: restart it for that; nothing has been changed")]
    NeedsRestart(&'static str),
    /// The firewall did not follow.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A link could not be shaped or watched as it is to be now.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// There are no rules of ours.
    #[error(
        "this proxy has no rules in the firewall that could let connections bypass: it has no transparent listener, or runs with --no-rules"
    )]
    NoRules,
    /// The gate's thread is gone.
    #[error("the proxy is ending")]
    Ending,
}
