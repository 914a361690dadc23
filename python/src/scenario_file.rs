//! A scenario file, with the files that it names.

use crate::{
    errors::{case_error, scenario_error, value_error},
    values::assignments,
};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use scenario::{Assignment, SetValue, Variant};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, Cursor},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use toml_file::FileError;

/// The changes of keys, each with its values as TOML.
pub(crate) type Sets = Vec<(String, Vec<String>)>;

/// The files that a scenario names, in memory once they were read: a scenario that goes to another
/// machine takes them along.
struct NamedFiles {
    directory: Option<PathBuf>,
    contents: Mutex<BTreeMap<String, Arc<[u8]>>>,
}

impl NamedFiles {
    fn open(&self, name: &str) -> io::Result<Box<dyn BufRead>> {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match (contents.get(name), &self.directory) {
            (Some(bytes), _) => bytes.clone(),
            (None, Some(directory)) => {
                let bytes: Arc<[u8]> = files::read(&directory.join(name), scenario::LARGEST_NAMED_FILE)?.into();
                contents.insert(name.to_owned(), bytes.clone());
                bytes
            }
            (None, None) => {
                let why = "a scenario that is not from a file can name other files only with a directory (directory=\".\")";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        };
        Ok(Box::new(Cursor::new(bytes)))
    }
}

/// A parsed and checked scenario file.
#[pyclass(frozen, module = "tandem._tandem")]
pub(crate) struct ScenarioFile {
    text: String,
    origin: String,
    files: Arc<NamedFiles>,
    file: scenario::ScenarioFile,
}

#[pymethods]
impl ScenarioFile {
    #[new]
    fn new(py: Python<'_>, text: String, origin: String, directory: Option<PathBuf>, files: BTreeMap<String, Vec<u8>>) -> PyResult<Self> {
        let contents = files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        let files = Arc::new(NamedFiles { directory, contents: Mutex::new(contents) });
        let opened = files.clone();
        let file = scenario::ScenarioFile::parse_with(&text, &origin, Arc::new(move |name: &str| opened.open(name)))
            .map_err(|error| scenario_error(py, &error))?;
        Ok(ScenarioFile { text, origin, files, file })
    }

    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    #[getter]
    fn origin(&self) -> &str {
        &self.origin
    }

    /// The files that the scenario, or one that was made of it, names, by their names in it.
    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // Not locked while Python allocates, which may run other threads.
        let files = self.files.contents.lock().unwrap_or_else(PoisonError::into_inner).clone();
        file_dict(py, &files)
    }

    fn case_names(&self) -> Vec<String> {
        self.file.case_names()
    }

    /// The only variant of these changes as a scenario file.
    fn toml(&self, py: Python<'_>, case: Option<&str>, sets: Sets) -> PyResult<String> {
        toml::to_string(&self.only(py, case, &sets)?.scenario).map_err(value_error)
    }
}

impl ScenarioFile {
    /// Passes each variant of a case (absent: of all cases) with these changes to `found`. Needs no
    /// GIL.
    ///
    /// # Errors
    /// There is no such case, or a change makes the scenario wrong.
    pub(crate) fn each_selected(&self, case: Option<&str>, sets: &[Assignment], found: &mut dyn FnMut(Variant)) -> Result<(), SelectError> {
        let mut count = 0;
        let mut counted = |variant| {
            count += 1;
            found(variant);
        };
        self.file.each_variant(case, sets, &mut counted).map_err(SelectError::Wrong)?;
        match case {
            Some(name) if count == 0 => Err(SelectError::NoCase(self.no_case(name))),
            _ => Ok(()),
        }
    }

    /// The files of these names, of those that were opened.
    pub(crate) fn files_named(&self, names: &BTreeSet<String>) -> BTreeMap<String, Arc<[u8]>> {
        let contents = self.files.contents.lock().unwrap_or_else(PoisonError::into_inner);
        names.iter().filter_map(|name| contents.get_key_value(name)).map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
    }

    /// The only variant.
    ///
    /// # Errors
    /// As [`each_selected`](Self::each_selected); or there are several.
    pub(crate) fn only(&self, py: Python<'_>, case: Option<&str>, sets: &Sets) -> PyResult<Variant> {
        let mut variants = Vec::new();
        self.each_selected(case, &assignments(sets)?, &mut |variant| variants.push(variant)).map_err(|error| error.raised(py))?;
        match (variants.pop(), variants.is_empty()) {
            (Some(variant), true) => Ok(variant),
            _ => {
                let names = quoted(&self.file.case_names());
                let origin = &self.origin;
                let reason = format!("{origin} has the cases {names}: choose one by scenario.case(NAME), or play all by tandem.sweep");
                Err(case_error(py, &reason))
            }
        }
    }

    fn no_case(&self, name: &str) -> String {
        match &self.file.case_names()[..] {
            [] => format!("there is no case {name:?}: this scenario has no cases"),
            known => format!("there is no case {name:?} in this scenario; it has {}", quoted(known)),
        }
    }
}

/// Why a scenario has no variants that were asked for.
pub(crate) enum SelectError {
    Wrong(FileError),
    NoCase(String),
}

impl SelectError {
    /// As an exception.
    pub(crate) fn raised(&self, py: Python<'_>) -> PyErr {
        match self {
            SelectError::Wrong(error) => scenario_error(py, error),
            SelectError::NoCase(reason) => case_error(py, reason),
        }
    }
}

/// Contents of files by their names.
pub(crate) fn file_dict<'py>(py: Python<'py>, files: &BTreeMap<String, Arc<[u8]>>) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, bytes) in files {
        found.set_item(name, PyBytes::new(py, bytes))?;
    }
    Ok(found)
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Changed keys with their values in base units.
pub(crate) fn set_dict<'py>(py: Python<'py>, set: &BTreeMap<String, SetValue>) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (key, value) in set {
        match value {
            SetValue::Number(number) => found.set_item(key, number)?,
            SetValue::Truth(truth) => found.set_item(key, truth)?,
            SetValue::Text(text) => found.set_item(key, text)?,
        }
    }
    Ok(found)
}
