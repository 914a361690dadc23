//! Failures after which a running proxy cannot go on.

use intercept::rules::RulesLost;

/// A part of the proxy has failed for good. The process should end with an error, so that its
/// service manager starts it again.
#[derive(Debug, thiserror::Error)]
pub enum ProxyFailure {
    /// The firewall's rules were lost, and attempts to install them again failed.
    #[error(transparent)]
    Rules(#[from] RulesLost),
    /// The thread that keeps the firewall's rules panicked; the kernel has removed the rules.
    #[error("the thread that keeps the firewall's rules panicked")]
    Gate,
    /// A worker ended without a command to do so. Its listeners and its flows are closed.
    #[error("worker {number} ended unexpectedly: {why}")]
    Worker {
        /// Number of the worker, counted from 0, as in the name of its thread.
        number: usize,
        /// Why it ended.
        why: String,
    },
}
