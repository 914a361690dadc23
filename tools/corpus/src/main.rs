//! The detector's labelled corpus: traces of both ends of connections in the lab, each with a label
//! that says how the connection was split.
//!
//! `plan` lists the runs: a `middlebox`, a direction and `conditions` each. `play` plays one:
//! `run_network` builds its network, `deployment` starts the middlebox, `endpoints` are client and
//! server. `generate` writes the traces, also as `trace_edits` changes them, and a `label`. `check`
//! compares the detector's verdicts with the labels.
//!
//! On the same networks measurements of Wei et al. are repeated: `operators` (Table I), `image`
//! (§IV-B), `characteristics` (Figure 3), `termination` (§III-D).

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

use clap::Parser;
use std::process::ExitCode;

/// Generates the detector's labelled corpus, checks the detector against it, and repeats
/// measurements of Wei et al.
#[derive(Debug, Parser)]
enum CorpusCommand {
    Characteristics(characteristics::Characteristics),
    Corpus(generate::GenerateCorpus),
    CorpusCheck(check::CheckCorpus),
    Image(image::ImageDownload),
    Operators(operators::ProbeOperators),
    Termination(termination::Termination),
}

fn main() -> anyhow::Result<ExitCode> {
    match CorpusCommand::parse() {
        CorpusCommand::Characteristics(characteristics) => characteristics.run().map(|()| ExitCode::SUCCESS),
        CorpusCommand::Corpus(corpus) => corpus.run().map(|()| ExitCode::SUCCESS),
        CorpusCommand::CorpusCheck(check) => check.run(),
        CorpusCommand::Image(image) => image.run().map(|()| ExitCode::SUCCESS),
        CorpusCommand::Operators(operators) => operators.run(),
        CorpusCommand::Termination(termination) => termination.run().map(|()| ExitCode::SUCCESS),
    }
}
