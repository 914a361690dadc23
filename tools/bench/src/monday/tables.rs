//! The tables of the runs.

use super::{
    Cell, StoredRun,
    settings::{ADVICE, LIVE, NO_PROXY, SETTINGS, SETUP},
};
use measurements::{SampleColumn, SampleStatistic, SampleTable, median};

/// The column of the best setting, other than no proxy, and of its name.
const BEST: &str = "best";
const BEST_IS: &str = "which";
/// What is divided by what, in every table.
const QUOTIENTS: [(&str, &str); 4] = [(SETUP, NO_PROXY), (SETUP, BEST), (ADVICE, NO_PROXY), (LIVE, NO_PROXY)];

/// A summary, and a table for each link: a row for each use of each kind of ends. Its rows have the
/// other settings, too, but no columns show them.
pub(super) fn tables(cells: &[Cell], runs: &[StoredRun]) -> Vec<SampleTable> {
    let mut tables: Vec<SampleTable> = Vec::new();
    let is_measured = |column: &str| is_measured(cells, column);
    for cell in cells {
        let at = tables.iter().position(|table| table.name == cell.link.name).unwrap_or_else(|| {
            let head = |head: &&'static str| SampleColumn::new(head, "s", 2).with(SampleStatistic::Median);
            let mut columns: Vec<SampleColumn> =
                [NO_PROXY, SETUP, ADVICE, LIVE, BEST].iter().filter(|head| is_measured(head)).map(head).collect();
            if is_measured(BEST) {
                columns.push(SampleColumn::text(BEST_IS));
            }
            columns.extend(quotients(cells).map(|(of, other)| SampleColumn::quotient(&format!("{of} ÷ {other}"), of, other, 2)));
            tables.push(SampleTable::new(cell.link.name, "", columns));
            tables.len() - 1
        });
        let row = tables[at].row(&row_of(cell));
        let Some(run) = runs.iter().find(|run| cell.is(run)) else { continue };
        row.add(cell.setting.0, cell.round as usize - 1, run.seconds);
    }
    tables.iter_mut().for_each(add_best);
    tables.insert(0, summary(cells, &tables));
    tables
}

/// Whether a column has values; the best is one of several.
fn is_measured(cells: &[Cell], column: &str) -> bool {
    let has = |setting: &str| cells.iter().any(|cell| cell.setting.0 == setting);
    if column == BEST { SETTINGS.iter().filter(|(setting, _)| *setting != NO_PROXY && has(setting)).count() > 1 } else { has(column) }
}

/// Those of which both parts are measured.
fn quotients(cells: &[Cell]) -> impl Iterator<Item = (&'static str, &'static str)> {
    QUOTIENTS.into_iter().filter(|(of, other)| is_measured(cells, of) && is_measured(cells, other))
}

/// Whether a quotient of a cell's row is above its limit, or at most .02 below it.
pub(super) fn is_near_limit(tables: &[SampleTable], cell: &Cell) -> bool {
    let Some(table) = tables.iter().find(|table| table.name == cell.link.name) else { return true };
    QUOTIENTS.iter().any(|quotient| quotient_of(table, &row_of(cell), *quotient).is_some_and(|value| value >= limit(*quotient) - 0.02))
}

fn row_of(cell: &Cell) -> String {
    format!("{}: {}", cell.ends.name, cell.usage.name)
}

/// The greatest quotient that is as it should be.
fn limit((_, other): (&str, &str)) -> f64 {
    if other == BEST { 1.10 } else { 1.05 }
}

/// Quotient of the medians in a row.
fn quotient_of(table: &SampleTable, row: &str, (of, other): (&str, &str)) -> Option<f64> {
    Some(median_of(table, row, of)? / median_of(table, row, other)?)
}

/// Fills the column of the best with the samples of the setting that has the least median.
fn add_best(table: &mut SampleTable) {
    let rows: Vec<String> = table.rows.iter().map(|row| row.name.clone()).collect();
    for row in rows {
        let settings = SETTINGS.iter().map(|(setting, _)| *setting).filter(|setting| *setting != NO_PROXY);
        let measured = settings.filter_map(|setting| Some((setting, median_of(table, &row, setting)?)));
        let Some((best, _)) = measured.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        let samples = table.samples(&row, best).to_vec();
        let row = table.row(&row);
        row.set(BEST_IS, best);
        for (round, value) in samples.into_iter().enumerate() {
            if let Some(value) = value {
                row.add(BEST, round, value);
            }
        }
    }
}

/// The median of what was measured.
fn median_of(table: &SampleTable, row: &str, column: &str) -> Option<f64> {
    let samples: Vec<f64> = table.samples(row, column).iter().copied().flatten().collect();
    (!samples.is_empty()).then(|| median(&samples))
}

/// For each link the quotients of all its rows, and how many rows are beyond a limit.
fn summary(cells: &[Cell], tables: &[SampleTable]) -> SampleTable {
    let head = |(of, other): (&str, &str)| format!("{of} ÷ {other}");
    let beyond = |quotient: (&str, &str)| format!("{}: more than {:.2}", head(quotient), limit(quotient));
    let columns = quotients(cells).flat_map(|quotient| [SampleColumn::new(&head(quotient), "", 2), SampleColumn::text(&beyond(quotient))]);
    let mut summary = SampleTable::new("summary", "", columns.collect());
    for table in tables {
        for quotient in quotients(cells) {
            let of_rows: Vec<f64> = table.rows.iter().filter_map(|row| quotient_of(table, &row.name, quotient)).collect();
            let count = of_rows.iter().filter(|value| **value > limit(quotient)).count();
            let row = summary.row(&table.name);
            for (at, value) in of_rows.iter().enumerate() {
                row.add(&head(quotient), at, *value);
            }
            row.set(&beyond(quotient), format!("{count} of {}", of_rows.len()));
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monday::tests::suite;

    #[test]
    fn runs_become_a_table_of_each_link() {
        let suite = suite(&["GEO", "WAN", "CUBIC", "100 kB", NO_PROXY, SETUP, "bbr"]);
        let cells = [suite.cells(1), suite.cells(2)].concat();
        assert_eq!(cells.len(), 2 * 2 * 3 * 3);
        let seconds = |cell: &Cell| match cell.setting.0 {
            NO_PROXY => 3.0,
            SETUP => 1.5,
            _ => 1.0 + cell.round as f64 / 6.0,
        };
        let runs: Vec<StoredRun> = cells.iter().map(|cell| cell.run(seconds(cell))).collect();
        let tables = tables(&cells, &runs);
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(names, ["summary", "GEO", "WAN"]);
        let text = tables[1].markdown();
        assert!(
            text.contains("| Debian, CUBIC: 100 kB | 3.00 | 1.50 | 1.25 | bbr, B auto | 0.50 (0.50 … 0.50) | 1.21 (1.12 … 1.29) |"),
            "{text}"
        );
        assert_eq!(tables[1].samples("Debian, CUBIC: 100 kB", "bbr, B auto").len(), 2);
        let text = tables[0].markdown();
        assert!(text.contains("| GEO | 0.50 (0.50 … 0.50) | 0 of 3 | 1.20 (1.20 … 1.20) | 3 of 3 |"), "{text}");
    }
}
