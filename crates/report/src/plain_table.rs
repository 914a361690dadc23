//! A table of words and numbers, for the terminal or for Markdown.

use crate::terminal::{Alignment, TextColumn, TextStyle, TextTable};

/// The width where the output is not a terminal.
const DEFAULT_WIDTH: usize = 118;

/// A table of words and numbers that are already written. A column whose cells are all numbers is
/// aligned to the right, and its cells stay on one line. In a narrow terminal, columns of
/// `left_out_first` are left out, then columns of numbers from the right, except for the first one
/// and for the last column of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainTable {
    /// The heads of the columns.
    pub header: Vec<String>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
    /// Heads of columns that a narrow terminal loses before all others, in this order.
    pub left_out_first: &'static [&'static str],
}

impl PlainTable {
    /// A table with these heads.
    pub fn new(header: &[&str], rows: Vec<Vec<String>>) -> Self {
        PlainTable::with_header(header.iter().map(|head| (*head).to_owned()).collect(), rows)
    }

    /// A table with these heads.
    pub fn with_header(header: Vec<String>, rows: Vec<Vec<String>>) -> Self {
        PlainTable { header, rows, left_out_first: &[] }
    }

    /// For a terminal of `width` characters (absent: 118). Ends with a newline.
    pub fn text(&self, width: Option<usize>) -> String {
        let alignments: Vec<Alignment> = (0..self.header.len()).map(|column| self.alignment(column)).collect();
        let first_number = alignments.iter().position(|alignment| *alignment == Alignment::Right);
        let column = |(at, head): (usize, &String)| {
            let column = TextColumn::new(head, alignments[at]);
            if let Some(turn) = self.left_out_first.iter().position(|first| first == head) {
                return column.droppable(u8::MAX - u8::try_from(turn).unwrap_or(u8::MAX / 2));
            }
            let can_go = alignments[at] == Alignment::Right && Some(at) != first_number && at + 1 < self.header.len();
            if can_go { column.droppable(u8::try_from(at).unwrap_or(u8::MAX).min(u8::MAX / 2)) } else { column }
        };
        let mut table = TextTable::new(TextStyle::Words, self.header.iter().enumerate().map(column).collect());
        for row in &self.rows {
            table.push(row.clone());
        }
        table.render(Some(width.unwrap_or(DEFAULT_WIDTH)))
    }

    fn alignment(&self, column: usize) -> Alignment {
        let cells = || self.rows.iter().filter_map(|row| row.get(column));
        let has_digit = |cell: &String| cell.contains(|c: char| c.is_ascii_digit());
        let is_numeric = cells().any(has_digit) && cells().all(|cell| is_number(cell));
        if is_numeric { Alignment::Right } else { Alignment::Left }
    }

    /// As a table of Markdown. Ends with a newline.
    pub fn markdown(&self) -> String {
        let line =
            |cells: &[String]| format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "));
        let mut out = line(&self.header);
        out += &line(&vec!["---".to_owned(); self.header.len()]);
        out.extend(self.rows.iter().map(|row| line(row)));
        out
    }
}

/// Whether a cell is a number, as in "4.00", "33.692 ± 0.046", "10 of 10", "64KiB" or "–". An empty
/// cell counts as one.
fn is_number(cell: &str) -> bool {
    cell.split_whitespace()
        .all(|word| matches!(word, "±" | "of" | "–") || word.trim_start_matches(['+', '-', '−']).starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_broken_in_two_lines() {
        let row = |name: &str, here: &str, note: &str| vec![name.to_owned(), here.to_owned(), "10 of 10".to_owned(), note.to_owned()];
        let note = "the mean over all flows that were in progress for the whole time of the measurement";
        let table = PlainTable::new(
            &["mean rate of the first connection", "goodput, Mbit/s, of all flows together", "valid", "note"],
            vec![row("end to end with cubic at the sender", "33.692 ± 0.046", note), row("split after link 1", "–", "")],
        );
        for width in [60, 80, 100] {
            let text = table.text(Some(width));
            assert!(text.contains("33.692 ± 0.046") && text.matches("10 of 10").count() == 2, "{text}");
        }
    }

    #[test]
    fn columns_of_numbers_are_left_out_where_they_do_not_fit() {
        let header = ["buffer", "goodput, Mbit/s", "free, %", "starvation, %", "backpressure, %", "held, kB", "valid"];
        let cells = ["1000pkt", "34.550 ± 0.048", "11.98 ± 0.05", "83.88 ± 0.07", "4.14 ± 0.02", "121.8 ± 2.7", "10 of 10"];
        let table = PlainTable::new(&header, vec![cells.map(str::to_owned).into()]);
        let text = table.text(Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.ends_with("Left out to fit the width: backpressure, %; held, kB.\n"), "{text}");
        assert!(text.contains("83.88 ± 0.07") && text.contains("10 of 10"), "{text}");
        assert!(table.text(None).contains("121.8 ± 2.7"));
    }

    #[test]
    fn numbers_are_told_from_words() {
        for cell in ["", "–", "4", "-1.5", "+2.00", "33.692 ± 0.046", "10 of 10", "64KiB", "12.3, 1.05 ± 0.01"] {
            assert!(is_number(cell), "{cell}");
        }
        for cell in ["as it is", "split 2", "yes", "3 seeds", "holds (one seed)"] {
            assert!(!is_number(cell), "{cell}");
        }
    }
}
