//! The files under `papers/`, which are embedded in the program.

use crate::error::PaperError;
use include_dir::{Dir, include_dir};
use scenario::{Assignment, ScenarioFile, Variant};
use serde::de::DeserializeOwned;
use std::path::Path;

static PAPERS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../papers");
/// The index of a paper in its folder.
const INDEX: &str = "paper.toml";

/// The folder and the index of every paper, as text.
pub(crate) fn indexes() -> impl Iterator<Item = (String, &'static str)> {
    PAPERS.dirs().filter_map(|folder| {
        let text = folder.get_file(folder.path().join(INDEX))?.contents_utf8()?;
        Some((folder.path().to_string_lossy().into_owned(), text))
    })
}

/// The path of a paper's index, for errors.
pub(crate) fn index_path(key: &str) -> String {
    format!("papers/{key}/{INDEX}")
}

/// The variants of the scenario file at `path` under `papers/`, with these assignments. `asker` is
/// named in errors.
pub(crate) fn variants<'a>(asker: &str, path: &str, sets: impl Iterator<Item = &'a String>) -> Result<Vec<Variant>, PaperError> {
    let wrong = |what: String| PaperError::Wrong { experiment: asker.into(), what };
    let text =
        PAPERS.get_file(path).and_then(include_dir::File::contents_utf8).ok_or_else(|| wrong(format!("there is no file papers/{path}")))?;
    let sets: Vec<Assignment> = sets.map(|set| set.parse()).collect::<Result<_, String>>().map_err(wrong)?;
    Ok(ScenarioFile::parse(text, &format!("papers/{path}"))?.variants(&sets)?)
}

/// The content of the file at `path` under `papers/`; none if there is none.
pub(crate) fn file(path: &Path) -> Option<&'static [u8]> {
    PAPERS.get_file(path).map(include_dir::File::contents)
}

/// The rows of the CSV file at `path` under `papers/`.
pub(crate) fn csv_rows<Row: DeserializeOwned>(path: &str) -> Result<Vec<Row>, PaperError> {
    let wrong = |what: String| PaperError::Wrong { experiment: format!("papers/{path}"), what };
    let file = PAPERS.get_file(path).ok_or_else(|| wrong("there is no such file".into()))?;
    csv::Reader::from_reader(file.contents()).deserialize().collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))
}
