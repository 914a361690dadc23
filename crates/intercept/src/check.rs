//! Checks whether this host has what interception needs, without changing anything. The result is a
//! list of [`Trial`]s: what was attempted, on what, and the outcome.
//!
//! Call [`Interception::check`](crate::Interception::check) first: it finds the errors that do not
//! depend on the host. `interfaces` checks that the named interfaces exist and that networks are
//! reachable, `host` checks settings of the host, `firewall` the rules of other programs, `ports`
//! that listeners can bind.

mod firewall;
mod host;
mod interfaces;
mod ports;

pub use firewall::try_firewall;
pub use host::{try_controllers, try_forwarding, try_forwarding_of_routed, try_routed};
pub use interfaces::try_interfaces;
pub use ports::try_port;

/// One check of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// What was attempted, such as "find the interface".
    pub attempt: &'static str,
    /// On what, such as `sat9 (leg[1])`.
    pub subject: String,
    /// The outcome.
    pub result: TrialResult,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialResult {
    /// It works. Contains what was found.
    Works(String),
    /// It works, but probably not as intended.
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
    /// A check of `subject` and its outcome.
    pub fn new(attempt: &'static str, subject: impl Into<String>, result: TrialResult) -> Self {
        Trial { attempt, subject: subject.into(), result }
    }

    /// Whether the result is [`TrialResult::Fails`].
    pub fn fails(&self) -> bool {
        matches!(self.result, TrialResult::Fails { .. })
    }
}

impl TrialResult {
    /// [`TrialResult::Works`], with what was found.
    pub fn works(found: impl Into<String>) -> Self {
        TrialResult::Works(found.into())
    }

    /// [`TrialResult::Doubtful`], with the reason and the cure.
    pub fn doubtful(why: impl Into<String>, cure: impl Into<String>) -> Self {
        TrialResult::Doubtful { why: why.into(), cure: cure.into() }
    }

    /// [`TrialResult::Fails`], with the reason and the cure.
    pub fn fails(why: impl Into<String>, cure: impl Into<String>) -> Self {
        TrialResult::Fails { why: why.into(), cure: cure.into() }
    }
}
