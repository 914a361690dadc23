//! Variables of the environment in the texts of a file: `"${NAME}"`.

use crate::Fault;
use toml::{Table, Value};

/// The variables that a file uses.
#[derive(Clone, Default)]
pub struct Variables {
    /// Paths of the texts with variables, with indices from 0.
    paths: Vec<String>,
    /// Names and values.
    used: Vec<(String, String)>,
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the values: they may be secrets.
        f.debug_struct("Variables").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl Variables {
    /// Whether the value at `path`, or a part of it, has a variable.
    pub fn are_in(&self, path: &str) -> bool {
        self.paths.iter().any(|with| with.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])))
    }

    /// The fault without values of variables: a message about a wrong value would show them.
    pub fn hide(&self, fault: Fault) -> Fault {
        Fault { message: self.hide_in(&fault.message), ..fault }
    }

    /// The text with the names of variables, as `${NAME}`, in place of their values. A value of few
    /// characters counts only where it is a word of its own: `1` is no part of `10`.
    pub fn hide_in(&self, text: &str) -> String {
        let mut hidden: Vec<(String, &str)> = Vec::new();
        for (name, value) in &self.used {
            // In a message a value may be quoted.
            hidden.extend([value.clone(), value.escape_debug().to_string()].map(|shown| (shown, name.as_str())));
        }
        // A value may be a part of another one.
        hidden.sort_by_key(|(shown, _)| std::cmp::Reverse(shown.len()));
        let (mut out, mut rest) = (String::new(), text);
        while let Some(next) = rest.chars().next() {
            let found = hidden.iter().find(|(shown, _)| {
                rest.starts_with(shown.as_str()) && (shown.len() >= LONG || is_word(out.chars().next_back(), shown, &rest[shown.len()..]))
            });
            match found {
                Some((shown, name)) => {
                    out = out + "${" + name + "}";
                    rest = &rest[shown.len()..];
                }
                None => {
                    out.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        out
    }
}

/// Values of this length, in bytes, are hidden inside of words too.
const LONG: usize = 6;

/// Whether a text between `before` and `after` is a word of its own.
fn is_word(before: Option<char>, text: &str, after: &str) -> bool {
    let joins = |one: Option<char>, other: Option<char>| one.zip(other).is_some_and(|(a, b)| a.is_alphanumeric() && b.is_alphanumeric());
    !joins(before, text.chars().next()) && !joins(text.chars().next_back(), after.chars().next())
}

/// Replaces `${NAME}` in all texts of the table by what `lookup` returns for `NAME`. `$${` stands
/// for `${`; any other `$` for itself.
///
/// # Errors
/// A variable is not set or empty, or `${` is not followed by a name and `}`.
pub fn expand(table: &mut Table, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Variables, Fault> {
    let mut variables = Variables::default();
    for (key, value) in table.iter_mut() {
        expand_value(value, key.clone(), lookup, &mut variables)?;
    }
    Ok(variables)
}

fn expand_value(value: &mut Value, path: String, lookup: &dyn Fn(&str) -> Option<String>, found: &mut Variables) -> Result<(), Fault> {
    match value {
        Value::String(text) if text.contains("${") => {
            let before = found.used.len();
            *text = expand_text(text, lookup, &mut found.used).map_err(|why| Fault::new(path.clone(), why))?;
            if found.used.len() > before {
                found.paths.push(path);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                expand_value(item, format!("{path}[{index}]"), lookup, found)?;
            }
        }
        Value::Table(table) => {
            for (key, value) in table.iter_mut() {
                expand_value(value, crate::under(&path, key), lookup, found)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn expand_text(text: &str, lookup: &dyn Fn(&str) -> Option<String>, used: &mut Vec<(String, String)>) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            out = out + before + "${";
            rest = after;
            continue;
        }
        let is_name = |name: &&str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let Some((name, after)) = after.split_once('}').filter(|(name, _)| is_name(name)) else {
            return Err("has ${ without the name of a variable and }: write ${NAME}, or $${ for ${ itself".into());
        };
        let value = lookup(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            format!(
                "names the variable {name} of the environment, which is not set: set it for the program (EnvironmentFile= in a service)"
            )
        })?;
        out = out + before + &value;
        used.push((name.into(), value));
        rest = after;
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        Some(match name {
            "PASSWORD" => "swordfish".into(),
            "EMPTY" => String::new(),
            "DIR_2" => "/run/x".into(),
            _ => return None,
        })
    }

    fn expanded(text: &str) -> Result<String, String> {
        let mut table = Table::from_iter([("key".to_owned(), Value::Array(vec![text.into()]))]);
        expand(&mut table, &lookup).map_err(|fault| format!("{}: {}", fault.path, fault.message))?;
        Ok(table["key"][0].as_str().unwrap().to_owned())
    }

    #[test]
    fn variables_are_replaced_and_dollars_stay() {
        assert_eq!(expanded("alice:${PASSWORD}").unwrap(), "alice:swordfish");
        assert_eq!(expanded("${DIR_2}/${PASSWORD}.key").unwrap(), "/run/x/swordfish.key");
        for plain in ["$PASSWORD", "a$b$$c", "{PASSWORD}", "$", "100$"] {
            assert_eq!(expanded(plain).unwrap(), plain);
        }
        assert_eq!(expanded("$${PASSWORD}").unwrap(), "${PASSWORD}");
        assert_eq!(expanded("$${a}${PASSWORD}").unwrap(), "${a}swordfish");
    }

    #[test]
    fn what_is_no_variable_is_refused() {
        for text in ["${ABSENT}", "${EMPTY}"] {
            let error = expanded(text).unwrap_err();
            assert!(error.starts_with("key[0]: names the variable ") && error.contains("is not set"), "{error}");
        }
        for text in ["${", "${}", "${A-B}", "${PASSWORD:-x}", "x ${PASSWORD", "${1}"] {
            assert!(expanded(text).unwrap_err().contains("write ${NAME}"), "{text}");
        }
    }

    #[test]
    fn messages_have_no_values() {
        let mut table: Table = toml::from_str("users = [\"${PASSWORD}\"]\nname = \"x\"").unwrap();
        let variables = expand(&mut table, &lookup).unwrap();
        let fault = variables.hide(Fault::new("users[0]", "\"swordfish\" is no user"));
        assert_eq!(fault.message, "\"${PASSWORD}\" is no user");
        assert!(variables.are_in("users") && variables.are_in("users[0]") && !variables.are_in("name") && !variables.are_in("user"));
        assert!(!format!("{variables:?}").contains("swordfish"));
    }

    #[test]
    fn values_are_hidden_in_texts_and_words_that_only_look_like_them_are_not() {
        let used = [("A", "1"), ("B", "swordfish"), ("C", "swordfish-2"), ("D", "a\"b")];
        let variables = Variables { paths: Vec::new(), used: used.map(|(name, value)| (name.into(), value.into())).to_vec() };
        for (text, shown) in [
            ("there is no controller \"swordfish\"", "there is no controller \"${B}\""),
            ("xswordfishx and swordfish-2", "x${B}x and ${C}"),
            ("1 of 10, v1, 1:1", "${A} of 10, v1, ${A}:${A}"),
            ("\"a\\\"b\" is no name", "\"${D}\" is no name"),
            ("nothing of it", "nothing of it"),
        ] {
            assert_eq!(variables.hide_in(text), shown);
        }
    }
}
