//! The messages of serde and of the TOML parser in the words of the file: what stands there, what
//! is expected, and how to write it.

/// Rewrites serde's `message` about the value at `path`. Messages that are no standard ones of
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
    if is_header_of_one(path, message) {
        let key = path.replace("[0]", "");
        return format!("is a list of tables, but there is only one: write [{key}] instead of [[{key}]]");
    }
    let explained = unknown_key(message, hint).or_else(|| unknown_name(message)).or_else(|| wrong_type(message, path));
    explained.unwrap_or_else(|| message.into())
}

/// Whether a table stands in a list where a single one is expected: `[[control]]` for `[control]`.
/// serde takes the list for the values of the table's keys, and the first table for the first value.
pub(crate) fn is_header_of_one(path: &str, message: &str) -> bool {
    let is_first = path.strip_suffix("[0]").is_some_and(|key| !key.is_empty() && !key.contains('['));
    let is_table = message.starts_with("invalid type: map, expected ") && !message.ends_with("expected a sequence");
    // The first key is an enum: its variant would be the first key of the table.
    is_first && (is_table || message.starts_with("unknown variant "))
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
fn closest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
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
    // A table of its own can be renamed in its header, one inside of another only in place.
    let has_header = !path.is_empty() && !path.contains('[');
    let key = path.rsplit('.').next().unwrap_or(path);
    let is_table = expected.starts_with("struct ") || expected == "a map";
    Some(match (expected, found) {
        ("a sequence", "map") if has_header => format!("is one table, but there can be several: write [[{path}]] instead of [{path}]"),
        ("a sequence", "map") => format!("is one table, but a list of tables is expected: write {key} = [{{ … }}]"),
        ("a sequence", _) => format!("is {is}, but a list is expected: write {key} = [ … ]"),
        _ if is_table => format!("is {is}, but a table is expected: write {key} = {{ … }}"),
        ("a boolean", _) => format!("is {is}, but true or false is expected, without quotation marks"),
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
    if line.contains(['“', '”', '„', '‘', '’']) {
        return Some("a text stands between straight quotation marks, \"…\"".into());
    }
    let header = line.strip_prefix('[').and_then(|rest| rest.split(']').next()).filter(|_| !line.starts_with("[["));
    if let Some(header) = header.filter(|_| message.contains("duplicate key")) {
        return Some(format!("there is more than one [{header}]: write [[{header}]] for each where there can be several"));
    }
    if let Some(header) = line.strip_prefix("[[").and_then(|rest| rest.split(']').next()).filter(|_| message.contains("duplicate key")) {
        return Some(format!("[{header}] stands above as the only table: write [[{header}]] for each"));
    }
    if message == "duplicate key"
        && let Some((key, _)) = line.split_once('=')
    {
        return Some(format!("the key {} is in this table twice", key.trim()));
    }
    if message.starts_with("invalid basic string") && line.matches('"').count() % 2 == 1 {
        return Some("the closing quotation mark is missing".into());
    }
    let is_key = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if let Some((key, value)) = line.split_once(':')
        && is_key(key.trim())
    {
        return Some(format!("write {} = … with an equals sign, not a colon: {}", key.trim(), quoted(key.trim(), value)));
    }
    let (key, value) = line.split_once('=')?;
    let bare = value.split('#').next().unwrap_or("").trim();
    let is_word = bare.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.') && !bare.contains(['"', '\'', '{', '[']);
    let is_text = is_word || (bare.starts_with('[') && bare.contains("]:"));
    // A number by itself, or a truth, is right as it is: the mistake is another.
    let is_bare = is_text && bare.parse::<f64>().is_err() && bare != "true" && bare != "false";
    (is_key(key.trim()) && is_bare).then(|| format!("a text needs quotation marks: {}", quoted(key.trim(), value)))
}

/// The line as it should be: `key = "value"`.
fn quoted(key: &str, value: &str) -> String {
    let value = value.split('#').next().unwrap_or("").trim().trim_matches('"');
    format!("{key} = \"{value}\"")
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
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct File {
        link: Vec<Link>,
        control: Option<Link>,
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
        x:2: link[1].dealy: is not a key here: did you mean delay? The keys are name, delay, count, shaper, kind, changes
          2 | dealy = 1
        ");
        insta::assert_snapshot!(link("queue = 1"), @"
        x:2: link[1].queue: is not a key here: the keys are name, delay, count, shaper, kind, changes
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
