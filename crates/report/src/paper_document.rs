//! Pages of the documentation whose tables are made of recorded outcomes. A table stands between
//! two comments, and names the entry of a paper and which of its tables it is:
//!
//! ```markdown
//! <!-- recorded: li/fig-3 numbers -->
//! | case | … |
//! <!-- end of recorded -->
//! ```
//!
//! `numbers` are those of the experiment as it stands; `variations` adds those with other settings.
//! `numbers on lab` keeps the rows of one engine. `claims` without an entry is the verdict on every
//! claim of all papers, `claims li` on those of one, and `counts` is their number by verdict.
//! `overview goodput_bps joshi/base joshi/satellite` is one number of all cases of several entries,
//! and `ratios` in its place the ratios that their claims are about, with other settings; `on sim`
//! before the number keeps one engine.

use crate::{
    paper_overview::{overview, ratios},
    paper_results::{PaperAnswer, PaperResult, circumstances, claims_counts, claims_summary},
    plain_table::PlainTable,
    terminal::wrap,
};
use std::fmt::Write as _;

/// Where lines of prose wrap.
const COLUMNS: usize = 100;
const BEGIN: &str = "<!-- recorded: ";
const CLOSE: &str = " -->";
const END: &str = "<!-- end of recorded -->";

/// Why a page cannot be rendered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct DocumentError {
    /// The line of the page, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

/// The text of a page with its tables made of `results`, which hold all entries of all papers.
///
/// # Errors
/// A table names an entry or a kind that does not exist, or does not end.
pub fn render_document(text: &str, results: &[PaperResult]) -> Result<String, DocumentError> {
    fill_document(text, |asked| content(asked, results))
}

/// The text of a page with everything between such comments replaced by what `content` makes of
/// their words, which ends with a newline.
///
/// # Errors
/// `content` fails, or a table does not end.
pub fn fill_document(text: &str, content: impl Fn(&str) -> Result<String, String>) -> Result<String, DocumentError> {
    let mut out = String::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let _ = writeln!(out, "{line}");
        let Some(asked) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(CLOSE)) else { continue };
        let wrong = |what: String| DocumentError { line: number + 1, what };
        let content = content(asked).map_err(wrong)?;
        let _ = writeln!(out, "\n{content}\n{END}");
        if !lines.any(|(_, line)| line == END) {
            return Err(wrong(format!("the table {asked:?} does not end: write {END:?} in a line of its own below it")));
        }
    }
    Ok(out)
}

/// What stands between the comments of the table `asked`. Ends with a newline.
fn content(asked: &str, results: &[PaperResult]) -> Result<String, String> {
    let words: Vec<&str> = asked.split(' ').collect();
    match words[..] {
        ["counts"] => Ok(claims_counts(&recorded(results, "")).markdown()),
        ["claims"] => Ok(claims(results, "")),
        ["claims", paper] => Ok(claims(results, &format!("{paper}/"))),
        [kind @ ("overview" | "ratios"), "on", engine, number, ref ids @ ..] => several(kind, Some(engine), number, ids, results),
        [kind @ ("overview" | "ratios"), number, ref ids @ ..] => several(kind, None, number, ids, results),
        [id, kind] => table(id, kind, None, results),
        [id, kind, "on", engine] => table(id, kind, Some(engine), results),
        _ => Err(format!(
            "there is no table {asked:?}: write an entry and \"numbers\", \"printed\" or \"claims\", or \"claims\" or \"counts\", or \"overview\" or \"ratios\" with a number and entries"
        )),
    }
}

/// The results of a paper that there are records of.
fn recorded(results: &[PaperResult], prefix: &str) -> Vec<PaperResult> {
    results.iter().filter(|result| result.id.starts_with(prefix) && !result.runs().is_empty()).cloned().collect()
}

fn claims(results: &[PaperResult], prefix: &str) -> String {
    claims_summary(&recorded(results, prefix), |id| format!("[{id}](#{})", anchor(id))).markdown()
}

/// The anchor of an entry's tables in the page.
fn anchor(id: &str) -> String {
    id.replace(['/', '.'], "-")
}

/// A table over several entries.
fn several(kind: &str, engine: Option<&str>, number: &str, ids: &[&str], results: &[PaperResult]) -> Result<String, String> {
    let mut chosen = Vec::new();
    for id in ids {
        let result = find(id, results)?;
        chosen.push(engine.map_or_else(|| result.clone(), |engine| result.on_engine(engine)));
    }
    let chosen: Vec<PaperResult> = if kind == "overview" { chosen.iter().map(PaperResult::as_it_stands).collect() } else { chosen };
    let table = if kind == "overview" { overview(&chosen, number) } else { ratios(&chosen, number) };
    Ok(table?.markdown())
}

fn find<'a>(id: &str, results: &'a [PaperResult]) -> Result<&'a PaperResult, String> {
    let found = results.iter().find(|result| result.id == id);
    found.ok_or_else(|| format!("there is no table or figure {id:?}: `tandem paper` lists them"))
}

fn table(id: &str, kind: &str, engine: Option<&str>, results: &[PaperResult]) -> Result<String, String> {
    let result = find(id, results)?;
    let result = engine.map_or_else(|| result.clone(), |engine| result.on_engine(engine));
    let result = if kind == "numbers" { result.as_it_stands() } else { result };
    let heading = match kind {
        "numbers" if matches!(result.answer, PaperAnswer::Computed { .. }) => "Computed",
        "numbers" | "variations" => "Numbers",
        "printed" => "Beside what the paper prints",
        "claims" => "Claims",
        _ => return Err(format!("{id} has no table {kind:?}: write \"numbers\", \"variations\", \"printed\" or \"claims\"")),
    };
    let runs = result.runs();
    let on = engine.map(|engine| format!(" --on {engine}")).unwrap_or_default();
    let mut out = format!("<a id=\"{}\"></a>\n\n", anchor(id));
    match result.tables().into_iter().find(|(name, _)| *name == heading) {
        _ if runs.is_empty() => {
            let _ = writeln!(out, "Not recorded yet: `tandem paper {id}{on}` computes or measures it.");
        }
        Some((_, table)) => out += &whole(&table, &runs.iter().map(|run| circumstances(run)).collect::<Vec<_>>(), kind == "numbers"),
        None => return Err(format!("{id} has no table {kind:?}")),
    }
    // Only the first table of an entry is the target of links.
    Ok(if matches!(kind, "numbers" | "variations") {
        out
    } else {
        out.split_once("\n\n").map_or(String::new(), |(_, rest)| rest.to_owned())
    })
}

fn whole(table: &PlainTable, circumstances: &[String], with_circumstances: bool) -> String {
    let mut out = table.markdown();
    if with_circumstances {
        let _ = writeln!(out, "\n{}", wrap(&circumstances.join(" "), Some(COLUMNS)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_outside_of_tables_stays() {
        let text = "# Title\n\ntext\n";
        assert_eq!(render_document(text, &[]).unwrap(), text);
    }

    #[test]
    fn what_was_between_the_comments_is_replaced() {
        let text = "a\n<!-- recorded: counts -->\n\n| edited | by hand |\n\n<!-- end of recorded -->\nb\n";
        let rendered = render_document(text, &[]).unwrap();
        assert!(!rendered.contains("by hand") && rendered.contains("| paper | claims |") && rendered.ends_with("-->\nb\n"), "{rendered}");
        assert_eq!(render_document(&rendered, &[]).unwrap(), rendered);
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| render_document(text, &[]).unwrap_err().to_string();
        assert!(error("a\n<!-- recorded: counts -->\n").starts_with("line 2: the table \"counts\" does not end"));
        assert!(error("<!-- recorded: li/fig-99 numbers -->\n<!-- end of recorded -->").contains("no table or figure \"li/fig-99\""));
        assert!(error("<!-- recorded: one two three -->\n<!-- end of recorded -->").contains("there is no table \"one two three\""));
    }
}
