//! Paths of keys, and the lines at which they stand in a file.

use crate::{Fault, FileError};

/// The path of `key` in the table at `path`.
pub fn under(path: &str, key: &str) -> String {
    match (path.is_empty() || path == ".", key.is_empty() || key == ".") {
        (true, _) => key.into(),
        (_, true) => path.into(),
        _ if key.starts_with('[') => format!("{path}{key}"),
        _ => format!("{path}.{key}"),
    }
}

/// The path with indices from 1 instead of 0: `link[0]` becomes `link[1]`.
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

/// Where the item at `path` begins in the text, or the deepest part of the path that the text has.
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

pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

pub(crate) fn excerpt(text: &str, line: usize) -> Option<String> {
    text.lines().nth(line - 1).map(|line| line.trim_end().to_string())
}
