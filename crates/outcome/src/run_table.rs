//! Outcomes as one table with a row for each run: what other programs read (CSV, Parquet, data
//! frames).

use crate::{NUMBERS, Outcome};
use scenario::SetValue;
use std::collections::{BTreeMap, BTreeSet};

/// The values of a column, one for each row.
#[derive(Debug, Clone, PartialEq)]
pub enum RunColumn {
    /// Numbers; none where an outcome lacks it.
    Numbers(Vec<Option<f64>>),
    /// Whole numbers.
    Integers(Vec<u64>),
    /// True or false.
    Truths(Vec<bool>),
    /// Texts; none where an outcome lacks it.
    Texts(Vec<Option<String>>),
}

/// A row for each outcome. The columns are `scenario`, `case`, `engine`, `seed`, `valid`, then a
/// column for each key that was changed, by its name in the file and in base units ([`SetValue`]),
/// then [`NUMBERS`]. Names are unique: a changed key has no column if another column has its name,
/// as that of the key `seed`, which says with which seed a run was played.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTable {
    /// Name and values of each column.
    pub columns: Vec<(String, RunColumn)>,
    /// Number of rows.
    pub rows: usize,
}

/// A run in a [`RunTable`]: what an outcome says in numbers, without its flows and series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunRow {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the case.
    pub case: String,
    /// Name of the engine.
    pub engine: String,
    /// Seed of the run.
    pub seed: u64,
    /// Whether the machine kept up with the scenario.
    pub valid: bool,
    /// The changed keys with their values.
    pub set: BTreeMap<String, SetValue>,
    /// The numbers, in the order of [`NUMBERS`]; none where the outcome lacks it.
    pub numbers: Vec<Option<f64>>,
}

impl From<&Outcome> for RunRow {
    fn from(outcome: &Outcome) -> Self {
        RunRow {
            scenario: outcome.scenario.clone(),
            case: outcome.case.clone(),
            engine: outcome.engine.clone(),
            seed: outcome.seed,
            valid: outcome.valid,
            set: outcome.set.clone(),
            numbers: NUMBERS.iter().map(|name| outcome.number(name)).collect(),
        }
    }
}

impl RunTable {
    /// The table of these outcomes. With `all_numbers` it has every one of [`NUMBERS`], so that
    /// tables of different runs have the same columns; else those that some outcome has.
    pub fn new(outcomes: &[Outcome], all_numbers: bool) -> Self {
        RunTable::of_rows(&outcomes.iter().map(RunRow::from).collect::<Vec<_>>(), all_numbers)
    }

    /// The table of these rows; `all_numbers` as in [`new`](Self::new).
    pub fn of_rows(rows: &[RunRow], all_numbers: bool) -> Self {
        let texts = |of: fn(&RunRow) -> &String| RunColumn::Texts(rows.iter().map(|row| Some(of(row).clone())).collect());
        let mut columns = vec![
            ("scenario".to_owned(), texts(|row| &row.scenario)),
            ("case".to_owned(), texts(|row| &row.case)),
            ("engine".to_owned(), texts(|row| &row.engine)),
            ("seed".to_owned(), RunColumn::Integers(rows.iter().map(|row| row.seed).collect())),
            ("valid".to_owned(), RunColumn::Truths(rows.iter().map(|row| row.valid).collect())),
        ];
        let mut keys: BTreeSet<&String> = rows.iter().flat_map(|row| row.set.keys()).collect();
        keys.retain(|key| !NUMBERS.contains(&key.as_str()) && columns.iter().all(|(name, _)| name != *key));
        columns.extend(keys.into_iter().map(|key| (key.clone(), set_column(rows, key))));
        for (index, name) in NUMBERS.into_iter().enumerate() {
            let numbers: Vec<Option<f64>> = rows.iter().map(|row| row.numbers.get(index).copied().flatten()).collect();
            if all_numbers || numbers.iter().any(Option::is_some) {
                columns.push((name.to_owned(), RunColumn::Numbers(numbers)));
            }
        }
        RunTable { columns, rows: rows.len() }
    }

    /// The column of this name; none if the table lacks it.
    pub fn column(&self, name: &str) -> Option<&RunColumn> {
        self.columns.iter().find(|(other, _)| other == name).map(|(_, column)| column)
    }
}

/// The values of a changed key: numbers if all are, else texts.
fn set_column(rows: &[RunRow], key: &str) -> RunColumn {
    let values: Vec<Option<&SetValue>> = rows.iter().map(|row| row.set.get(key)).collect();
    if values.iter().all(|value| matches!(value, None | Some(SetValue::Number(_)))) {
        let number = |value: &Option<&SetValue>| if let Some(SetValue::Number(number)) = value { Some(*number) } else { None };
        RunColumn::Numbers(values.iter().map(number).collect())
    } else {
        RunColumn::Texts(values.iter().map(|value| value.map(ToString::to_string)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_run_the_changed_keys_and_the_numbers() {
        let outcome = |seed, set: &[(&str, SetValue)]| Outcome {
            engine: "sim".into(),
            seed,
            valid: true,
            goodput_bps: seed as f64,
            set: set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
            ..Outcome::default()
        };
        let outcomes = [
            outcome(1, &[("link.1.rate", SetValue::Number(1e7)), ("control.proxy", SetValue::Text("bbr".into()))]),
            outcome(2, &[("link.1.rate", SetValue::Number(2e7)), ("control.proxy", SetValue::Number(1.0))]),
        ];
        let table = RunTable::new(&outcomes, false);
        assert_eq!(table.column("seed"), Some(&RunColumn::Integers(vec![1, 2])));
        assert_eq!(table.column("link.1.rate"), Some(&RunColumn::Numbers(vec![Some(1e7), Some(2e7)])));
        assert_eq!(table.column("control.proxy"), Some(&RunColumn::Texts(vec![Some("bbr".into()), Some("1".into())])));
        assert_eq!(table.column("goodput_bps"), Some(&RunColumn::Numbers(vec![Some(1.0), Some(2.0)])));
        assert_eq!(table.column("jain"), None);
        let all = RunTable::new(&outcomes, true);
        assert_eq!((all.rows, all.columns.len()), (2, 7 + NUMBERS.len()));
    }

    #[test]
    fn names_of_columns_are_unique() {
        let set = ["seed", "goodput_bps", "duration"].map(|key| (key.to_owned(), SetValue::Number(3.0)));
        let outcome = Outcome { seed: 4, set: set.into(), ..Outcome::default() };
        let table = RunTable::new(&[outcome], true);
        let names: BTreeSet<&String> = table.columns.iter().map(|(name, _)| name).collect();
        assert_eq!((names.len(), table.columns.len()), (6 + NUMBERS.len(), 6 + NUMBERS.len()));
        assert_eq!(table.column("seed"), Some(&RunColumn::Integers(vec![4])));
    }
}
