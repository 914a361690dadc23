//! The text behind a configuration: its files, with where each key stands, and what of it may be
//! shown.

use super::changes::{KeyChange, bare, compare};
use std::path::Path;
use toml::{Table, Value};
use toml_file::{Fault, FileError, SourceLine, Sources, Variables, expand};

/// What stands for a secret where a configuration is shown.
const HIDDEN: &str = "(secret)";

/// The keys of a configuration file and of the files that it includes.
#[derive(Clone, Default)]
pub struct ConfigSource {
    sources: Sources,
    /// The keys with the values of variables.
    values: Table,
    variables: Variables,
}

impl std::fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the values, which may be secrets.
        f.debug_struct("ConfigSource").field("files", &self.files().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl ConfigSource {
    /// Fills in the variables of the environment.
    ///
    /// # Errors
    /// A variable is not set.
    pub(super) fn new(sources: Sources) -> Result<Self, FileError> {
        let mut values = sources.table().clone();
        match expand(&mut values, &|name: &str| std::env::var(name).ok()) {
            Ok(variables) => Ok(ConfigSource { sources, values, variables }),
            Err(fault) => Err(sources.place(&fault)),
        }
    }

    /// The keys with the values of variables.
    pub(super) fn values(&self) -> &Table {
        &self.values
    }

    /// The error of a fault: with its file and line, without values of variables. The line of a
    /// secret is shown without its value, and so is that of an unknown key, which may be a misspelt
    /// one.
    pub(super) fn error(&self, fault: Fault) -> FileError {
        let may_show_secret = is_under_secret(&fault.path) || fault.message.starts_with("is not a key here");
        let mut error = self.sources.place(&self.variables.hide(fault));
        if may_show_secret {
            error.excerpt = error.excerpt.and_then(|line| Some(format!("{}= …", line.split_once('=')?.0)));
        }
        error
    }

    /// A message without values of variables.
    pub fn hide_variables(&self, message: &str) -> String {
        self.variables.hide_in(message)
    }

    /// The files, the first one first.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.sources.files()
    }

    /// Where the key at this path stands. The path has indices from 0: `rule[1].to`.
    pub fn line_of(&self, path: &str) -> Option<SourceLine> {
        self.sources.line_of(path)
    }

    /// The keys as their files write them, without secrets. A secret that is a variable of the
    /// environment has its name.
    pub fn shown(&self) -> Table {
        let mut shown = self.sources.table().clone();
        shown.remove("include");
        for (key, value) in shown.iter_mut() {
            self.hide(value, key);
        }
        shown
    }

    fn hide(&self, value: &mut Value, path: &str) {
        match value {
            Value::String(text) if is_secret(path) && !self.variables.are_in(path) => *text = HIDDEN.into(),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.hide(item, &format!("{path}[{index}]"));
                }
            }
            Value::Table(table) => {
                for (key, value) in table.iter_mut() {
                    self.hide(value, &format!("{path}.{key}"));
                }
            }
            _ => {}
        }
    }

    /// What another configuration changes.
    pub fn changes(&self, next: &ConfigSource) -> Vec<KeyChange> {
        let pair = |source: &Self| (Value::Table(source.values.clone()), Value::Table(source.shown()));
        compare(&pair(self), &pair(next))
    }

    /// The files that have secrets themselves, not as variables of the environment.
    pub(super) fn files_with_secrets(&self) -> Vec<&Path> {
        let mut found = Vec::new();
        self.find_secrets(&Value::Table(self.values.clone()), "", &mut found);
        found
    }

    fn find_secrets<'a>(&'a self, value: &Value, path: &str, found: &mut Vec<&'a Path>) {
        match value {
            Value::String(_) if is_secret(path) && !self.variables.are_in(path) => found.extend(self.sources.file_of(path)),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| self.find_secrets(item, &format!("{path}[{index}]"), found));
            }
            Value::Table(table) => {
                table.iter().for_each(|(key, value)| self.find_secrets(value, &toml_file::under(path, key), found));
            }
            _ => {}
        }
    }
}

/// Whether the text at this path is a secret. A text as `users` is the name of a file; those of a
/// list are passwords.
fn is_secret(path: &str) -> bool {
    matches!(bare(path).as_str(), "bond.key" | "page.token") || (bare(path) == "listen.users" && path.ends_with(']'))
}

/// Whether the path is that of a secret, or of a list of secrets.
fn is_under_secret(path: &str) -> bool {
    matches!(bare(path).as_str(), "bond.key" | "page.token" | "listen.users")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[page]\nlisten = \"[::1]:1\"\ntoken = \"0123456789abcdef\"\n[[listen]]\nsocks5 = \"[::1]:2\"\n\
                        users = [\"alice:${PATH}\", \"bob:swordfish\", \"eve:$${PATH}\"]\n[[listen]]\nusers = \"/etc/users\"\n";

    #[test]
    fn paths_without_indices_are_of_the_schema() {
        assert_eq!(bare("listen[12].users[0]"), "listen.users");
        assert_eq!(bare("bond.key"), "bond.key");
    }

    #[test]
    fn errors_show_no_secret_of_the_file() {
        let parse = |text: &str| super::super::file::Service::parse(text, "x.toml").unwrap_err().to_string();
        for (text, key) in [
            ("[page]\nlisten = \"[::1]:1\"\ntoken = \"sword fish\"\n", "page.token"),
            ("[page]\nlisten = \"[::1]:1\"\ntokn = \"swordfish0123456789\"\n", "page.tokn"),
            ("[bond]\nkey = \"swordfish\"\n[[bond.network]]\ninterface = \"a\"\nto = \"192.0.2.1:1\"\n", "bond.key"),
            ("[[listen]]\nsocks5 = \"[::1]:2\"\nusers = [\"swordfish\"]\n", "listen[1]"),
        ] {
            let said = parse(text);
            assert!(said.contains(key) && !said.contains("sword") && !said.contains("fish"), "{said}");
        }
    }

    #[test]
    fn secrets_are_not_shown_and_variables_are_shown_by_name() {
        let source = ConfigSource::new(Sources::of_text(TEXT, "x").unwrap()).unwrap();
        let shown = source.shown();
        assert_eq!(shown["page"]["token"].as_str(), Some(HIDDEN));
        let users: Vec<&str> = shown["listen"][0]["users"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(users, ["alice:${PATH}", HIDDEN, HIDDEN]);
        assert_eq!(shown["listen"][1]["users"].as_str(), Some("/etc/users"));
        assert!(!format!("{source:?}").contains("swordfish"));
        assert_eq!(source.files_with_secrets().len(), 3);
        let changed = TEXT.replace("swordfish", "sunfish").replace("0123456789abcdef", "0123456789abcdee");
        let changed = ConfigSource::new(Sources::of_text(&changed, "x").unwrap()).unwrap();
        let changes: Vec<String> = source.changes(&changed).iter().map(ToString::to_string).collect();
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert!(changes.iter().all(|change| change.ends_with("changed") && !change.contains("fish")), "{changes:?}");
    }
}
