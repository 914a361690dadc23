//! The keys of a table of a JSON Schema, one by one, for texts on a terminal.

use super::schema_page::{PathStyle, SchemaPage, default_text};
use serde_json::{Map, Value};

/// A table of a schema.
#[derive(Clone, Copy)]
pub(crate) struct SchemaKeys<'a> {
    page: SchemaPage<'a>,
    properties: &'a Map<String, Value>,
}

impl<'a> SchemaKeys<'a> {
    /// The table at the root of a schema; none: its root is no table.
    pub(crate) fn of(schema: &'a Value) -> Option<Self> {
        let page = SchemaPage { title: "", introduction: "", style: PathStyle::Toml, schema };
        Some(SchemaKeys { page, properties: schema.get("properties")?.as_object()? })
    }

    /// The names of its keys, in the order of the schema.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        self.properties.keys().map(String::as_str).collect()
    }

    /// The table at a key, or that of the members of a list; none: the key has no table, or is
    /// unknown.
    pub(crate) fn inner(&self, key: &str) -> Option<SchemaKeys<'a>> {
        let object = self.page.table_at(self.properties.get(key)?)?;
        Some(SchemaKeys { page: self.page, properties: object.get("properties")?.as_object()? })
    }

    /// Paths of all keys below this table, each after `path`.
    pub(crate) fn all_paths(&self, path: &str, found: &mut Vec<String>) {
        for name in self.names() {
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            found.push(below.clone());
            if let Some(inner) = self.inner(name) {
                inner.all_paths(&below, found);
            }
        }
    }

    /// The default of a key as TOML; none: it has none, or the meaning says.
    pub(crate) fn default(&self, key: &str) -> Option<String> {
        let text = default_text(self.properties.get(key)?.get("default")?);
        let text = text.trim_matches('`');
        (!text.is_empty() && text != "none").then(|| text.to_owned())
    }

    /// The type of a key's value.
    pub(crate) fn value(&self, key: &str) -> String {
        let Some(property) = self.properties.get(key) else { return String::new() };
        without_links(&self.page.value(property, &[])).replace('`', "")
    }

    /// The documentation of a key, on one line, with its named values.
    pub(crate) fn meaning(&self, key: &str) -> String {
        self.properties.get(key).map_or(String::new(), |property| self.page.meaning(property))
    }
}

/// The text of Markdown without the targets of its links.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut parts = text.split("](");
    out += &parts.next().unwrap_or_default().replace('[', "");
    for part in parts {
        out += &part.split_once(')').map_or(part, |(_, after)| after).replace('[', "");
    }
    out
}
