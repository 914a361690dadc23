//! Generates the detector's labelled corpus, checks the detector against it, and repeats measurements
//! of Wei et al.: the commands of the library.

use clap::Parser;
use corpus::{CheckCorpus, GenerateCorpus, TerminationTable};
use middleboxes::{Characteristics, ImageDownload, ProbeOperators};
use std::process::ExitCode;

/// Generates the detector's labelled corpus, checks the detector against it, and repeats
/// measurements of Wei et al.
#[derive(Debug, Parser)]
enum CorpusCommand {
    Characteristics(Characteristics),
    Corpus(GenerateCorpus),
    CorpusCheck(CheckCorpus),
    Image(ImageDownload),
    Operators(ProbeOperators),
    Termination(TerminationTable),
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
