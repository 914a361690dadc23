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
    let start = span_of(text, &fault.path);
    FileError {
        origin: origin.into(),
        line: start.map(|start| line_of(text, start)),
        key: from_one(&fault.path),
        message: files::shorten_quotations(&fault.message),
        excerpt: start.map(|start| excerpt(text, start)),
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

/// The line that has the byte `at`; of a long one the part around it. The reader of an error may
/// not be permitted to read the file.
pub(crate) fn excerpt(text: &str, at: usize) -> String {
    let line = line_at(text, at);
    let begin = text[..at.min(text.len())].rfind('\n').map_or(0, |newline| newline + 1);
    files::window(line, at - begin)
}

/// The line that has the byte `at`, whole.
pub(crate) fn line_at(text: &str, at: usize) -> &str {
    text.lines().nth(line_of(text, at) - 1).unwrap_or_default().trim_end()
}
