//! A part of a whole, written as a number or in percent.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{borrow::Cow, fmt, str::FromStr};

/// A part of a whole: `0.001`, or `"0.1%"`. Any number is accepted here; `Scenario::check` refuses
/// those that are out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fraction(pub f64);

impl FromStr for Fraction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a number nor a percentage: write 0.001, or \"0.1%\"");
        let (number, percent) = text.trim().strip_suffix('%').map_or((text, false), |number| (number, true));
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        Ok(Fraction(if percent { number / 100.0 } else { number }))
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Fraction;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number such as 0.001, or a percentage such as \"0.1%\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Fraction, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Fraction, E> {
                Ok(Fraction(number as f64))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Fraction, E> {
                Ok(Fraction(number as f64))
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Fraction, E> {
                Ok(Fraction(number))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// For fields that hold the bare number.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Fraction::deserialize(deserializer).map(|Fraction(number)| number)
}

impl JsonSchema for Fraction {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Fraction".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["number", "string"], "title": "a number or percentage", "examples": [0.001, "0.1%"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_a_hundredth() {
        assert_eq!("0.1%".parse(), Ok(Fraction(0.001)));
        assert_eq!(" 5 % ".parse(), Ok(Fraction(0.05)));
        assert_eq!("0.3".parse(), Ok(Fraction(0.3)));
        assert!("some".parse::<Fraction>().is_err() && "%".parse::<Fraction>().is_err());
    }

    #[test]
    fn a_whole_number_is_read_from_json_too() {
        assert_eq!(serde_json::from_str::<Fraction>("0").unwrap(), Fraction(0.0));
        assert_eq!(serde_json::from_str::<Fraction>("0.3").unwrap(), Fraction(0.3));
    }
}
