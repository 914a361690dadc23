//! TOML files of any schema, with errors that name the line, the key and the cure.
//!
//! [`read_toml`] is the way in. The other functions are its parts, for a reader that changes the
//! table before it deserializes it, as the cases of a scenario do.

use serde::de::DeserializeOwned;
use std::fmt;
use toml::{Table, Value};

/// A file, or a change to it, that can't be used. It names the place, the key and the cure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Where the text came from: a file's name, or the option that changed it.
    pub origin: String,
    /// Line in the file, from 1, where there is one.
    pub line: Option<usize>,
    /// The key, as a path: `link[2].rate`, counted from 1.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
    /// The line itself.
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

/// A fault before its place in the file is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Path from the root: `link[1].rate` as serde counts, from 0.
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

/// The message of an error in a nested value, without a position: values have none.
pub fn inner<E: serde::de::Error>(error: toml::de::Error) -> E {
    E::custom(error.message())
}

/// Reads a file: its `text`, then what `check` finds wrong with what it says. Errors call it
/// `origin`.
///
/// # Errors
/// The text is not TOML, does not fit the schema, or `check` refuses it.
pub fn read_toml<T: DeserializeOwned>(text: &str, origin: &str, check: impl FnOnce(&T) -> Result<(), Fault>) -> Result<T, FileError> {
    let table = table(text, origin)?;
    let read = deserialize::<T>(Value::Table(table)).and_then(|value| check(&value).map(|()| value));
    read.map_err(|fault| place(text, origin, &fault))
}

/// The table that `text` is.
///
/// # Errors
/// The text is not TOML.
pub fn table(text: &str, origin: &str) -> Result<Table, FileError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        FileError {
            origin: origin.into(),
            line,
            key: String::new(),
            message: format!("is not TOML: {}", error.message()),
            excerpt: line.and_then(|line| excerpt(text, line)),
        }
    })
}

/// Deserializes `value`; a fault knows its path.
///
/// # Errors
/// The value does not fit the schema.
pub fn deserialize<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut path = error.path().to_string();
        let message = error.inner().message().to_string();
        if path == "." {
            path.clear();
        }
        // serde names a key that is unknown or missing in its message, and the path may stop at the table.
        let named = message.split('`').nth(1).filter(|_| message.starts_with("unknown field") || message.starts_with("missing field"));
        if let Some(key) = named
            && path.rsplit('.').next() != Some(key)
        {
            path = under(&path, key);
        }
        let message = match message.split_once('`') {
            Some((start, rest)) if start.starts_with("unknown field") => {
                let known =
                    rest.split_once("expected ").map_or(String::new(), |(_, known)| format!("; it can be {}", known.replace('`', "")));
                format!("is no key here{}", known.replace("one of ", "one of: "))
            }
            Some((start, _)) if start.starts_with("missing field") => "is missing".into(),
            _ => message,
        };
        Fault { path, message }
    })
}

/// The path of `key` in the table at `path`.
pub fn under(path: &str, key: &str) -> String {
    match (path.is_empty() || path == ".", key.is_empty() || key == ".") {
        (true, _) => key.into(),
        (_, true) => path.into(),
        _ if key.starts_with('[') => format!("{path}{key}"),
        _ => format!("{path}.{key}"),
    }
}

/// The path as people count: `link[0]` becomes `link[1]`.
pub fn from_one(path: &str) -> String {
    let mut out = String::new();
    let mut rest = path;
    while let Some(open) = rest.find('[') {
        let close = rest[open..].find(']').map_or(rest.len(), |at| open + at);
        let number = rest[open + 1..close].parse::<usize>().map_or_else(|_| rest[open + 1..close].into(), |n| (n + 1).to_string());
        out.push_str(&format!("{}[{number}]", &rest[..open]));
        rest = rest.get(close + 1..).unwrap_or("");
    }
    out + rest
}

/// Finds the line of a fault's key in the text.
pub fn place(text: &str, origin: &str, fault: &Fault) -> FileError {
    let line = span_of(text, &fault.path).map(|start| line_of(text, start));
    FileError {
        origin: origin.into(),
        line,
        key: from_one(&fault.path),
        message: fault.message.clone(),
        excerpt: line.and_then(|line| excerpt(text, line)),
    }
}

/// Where the item at `path`, or the deepest part of it that the text has, begins.
fn span_of(text: &str, path: &str) -> Option<usize> {
    let document = toml_edit::Document::parse(text).ok()?;
    let mut item: &toml_edit::Item = document.as_item();
    let mut found = None;
    for step in path.replace('[', ".").replace(']', "").split('.') {
        let next = match step.parse::<usize>() {
            Ok(index) if item.is_array_of_tables() || item.is_array() => item.get(index),
            _ => item.get(step),
        };
        let Some(next) = next else { break };
        item = next;
        let key = item.span().map(|span| span.start);
        found = key.or(found);
    }
    found
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

fn excerpt(text: &str, line: usize) -> Option<String> {
    text.lines().nth(line - 1).map(|line| line.trim_end().to_string())
}
