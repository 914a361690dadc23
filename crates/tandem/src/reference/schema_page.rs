//! A JSON Schema as a page: a table of keys for each of its objects.

use report::PlainTable;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// How key paths are written in headings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathStyle {
    /// `[control]`, `[[link]]`.
    Toml,
    /// `proxy`, `flows[]`.
    Json,
}

/// The reference page of a schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaPage<'a> {
    pub(super) title: &'a str,
    /// Markdown, on one line.
    pub(super) introduction: &'a str,
    pub(super) style: PathStyle,
    pub(super) schema: &'a Value,
}

/// Returns the beginning of a generated page.
pub(super) fn head(title: &str, introduction: &str) -> String {
    let note = "This page is generated from the code: change the comments there, then `make reference`.";
    format!("# {title}\n\n{}\n{}", wrap(introduction), wrap(note))
}

/// Wraps a paragraph at 100 columns; ends with a newline.
pub(super) fn wrap(text: &str) -> String {
    wrap_at(text, 100)
}

/// Wraps a paragraph at this width; ends with a newline.
pub(crate) fn wrap_at(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("the vector is never empty");
        if line.is_empty() {
            *line = word.into();
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            *line += " ";
            *line += word;
        } else {
            lines.push(word.into());
        }
    }
    lines.join("\n") + "\n"
}

/// An object of the schema with a table of its own.
pub(super) struct SchemaSection {
    /// The key paths at which the object occurs. Empty for the root.
    paths: Vec<KeyPath>,
    /// The name of its definition; empty for an inline object.
    definition: String,
    /// Its description, properties and required keys.
    object: Map<String, Value>,
}

/// A path of keys, each with whether its value is a list.
#[derive(Clone, PartialEq, Eq)]
struct KeyPath(Vec<(String, bool)>);

impl KeyPath {
    fn heading(&self, style: PathStyle) -> String {
        let keys = || self.0.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(".");
        let is_list = self.0.last().is_some_and(|(_, is_list)| *is_list);
        match style {
            PathStyle::Json => {
                self.0.iter().map(|(key, is_list)| format!("{key}{}", if *is_list { "[]" } else { "" })).collect::<Vec<_>>().join(".")
            }
            // A table inside a list of tables is written inline.
            PathStyle::Toml if self.0.len() > 1 && self.0[..self.0.len() - 1].iter().any(|(_, is_list)| *is_list) => keys(),
            PathStyle::Toml if is_list => format!("[[{}]]", keys()),
            PathStyle::Toml if self.0.len() > 1 => keys(),
            PathStyle::Toml => format!("[{}]", keys()),
        }
    }
}

impl<'a> SchemaPage<'a> {
    /// Returns the whole page.
    pub(super) fn markdown(&self) -> String {
        let mut page = head(self.title, self.introduction);
        let sections = self.sections();
        for section in &sections {
            if !section.paths.is_empty() {
                let (heading, of_all) = (self.heading(section), self.all_paths(section));
                page += &format!("\n## {heading}\n\n");
                if heading != of_all {
                    page += &format!("{}\n", wrap(&format!("Of {of_all}.")));
                }
                if let Some(about) = section.object.get("description").and_then(Value::as_str) {
                    page += &format!("{}\n", wrap(about));
                }
            } else {
                page += "\n";
            }
            page += &self.table(section, &sections);
        }
        page
    }

    /// All paths of a section if they fit a line, else the first and how many more there are.
    fn heading(&self, section: &SchemaSection) -> String {
        const MOST: usize = 96;
        let all = self.all_paths(section);
        match &section.paths[..] {
            [first, more @ ..] if all.chars().count() > MOST => format!("`{}` and {} more", first.heading(self.style), more.len()),
            _ => all,
        }
    }

    fn all_paths(&self, section: &SchemaSection) -> String {
        section.paths.iter().map(|path| format!("`{}`", path.heading(self.style))).collect::<Vec<_>>().join(", ")
    }

    /// Returns all objects, each before the objects inside it.
    fn sections(&self) -> Vec<SchemaSection> {
        let mut sections = Vec::new();
        // The root of the schema may be a list of the object that the page describes.
        let root = self.schema.get("items").unwrap_or(self.schema);
        let (definition, object) = self.resolve(root);
        if let Some(object) = object.as_object() {
            self.add(Vec::new(), definition, object, &mut sections);
        }
        sections
    }

    fn add(&self, path: Vec<(String, bool)>, definition: String, object: &Map<String, Value>, sections: &mut Vec<SchemaSection>) {
        let paths: Vec<KeyPath> = if path.is_empty() { Vec::new() } else { vec![KeyPath(path.clone())] };
        if let Some(known) = sections.iter_mut().find(|section| !definition.is_empty() && section.definition == definition) {
            known.paths.extend(paths);
            return;
        }
        sections.push(SchemaSection { paths, definition, object: object.clone() });
        for (key, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            for (is_list, definition, inner) in self.objects(property) {
                let mut path = path.clone();
                path.push((key.clone(), is_list));
                self.add(path, definition, inner, sections);
            }
        }
    }

    /// Returns the objects with keys among the forms of a property, or of the items of its list.
    fn objects<'s>(&self, property: &'s Value) -> Vec<(bool, String, &'s Map<String, Value>)>
    where
        'a: 's,
    {
        let (definition, value) = self.resolve(property);
        if let Some(items) = value.get("items").filter(|items| items.is_object()) {
            return self.objects(items).into_iter().map(|(_, definition, object)| (true, definition, object)).collect();
        }
        if let Some(any) = value.get("anyOf").and_then(Value::as_array) {
            let inner = any.iter().flat_map(|one| self.objects(one));
            return inner.map(|(is_list, own, object)| (is_list, if own.is_empty() { definition.clone() } else { own }, object)).collect();
        }
        match value.as_object() {
            Some(object) if object.contains_key("properties") => vec![(false, definition, object)],
            _ => Vec::new(),
        }
    }

    /// Follows a reference. Returns the name of the definition and the schema.
    fn resolve<'s>(&self, value: &'s Value) -> (String, &'s Value)
    where
        'a: 's,
    {
        let Some(reference) = value.get("$ref").and_then(Value::as_str) else { return (String::new(), value) };
        let name = reference.trim_start_matches("#/$defs/");
        (name.to_owned(), &self.schema["$defs"][name])
    }

    fn table(&self, section: &SchemaSection, sections: &[SchemaSection]) -> String {
        let required: BTreeSet<&str> =
            section.object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = section.object.get("properties").and_then(Value::as_object);
        let rows: Vec<Vec<String>> = properties
            .into_iter()
            .flatten()
            .map(|(key, property)| {
                let about = self.meaning(property);
                let default = match property.get("default") {
                    Some(value) => default_text(value),
                    None if required.contains(key.as_str()) => "required".into(),
                    None => String::new(),
                };
                let mut value = self.value(property, sections);
                // An optional field is left out of the JSON instead of being null.
                if self.style == PathStyle::Json && !required.contains(key.as_str()) {
                    value =
                        [", or null", " or null"].iter().fold(value, |value, null| value.trim_end_matches(null).to_owned()) + ", or absent";
                }
                let mut row = vec![format!("`{key}`"), value, about];
                if self.style == PathStyle::Toml {
                    row.insert(2, default);
                }
                row
            })
            .collect();
        let header: &[&str] = match self.style {
            PathStyle::Toml => &["key", "value", "default", "meaning"],
            PathStyle::Json => &["field", "value", "meaning"],
        };
        PlainTable::new(header, rows).markdown()
    }

    /// Returns the description of a property on one line, with its named values.
    pub(super) fn meaning(&self, property: &Value) -> String {
        let about = property.get("description").and_then(Value::as_str).unwrap_or_default();
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        match &self.choices(property)[..] {
            [] => about,
            choices => format!("{about} {}.", choices.join("; ")),
        }
    }

    /// Returns the table with keys at a property, or that of the members of its list.
    pub(super) fn table_at(&self, property: &'a Value) -> Option<&'a Map<String, Value>> {
        self.objects(property).into_iter().next().map(|(_, _, object)| object)
    }

    /// Returns the named values of a property, each with its description.
    fn choices(&self, property: &Value) -> Vec<String> {
        let (_, value) = self.resolve(property);
        let any = |key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten();
        let described = any("oneOf").filter_map(|one| {
            let about = one.get("description")?.as_str()?.split_whitespace().collect::<Vec<_>>().join(" ");
            Some(format!("`{}`: {}", one.get("const")?.as_str()?, uncapitalized(&about)))
        });
        described.chain(any("anyOf").flat_map(|one| self.choices(one))).collect()
    }

    /// Returns the description of a property's values.
    pub(super) fn value(&self, property: &Value, sections: &[SchemaSection]) -> String {
        let (definition, value) = self.resolve(property);
        if let Some(any) = value.get("anyOf").and_then(Value::as_array) {
            let forms: Vec<String> = any
                .iter()
                .map(|one| {
                    let is_long_form = one.get("properties").is_some() && !definition.is_empty();
                    if is_long_form { self.link(&definition, sections) } else { self.value(one, sections) }
                })
                .filter(|form| !form.is_empty())
                .collect();
            return match &forms[..] {
                [one, list] if *list == format!("list: {one}") => format!("{one}, or a list"),
                _ => forms.join(", or "),
            };
        }
        if let Some(items) = value.get("items").filter(|items| items.is_object()) {
            let count = value.get("maxItems").filter(|most| Some(*most) == value.get("minItems")).and_then(Value::as_u64);
            let of = self.value(items, sections);
            return match count {
                Some(count) => format!("list of {count}: {of}"),
                None => format!("list: {of}"),
            };
        }
        if value.get("properties").is_some() {
            return self.link(&definition, sections);
        }
        let names =
            |values: &[Value]| values.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        if let Some(all) = value.get("enum").and_then(Value::as_array) {
            return names(all);
        }
        if let Some(one) = value.get("oneOf").and_then(Value::as_array) {
            return names(&one.iter().filter_map(|one| one.get("const").cloned()).collect::<Vec<_>>());
        }
        if let Some(title) = value.get("title").and_then(Value::as_str) {
            let title = title.strip_prefix("a ").or_else(|| title.strip_prefix("an ")).unwrap_or(title);
            let example = value.get("examples").and_then(|examples| examples.as_array()?.last());
            return example.map_or(title.into(), |example| format!("{title}: `{example}`"));
        }
        self.plain(value)
    }

    /// Returns the name of a JSON type.
    fn plain(&self, value: &Value) -> String {
        let types: Vec<&str> = match value.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => vec!["any"],
        };
        let word = |name: &str| match name {
            "integer" => "whole number".into(),
            "boolean" => "`true`, `false`".into(),
            "string" => "text".into(),
            "array" => "list".into(),
            "object" => match value.get("additionalProperties") {
                Some(of) if of.is_object() && of.get("type").is_some() => format!("names, each with a {}", self.plain(of)),
                _ => "table of keys".into(),
            },
            other => other.to_owned(),
        };
        let shown = types.into_iter().filter(|name| *name != "null" || self.style == PathStyle::Json);
        shown.map(word).collect::<Vec<_>>().join(" or ")
    }

    /// Returns a link to the table of a definition.
    fn link(&self, definition: &str, sections: &[SchemaSection]) -> String {
        let Some(section) = sections.iter().find(|section| section.definition == definition) else { return "table".into() };
        let heading = self.heading(section);
        let anchor: String = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
        let word = if self.style == PathStyle::Toml { "table" } else { "object" };
        format!("[{word}](#{})", anchor.replace(' ', "-"))
    }
}

/// Returns a sentence with a lowercase first letter, unless it begins with an abbreviation.
fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => first.to_lowercase().chain([second]).chain(letters).collect(),
        _ => text.into(),
    }
}

/// Returns a default value in the syntax of the file.
pub(super) fn default_text(value: &Value) -> String {
    match value {
        Value::Object(keys) if keys.is_empty() => String::new(),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Null => String::new(),
        // The defaults of a table's keys are shown with those keys.
        Value::Object(_) => String::new(),
        other => format!("`{other}`"),
    }
}
