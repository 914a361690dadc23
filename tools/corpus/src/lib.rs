//! Emulated networks with middleboxes whose effect on a connection is known. Two uses: the detector's
//! labelled corpus, and the measurements of Wei et al., which `tandem paper wei/…` plays as well.
//!
//! `plan` lists the corpus's runs: a `middlebox`, a direction and `conditions` each. `play` plays one:
//! `run_network` builds its network, `deployment` starts the middlebox, `endpoints` are client and
//! server. `generate` writes the traces, also as `trace_edits` changes them, and a `label`. `check`
//! compares the detector's verdicts with the labels.
//!
//! The measurements of Wei et al.: [`ProbeOperators`] (Table I), [`ImageDownload`] (§IV-B),
//! [`Characteristics`] (Figure 3), [`Termination`] (§III-D). Each is the set of arguments of a
//! command. `run` prints its table, and a second method returns the results; [`arguments`] makes
//! them where there is no command line. All of them need root.

mod characteristics;
mod check;
mod conditions;
mod deployment;
mod endpoints;
mod generate;
mod image;
mod label;
mod middlebox;
mod operators;
mod plan;
mod play;
mod run_network;
mod termination;
mod trace_edits;

pub use characteristics::Characteristics;
pub use check::CheckCorpus;
pub use generate::GenerateCorpus;
pub use image::{DownloadTimes, ImageDownload};
pub use operators::{OperatorFinding, ProbeOperators, ProbedOperator};
pub use play::tunnelled_download;
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
