//! Tables over several entries of a paper: one number of all their cases, and their ratios under
//! every variation.

use crate::{
    number_format::NONE,
    outcome_numbers::NumberFormat,
    paper_results::{PaperAnswer, PaperResult},
    plain_table::PlainTable,
};
use outcome::Outcome;
use papers::{EnginePlan, Experiment, SeedMean};
use scenario::short_case;
use std::collections::BTreeSet;

/// An entry that was played. Computed ones have no cases.
struct PlayedEntry<'a> {
    /// Its name within the paper.
    name: &'a str,
    experiment: &'a Experiment,
    plans: &'a [EnginePlan],
    outcomes: &'a [Outcome],
}

impl<'a> PlayedEntry<'a> {
    fn of(result: &'a PaperResult) -> Option<Self> {
        let PaperAnswer::Played { experiment, plans, outcomes, .. } = &result.answer else { return None };
        let name = result.id.split_once('/').map_or(result.id.as_str(), |(_, name)| name);
        Some(PlayedEntry { name, experiment, plans, outcomes })
    }
}

/// Values by row and column, in the order in which rows and columns first come up.
#[derive(Default)]
struct Matrix {
    rows: Vec<Vec<String>>,
    columns: Vec<String>,
    cells: Vec<(usize, usize, String)>,
}

impl Matrix {
    fn insert(&mut self, row: Vec<String>, column: String, cell: String) {
        let row = position(&mut self.rows, row);
        let column = position(&mut self.columns, column);
        self.cells.push((row, column, cell));
    }

    /// The table; `heads` stand over the names of the rows. `None` if there is no value.
    fn table(self, heads: &[&str]) -> Option<PlainTable> {
        if self.cells.is_empty() {
            return None;
        }
        let mut header: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
        header.extend(self.columns.iter().cloned());
        let mut rows: Vec<Vec<String>> = self.rows;
        for row in &mut rows {
            row.extend(std::iter::repeat_n(NONE.to_owned(), self.columns.len()));
        }
        for (row, column, cell) in self.cells {
            rows[row][heads.len() + column] = cell;
        }
        Some(PlainTable::with_header(header, rows))
    }
}

/// The index of `name`, which is appended if it is new.
fn position<T: PartialEq>(names: &mut Vec<T>, name: T) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

/// The entries that were played, and whether one engine played all of them.
fn played(results: &[PaperResult]) -> (Vec<PlayedEntry<'_>>, bool) {
    let entries: Vec<PlayedEntry<'_>> = results.iter().filter_map(PlayedEntry::of).collect();
    let engines: BTreeSet<&str> = entries.iter().flat_map(|entry| entry.outcomes).map(|outcome| outcome.engine.as_str()).collect();
    let has_one_engine = engines.len() < 2;
    (entries, has_one_engine)
}

/// The number `name` of each case (rows) of each entry (columns), as the experiments stand. Engines
/// have columns of their own if there are several.
///
/// # Errors
/// No entry has this number.
pub(crate) fn overview(results: &[PaperResult], name: &str) -> Result<PlainTable, String> {
    let (entries, has_one_engine) = played(results);
    let mut matrix = Matrix::default();
    for entry in &entries {
        let Some(at) = entry.experiment.numbers.iter().position(|number| number == name) else { continue };
        for row in entry.experiment.rows(entry.plans, entry.outcomes) {
            let column = if has_one_engine { entry.name.to_owned() } else { format!("{}, {}", entry.name, row.source.engine) };
            matrix.insert(vec![short_case(&row.case)], column, spread(NumberFormat::named(name), row.numbers[at]));
        }
    }
    matrix.table(&["case"]).ok_or_else(|| format!("none of these entries has a number {name:?}"))
}

/// The ratios of the number `name` that the entries' claims are about, over the whole run: a row
/// for each entry and pair of cases, a column for each engine and variation.
///
/// # Errors
/// No claim is about this number.
pub(crate) fn ratios(results: &[PaperResult], name: &str) -> Result<PlainTable, String> {
    let (entries, has_one_engine) = played(results);
    let mut matrix = Matrix::default();
    for entry in &entries {
        for one in entry.experiment.judge(entry.outcomes) {
            let claim = one.claim;
            if claim.number != name || claim.from.is_some() || claim.over.is_some() {
                continue;
            }
            let column = match (has_one_engine, one.source.variation.as_str()) {
                (true, "") => "as it stands".to_owned(),
                (true, variation) => variation.to_owned(),
                (false, _) => one.source.label(),
            };
            let row = vec![entry.name.to_owned(), short_case(&claim.case), short_case(&claim.than)];
            matrix.insert(row, column, spread(NumberFormat::RATIO, one.judgement.map(|judgement| judgement.ratio)));
        }
    }
    matrix.table(&["entry", "case", "divided by"]).ok_or_else(|| format!("no claim of these entries is about {name:?}"))
}

fn spread(format: NumberFormat, mean: Option<SeedMean>) -> String {
    format.spread(mean.map(|mean| (mean.mean, mean.half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_by_row_and_column_in_the_order_of_their_first_use() {
        let mut matrix = Matrix::default();
        for (row, column, cell) in [("split", "LAN", "8"), ("alone", "LAN", "7"), ("split", "satellite", "2")] {
            matrix.insert(vec![row.to_owned()], column.to_owned(), cell.to_owned());
        }
        let table = matrix.table(&["case"]).unwrap();
        assert_eq!(table.markdown(), "| case | LAN | satellite |\n| --- | --- | --- |\n| split | 8 | 2 |\n| alone | 7 | – |\n");
        assert!(Matrix::default().table(&["case"]).is_none());
    }

    #[test]
    fn a_number_that_no_entry_has_is_an_error() {
        assert_eq!(overview(&[], "goodput_bps").unwrap_err(), "none of these entries has a number \"goodput_bps\"");
        assert_eq!(ratios(&[], "goodput_bps").unwrap_err(), "no claim of these entries is about \"goodput_bps\"");
    }
}
