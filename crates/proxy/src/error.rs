//! Errors of starting a proxy and of changing a running one.

use crate::config::ProxyConfigError;
use intercept::{EgressError, OpenError, RulesError};

/// Why a proxy did not start: what was attempted, on what, why it failed, the cure.
#[derive(Debug, thiserror::Error)]
pub enum ProxyStartError {
    /// The configuration cannot be used, on any machine or on this one.
    #[error(transparent)]
    Config(#[from] ProxyConfigError),
    /// A listener, a rule, a link or a thread could not be set up.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Why a running proxy did not carry out a change.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The new configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ProxyConfigError),
    /// The new configuration changes something that is fixed at start, such as a listener.
    #[error("{0} cannot be changed while the proxy runs: restart the proxy; nothing has been changed")]
    NeedsRestart(&'static str),
    /// The firewall's rules could not be changed.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A link could not be shaped or watched as the new configuration says.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// The proxy has no firewall rules.
    #[error(
        "cannot change the bypass list: this proxy has no firewall rules, because it has no transparent listener or runs with --no-rules; \
         let connections bypass by rules of your own"
    )]
    NoRules,
    /// A thread that the new configuration needs could not be started.
    #[error("cannot start a thread: {0}; see how many this user may have (ulimit -u)")]
    Thread(std::io::Error),
    /// The gate's thread has ended.
    #[error("the proxy is stopping")]
    Ending,
}
