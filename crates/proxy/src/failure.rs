//! Why a running proxy cannot go on.

use intercept::rules::RulesLost;

/// A part of the proxy has failed for good. The process should end with an error, so that its
/// service manager starts it again.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The rules were lost, and attempts to install them again failed.
    #[error(transparent)]
    Rules(#[from] RulesLost),
    /// The thread that keeps the firewall's rules panicked; the rules are gone with it.
    #[error("the thread that keeps the firewall's rules panicked")]
    Gate,
    /// A worker ended though it was not told to. Its listeners and its flows are gone.
    #[error("worker {number} ended unexpectedly: {why}")]
    Worker {
        /// Its number, counted from 0, as in the name of its thread.
        number: usize,
        /// How it ended.
        why: String,
    },
}
