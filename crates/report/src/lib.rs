//! Outcomes and what follows from them as text: tables for the terminal and for Markdown, JSON, and
//! a web page that opens offline.
//!
//! Outcomes, advice and the papers' results come in, text goes out. The caller writes it, and
//! passes the terminal's width where there is a terminal. The meaning of the numbers was settled by
//! the engine.

mod advice;
mod bars;
mod cases;
mod chart;
mod computed_page;
mod curves;
mod demo;
mod grid;
mod group;
mod headline;
mod json;
mod markup;
mod number_format;
mod outcome_numbers;
mod page;
mod paper_document;
mod paper_overview;
mod paper_results;
mod paper_tables;
mod plain_table;
mod remarks;
mod results;
mod run_files;
mod run_reader;
#[cfg(test)]
mod samples;
mod sweep;
mod terminal;
#[cfg(test)]
mod tests;
mod usage_advice;
mod xy_plot;

pub use advice::{advice_json, advice_text};
pub use bars::svg_bars;
pub use cases::case_columns;
pub use computed_page::computed_page;
pub use demo::demo_findings;
pub use json::json;
pub use number_format::duration;
pub use outcome_numbers::NumberFormat;
pub use page::{PAGE_SCRIPT, PAGE_STYLE, WordsTable, page, page_of_words};
pub use paper_document::{DocumentError, fill_document, render_document};
pub use paper_results::{PaperAnswer, PaperResult, circumstances, claims_counts, claims_summary, paper_results_json, papers_page};
pub use paper_tables::{
    RunTimes, claims_table, computed_table, numbers_table, paper_findings, paper_list, paper_list_json, paper_remarks, printed_table,
};
pub use plain_table::PlainTable;
pub use run_files::{run_csv, run_parquet};
pub use run_reader::read_run_parquet;
pub use terminal::{Alignment, TextColumn, TextStyle, TextTable, reflow, wrap};
pub use usage_advice::{usage_advice_json, usage_advice_text};

use outcome::Outcome;

/// A table for a terminal of `width` characters (absent: without a limit), a row for each engine
/// and case, with the warnings below it. Seeds are combined into their mean, with half the width of
/// its 95 % interval where `ci95` has it. Ends with a newline; empty if there are no outcomes.
pub fn table(outcomes: &[Outcome], width: Option<usize>) -> String {
    let groups = group::groups(outcomes);
    let mut out = results::results(&groups).render(width);
    let lines = results::footnote(&groups).into_iter().chain(remarks::remarks(&groups).into_iter().map(|remark| remark.to_string()));
    out.extend(lines.map(|line| wrap(&line, width) + "\n"));
    out
}

/// The links as configured beside what they did, for a terminal of `width` characters. Ends with a
/// newline; empty if no outcome has links.
pub fn links_table(outcomes: &[Outcome], width: Option<usize>) -> String {
    results::links(&group::groups(outcomes)).render(width)
}

/// How much of the bottleneck's capacity was used, and what the rest was lost to, in percent, with
/// what would reduce large losses, for a terminal of `width` characters. Ends with a newline; empty
/// if no engine computes it.
pub fn accounts_table(outcomes: &[Outcome], width: Option<usize>) -> String {
    let groups = group::groups(outcomes);
    let mut out = results::accounts(&groups).render(width);
    out.extend(results::cures(&groups).into_iter().map(|line| wrap(&line, width) + "\n"));
    out
}

/// Words in columns under `header`, wrapped to a terminal of `width` characters (absent: 118). Ends
/// with a newline.
pub fn words_table(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    PlainTable::new(header, rows.to_vec()).text(width)
}
