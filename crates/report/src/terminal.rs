//! Tables for the terminal: thin lines and no colours, so that they read the same in a pipe, a log
//! and a bug report.
//!
//! A table that is wider than the terminal is made narrower step by step: heads wrap at blanks, then
//! cells of words do, never inside a word; if that is not enough, columns are left out, the least
//! important first, and a line below the table names them; what remains is written as it is, even if
//! it is still too wide.

use unicode_width::UnicodeWidthStr;

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    /// Words: cells wrap at blanks.
    Left,
    /// Numbers: cells stay on one line, the head wraps.
    Right,
}

/// A column of a [`TextTable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextColumn {
    head: String,
    alignment: Alignment,
    /// Order in which columns are left out, the highest first; absent: never.
    drop_rank: Option<u8>,
}

impl TextColumn {
    /// A column that is never left out.
    pub fn new(head: impl Into<String>, alignment: Alignment) -> Self {
        TextColumn { head: head.into(), alignment, drop_rank: None }
    }

    /// Makes the column one that can be left out where the table is too wide. Columns with a higher
    /// rank go first; of equal ranks the last one.
    pub fn droppable(self, rank: u8) -> Self {
        TextColumn { drop_rank: Some(rank), ..self }
    }
}

/// The lines and distances of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStyle {
    /// Numbers: a line above and below, columns close together.
    Grid,
    /// Words: a line above and below.
    Words,
    /// A line below the header alone, columns close together.
    Open,
}

impl TextStyle {
    /// Blanks before and behind a cell.
    fn padding(self) -> (usize, usize) {
        match self {
            TextStyle::Grid | TextStyle::Open => (1, 0),
            TextStyle::Words => (1, 1),
        }
    }

    /// The characters that `columns` columns take beside their cells: padding, and a blank between
    /// two columns.
    fn overhead(self, columns: usize) -> usize {
        let (before, behind) = self.padding();
        columns * (before + behind) + columns.saturating_sub(1)
    }
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTable {
    style: TextStyle,
    columns: Vec<TextColumn>,
    rows: Vec<Vec<String>>,
}

/// The space that a column needs.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Without wrapping.
    natural: usize,
    /// If only the head wraps.
    cells: usize,
    /// With a line break at every blank.
    least: usize,
}

impl TextTable {
    /// A table without rows.
    pub fn new(style: TextStyle, columns: Vec<TextColumn>) -> Self {
        TextTable { style, columns, rows: Vec::new() }
    }

    /// Adds a row. Cells that are missing at its end are empty.
    pub fn push(&mut self, mut row: Vec<String>) {
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// Whether the table fits `width` characters without wrapping. It fits a width that is not
    /// limited.
    pub fn fits(&self, width: Option<usize>) -> bool {
        let natural: usize = self.needs().iter().map(|needs| needs.natural).sum();
        width.is_none_or(|width| natural + self.style.overhead(self.columns.len()) <= width)
    }

    /// The table as text for a terminal of `width` characters; absent: without a limit. Ends with a
    /// newline.
    pub fn render(&self, width: Option<usize>) -> String {
        let (kept, widths) = self.layout(width);
        let line = "─".repeat(widths.iter().sum::<usize>() + self.style.overhead(kept.len())) + "\n";
        let framed = self.style != TextStyle::Open;
        let mut out = if framed { line.clone() } else { String::new() };
        let heads: Vec<&str> = kept.iter().map(|at| self.columns[*at].head.as_str()).collect();
        self.push_lines(&mut out, &kept, &widths, &heads);
        out += &line;
        for row in &self.rows {
            let cells: Vec<&str> = kept.iter().map(|at| row[*at].as_str()).collect();
            self.push_lines(&mut out, &kept, &widths, &cells);
        }
        if framed {
            out += &line;
        }
        let left_out: Vec<String> = (0..self.columns.len()).filter(|at| !kept.contains(at)).map(|at| self.name(at)).collect();
        if !left_out.is_empty() {
            out += &wrap(&format!("Left out to fit the width: {}.", left_out.join("; ")), width);
            out.push('\n');
        }
        out
    }

    /// A column's head on one line, with the unit in parentheses.
    fn name(&self, at: usize) -> String {
        match self.columns[at].head.split_once('\n') {
            Some((name, unit)) => format!("{name} ({unit})"),
            None => self.columns[at].head.clone(),
        }
    }

    fn needs(&self) -> Vec<Needs> {
        let of = |(at, column): (usize, &TextColumn)| {
            let cells = || self.rows.iter().map(|row| row[at].as_str());
            let natural = cells().chain([column.head.as_str()]).map(widest_line).max().unwrap_or(0);
            let head = widest_word(&column.head);
            let least_of_cell = match column.alignment {
                Alignment::Left => widest_word,
                Alignment::Right => widest_line,
            };
            Needs {
                natural,
                cells: cells().map(widest_line).max().unwrap_or(0).max(head),
                least: cells().map(least_of_cell).max().unwrap_or(0).max(head),
            }
        };
        self.columns.iter().enumerate().map(of).collect()
    }

    /// The columns that are shown, and their widths.
    fn layout(&self, width: Option<usize>) -> (Vec<usize>, Vec<usize>) {
        let needs = self.needs();
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width else { return (kept, needs.iter().map(|needs| needs.natural).collect()) };
        loop {
            let of_kept: Vec<Needs> = kept.iter().map(|at| needs[*at]).collect();
            let space = width.saturating_sub(self.style.overhead(kept.len()));
            if of_kept.iter().map(|needs| needs.least).sum::<usize>() <= space {
                return (kept, shared(&of_kept, space));
            }
            // Of equal ranks the last one: max_by_key returns the last of several maxima.
            let droppable = (0..kept.len()).filter(|index| self.columns[kept[*index]].drop_rank.is_some());
            match droppable.max_by_key(|index| self.columns[kept[*index]].drop_rank) {
                Some(index) => drop(kept.remove(index)),
                None => return (kept, of_kept.iter().map(|needs| needs.least).collect()),
            }
        }
    }

    /// Adds the lines of a row or of the header.
    fn push_lines(&self, out: &mut String, kept: &[usize], widths: &[usize], cells: &[&str]) {
        let (before, behind) = self.style.padding();
        let wrapped: Vec<Vec<String>> = cells.iter().zip(widths).map(|(cell, width)| wrap_lines(cell, *width)).collect();
        for number in 0..wrapped.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = String::new();
            for (index, lines) in wrapped.iter().enumerate() {
                let text = lines.get(number).map_or("", String::as_str);
                let fill = " ".repeat(widths[index].saturating_sub(text.width()));
                line += if index > 0 { " " } else { "" };
                line += &" ".repeat(before);
                line += &match self.columns[kept[index]].alignment {
                    Alignment::Left => format!("{text}{fill}"),
                    Alignment::Right => format!("{fill}{text}"),
                };
                line += &" ".repeat(behind);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

/// Widths that share `space`. If it is enough for all cells, only heads wrap. Otherwise columns with
/// a small natural width get it and the others share the rest alike, each at least what its longest
/// word needs.
fn shared(needs: &[Needs], space: usize) -> Vec<usize> {
    let widths = |most: usize| -> Vec<usize> { needs.iter().map(|needs| needs.natural.min(most).max(needs.least)).collect() };
    let widest = needs.iter().map(|needs| needs.natural).max().unwrap_or(0);
    let most = (0..=widest).rev().find(|most| widths(*most).iter().sum::<usize>() <= space).unwrap_or(0);
    let cells: Vec<usize> = needs.iter().map(|needs| needs.cells).collect();
    let mut widths = if cells.iter().sum::<usize>() <= space { cells } else { widths(most) };
    let mut left = space.saturating_sub(widths.iter().sum());
    for (width, needs) in widths.iter_mut().zip(needs) {
        let more = (needs.natural - *width).min(left);
        *width += more;
        left -= more;
    }
    widths
}

/// `text` with line breaks at blanks, so that lines have at most `width` characters where their
/// words allow; absent: unchanged. Continued lines begin at the indent of their first line, behind
/// a bullet (`* `) if there is one.
pub fn wrap(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let wrapped = |line: &str| {
        let body = line.trim_start_matches(' ');
        let bullet = if body.starts_with("* ") { 2 } else { 0 };
        let indent = line.len() - body.len();
        let (first, rest) = (&line[..indent + bullet], " ".repeat(indent + bullet));
        let lines = wrap_lines(&body[bullet..], width.saturating_sub(indent + bullet));
        format!("{first}{}", lines.join(&format!("\n{rest}")))
    };
    text.split('\n').map(wrapped).collect::<Vec<_>>().join("\n")
}

/// Paragraphs, which empty lines separate, filled to `width` characters; absent: unchanged.
pub fn reflow(text: &str, width: Option<usize>) -> String {
    if width.is_none() {
        return text.to_owned();
    }
    let paragraph = |text: &str| wrap(&text.split_whitespace().collect::<Vec<_>>().join(" "), width);
    text.split("\n\n").map(paragraph).collect::<Vec<_>>().join("\n\n")
}

/// The lines of `text`, wrapped at blanks. A line that fits keeps its blanks as they are.
fn wrap_lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        if line.width() <= width {
            lines.push(line.to_owned());
            continue;
        }
        let mut current = String::new();
        for word in line.split_whitespace() {
            if !current.is_empty() && current.width() + 1 + word.width() > width {
                lines.push(std::mem::take(&mut current));
            }
            current += if current.is_empty() { "" } else { " " };
            current += word;
        }
        lines.push(current);
    }
    lines
}

fn widest_line(text: &str) -> usize {
    text.split('\n').map(UnicodeWidthStr::width).max().unwrap_or(0)
}

fn widest_word(text: &str) -> usize {
    text.split_whitespace().map(UnicodeWidthStr::width).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    /// Words that a test finds again after wrapping.
    fn words(text: &str) -> Vec<&str> {
        text.split_whitespace().filter(|word| !word.starts_with('─')).collect()
    }

    fn widest(text: &str) -> usize {
        text.lines().map(UnicodeWidthStr::width).max().unwrap_or(0)
    }

    /// Nine columns, names that are long, and one that does not wrap.
    fn many_columns() -> TextTable {
        let mut columns = vec![TextColumn::new("case", Alignment::Left)];
        for (rank, head) in (1..).zip(["done in\ns", "mean flow\ns", "goodput\nMbit/s", "utilization\n%"]) {
            columns.push(TextColumn::new(head, Alignment::Right).droppable(rank));
        }
        for (rank, head) in (5..).zip(["retransmits", "proxy held\nmean / max, kB", "phases\nfree/starv./backp., %"]) {
            columns.push(TextColumn::new(head, Alignment::Right).droppable(rank));
        }
        columns.push(TextColumn::new("valid", Alignment::Left));
        let mut table = TextTable::new(TextStyle::Grid, columns);
        for case in ["end to end with cubic at the sender", "split after link 1 with bbr-of-another-kernel"] {
            let numbers = ["37.5 ± 0.6", "22.1 ± 0.3", "5.36 ± 0.10", "53.9 ± 0.0", "1213", "127 / 410", "72 / 4 / 24"];
            table.push([case].into_iter().chain(numbers).chain(["✗ 1 of 2"]).map(str::to_owned).collect());
        }
        table
    }

    #[test]
    fn many_columns_fit_120_characters() {
        assert_snapshot!(many_columns().render(Some(120)), @r"
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     case                               done in   mean flow      goodput  utilization  retransmits      proxy held  valid
                                              s           s       Mbit/s            %               mean / max, kB
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     end to end with cubic at the    37.5 ± 0.6  22.1 ± 0.3  5.36 ± 0.10   53.9 ± 0.0         1213       127 / 410  ✗ 1 of 2
     sender
     split after link 1 with         37.5 ± 0.6  22.1 ± 0.3  5.36 ± 0.10   53.9 ± 0.0         1213       127 / 410  ✗ 1 of 2
     bbr-of-another-kernel
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    Left out to fit the width: phases (free/starv./backp., %).
    ");
    }

    #[test]
    fn many_columns_fit_80_characters() {
        assert_snapshot!(many_columns().render(Some(80)), @r"
    ────────────────────────────────────────────────────────────────────────────────
     case                      done in   mean flow      goodput  utilization  valid
                                     s           s       Mbit/s            %
    ────────────────────────────────────────────────────────────────────────────────
     end to end with cubic  37.5 ± 0.6  22.1 ± 0.3  5.36 ± 0.10   53.9 ± 0.0  ✗ 1 of
     at the sender                                                            2
     split after link 1     37.5 ± 0.6  22.1 ± 0.3  5.36 ± 0.10   53.9 ± 0.0  ✗ 1 of
     with                                                                     2
     bbr-of-another-kernel
    ────────────────────────────────────────────────────────────────────────────────
    Left out to fit the width: retransmits; proxy held (mean / max, kB); phases
    (free/starv./backp., %).
    ");
    }

    #[test]
    fn no_width_breaks_a_word_or_is_exceeded_while_columns_can_go() {
        let table = many_columns();
        let all = table.render(None);
        for width in 45..=160 {
            let text = table.render(Some(width));
            assert!(widest(&text) <= width, "{width}:\n{text}");
            let known = words(&all);
            let table_part = text.split("Left out").next().unwrap();
            assert!(words(table_part).iter().all(|word| known.contains(word)), "{width}:\n{text}");
        }
    }

    #[test]
    fn words_wrap_in_their_columns() {
        let mut table = TextTable::new(
            TextStyle::Words,
            ["", "command", "need", "found, or the cure"].map(|head| TextColumn::new(head, Alignment::Left)).into(),
        );
        for cells in [
            ["✓", "demo, run, proxy", "interception (nftables TPROXY, routing rules)", "installed and removed in a namespace"],
            [
                "~",
                "run, lab",
                "real-time scheduling",
                "the emulator shares the processor with everything else and may be late under load: run as root, or with CAP_SYS_NICE",
            ],
        ] {
            table.push(cells.map(str::to_owned).into());
        }
        assert_snapshot!(table.render(Some(80)), @r"
    ────────────────────────────────────────────────────────────────────────────────
         command            need                         found, or the cure
    ────────────────────────────────────────────────────────────────────────────────
     ✓   demo, run, proxy   interception (nftables       installed and removed in a
                            TPROXY, routing rules)       namespace
     ~   run, lab           real-time scheduling         the emulator shares the
                                                         processor with everything
                                                         else and may be late under
                                                         load: run as root, or with
                                                         CAP_SYS_NICE
    ────────────────────────────────────────────────────────────────────────────────
    ");
        assert_snapshot!(table.render(Some(120)), @r"
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
         command            need                                            found, or the cure
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
     ✓   demo, run, proxy   interception (nftables TPROXY, routing rules)   installed and removed in a namespace
     ~   run, lab           real-time scheduling                            the emulator shares the processor with
                                                                            everything else and may be late under load: run
                                                                            as root, or with CAP_SYS_NICE
    ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
    ");
    }

    #[test]
    fn a_word_that_is_too_long_stays_whole() {
        let mut table =
            TextTable::new(TextStyle::Open, vec![TextColumn::new("client", Alignment::Left), TextColumn::new("age", Alignment::Right)]);
        table.push(vec!["[2001:db8:1234:5678:9abc:def0:1234:5678]:65535".into(), "1.0s".into()]);
        let text = table.render(Some(20));
        assert!(text.contains("[2001:db8:1234:5678:9abc:def0:1234:5678]:65535") && text.contains("1.0s"), "{text}");
    }

    #[test]
    fn paragraphs_wrap_at_blanks_and_bullets_are_indented() {
        assert_eq!(wrap("one two three\n* four five six", Some(9)), "one two\nthree\n* four\n  five\n  six");
        assert_eq!(wrap("a  b", Some(9)), "a  b");
        assert_eq!(wrap("one two three", None), "one two three");
        assert_eq!(reflow("one\ntwo three\n\nfour", Some(9)), "one two\nthree\n\nfour");
        assert_eq!(reflow("one\ntwo", None), "one\ntwo");
    }
}
