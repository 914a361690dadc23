//! Outcomes as people and programs read them: a table for the terminal, JSON, and a web page that opens offline.
//!
//! Outcomes in, text out. Where the text goes is the caller's business; what the numbers mean was settled by the engine.

mod bars;
mod cases;
mod chart;
mod curves;
mod grid;
mod group;
mod headline;
mod human;
mod json;
mod markup;
mod page;
mod quantity;
mod remarks;
mod results;
#[cfg(test)]
mod samples;
mod terminal;
#[cfg(test)]
mod tests;

pub use bars::svg_bars;
pub use cases::case_columns;
pub use json::json;
pub use page::{WordsTable, page, page_of_words};
pub use quantity::Quantity;

use outcome::Outcome;

/// A table for the terminal, a row for each engine and case, with the warnings below it. Seeds are put together as their mean, with half the
/// width of its 95 % interval where `ci95` has it. Ends with a newline; empty when there are no outcomes.
pub fn table(outcomes: &[Outcome]) -> String {
    let groups = group::groups(outcomes);
    let mut out = terminal::render(&results::results(&groups));
    out.extend(results::footnote(&groups).map(|line| line + "\n"));
    out.extend(remarks::remarks(&groups).into_iter().map(|remark| format!("{remark}\n")));
    out
}

/// What was asked of each link beside what it delivered, for the terminal. Ends with a newline; empty when no outcome has links.
pub fn links_table(outcomes: &[Outcome]) -> String {
    terminal::render(&results::links(&group::groups(outcomes)))
}

/// Words in columns under `header`, wrapped to a terminal's width, in the style of the other tables. Ends with a newline.
pub fn words_table(header: &[&str], rows: &[Vec<String>]) -> String {
    terminal::words(header, rows, 118)
}

/// The same as a table of Markdown, for a document.
pub fn markdown_table(header: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "));
    let mut out = line(header.to_vec());
    out += &line(vec!["---"; header.len()]);
    out.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    out
}
