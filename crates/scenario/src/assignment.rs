//! A change of a key from the command line: how it is written, and how it is made.

use crate::set_value;
use toml::{Table, Value};
use toml_file::Fault;

/// A change of a key, to several values in turn if there are several (`--set
/// control.proxy=cubic,hybla`).
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    key: String,
    values: Vec<Value>,
}

impl std::str::FromStr for Assignment {
    type Err = String;

    /// `KEY=VALUE` or `KEY=VALUE,VALUE…`. Values are TOML if they parse as such, else text. Commas
    /// inside brackets, braces or quotes do not separate values, nor do those before a controller's
    /// tunable: `control.proxy=mpcp,law=1,xcp` has two values. `10Mbit..50Mbit:10Mbit` stands for
    /// five.
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) =
            text.split_once('=').ok_or_else(|| format!("{text:?} has no \"=\": write KEY=VALUE, such as control.proxy=cubic"))?;
        let key = key.trim();
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(format!("{text:?} has no key before \"=\": write KEY=VALUE, such as link.2.rate=5Mbit"));
        }
        let mut parts: Vec<String> = Vec::new();
        for part in split_outside(values) {
            match parts.last_mut().filter(|_| key.starts_with("control.") && is_tunable(part)) {
                Some(controller) => *controller += &format!(",{part}"),
                None => parts.push(part.into()),
            }
        }
        let mut values = Vec::new();
        for part in &parts {
            match set_value::range(part) {
                Some(range) => values.extend(range.map_err(|why| format!("{key}: {why}"))?),
                None => values.push(value_of(part)),
            }
        }
        Ok(Assignment { key: key.into(), values })
    }
}

impl Assignment {
    /// A change of `key` to each of `values` in turn.
    pub fn new(key: impl Into<String>, values: Vec<Value>) -> Self {
        Assignment { key: key.into(), values }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The values that it gets in turn.
    pub fn values(&self) -> &[Value] {
        &self.values
    }
}

/// Splits at commas outside of brackets, braces and quotes.
fn split_outside(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start, mut parts) = (0, false, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Whether a part of a controller's text sets a tunable: `law=1`.
fn is_tunable(part: &str) -> bool {
    part.split_once('=').is_some_and(|(name, _)| name.trim().chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

fn value_of(text: &str) -> Value {
    let text = text.trim();
    format!("v = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("v")).unwrap_or_else(|| Value::String(text.into()))
}

/// Puts `value` at the dotted `key`. Tables of a list are counted from 1: `link.2.rate`, or
/// `link[2].rate`. `split.*.shaper` is the key of every table of the list, of which there may be
/// none.
pub(crate) fn set(table: &mut Table, key: &str, value: Value) -> Result<(), Fault> {
    if let Some((list, rest)) = key.split_once(".*.") {
        let count = match table.get(list) {
            Some(Value::Array(items)) => items.len(),
            _ => return Err(Fault::new(key, format!("there is no list {list} here"))),
        };
        return (1..=count).try_for_each(|number| set(table, &format!("{list}.{number}.{rest}"), value.clone()));
    }
    let plain = key.replace('[', ".").replace(']', "");
    let steps: Vec<&str> = plain.split('.').collect();
    let fault = |message: String| Fault::new(key, message);
    let (last, way) = steps.split_last().ok_or_else(|| fault("is empty".into()))?;
    let mut at = table;
    let mut steps = way.iter().peekable();
    while let Some(step) = steps.next() {
        let none = || Err(fault(format!("there is no {step} here")));
        let is_index = |step: &&&str| step.parse::<usize>().is_ok();
        if !at.contains_key(*step) && (steps.peek().is_some_and(is_index) || is_index(&last)) {
            return none();
        }
        let entry = at.entry((*step).to_string()).or_insert_with(|| Value::Table(Table::new()));
        let next = match entry {
            Value::Array(items) => {
                let count = items.len();
                if count == 0 {
                    return none();
                }
                let index = steps.next().and_then(|text| text.parse::<usize>().ok()).filter(|index| (1..=count).contains(index));
                let there = if count == 1 { "is 1".into() } else { format!("are {count}") };
                let index = index.ok_or_else(|| fault(format!("there {there} of {step}: say which, as in {step}.1.…")))?;
                &mut items[index - 1]
            }
            other => other,
        };
        at = next.as_table_mut().ok_or_else(|| fault(format!("{step} is a value and has no keys of its own")))?;
    }
    at.insert((*last).to_string(), value);
    Ok(())
}
