//! TOML files of any schema, with errors that name the line, the key and the cure.
//!
//! Most callers need [`read_toml`] alone. Its parts are public for a reader that changes the table
//! before it deserializes it, as the cases of a scenario do. [`text_or_table`] is for values with a
//! short and a long form. [`Sources`] reads a file with those that it includes, and [`expand`]
//! fills in variables of the environment.

mod environment;
mod explain;
mod include;
mod place;
mod value;

pub use environment::{Variables, expand};
pub use explain::closest;
pub use include::{LARGEST_FILE, LoadError, SourceLine, Sources};
pub use place::{from_one, place, under};
pub use value::{inline, nested, text_or_table};

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
    /// The text of the line, at most 40 characters of it.
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

/// Reads `text`. `check` looks for errors that only several values together show, such as an index
/// beyond the end of a list. Errors call the file `origin`.
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
        let start = error.span().map(|span| span.start);
        let cure = start.and_then(|start| explain::syntax(error.message(), place::line_at(text, start)));
        let message = files::shorten_quotations(&cure.unwrap_or_else(|| error.message().into()));
        FileError {
            origin: origin.into(),
            line: start.map(|start| place::line_of(text, start)),
            key: String::new(),
            message: format!("is not TOML: {message}"),
            excerpt: start.map(|start| place::excerpt(text, start)),
        }
    })
}

/// Deserializes `value`. The fault is that of the first wrong value in the order of the table.
/// `hint` returns keys that an unknown key may mean where spelling does not tell (`rate` for
/// `bandwidth`), each with more words behind it where they help. Only keys of the table at hand are
/// shown.
///
/// # Errors
/// The value does not fit the schema.
pub fn deserialize<T: DeserializeOwned>(value: Value, hint: fn(&str) -> &'static [&'static str]) -> Result<T, Fault> {
    serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let mut path = path_of(&error);
        let mut message = error.inner().message();
        if let Some((inner, explained)) = value::unpack(message) {
            path = under(&path, inner);
            message = explained;
        }
        if let Some(key) = explain::list_of_one(&path, message)
            && is_single_table::<T>(value, key)
        {
            return Fault::new(key, explain::header_of_one(key));
        }
        // serde names an unknown or missing key in its message, and the path may stop at the table.
        let named = message.split('`').nth(1).filter(|_| message.starts_with("unknown field") || message.starts_with("missing field"));
        if let Some(key) = named
            && path.rsplit('.').next() != Some(key)
        {
            path = under(&path, key);
        }
        let message = explain::explain(message, &path, hint);
        Fault { path, message }
    })
}

/// The path of an error; empty for the whole value.
fn path_of(error: &serde_path_to_error::Error<toml::de::Error>) -> String {
    let path = error.path().to_string();
    if path == "." { String::new() } else { path }
}

/// Whether the schema has a single table at `key`, where `value` has a list of tables: with the
/// first of these in place of the list, `key` is no longer of the wrong type.
fn is_single_table<T: DeserializeOwned>(mut value: Value, key: &str) -> bool {
    let place = key.split('.').try_fold(&mut value, |table, step| table.get_mut(step));
    let Some(place) = place else { return false };
    let Some(first) = place.get(0).filter(|first| first.is_table()).cloned() else { return false };
    *place = first;
    match serde_path_to_error::deserialize::<_, T>(value) {
        Ok(_) => true,
        Err(error) => path_of(&error) != key || !error.inner().message().starts_with("invalid type: map"),
    }
}
