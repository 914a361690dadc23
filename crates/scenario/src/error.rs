//! What is wrong with a scenario, and where.

use std::fmt;

/// A scenario file, or a change to it, that can't be used. It names the place, the key and the cure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
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

impl fmt::Display for ScenarioError {
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

impl std::error::Error for ScenarioError {}

/// A fault in a scenario before its place in the file is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Path from the root: `link[1].rate` as serde counts, from 0.
    pub(crate) path: String,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Fault { path: path.into(), message: message.into() }
    }
}
