//! A table of words, for the terminal or for Markdown.

use crate::terminal::{Alignment, TextColumn, TextStyle, TextTable};

/// The width where the output is not a terminal.
const DEFAULT_WIDTH: usize = 118;

/// A table of words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainTable {
    /// The heads of the columns.
    pub header: Vec<String>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl PlainTable {
    /// A table with these heads.
    pub fn new(header: &[&str], rows: Vec<Vec<String>>) -> Self {
        PlainTable { header: header.iter().map(|head| (*head).to_owned()).collect(), rows }
    }

    /// For a terminal of `width` characters (absent: 118). Ends with a newline.
    pub fn text(&self, width: Option<usize>) -> String {
        let columns = self.header.iter().map(|head| TextColumn::new(head, Alignment::Left)).collect();
        let mut table = TextTable::new(TextStyle::Words, columns);
        for row in &self.rows {
            table.push(row.clone());
        }
        table.render(Some(width.unwrap_or(DEFAULT_WIDTH)))
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
