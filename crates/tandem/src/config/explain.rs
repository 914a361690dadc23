//! `tandem config explain`: the documentation of a key of the configuration file.

use crate::{CommandError, output, reference::SchemaKeys};
use clap::Args;
use serde::Serialize;

/// Explain a key of the configuration file: its meaning, values, default, and how a change applies
#[derive(Debug, Args)]
pub(crate) struct ExplainCommand {
    /// Key with its table, such as leg.control; without one, all tables and keys of the root
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is known of a key.
#[derive(Debug, Serialize)]
struct Explanation {
    key: String,
    /// Its type.
    value: String,
    /// As TOML; absent: none, or the meaning says.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    meaning: String,
    application: proxy::Application,
    /// The keys of a table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keys: Vec<String>,
}

impl ExplainCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let schema = proxy::config_schema();
        let root = SchemaKeys::of(schema.as_value()).expect("the schema of the configuration is a table of keys");
        // `[[rule]]`, `rule[2].to` and `rule.to` are the same table.
        let wanted = without_brackets(self.key.as_deref().unwrap_or_default());
        let steps: Vec<&str> = wanted.split('.').filter(|step| !step.is_empty()).collect();
        let Some((last, tables)) = steps.split_last() else { return self.print_table(&root, "") };
        let mut table = root;
        for (depth, step) in tables.iter().enumerate() {
            table = table.inner(step).ok_or_else(|| unknown(schema.as_value(), &steps, depth))?;
        }
        if !table.names().contains(last) {
            return Err(unknown(schema.as_value(), &steps, tables.len()));
        }
        let explanation = explain(&table, &wanted, last);
        if self.json {
            outln!("{}", serde_json::to_string(&explanation).unwrap_or_default());
            return Ok(());
        }
        outln!("{wanted}: {}", explanation.value);
        if let Some(default) = &explanation.default {
            outln!("default: {default}");
        }
        let width = output::width().unwrap_or(100).clamp(40, 100);
        out!("\n{}", crate::reference::wrap_at(&explanation.meaning, width));
        match table.inner(last) {
            Some(inner) => {
                outln!();
                self.print_table(&inner, &wanted)
            }
            None => {
                outln!("\nafter a change: {}", explanation.application);
                Ok(())
            }
        }
    }

    fn print_table(&self, table: &SchemaKeys<'_>, path: &str) -> Result<(), CommandError> {
        let all: Vec<Explanation> = table.names().into_iter().map(|key| explain(table, &under(path, key), key)).collect();
        if self.json {
            outln!("{}", serde_json::to_string(&all).unwrap_or_default());
            return Ok(());
        }
        let row = |one: Explanation| {
            let first = one.meaning.split_inclusive(". ").next().unwrap_or_default().trim().to_owned();
            vec![one.key, one.value, first]
        };
        let rows: Vec<Vec<String>> = all.into_iter().map(row).collect();
        out!("{}", output::words_table(&["key", "value", "meaning"], &rows));
        Ok(())
    }
}

fn explain(table: &SchemaKeys<'_>, path: &str, key: &str) -> Explanation {
    let keys = table.inner(key).map_or(Vec::new(), |inner| inner.names().into_iter().map(|name| under(path, name)).collect());
    Explanation {
        key: path.into(),
        value: table.value(key),
        default: table.default(key),
        meaning: table.meaning(key),
        application: proxy::application(path),
        keys,
    }
}

/// The error for a key whose step at `depth` is unknown, with keys that may be meant.
fn unknown(schema: &serde_json::Value, steps: &[&str], depth: usize) -> CommandError {
    let mut all = Vec::new();
    if let Some(root) = SchemaKeys::of(schema) {
        root.all_paths("", &mut all);
    }
    let (key, step) = (steps.join("."), steps[depth]);
    let table = steps[..depth].join(".");
    // A key of another table, or a misspelt one: of this table first.
    let named: Vec<&str> = all.iter().map(String::as_str).filter(|path| path.rsplit('.').next() == steps.last().copied()).collect();
    let here: Vec<&str> = all.iter().filter_map(|path| child(path, &table)).collect();
    let names: Vec<&str> = all.iter().filter_map(|path| path.rsplit('.').next()).collect();
    let cure = match (toml_file::closest(step, &here), toml_file::closest(step, &names)) {
        _ if !named.is_empty() => format!("{step} is a key of {}", any_of(&named)),
        (Some(meant), _) => format!("did you mean {}?", under(&table, meant)),
        (None, Some(meant)) => {
            let meant: Vec<&str> = all.iter().map(String::as_str).filter(|path| path.rsplit('.').next() == Some(meant)).collect();
            format!("did you mean {}?", any_of(&meant))
        }
        (None, None) => "tandem config explain lists all tables and keys".into(),
    };
    CommandError::Usage(format!("{key} is not a key of the configuration file: {cure}"))
}

/// The name of a key that is directly in the table.
fn child<'a>(path: &'a str, table: &str) -> Option<&'a str> {
    let rest = if table.is_empty() { path } else { path.strip_prefix(table)?.strip_prefix('.')? };
    (!rest.contains('.')).then_some(rest)
}

fn any_of(names: &[&str]) -> String {
    match names {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

fn under(path: &str, key: &str) -> String {
    toml_file::under(path, key)
}

/// The key without the brackets of headers and the indices of lists.
fn without_brackets(key: &str) -> String {
    let mut out = String::new();
    let mut parts = key.split('[');
    out += parts.next().unwrap_or_default();
    for part in parts {
        let (inside, after) = part.split_once(']').unwrap_or((part, ""));
        if inside.parse::<usize>().is_err() {
            out += inside;
        }
        out += after.trim_start_matches(']');
    }
    out.trim().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_however_they_are_written() {
        for (written, key) in [("[[rule]]", "rule"), ("rule[2].to", "rule.to"), ("[bond]", "bond"), ("leg.control", "leg.control")] {
            assert_eq!(without_brackets(written), key);
        }
    }

    #[test]
    fn every_key_of_the_schema_is_explained() {
        let schema = proxy::config_schema();
        let root = SchemaKeys::of(schema.as_value()).unwrap();
        let mut all = Vec::new();
        root.all_paths("", &mut all);
        assert!(all.len() > 80 && all.iter().any(|path| path == "bond.network.capacity.file"), "{all:?}");
        for path in all {
            let mut table = SchemaKeys::of(schema.as_value()).unwrap();
            let (tables, key) = path.rsplit_once('.').unwrap_or(("", &path));
            for step in tables.split('.').filter(|step| !step.is_empty()) {
                table = table.inner(step).unwrap();
            }
            let explanation = explain(&table, &path, key);
            assert!(explanation.meaning.ends_with('.') && !explanation.value.is_empty(), "{path}: {explanation:?}");
            assert!(!explanation.value.contains("]("), "{path}: {}", explanation.value);
        }
    }
}
