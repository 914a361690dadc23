//! TOML files of any schema, with errors that name the line, the key and the cure.
//!
//! Most callers need [`read_toml`] alone. Its parts are public for a reader that changes the table
//! before it deserializes it, as the cases of a scenario do. [`text_or_table`] is for values with a
//! short and a long form.

mod explain;
mod place;
mod value;

pub use place::{from_one, place, under};
pub use value::{nested, text_or_table};

use serde::de::DeserializeOwned;
use std::fmt;
use toml::{Table, Value};

/// Why a file, or a change to it, cannot be used: the place, the key, what is wrong and the cure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Where the text came from: a file's name, or the option that changed it.
    pub origin: String,
    /// The line in the file, from 1; absent where the error is of no line.
    pub line: Option<usize>,
    /// The key as a path with indices from 1: `link[2].rate`.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
    /// The text of the line.
    pub excerpt: Option<String>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)?;
        if let (Some(line), Some(excerpt)) = (self.line, &self.excerpt) {
            write!(f, "\n  {line} | {excerpt}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}

/// What is wrong with a value, before its line in the file is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key as a path with serde's indices, from 0: `link[1].rate`.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Fault {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Fault { path: path.into(), message: message.into() }
    }
}

/// Reads `text`, and has `check` look for what is wrong though each value by itself is right.
/// Errors call the file `origin`.
///
/// # Errors
/// The text is not TOML, does not fit the schema, or `check` refuses it.
pub fn read_toml<T: DeserializeOwned>(text: &str, origin: &str, check: impl FnOnce(&T) -> Result<(), Fault>) -> Result<T, FileError> {
    let table = table(text, origin)?;
    let read = deserialize::<T>(Value::Table(table), |_| &[]).and_then(|value| check(&value).map(|()| value));
    read.map_err(|fault| place(text, origin, &fault))
}

/// Parses `text` into a table, whose keys keep their order.
///
/// # Errors
/// The text is not TOML.
pub fn table(text: &str, origin: &str) -> Result<Table, FileError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| place::line_of(text, span.start));
        let excerpt = line.and_then(|line| place::excerpt(text, line));
        let cure = excerpt.as_deref().and_then(|line| explain::syntax(error.message(), line));
        let message = cure.unwrap_or_else(|| error.message().into());
        FileError { origin: origin.into(), line, key: String::new(), message: format!("is not TOML: {message}"), excerpt }
    })
}

/// Deserializes `value`. The fault is that of the first wrong value in the order of the table.
/// `hint` has words for what an unknown key may have been meant as, where its spelling does not tell. A
/// hint that begins with a key of the table at hand is shown.
///
/// # Errors
/// The value does not fit the schema.
pub fn deserialize<T: DeserializeOwned>(value: Value, hint: fn(&str) -> &'static [&'static str]) -> Result<T, Fault> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut path = error.path().to_string();
        let mut message = error.inner().message();
        if path == "." {
            path.clear();
        }
        if let Some((inner, explained)) = value::unpack(message) {
            path = under(&path, inner);
            message = explained;
        }
        // serde names an unknown or missing key in its message, and the path may stop at the table.
        let named = message.split('`').nth(1).filter(|_| message.starts_with("unknown field") || message.starts_with("missing field"));
        if let Some(key) = named
            && path.rsplit('.').next() != Some(key)
        {
            path = under(&path, key);
        }
        let message = explain::explain(message, &path, hint);
        // Without the index: the list itself is the mistake.
        let path = if explain::is_header_of_one(&path, error.inner().message()) { path.replace("[0]", "") } else { path };
        Fault { path, message }
    })
}
