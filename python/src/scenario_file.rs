//! A scenario file, with the files that it names.

use crate::{
    errors::{ScenarioError, scenario_error, value_error},
    values::assignments,
};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use scenario::{SetValue, Variant};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, Cursor},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

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
                let bytes: Arc<[u8]> = fs::read(directory.join(name))?.into();
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

    /// The files that the scenario names, by their names in it.
    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let files = PyDict::new(py);
        for (name, bytes) in self.files.contents.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            files.set_item(name, PyBytes::new(py, bytes))?;
        }
        Ok(files)
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
    /// Passes each variant of a case (absent: of all cases) with these changes to `found`.
    ///
    /// # Errors
    /// `ScenarioError`: there is no such case, or a change makes the scenario wrong.
    pub(crate) fn each_selected(&self, py: Python<'_>, case: Option<&str>, sets: &Sets, found: &mut dyn FnMut(Variant)) -> PyResult<()> {
        let sets = assignments(sets)?;
        let mut count = 0;
        let mut counted = |variant| {
            count += 1;
            found(variant);
        };
        self.file.each_variant(case, &sets, &mut counted).map_err(|error| scenario_error(py, &error))?;
        match case {
            Some(name) if count == 0 => Err(ScenarioError::new_err(self.no_case(name))),
            _ => Ok(()),
        }
    }

    /// The only variant.
    ///
    /// # Errors
    /// As [`each_selected`](Self::each_selected); or there are several.
    pub(crate) fn only(&self, py: Python<'_>, case: Option<&str>, sets: &Sets) -> PyResult<Variant> {
        let mut variants = Vec::new();
        self.each_selected(py, case, sets, &mut |variant| variants.push(variant))?;
        match (variants.pop(), variants.is_empty()) {
            (Some(variant), true) => Ok(variant),
            _ => {
                let names = quoted(&self.file.case_names());
                Err(ScenarioError::new_err(format!(
                    "{} has the cases {names}: choose one by scenario.case(NAME), or play all by tandem.sweep",
                    self.origin
                )))
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
