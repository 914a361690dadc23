//! The messages of serde and of the TOML parser in the words of the file: what stands there, what
//! is expected, and how to write it.

use files::{LONGEST_QUOTATION, quotation};

/// Rewrites serde's `message` about the value at `path`. Messages that are not standard ones of
/// serde, such as those of the types themselves, pass unchanged.
pub(crate) fn explain(message: &str, path: &str, hint: fn(&str) -> &'static [&'static str]) -> String {
    if message.starts_with("missing field") {
        return "is missing".into();
    }
    if let Some((found, expected)) =
        message.strip_prefix("invalid length ").and_then(|rest| rest.split_once(", expected an array of length "))
    {
        return format!("has {found} values, but {expected} are expected");
    }
    let explained = unknown_key(message, hint).or_else(|| unknown_name(message)).or_else(|| wrong_type(message, path));
    explained.unwrap_or_else(|| message.into())
}

/// The message about the list of tables at `key`, where a single table is expected.
pub(crate) fn header_of_one(key: &str) -> String {
    format!("is a list of tables, but there is only one: write [{key}] instead of [[{key}]]")
}

/// The key of a list of tables that may have to be a single table: `control` for `path`
/// `control[0]` if the file has `[[control]]` instead of `[control]`.
///
/// serde reads a list as a struct whose fields are the members of the list. The first member is a
/// table, and the first field has another type, so that the message is about that type. The message
/// is the same for a table in a list of other values, `names = [{ a = 1 }]`: the caller has to tell
/// the two apart.
pub(crate) fn list_of_one<'a>(path: &'a str, message: &str) -> Option<&'a str> {
    let key = path.strip_suffix("[0]").filter(|key| !key.is_empty() && !key.contains('['))?;
    // If the first field is an enum, serde takes the first key of the table for its variant.
    let is_about_a_table = message.starts_with("invalid type: map, expected ") || message.starts_with("unknown variant ");
    is_about_a_table.then_some(key)
}

/// "unknown field `dealy`, expected one of `rate`, `delay`"
fn unknown_key(message: &str, hint: fn(&str) -> &'static [&'static str]) -> Option<String> {
    let (written, known) = named(message.strip_prefix("unknown field ")?)?;
    let meant = hint(written).iter().copied().find(|meant| known.iter().any(|key| meant.split([',', ' ']).next() == Some(*key)));
    let meant = meant.or_else(|| closest(written, &known));
    let keys = known.join(", ");
    Some(match (meant, &known[..]) {
        (_, []) => "is not a key here".into(),
        (Some(meant), _) => format!("is not a key here: did you mean {meant}? The keys are {keys}"),
        (None, _) => format!("is not a key here: the keys are {keys}"),
    })
}

/// "unknown variant `red`, expected one of `droptail`, `ecn`"
fn unknown_name(message: &str) -> Option<String> {
    let (written, known) = named(message.strip_prefix("unknown variant ")?)?;
    let names = any_of(&known);
    Some(match closest(written, &known) {
        Some(meant) => format!("cannot be {written:?}: did you mean {meant:?}? It can be {names}"),
        None => format!("cannot be {written:?}: it can be {names}"),
    })
}

/// The names between backticks: the one that was written, and those that are known.
fn named(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut names = message.split('`').skip(1).step_by(2);
    Some((names.next()?, names.collect()))
}

/// "a", "a or b", "a, b or c".
fn any_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [one] => (*one).into(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// The known name that a misspelt one is nearest to, if it is near.
pub fn closest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = written.to_lowercase().replace('-', "_");
    let distance = |name: &str| strsim::damerau_levenshtein(&lower, &name.to_lowercase().replace('-', "_"));
    let (distance, name) = known.iter().map(|name| (distance(name), *name)).min()?;
    // A third of a name may be wrong, at least one letter of it.
    (distance <= (name.len() / 3).max(1) && distance < name.len()).then_some(name)
}

/// "invalid type: map, expected a sequence"
fn wrong_type(message: &str, path: &str) -> Option<String> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let text = found.strip_prefix("string ").map(|text| text.trim_matches('"'));
    let number = found.strip_prefix("integer ").or_else(|| found.strip_prefix("floating point ")).map(|number| number.trim_matches('`'));
    let is = match (found, text, number) {
        (_, Some(text), _) => format!("the text {text:?}"),
        (_, _, Some(number)) => number.into(),
        ("map", ..) => "a table".into(),
        ("sequence", ..) => "a list".into(),
        _ => found.trim_start_matches("boolean ").trim_matches('`').into(),
    };
    // The cure for a table outside of lists is in its header; one inside of a list is mostly
    // inline.
    let has_header = !path.is_empty() && !path.contains('[');
    let is_table = expected.starts_with("struct ") || expected == "a map";
    Some(match (expected, found) {
        ("a sequence", "map") if has_header => format!("is one table, but there can be several: write [[{path}]] instead of [{path}]"),
        ("a sequence", "map") => format!("is one table, but a list of tables is expected: write {}", key_and_value(path, "[{ … }]")),
        ("a sequence", _) => format!("is {is}, but a list is expected: write {}", key_and_value(path, "[ … ]")),
        _ if is_table => format!("is {is}, but a table is expected: write {}", key_and_value(path, "{ … }")),
        // toml's words for any value but a text or a table where the name of an enum's variant is
        // expected.
        ("string only", _) => "is not a text: write a single name, in quotation marks".into(),
        ("a boolean", _) => match text.and_then(boolean) {
            Some(value) => format!("is {is}, but true or false is expected: write {value}, without quotation marks"),
            None => format!("is {is}, but true or false is expected, without quotation marks"),
        },
        ("a string", _) if number.is_some() => format!("is the number {is}, but a text is expected: write \"{is}\""),
        ("a string", _) => format!("is {is}, but a text is expected"),
        _ => match number_of(expected) {
            Some(kind) if text.is_some_and(|text| text.parse::<f64>().is_ok()) => {
                format!("is {is}, but {kind} is expected: leave the quotation marks out")
            }
            Some(kind) => format!("is {is}, but {kind} is expected"),
            None => format!("is {is}, but {expected} is expected"),
        },
    })
}

/// How `value` is written at `path`: `link = [{ … }]` for a table at `link[0]`.
fn key_and_value(path: &str, value: &str) -> String {
    let step = path.rsplit('.').next().unwrap_or(path);
    let (key, lists) = step.split_once('[').map_or((step, 0), |(key, _)| (key, step.matches('[').count()));
    format!("{key} = {}{value}{}", "[".repeat(lists), "]".repeat(lists))
}

/// The boolean that a word stands for, in any case: that of Python is `True`.
fn boolean(word: &str) -> Option<bool> {
    word.to_ascii_lowercase().parse().ok()
}

/// The numbers of a Rust type, in words.
fn number_of(expected: &str) -> Option<String> {
    let (least, name) = expected.strip_prefix("a nonzero ").map_or((0, expected), |name| (1, name));
    Some(match name {
        "f32" | "f64" => "a number".into(),
        "u8" => format!("a whole number from {least} to {}", u8::MAX),
        "u16" => format!("a whole number from {least} to {}", u16::MAX),
        "u32" => format!("a whole number from {least} to {}", u32::MAX),
        "u64" | "usize" => format!("a whole number of {least} or more"),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        _ => return None,
    })
}

/// What is wrong with the syntax of `line`, where that is a common mistake; `message` is the
/// parser's.
pub(crate) fn syntax(message: &str, line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with("//") || line.starts_with(';') {
        return Some("a comment begins with #".into());
    }
    if has_curly_quotes(line) {
        return Some("a text stands between straight quotation marks, \"…\"".into());
    }
    let header = line.strip_prefix('[').and_then(|rest| rest.split(']').next()).filter(|_| !line.starts_with("[["));
    if let Some(header) = header.filter(|_| message.contains("duplicate key")) {
        return Some(format!(
            "there is more than one [{header}]: write [[{header}]] for each where there can be several",
            header = quotation(header)
        ));
    }
    if let Some(header) = line.strip_prefix("[[").and_then(|rest| rest.split(']').next()).filter(|_| message.contains("duplicate key")) {
        return Some(format!("[{header}] stands above as the only table: write [[{header}]] for each", header = quotation(header)));
    }
    if message == "duplicate key"
        && let Some((key, _)) = line.split_once('=')
    {
        return Some(format!("the key {} is in this table twice", quotation(key.trim())));
    }
    if message.starts_with("invalid basic string") && line.matches('"').count() % 2 == 1 {
        return Some("the closing quotation mark is missing".into());
    }
    // A longer one is not quoted: the file may be of another kind.
    let is_key =
        |text: &str| (1..=LONGEST_QUOTATION).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if let Some((key, value)) = line.split_once(':')
        && is_key(key.trim())
    {
        let (key, value) = (key.trim(), value.split('#').next().unwrap_or("").trim());
        let equals = format!("write {key} = … with an equals sign, not a colon");
        return Some(match bare_word(key, value) {
            _ if is_toml(value) => format!("{equals}: {key} = {value}"),
            Some(also) => format!("{equals}; {also}"),
            None => equals,
        });
    }
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or("").trim());
    if is_key(key) { bare_word(key, value) } else { None }
}

/// Whether a curly quotation mark stands outside of texts and comments.
fn has_curly_quotes(line: &str) -> bool {
    let mut inside: Option<char> = None;
    for c in line.chars() {
        match (inside, c) {
            (None, '“' | '”' | '„' | '‘' | '’') => return true,
            (None, '#') => return false,
            (None, '"' | '\'') => inside = Some(c),
            (Some(quote), _) if quote == c => inside = None,
            _ => {}
        }
    }
    false
}

/// Whether `value` is a value of TOML as it is written.
fn is_toml(value: &str) -> bool {
    format!("v = {value}").parse::<toml::Table>().is_ok()
}

/// What is wrong with `key = value` if `value` has no quotation marks. None if it may be right, or
/// if what is meant is unknown.
fn bare_word(key: &str, value: &str) -> Option<String> {
    let is_word = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.') && !value.contains(['"', '\'', '{', '[']);
    let is_address = value.starts_with('[') && value.contains("]:");
    if !(is_word || is_address) || is_toml(value) {
        return None;
    }
    if value.chars().count() > LONGEST_QUOTATION {
        return Some("a text needs quotation marks".into());
    }
    if let Some(value) = boolean(value) {
        return Some(format!("true and false are in lower case: {key} = {value}"));
    }
    let switch = match value.to_ascii_lowercase().as_str() {
        "yes" | "on" => Some(true),
        "no" | "off" => Some(false),
        "none" | "null" | "nil" => return Some(format!("TOML has no empty value: leave {key} out")),
        _ => None,
    };
    if let Some(switch) = switch {
        return Some(format!("a text needs quotation marks, and yes and no are true and false: {key} = \"{value}\", or {key} = {switch}"));
    }
    let is_number = |text: &&str| text.parse::<f64>().is_ok();
    if let Ok(number) = value.parse::<f64>() {
        return number.is_finite().then(|| {
            format!("a number is written like {number}, and a text has quotation marks: {key} = {number}, or {key} = \"{value}\"")
        });
    }
    let words: Vec<&str> = value.split_whitespace().collect();
    if words.iter().all(is_number) {
        return Some(separated_number("blank", key, &words));
    }
    let parts: Vec<&str> = value.split(',').map(str::trim).collect();
    if words.len() == 1 && parts.iter().all(is_number) {
        return Some(separated_number("comma", key, &parts));
    }
    let whole = format!("a text needs quotation marks: {key} = \"{value}\"");
    Some(match parts[..] {
        [_] => whole,
        _ => {
            let list: Vec<String> = parts.iter().map(|part| if is_toml(part) { (*part).to_owned() } else { format!("{part:?}") }).collect();
            format!("{whole}, or as a list {key} = [{}]", list.join(", "))
        }
    })
}

/// What to write for a number with a `separator` ("comma" or "blank") between `parts`: it separates
/// thousands, decimals, or the members of a list.
fn separated_number(separator: &str, key: &str, parts: &[&str]) -> String {
    let mut readings = Vec::new();
    if parts[0].len() <= 3 && parts[1..].iter().all(|part| part.len() == 3) {
        readings.push(parts.concat());
    }
    if let ("comma", [whole, decimals]) = (separator, parts) {
        readings.push(format!("{whole}.{decimals}"));
    }
    readings.push(format!("[{}]", parts.join(", ")));
    let readings: Vec<String> = readings.iter().filter(|value| is_toml(value)).map(|value| format!("{key} = {value}")).collect();
    match readings[..] {
        [] => format!("a number has no {separator}"),
        _ => format!("a number has no {separator}: write {}", any_of(&readings.iter().map(String::as_str).collect::<Vec<_>>())),
    }
}

#[cfg(test)]
mod tests {
    use crate::read_toml;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "lowercase")]
    #[allow(dead_code)]
    enum Kind {
        Droptail,
        Ecn,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Link {
        name: Option<String>,
        delay: Option<f64>,
        count: Option<u16>,
        shaper: Option<bool>,
        kind: Option<Kind>,
        changes: Option<Vec<Link>>,
        names: Option<Vec<String>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct File {
        link: Vec<Link>,
        control: Option<Link>,
        names: Option<Vec<String>>,
        lists: Option<Vec<Vec<Link>>>,
    }

    fn wrong(text: &str) -> String {
        read_toml::<File>(text, "x", |_| Ok(())).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_table_says_how_its_header_is_written() {
        insta::assert_snapshot!(wrong("[link]\ndelay = 1"), @"
        x:1: link: is one table, but there can be several: write [[link]] instead of [link]
          1 | [link]
        ");
        insta::assert_snapshot!(wrong("link = []\n[[control]]\ndelay = 1"), @"
        x:2: control: is a list of tables, but there is only one: write [control] instead of [[control]]
          2 | [[control]]
        ");
        insta::assert_snapshot!(wrong("[[link]]\nchanges = { delay = 1 }"), @"
        x:2: link[1].changes: is one table, but a list of tables is expected: write changes = [{ … }]
          2 | changes = { delay = 1 }
        ");
        insta::assert_snapshot!(wrong("link = 3"), @"
        x:1: link: is 3, but a list is expected: write link = [ … ]
          1 | link = 3
        ");
        insta::assert_snapshot!(wrong("link = []\ncontrol = \"bbr\""), @r#"
        x:2: control: is the text "bbr", but a table is expected: write control = { … }
          2 | control = "bbr"
        "#);
        insta::assert_snapshot!(wrong("[link]\ndelay = 1\n[link]\ndelay = 2"), @"
        x:3: is not TOML: there is more than one [link]: write [[link]] for each where there can be several
          3 | [link]
        ");
    }

    #[test]
    fn what_stands_in_a_list_is_written_as_a_list() {
        insta::assert_snapshot!(wrong("link = [3]"), @"
        x:1: link[1]: is 3, but a table is expected: write link = [{ … }]
          1 | link = [3]
        ");
        insta::assert_snapshot!(wrong("[[link]]\nchanges = [\"a\"]"), @r#"
        x:2: link[1].changes[1]: is the text "a", but a table is expected: write changes = [{ … }]
          2 | changes = ["a"]
        "#);
        insta::assert_snapshot!(wrong("link = []\nlists = [{ delay = 1 }]"), @"
        x:2: lists[1]: is one table, but a list of tables is expected: write lists = [[{ … }]]
          2 | lists = [{ delay = 1 }]
        ");
        insta::assert_snapshot!(wrong("link = []\nnames = [{ a = 1 }]"), @"
        x:2: names[1]: is a table, but a text is expected
          2 | names = [{ a = 1 }]
        ");
        insta::assert_snapshot!(wrong("link = []\n[control]\nnames = [{ a = 1 }]"), @"
        x:3: control.names[1]: is a table, but a text is expected
          3 | names = [{ a = 1 }]
        ");
    }

    #[test]
    fn a_value_of_another_type_says_which_is_expected() {
        let link = |line: &str| wrong(&format!("[[link]]\n{line}"));
        insta::assert_snapshot!(link("delay = \"1.5\""), @r#"
        x:2: link[1].delay: is the text "1.5", but a number is expected: leave the quotation marks out
          2 | delay = "1.5"
        "#);
        insta::assert_snapshot!(link("delay = true"), @"
        x:2: link[1].delay: is true, but a number is expected
          2 | delay = true
        ");
        insta::assert_snapshot!(link("count = \"1\""), @r#"
        x:2: link[1].count: is the text "1", but a whole number from 0 to 65535 is expected: leave the quotation marks out
          2 | count = "1"
        "#);
        insta::assert_snapshot!(link("count = 1.5"), @"
        x:2: link[1].count: is 1.5, but a whole number from 0 to 65535 is expected
          2 | count = 1.5
        ");
        insta::assert_snapshot!(link("count = -1"), @"
        x:2: link[1].count: is -1, but a whole number from 0 to 65535 is expected
          2 | count = -1
        ");
        insta::assert_snapshot!(link("count = 70000"), @"
        x:2: link[1].count: is 70000, but a whole number from 0 to 65535 is expected
          2 | count = 70000
        ");
        insta::assert_snapshot!(link("shaper = \"yes\""), @r#"
        x:2: link[1].shaper: is the text "yes", but true or false is expected, without quotation marks
          2 | shaper = "yes"
        "#);
        insta::assert_snapshot!(link("shaper = \"True\""), @r#"
        x:2: link[1].shaper: is the text "True", but true or false is expected: write true, without quotation marks
          2 | shaper = "True"
        "#);
        insta::assert_snapshot!(link("kind = [\"ecn\"]"), @r#"
        x:2: link[1].kind: is not a text: write a single name, in quotation marks
          2 | kind = ["ecn"]
        "#);
        insta::assert_snapshot!(link("name = 5"), @r#"
        x:2: link[1].name: is the number 5, but a text is expected: write "5"
          2 | name = 5
        "#);
        insta::assert_snapshot!(link("name = []"), @"
        x:2: link[1].name: is a list, but a text is expected
          2 | name = []
        ");
    }

    #[test]
    fn a_misspelt_name_has_a_suggestion() {
        let link = |line: &str| wrong(&format!("[[link]]\n{line}"));
        insta::assert_snapshot!(link("dealy = 1"), @"
        x:2: link[1].dealy: is not a key here: did you mean delay? The keys are name, delay, count, shaper, kind, changes, names
          2 | dealy = 1
        ");
        insta::assert_snapshot!(link("queue = 1"), @"
        x:2: link[1].queue: is not a key here: the keys are name, delay, count, shaper, kind, changes, names
          2 | queue = 1
        ");
        insta::assert_snapshot!(link("kind = \"drop-tail\""), @r#"
        x:2: link[1].kind: cannot be "drop-tail": did you mean "droptail"? It can be droptail or ecn
          2 | kind = "drop-tail"
        "#);
        insta::assert_snapshot!(link("kind = \"red\""), @r#"
        x:2: link[1].kind: cannot be "red": it can be droptail or ecn
          2 | kind = "red"
        "#);
    }

    #[test]
    fn common_mistakes_of_syntax_have_a_cure() {
        insta::assert_snapshot!(wrong("[[link]]\nname = 10Mbit # fast"), @r#"
        x:2: is not TOML: a text needs quotation marks: name = "10Mbit"
          2 | name = 10Mbit # fast
        "#);
        insta::assert_snapshot!(wrong("[[link]]\nname = bbr"), @r#"
        x:2: is not TOML: a text needs quotation marks: name = "bbr"
          2 | name = bbr
        "#);
        insta::assert_snapshot!(wrong("[[link]]\nname: \"x\""), @r#"
        x:2: is not TOML: write name = … with an equals sign, not a colon: name = "x"
          2 | name: "x"
        "#);
        insta::assert_snapshot!(wrong("[[link]]\nname = “x”"), @r#"
        x:2: is not TOML: a text stands between straight quotation marks, "…"
          2 | name = “x”
        "#);
        insta::assert_snapshot!(wrong("// a link\n[[link]]"), @"
        x:1: is not TOML: a comment begins with #
          1 | // a link
        ");
        insta::assert_snapshot!(wrong("[[link]\nname = \"x\""), @"
        x:1: is not TOML: unclosed array table, expected `]`
          1 | [[link]
        ");
        insta::assert_snapshot!(wrong("[[link]]\nname = \"x"), @r#"
        x:2: is not TOML: the closing quotation mark is missing
          2 | name = "x
        "#);
        insta::assert_snapshot!(wrong("[[link]]\nname = \"x\"\nname = \"y\""), @r#"
        x:3: is not TOML: the key name is in this table twice
          3 | name = "y"
        "#);
    }

    #[test]
    fn a_value_without_quotation_marks_is_not_always_a_text() {
        let link = |line: &str| wrong(&format!("[[link]]\n{line}"));
        insta::assert_snapshot!(link("shaper = True"), @"
        x:2: is not TOML: true and false are in lower case: shaper = true
          2 | shaper = True
        ");
        insta::assert_snapshot!(link("shaper = yes"), @r#"
        x:2: is not TOML: a text needs quotation marks, and yes and no are true and false: shaper = "yes", or shaper = true
          2 | shaper = yes
        "#);
        insta::assert_snapshot!(link("name = None"), @"
        x:2: is not TOML: TOML has no empty value: leave name out
          2 | name = None
        ");
        insta::assert_snapshot!(link("count = 1,000"), @"
        x:2: is not TOML: a number has no comma: write count = 1000 or count = 1.000
          2 | count = 1,000
        ");
        insta::assert_snapshot!(link("delay = 1,5"), @"
        x:2: is not TOML: a number has no comma: write delay = 1.5 or delay = [1, 5]
          2 | delay = 1,5
        ");
        insta::assert_snapshot!(link("count = 3 3"), @"
        x:2: is not TOML: a number has no blank: write count = [3, 3]
          2 | count = 3 3
        ");
        insta::assert_snapshot!(link("count = 1 000"), @"
        x:2: is not TOML: a number has no blank: write count = 1000
          2 | count = 1 000
        ");
        insta::assert_snapshot!(link("delay = .5"), @r#"
        x:2: is not TOML: a number is written like 0.5, and a text has quotation marks: delay = 0.5, or delay = ".5"
          2 | delay = .5
        "#);
        insta::assert_snapshot!(link("name = reno, bbr"), @r#"
        x:2: is not TOML: a text needs quotation marks: name = "reno, bbr", or as a list name = ["reno", "bbr"]
          2 | name = reno, bbr
        "#);
        insta::assert_snapshot!(link("count: 5"), @"
        x:2: is not TOML: write count = … with an equals sign, not a colon: count = 5
          2 | count: 5
        ");
        insta::assert_snapshot!(link("name: bbr"), @r#"
        x:2: is not TOML: write name = … with an equals sign, not a colon; a text needs quotation marks: name = "bbr"
          2 | name: bbr
        "#);
    }

    #[test]
    fn curly_quotes_inside_of_a_text_are_right() {
        insta::assert_snapshot!(wrong("[[link]]\nname = \"he said “hi”\" x"), @r#"
        x:2: is not TOML: unexpected key or value, expected newline, `#`
          2 | name = "he said “hi”" x
        "#);
        insta::assert_snapshot!(wrong("[[link]]\nname = 3 3 # “x”"), @"
        x:2: is not TOML: a number has no blank: write name = [3, 3]
          2 | name = 3 3 # “x”
        ");
    }

    #[test]
    fn the_first_error_in_the_file_is_reported() {
        insta::assert_snapshot!(wrong("[[link]]\nname = 5\ndelay = \"1\"\n[control]\nkind = 3"), @r#"
        x:2: link[1].name: is the number 5, but a text is expected: write "5"
          2 | name = 5
        "#);
        insta::assert_snapshot!(wrong("[control]\nkind = \"red\"\n[[link]]\ndelay = \"1\""), @r#"
        x:2: control.kind: cannot be "red": it can be droptail or ecn
          2 | kind = "red"
        "#);
    }
}
