//! Errors of the papers' data and of questions to it.

use toml_file::FileError;

/// Why a paper has no answer.
#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    /// There is no such paper or experiment.
    #[error("there is no experiment {asked:?}; there are {there}")]
    NoSuch {
        /// The identifier that was asked for.
        asked: String,
        /// The identifiers that exist.
        there: String,
    },
    /// An index or a scenario file is wrong.
    #[error("{0}")]
    Index(#[from] FileError),
    /// The equations have no answer.
    #[error("{0}")]
    Theory(#[from] theory::TheoryError),
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
