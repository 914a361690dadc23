//! Tries what interception would need of this host, and changes nothing of it: a list of what was
//! tried, on what, and what it came to.
//!
//! What is wrong with a configuration wherever it is used,
//! [`Interception::check`](crate::Interception::check) has found before. `interfaces` looks for
//! what is named and how networks are reached, `host` at the settings of the host, `firewall` at
//! the rules of other programs, `ports` at the listeners.

mod firewall;
mod host;
mod interfaces;
mod ports;

pub use firewall::try_firewall;
pub use host::{try_controllers, try_forwarding, try_routed};
pub use interfaces::try_interfaces;
pub use ports::try_port;

/// Something that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// What was attempted: "find the interface".
    pub attempt: &'static str,
    /// On what: `sat9 (leg[1])`.
    pub subject: String,
    /// What it came to.
    pub result: TrialResult,
}

/// What a trial came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialResult {
    /// It works; what was found.
    Works(String),
    /// It works, but likely not as it is meant.
    Doubtful {
        /// What is doubtful.
        why: String,
        /// What to do about it.
        cure: String,
    },
    /// It cannot work.
    Fails {
        /// Why not.
        why: String,
        /// What to do about it.
        cure: String,
    },
}

impl Trial {
    /// What was attempted, on what, and what it came to.
    pub fn new(attempt: &'static str, subject: impl Into<String>, result: TrialResult) -> Self {
        Trial { attempt, subject: subject.into(), result }
    }

    /// Whether what was tried cannot work.
    pub fn fails(&self) -> bool {
        matches!(self.result, TrialResult::Fails { .. })
    }
}

impl TrialResult {
    /// It works; what was found.
    pub fn works(found: impl Into<String>) -> Self {
        TrialResult::Works(found.into())
    }

    /// It works, but likely not as it is meant.
    pub fn doubtful(why: impl Into<String>, cure: impl Into<String>) -> Self {
        TrialResult::Doubtful { why: why.into(), cure: cure.into() }
    }

    /// It cannot work.
    pub fn fails(why: impl Into<String>, cure: impl Into<String>) -> Self {
        TrialResult::Fails { why: why.into(), cure: cure.into() }
    }
}
