//! What an error repeats of a file's contents: little of it, and in printable characters.
//!
//! The user who named the file may not be permitted to read it.

/// The most characters of a quotation.
pub const LONGEST_QUOTATION: usize = 40;

/// The beginning of a text, at most 40 characters, with control characters escaped.
pub fn quotation(text: &str) -> String {
    window(text, 0)
}

/// At most 40 characters of a line around the byte `at`, with control characters escaped. `…`
/// stands for what is left out.
pub fn window(line: &str, at: usize) -> String {
    let count = line.chars().count();
    if count <= LONGEST_QUOTATION {
        return printable(line);
    }
    let before = line.char_indices().take_while(|(index, _)| *index < at).count();
    // The end of a line is shown whole where it is near.
    let from = before.saturating_sub(LONGEST_QUOTATION / 4).min(count - LONGEST_QUOTATION);
    let part: String = line.chars().skip(from).take(LONGEST_QUOTATION).collect();
    let (left, right) = (if from > 0 { "…" } else { "" }, if from + LONGEST_QUOTATION < count { "…" } else { "" });
    format!("{left}{}{right}", printable(&part))
}

fn printable(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// A message whose quotations, between `"` or backticks, have at most 40 characters each, with
/// control characters escaped.
pub fn shorten_quotations(message: &str) -> String {
    let mut short = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(begin) = rest.find(['"', '`']) {
        let (mark, inner) = (&rest[begin..=begin], &rest[begin + 1..]);
        let Some(end) = end_of(inner, mark) else { break };
        short += &format!("{}{mark}{}{mark}", &rest[..begin], window(&inner[..end], 0));
        rest = &inner[end + 1..];
    }
    short + rest
}

/// Where the quotation ends that has begun. A mark behind a backslash is a part of it.
fn end_of(inner: &str, mark: &str) -> Option<usize> {
    let mut escaped = false;
    inner.char_indices().find_map(|(index, c)| {
        let ends = !escaped && mark.starts_with(c);
        escaped = c == '\\' && !escaped && mark == "\"";
        ends.then_some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(quotation("short"), "short");
        assert_eq!(quotation(&"ä".repeat(40)), "ä".repeat(40));
        assert_eq!(quotation(&"x".repeat(41)), format!("{}…", "x".repeat(40)));
        assert_eq!(quotation("a\u{1b}[31m\0"), "a\\u{1b}[31m\\0");
    }

    #[test]
    fn a_window_has_the_place() {
        let line = format!("{}HERE{}", "a".repeat(100), "b".repeat(100));
        assert_eq!(window(&line, 100), format!("…{}HERE{}…", "a".repeat(10), "b".repeat(26)));
        assert_eq!(window(&line, 0), format!("{}…", "a".repeat(40)));
        assert_eq!(window(&line, 204), format!("…{}", "b".repeat(40)).replacen('b', "b", 1));
        assert_eq!(window(&line, 9999), format!("…{}", "b".repeat(40)));
    }

    #[test]
    fn quotations_in_a_message_are_cut_and_its_own_words_stay() {
        let (long, cut) = ("s".repeat(60), "s".repeat(40));
        let words = "is a long sentence of the program itself, with more than forty characters, and stays";
        assert_eq!(shorten_quotations(&format!("\"{long}\" {words} `{long}`, \"a\"")), format!("\"{cut}…\" {words} `{cut}…`, \"a\""));
        // Debug output has escaped marks.
        let text = format!("{:?} {words}", format!("\"{}", "q".repeat(50)));
        assert_eq!(shorten_quotations(&text), format!("\"\\\"{}…\" {words}", "q".repeat(38)));
        assert_eq!(shorten_quotations("unknown field `a\u{7}b`"), "unknown field `a\\u{7}b`");
        assert_eq!(shorten_quotations("an inch is 1\" long"), "an inch is 1\" long");
    }
}
