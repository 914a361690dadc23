//! Other settings under which all cases of an experiment are played again.

use serde::Deserialize;

/// A variation of an experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variation {
    /// Its name, which follows a case's name after a comma.
    pub name: String,
    /// Its changes to the scenario file, with one value each.
    pub sets: Vec<String>,
}

impl Variation {
    /// The name of a case under this variation.
    pub fn of(&self, case: &str) -> String {
        if case.is_empty() { self.name.clone() } else { format!("{case}, {}", self.name) }
    }

    /// The case without the variation `name`; none if `varied` is not a case under it.
    pub(crate) fn without<'a>(name: &str, varied: &'a str) -> Option<&'a str> {
        let rest = varied.strip_suffix(name)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_suffix(", ") }
    }
}
