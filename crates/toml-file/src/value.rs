//! Values that take more than a derived deserializer: with a short and a long form, or in a table
//! that has the keys of several types.

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};
use std::{fmt, marker::PhantomData};
use toml::Value;

/// A value on one line, as it is written behind a key.
pub fn inline(value: &Value) -> String {
    match value {
        Value::Table(table) => {
            let keys: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// The message of an error of [`nested`] is this character, the path, this character, and the
/// message proper. A control character occurs in neither.
const MARK: char = '\u{1f}';

/// Deserializes a part of a value for a `Deserialize` implementation that has taken the value
/// apart. Its errors keep the path within `value` on their way through
/// [`deserialize`](crate::deserialize).
///
/// # Errors
/// The value does not fit the schema.
pub fn nested<T: de::DeserializeOwned, E: de::Error>(value: Value) -> Result<T, E> {
    crate::deserialize(value, |_| &[]).map_err(|fault| E::custom(format!("{MARK}{}{MARK}{}", fault.path, fault.message)))
}

/// The path and the message of an error of [`nested`].
pub(crate) fn unpack(message: &str) -> Option<(&str, &str)> {
    message.strip_prefix(MARK)?.split_once(MARK)
}

/// Deserializes a `T` from its short form, a text or a number, by `from_text`, or from a table with
/// the keys of `K`. `expected` says what stands here, for values of another type.
///
/// A table is deserialized in place, not as a [`toml::Value`], so that an error in it has its path.
///
/// # Errors
/// The value has another type, or `from_text`, `K` or the conversion refuses it.
pub fn text_or_table<'de, D, T, K>(deserializer: D, expected: &'static str, from_text: fn(&str) -> Result<T, String>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + TryInto<T, Error = String>,
{
    struct TextOrTable<T, K> {
        expected: &'static str,
        from_text: fn(&str) -> Result<T, String>,
        keys: PhantomData<K>,
    }
    impl<'de, T, K: Deserialize<'de> + TryInto<T, Error = String>> de::Visitor<'de> for TextOrTable<T, K> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            (self.from_text)(text).map_err(E::custom)
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            K::deserialize(MapAccessDeserializer::new(map))?.try_into().map_err(de::Error::custom)
        }
    }
    deserializer.deserialize_any(TextOrTable { expected, from_text, keys: PhantomData::<K> })
}
