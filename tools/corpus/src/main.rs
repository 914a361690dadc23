//! The detector's labelled corpus, and what Wei et al. measured.

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

/// Makes the detector's labelled corpus, checks the detector against it, and repeats measurements of Wei et al.
#[derive(Debug, Parser)]
enum Command {
    Characteristics(characteristics::Characteristics),
    Corpus(generate::GenerateCorpus),
    CorpusCheck(check::CheckCorpus),
    Image(image::ImageDownload),
    Operators(operators::ProbeOperators),
    Termination(termination::Termination),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Characteristics(characteristics) => characteristics.run().map(|()| ExitCode::SUCCESS),
        Command::Corpus(corpus) => corpus.run().map(|()| ExitCode::SUCCESS),
        Command::CorpusCheck(check) => check.run(),
        Command::Image(image) => image.run().map(|()| ExitCode::SUCCESS),
        Command::Operators(operators) => operators.run(),
        Command::Termination(termination) => termination.run().map(|()| ExitCode::SUCCESS),
    }
}
