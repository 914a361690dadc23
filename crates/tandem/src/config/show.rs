//! The effective configuration: every key that is set, with its place, and the defaults of the
//! tables that are there.

use crate::reference::SchemaKeys;
use proxy::ConfigSource;
use serde::Serialize;
use toml::{Table, Value};

/// A key with a value, or the header of a table.
#[derive(Debug, Serialize)]
pub(super) struct EffectiveKey {
    /// The key, with the numbers of list members from 1: `rule[2].to`.
    key: String,
    /// Its value as TOML; absent: a table, whose keys follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The file; absent: the value is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The line in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// How the line of the key is written.
    #[serde(skip)]
    text: String,
}

/// All keys, in the order of the schema.
pub(super) fn keys(source: &ConfigSource) -> Vec<EffectiveKey> {
    let schema = proxy::config_schema();
    let mut keys = Vec::new();
    Collector { source, keys: &mut keys }.table(&source.shown(), SchemaKeys::of(schema.as_value()).as_ref(), "", "");
    keys
}

/// The keys as TOML, with comments that say where each is set.
pub(super) fn text(source: &ConfigSource, keys: &[EffectiveKey]) -> String {
    const COMMENT_COLUMN: usize = 44;
    let files: Vec<String> = source.files().map(|file| file.display().to_string()).collect();
    let mut out = format!("# The effective configuration of {}.\n", files.join(", "));
    for key in keys {
        let place = match (&key.file, key.line) {
            (Some(file), Some(line)) => format!("{file}:{line}"),
            _ => "default".into(),
        };
        let gap = if key.value.is_none() { "\n" } else { "" };
        out += &format!("{gap}{:COMMENT_COLUMN$} # {place}\n", key.text);
    }
    out
}

struct Collector<'a> {
    source: &'a ConfigSource,
    keys: &'a mut Vec<EffectiveKey>,
}

impl Collector<'_> {
    /// Adds the keys of a table. `path` has indices from 0; `header` is how headers name it.
    fn table(&mut self, table: &Table, schema: Option<&SchemaKeys<'_>>, path: &str, header: &str) {
        let known = schema.map_or(Vec::new(), SchemaKeys::names);
        let unknown = table.keys().map(String::as_str).filter(|key| !known.contains(key));
        let order: Vec<&str> = known.iter().copied().chain(unknown).collect();
        // A member of a list has its tables inline.
        let is_section = |value: &Value| !path.contains('[') && (value.is_table() || is_list_of_tables(value));
        for key in &order {
            match table.get(*key) {
                Some(value) if is_section(value) => {}
                Some(value) => self.value(&toml_file::under(path, key), key, toml_file::inline(value)),
                None => {
                    if let Some(default) = schema.and_then(|schema| schema.default(key)) {
                        self.default(&toml_file::under(path, key), key, &default);
                    }
                }
            }
        }
        for key in order {
            let (inner, below) = (schema.and_then(|schema| schema.inner(key)), toml_file::under(path, key));
            let name = toml_file::under(header, key);
            match table.get(key) {
                Some(Value::Table(keys)) if !path.contains('[') => {
                    self.add(&below, None, format!("[{name}]"));
                    self.table(keys, inner.as_ref(), &below, &name);
                }
                Some(Value::Array(items)) if !path.contains('[') => {
                    for (index, item) in items.iter().enumerate() {
                        let Value::Table(keys) = item else { continue };
                        let below = format!("{below}[{index}]");
                        self.add(&below, None, format!("[[{name}]]"));
                        self.table(keys, inner.as_ref(), &below, &name);
                    }
                }
                _ => {}
            }
        }
    }

    fn value(&mut self, path: &str, key: &str, value: String) {
        let text = format!("{key} = {value}");
        self.add(path, Some(value), text);
    }

    fn default(&mut self, path: &str, key: &str, value: &str) {
        let text = format!("{key} = {value}");
        self.keys.push(EffectiveKey { key: toml_file::from_one(path), value: Some(value.into()), file: None, line: None, text });
    }

    fn add(&mut self, path: &str, value: Option<String>, text: String) {
        let (file, line) = self.source.line_of(path).map(|at| (at.origin, at.line)).unzip();
        self.keys.push(EffectiveKey { key: toml_file::from_one(path), value, file, line, text });
    }
}

fn is_list_of_tables(value: &Value) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(Value::is_table))
}
