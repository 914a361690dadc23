//! Makes foreign text safe for the terminal and for markup: names of cases come from files that others
//! wrote.

/// `text` on one line and without control characters, which would break a table or control a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// `text` escaped for element content and quoted attributes of HTML and XML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            // XML cannot contain these, not even as a reference.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_escapes_from_text_or_an_attribute() {
        assert_eq!(escape("<script a='b' c=\"d\">&\u{1b}[1m"), "&lt;script a=&#39;b&#39; c=&quot;d&quot;&gt;&amp;\u{fffd}[1m");
        assert_eq!(plain("two\nlines\u{1b}[31m"), "two lines\u{fffd}[31m");
    }
}
