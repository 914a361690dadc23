//! The name of a case in parts: a case of the file, and a value for each key that was swept.

/// The keys of a scenario file at the top level, with which every swept key begins.
const TOP_KEYS: [&str; 18] = [
    "name",
    "about",
    "duration",
    "seed",
    "link",
    "split",
    "agent",
    "control",
    "tcp",
    "flow",
    "cross",
    "cross_flow",
    "page",
    "exchange",
    "interval",
    "network",
    "foreground",
    "bond",
];

/// The key and the value of a swept key; none for a piece of a case's name, which may contain an
/// equals sign too.
fn swept_key(piece: &str) -> Option<(&str, &str)> {
    let (key, value) = piece.split_once('=')?;
    let top = key.split(['.', '[']).next().unwrap_or(key);
    (TOP_KEYS.contains(&top) && !key.contains([' ', '{'])).then_some((key, value))
}

/// The parts of a case's name, as [`ScenarioFile::variants`](crate::ScenarioFile::variants) makes
/// it: the name in the file, with an empty key, then each swept key with its value. The name in the
/// file is left out if it is empty.
pub fn case_parts(case: &str) -> Vec<(&str, &str)> {
    let mut parts: Vec<(&str, &str)> = Vec::new();
    let (mut start, mut text_start) = (0, 0);
    for piece in case.split(", ") {
        let end = start + piece.len();
        match (swept_key(piece), parts.last_mut()) {
            (Some((key, value)), _) => {
                text_start = start + key.len() + 1;
                parts.push((key, value));
            }
            // A name and a value can contain commas, too: this piece continues the part before it.
            (None, Some((_, text))) => *text = &case[text_start..end],
            (None, None) if piece.is_empty() => {}
            (None, None) => parts.push(("", piece)),
        }
        start = end + 2;
    }
    parts
}

/// Short names for keys: the last word of each, or the whole key where others end with that word.
pub fn short_keys<'a>(keys: &[&'a str]) -> Vec<&'a str> {
    let last_word = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
    let is_unique = |word: &str| keys.iter().filter(|key| last_word(key) == word).count() == 1;
    keys.iter().map(|key| if is_unique(last_word(key)) { last_word(key) } else { key }).collect()
}

/// A case's name with short keys: `split, per_packet=0.01`.
pub fn short_case(case: &str) -> String {
    short_parts(&case_parts(case))
}

/// The name that these parts of a case make, with short keys.
pub fn short_parts(parts: &[(&str, &str)]) -> String {
    let keys: Vec<&str> = parts.iter().map(|(key, _)| *key).collect();
    let short = |(key, (_, value)): (&str, &(&str, &str))| if key.is_empty() { (*value).to_owned() } else { format!("{key}={value}") };
    short_keys(&keys).into_iter().zip(parts).map(short).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_case_of_the_file_and_the_swept_keys() {
        assert_eq!(case_parts("split, link.2.rate=5Mbit, seed=3"), [("", "split"), ("link.2.rate", "5Mbit"), ("seed", "3")]);
        assert_eq!(case_parts("split after link 1, share"), [("", "split after link 1, share")]);
        assert_eq!(case_parts("1.2 0.0, bond.scheduler=score"), [("", "1.2 0.0"), ("bond.scheduler", "score")]);
        assert_eq!(case_parts("split.1.buffer=1pkt"), [("split.1.buffer", "1pkt")]);
        assert_eq!(case_parts("link.1.loss={ gilbert = { p = 1, r = 2 } }"), [("link.1.loss", "{ gilbert = { p = 1, r = 2 } }")]);
        assert_eq!(case_parts("link[2].rate=5Mbit"), [("link[2].rate", "5Mbit")]);
        assert_eq!(case_parts(""), []);
    }

    #[test]
    fn a_name_in_the_file_may_contain_an_equals_sign() {
        assert_eq!(case_parts("rtt=10ms"), [("", "rtt=10ms")]);
        assert_eq!(case_parts("rtt=10ms, loss=0, seed=3"), [("", "rtt=10ms, loss=0"), ("seed", "3")]);
        assert_eq!(short_case("a.rtt=10ms, link.2.rate=1Mbit"), "a.rtt=10ms, rate=1Mbit");
    }

    #[test]
    fn the_top_keys_are_those_of_the_schema() {
        let schema = crate::schema();
        let keys: Vec<&str> = schema.get("properties").unwrap().as_object().unwrap().keys().map(String::as_str).collect();
        let without_cases: Vec<&str> = keys.into_iter().filter(|key| *key != "case").collect();
        assert_eq!(without_cases, TOP_KEYS);
    }

    #[test]
    fn a_key_is_shortened_where_that_is_unambiguous() {
        assert_eq!(short_case("split, link.2.loss.per_packet=0.01"), "split, per_packet=0.01");
        assert_eq!(short_case("link.1.rate=1Mbit, link.2.rate=2Mbit, duration=1s"), "link.1.rate=1Mbit, link.2.rate=2Mbit, duration=1s");
        assert_eq!(short_case("as it is"), "as it is");
    }
}
