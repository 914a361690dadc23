//! Errors of the papers' data and of questions to it.

use std::{io, path::PathBuf};
use toml_file::FileError;

/// Why a paper has no answer.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// There is no such paper or experiment.
    #[error("there is no table or figure {asked:?}: {}`tandem paper` lists them", nearest.as_ref().map(|nearest| format!("did you mean {nearest}? ")).unwrap_or_default())]
    NoSuch {
        /// The identifier that was asked for.
        asked: String,
        /// The one that it was probably meant as.
        nearest: Option<String>,
    },
    /// An index or a scenario file is wrong.
    #[error("{0}")]
    Index(#[from] FileError),
    /// The equations have no answer.
    #[error("{0}")]
    Theory(#[from] theory::TheoryError),
    /// A record of outcomes cannot be read.
    #[error("cannot read the recorded outcomes {}: {why}; `make papers-record` records them again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A record of outcomes cannot be written.
    #[error("cannot record outcomes in {}: {why}; expected the folder papers/ of the sources, writable", path.display())]
    NotRecorded {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// A measurement failed.
    #[error("cannot measure: {0}")]
    Measurement(String),
    /// An index names something that does not exist.
    #[error("{experiment}: {what}")]
    Wrong {
        /// The experiment or file.
        experiment: String,
        /// What is wrong.
        what: String,
    },
}
