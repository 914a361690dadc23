//! The values that `--set` gives to keys: as data for tables, and as ranges.

use crate::Fraction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use toml::Value;
use units::{Bytes, Rate, Span};

/// The value of a changed key, as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SetValue {
    /// A number. Of a quantity, in its base unit: a rate in bit/s, a time in s, a size in bytes, a
    /// percentage as a part of 1.
    Number(f64),
    /// True or false.
    Truth(bool),
    /// Anything else, as it is written.
    Text(String),
}

impl fmt::Display for SetValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetValue::Number(number) => number.fmt(f),
            SetValue::Truth(truth) => truth.fmt(f),
            SetValue::Text(text) => f.write_str(text),
        }
    }
}

impl From<&Value> for SetValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Integer(number) => SetValue::Number(*number as f64),
            Value::Float(number) => SetValue::Number(*number),
            Value::Boolean(truth) => SetValue::Truth(*truth),
            Value::String(text) => base_units(text).map_or_else(|| SetValue::Text(text.clone()), SetValue::Number),
            other => SetValue::Text(other.to_string()),
        }
    }
}

/// The number of a quantity in its base unit; none if the text is not a quantity.
fn base_units(text: &str) -> Option<f64> {
    let rate = || text.parse().ok().map(|Rate(bits)| bits as f64);
    let time = || text.parse().ok().map(|time: Span| time.secs());
    let size = || text.parse().ok().map(|Bytes(bytes)| bytes as f64);
    let part = || text.parse().ok().map(|Fraction(part)| part);
    rate().or_else(time).or_else(size).or_else(part)
}

/// Most values of a range.
const MOST_VALUES: usize = 10_000;

/// The values of a range `FROM..TO:STEP`, with both ends: numbers, or quantities of one kind. None
/// if the text is not a range.
///
/// # Errors
/// The range has no value, or too many.
pub(crate) fn range(text: &str) -> Option<Result<Vec<Value>, String>> {
    let (from, rest) = text.split_once("..")?;
    let (to, step) = rest.split_once(':')?;
    let texts = [from, to, step].map(str::trim);
    integers(texts)
        .or_else(|| numbers(texts))
        .or_else(|| quantities::<Rate>(texts, |Rate(bits)| bits, Rate))
        .or_else(|| quantities::<Span>(texts, |Span(ns)| ns, Span))
        .or_else(|| quantities::<Bytes>(texts, |Bytes(bytes)| bytes, Bytes))
        .map(|values| values.map_err(|why| format!("the range {text:?} {why}, as in 10Mbit..50Mbit:10Mbit")))
}

fn parsed<T: FromStr>(texts: [&str; 3]) -> Option<[T; 3]> {
    let [Ok(from), Ok(to), Ok(step)] = texts.map(str::parse) else { return None };
    Some([from, to, step])
}

fn integers(texts: [&str; 3]) -> Option<Result<Vec<Value>, String>> {
    let [from, to, step] = parsed::<i64>(texts)?;
    Some(steps(from as f64, to as f64, step as f64).map(|count| (0..count).map(|n| Value::Integer(from + n as i64 * step)).collect()))
}

fn numbers(texts: [&str; 3]) -> Option<Result<Vec<Value>, String>> {
    let [from, to, step] = parsed::<f64>(texts)?;
    // 0.1 + 2 × 0.1 is written 0.3: twelve digits.
    let rounded = |number: f64| format!("{number:.11e}").parse().expect("a number's own text is a number");
    Some(steps(from, to, step).map(|count| (0..count).map(|n| Value::Float(rounded(from + n as f64 * step))).collect()))
}

fn quantities<T: FromStr + ToString>(texts: [&str; 3], units: fn(T) -> u64, quantity: fn(u64) -> T) -> Option<Result<Vec<Value>, String>> {
    let [from, to, step] = parsed::<T>(texts)?.map(units);
    let value = |n: usize| Value::String(quantity(from + n as u64 * step).to_string());
    Some(steps(from as f64, to as f64, step as f64).map(|count| (0..count).map(value).collect()))
}

/// The number of values of a range.
fn steps(from: f64, to: f64, step: f64) -> Result<usize, String> {
    if !(step > 0.0 && to >= from) {
        return Err("has no values: write FROM..TO:STEP with FROM at most TO and STEP above 0".into());
    }
    // A last step may be short by what floating point loses.
    let count = ((to - from) / step + 1e-9).floor() + 1.0;
    if count > MOST_VALUES as f64 { Err(format!("has more than {MOST_VALUES} values: write a larger STEP")) } else { Ok(count as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(range: &str) -> Vec<String> {
        super::range(range).unwrap().unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn quantities_become_numbers_in_base_units() {
        let of = |text: &str| SetValue::from(&Value::String(text.into()));
        assert_eq!(of("10Mbit"), SetValue::Number(1e7));
        assert_eq!(of("20ms"), SetValue::Number(0.02));
        assert_eq!(of("64KiB"), SetValue::Number(65536.0));
        assert_eq!(of("2%"), SetValue::Number(0.02));
        assert_eq!(of("cubic"), SetValue::Text("cubic".into()));
        assert_eq!(of("1BDP"), SetValue::Text("1BDP".into()));
        assert_eq!(SetValue::from(&Value::Float(0.01)), SetValue::Number(0.01));
        assert_eq!(SetValue::from(&Value::Boolean(true)), SetValue::Truth(true));
    }

    #[test]
    fn a_range_has_both_ends_and_its_own_kind() {
        assert_eq!(texts("10Mbit..50Mbit:20Mbit"), ["\"10Mbit\"", "\"30Mbit\"", "\"50Mbit\""]);
        assert_eq!(texts("0.1..0.4:0.1"), ["0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(texts("1..10:4"), ["1", "5", "9"]);
        assert_eq!(texts("500us..2ms:500us"), ["\"500us\"", "\"1ms\"", "\"1.5ms\"", "\"2ms\""]);
        assert_eq!(texts("64KiB..192KiB:64KiB").len(), 3);
        for no_range in ["../trace.txt", "a..b:c", "1..2", "10Mbit..20ms:1"] {
            assert!(range(no_range).is_none(), "{no_range}");
        }
        for (wrong, why) in [("5..1:1", "no values"), ("1..5:0", "no values"), ("0..1:0.00001", "more than 10000")] {
            let error = range(wrong).unwrap().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
