//! Values of Python as TOML. A bare number for a quantity is in its base unit: a rate in bit/s, a
//! time in s, a size in bytes. The JSON Schema of scenario files tells which keys are quantities.

use crate::errors::value_error;
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};
use scenario::Assignment;
use serde_json::Value as Json;
use std::sync::LazyLock;
use toml::{Table, Value};
use units::{Bytes, Rate, Span};

static SCHEMA: LazyLock<Json> = LazyLock::new(|| scenario::schema().to_value());

/// A value that can be written in more than one form has a schema for each.
#[derive(Clone)]
struct Forms(Vec<&'static Json>);

/// What a bare number stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NumberMeaning {
    Rate,
    Time,
    Size,
    /// A number without a unit, or what no schema knows: the parser says what is wrong.
    Plain,
}

impl Forms {
    /// Those of a whole scenario file.
    fn of_file() -> Self {
        Forms::of(&SCHEMA)
    }

    /// The forms of a schema, with references and alternatives resolved.
    fn of(schema: &'static Json) -> Self {
        let mut forms = Vec::new();
        let mut waiting = vec![schema];
        while let Some(schema) = waiting.pop() {
            if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
                waiting.push(&SCHEMA["$defs"][name]);
            }
            for key in ["anyOf", "oneOf", "allOf"] {
                waiting.extend(schema[key].as_array().into_iter().flatten());
            }
            forms.push(schema);
        }
        Forms(forms)
    }

    fn each(&self, of: impl Fn(&'static Json) -> Option<&'static Json>) -> Self {
        Forms(self.0.iter().filter_map(|form| of(form)).flat_map(|schema| Forms::of(schema).0).collect())
    }

    fn key(&self, key: &str) -> Self {
        self.each(|form| form["properties"].get(key).or_else(|| form.get("additionalProperties")).filter(|schema| schema.is_object()))
    }

    fn item(&self) -> Self {
        self.each(|form| form.get("items").filter(|schema| schema.is_object()))
    }

    fn is_list(&self) -> bool {
        self.0.iter().any(|form| form["type"] == "array")
    }

    /// The schema of a key as `--set` has it: `link.2.rate`, `split.*.buffer`.
    fn at(&self, path: &str) -> Self {
        let plain = path.replace('[', ".").replace(']', "");
        plain
            .split('.')
            .fold(self.clone(), |forms, step| if step == "*" || step.parse::<usize>().is_ok() { forms.item() } else { forms.key(step) })
    }

    fn number_meaning(&self) -> NumberMeaning {
        let is_number = |name: &Json| name == "number" || name == "integer";
        let takes_number =
            |form: &&Json| is_number(&form["type"]) || form["type"].as_array().is_some_and(|types| types.iter().any(is_number));
        if self.0.iter().any(takes_number) {
            return NumberMeaning::Plain;
        }
        let titles = || self.0.iter().filter_map(|form| form["title"].as_str());
        for (start, meaning) in [
            ("a rate", NumberMeaning::Rate),
            ("a time", NumberMeaning::Time),
            ("a size", NumberMeaning::Size),
            ("a queue limit", NumberMeaning::Size),
        ] {
            if titles().any(|title| title.starts_with(start)) {
                return meaning;
            }
        }
        NumberMeaning::Plain
    }
}

/// A number as a quantity in base units. What does not fit stays a number, which the parser refuses
/// with the reason.
fn quantity(number: f64, meaning: NumberMeaning) -> Option<Value> {
    let whole = || (number.is_finite() && (0.0..u64::MAX as f64).contains(&number)).then(|| number.round() as u64);
    let text = match meaning {
        NumberMeaning::Plain => return None,
        NumberMeaning::Rate => Rate(whole()?).to_string(),
        NumberMeaning::Size => Bytes(whole()?).to_string(),
        NumberMeaning::Time => whole().map(|_| Span::from_secs_f64(number).to_string())?,
    };
    Some(Value::String(text))
}

/// A quantity in base units as text, of the kind `rate`, `time` or `size`.
#[pyfunction]
pub(crate) fn quantity_text(kind: &str, number: f64) -> PyResult<String> {
    let meaning = match kind {
        "rate" => NumberMeaning::Rate,
        "time" => NumberMeaning::Time,
        _ => NumberMeaning::Size,
    };
    match quantity(number, meaning) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(value_error(format!("{number} is out of range for a {kind}"))),
    }
}

fn toml_value(value: &Bound<'_, PyAny>, forms: &Forms) -> PyResult<Value> {
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Value::Boolean(truth.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        let number: i64 = value.extract()?;
        return Ok(quantity(number as f64, forms.number_meaning()).unwrap_or(Value::Integer(number)));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(quantity(number.value(), forms.number_meaning()).unwrap_or(Value::Float(number.value())));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    if let Ok(table) = value.cast::<PyDict>() {
        return Ok(if forms.is_list() {
            Value::Array(vec![Value::Table(toml_table(table, &forms.item())?)])
        } else {
            Value::Table(toml_table(table, forms)?)
        });
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let item = forms.item();
        return Ok(Value::Array(value.try_iter()?.map(|value| toml_value(&value?, &item)).collect::<PyResult<_>>()?));
    }
    let kind = value.get_type().name()?;
    Err(PyTypeError::new_err(format!("a scenario has no values of type {kind}: use text such as \"10Mbit\", numbers, lists and dicts")))
}

fn toml_table(table: &Bound<'_, PyDict>, forms: &Forms) -> PyResult<Table> {
    let mut found = Table::new();
    for (key, value) in table.iter() {
        if !value.is_none() {
            let key: String = key.extract()?;
            found.insert(key.clone(), toml_value(&value, &forms.key(&key))?);
        }
    }
    Ok(found)
}

/// The text of a scenario file with these keys. A dict in place of a list of tables is a list of
/// one.
#[pyfunction]
pub(crate) fn file_text(keys: &Bound<'_, PyDict>) -> PyResult<String> {
    toml::to_string(&toml_table(keys, &Forms::of_file())?).map_err(value_error)
}

/// The values of a key as TOML.
#[pyfunction]
pub(crate) fn literals(key: &str, values: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let forms = Forms::of_file().at(key);
    values.iter().map(|value| Ok(toml_value(value, &forms)?.to_string())).collect()
}

/// The values of a key that are written as on the command line, as TOML: `cubic,bbr`, or
/// `10Mbit..50Mbit:10Mbit`.
#[pyfunction]
pub(crate) fn range_literals(key: &str, values: &str) -> PyResult<Vec<String>> {
    let assignment: Assignment = format!("{key}={values}").parse().map_err(value_error)?;
    Ok(assignment.values().iter().map(ToString::to_string).collect())
}

/// The changes of keys, each with its values as TOML.
pub(crate) fn assignments(sets: &[(String, Vec<String>)]) -> PyResult<Vec<Assignment>> {
    let value = |text: &String| {
        let table: Table = format!("v = {text}").parse().map_err(value_error)?;
        table.get("v").cloned().ok_or_else(|| value_error(format!("{text:?} is not a value of TOML")))
    };
    let assignment = |(key, values): &(String, Vec<String>)| Ok(Assignment::new(key, values.iter().map(value).collect::<PyResult<_>>()?));
    sets.iter().map(assignment).collect()
}
