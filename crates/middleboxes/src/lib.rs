//! Emulated networks with middleboxes whose effect on a connection is known, and what Wei et al.
//! measured, measured on them. The detector's labelled corpus is made on them as well.
//!
//! A [`MiddleboxRun`] is a `middlebox`, a direction and `conditions`. [`play`] plays one:
//! `run_network` builds its network, `deployment` starts the middlebox, `endpoints` are client and
//! server.
//!
//! The measurements of Wei et al.: [`ProbeOperators`] (Table I), [`ImageDownload`] (§IV-B),
//! [`Characteristics`] (Figure 3), [`Termination`] (§III-D). Each is the set of arguments of a
//! command. `run` prints its table, and a second method returns the results; [`arguments`] makes
//! them where there is no command line. All of them need root.

mod characteristics;
mod conditions;
mod deployment;
mod endpoints;
mod image;
mod middlebox;
mod operators;
mod play;
mod run;
mod run_network;
mod termination;

pub use characteristics::Characteristics;
pub use conditions::{BulkDirection, LATE, NetworkCondition, PathSpec, label_text};
pub use image::{DownloadTimes, ImageDownload};
pub use middlebox::{GroundTruth, Middlebox};
pub use operators::{OperatorFinding, ProbeOperators, ProbedOperator};
pub use play::{play, tunnelled_download};
pub use run::MiddleboxRun;
pub use termination::{AbortedDownload, Termination};

/// Arguments of a measurement as its command would parse them: `given`, and defaults for the others.
///
/// # Errors
///
/// If the command would refuse them.
pub fn arguments<A: clap::Args>(given: &[&std::ffi::OsStr]) -> anyhow::Result<A> {
    let command = A::augment_args(clap::Command::new("measurement").no_binary_name(true));
    Ok(A::from_arg_matches(&command.try_get_matches_from(given)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_have_the_defaults_of_their_commands() {
        let given = |text: &'static str| std::ffi::OsStr::new(text);
        assert!(arguments::<ProbeOperators>(&[given("--tandem"), given("/tandem")]).is_ok());
        assert!(arguments::<Characteristics>(&[]).is_err(), "it requires --out");
    }
}
