//! Makes text safe for terminals.
//!
//! Some texts of a proxy come from peers, such as the names that the other end of a bond gives its
//! networks. The user's terminal would execute an escape sequence in them.

use serde_json::Value;

/// Whether a terminal takes the character for a command, or it changes the direction of text.
fn is_unsafe(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The lines of the text, each made [`printable`].
pub(super) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// The text with every unsafe character replaced.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_unsafe(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// The value with every string and key made [`printable`].
pub(super) fn printable_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text)),
        Value::Array(values) => values.into_iter().map(printable_value).collect(),
        Value::Object(entries) => entries.into_iter().map(|(key, value)| (printable(&key), printable_value(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_control_character_is_left() {
        let told = json!({ "\u{1b}[2J": ["a\u{7}", { "é": "\u{9b}31m b\r\n", "n": 3 }], "x": "\u{202e}cba\u{7f}" });
        let expected =
            json!({ "\u{fffd}[2J": ["a\u{fffd}", { "é": "\u{fffd}31m b\u{fffd}\u{fffd}", "n": 3 }], "x": "\u{fffd}cba\u{fffd}" });
        assert_eq!(printable_value(told), expected);
    }
}
