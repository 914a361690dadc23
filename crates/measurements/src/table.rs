//! A table of samples, and how its cells are written.

use report::PlainTable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A table: rows of samples, and how each column is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleTable {
    /// Name, unique in its record.
    pub name: String,
    /// Head of the column of the rows' names.
    pub rows_are: String,
    /// The other columns.
    pub columns: Vec<SampleColumn>,
    /// The rows, in their order in the table.
    pub rows: Vec<SampleRow>,
}

/// A row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRow {
    /// Name, unique in its table.
    pub name: String,
    /// What was measured, by the head of the column.
    pub cells: BTreeMap<String, SampleCell>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SampleCell {
    /// A number of each round, in the order of the rounds; `None` where a round has no valid one.
    Samples(Vec<Option<f64>>),
    /// A verdict or a name.
    Text(String),
}

/// How a column is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleColumn {
    /// The head, which cells refer to. A column of ratios has no cells.
    pub head: String,
    /// Unit, if the head does not name it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Decimals.
    #[serde(default)]
    pub digits: usize,
    /// Whether positive numbers have a sign.
    #[serde(default, skip_serializing_if = "is_default")]
    pub signed: bool,
    /// What is told of the samples.
    #[serde(default, skip_serializing_if = "is_default")]
    pub statistic: SampleStatistic,
    /// Makes this a column of ratios.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ratio: Option<SampleRatio>,
}

/// What is told of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleStatistic {
    /// Median (least … most).
    #[default]
    Spread,
    /// The median.
    Median,
    /// The mean and half the width of its 95 % interval.
    Mean,
    /// The sum.
    Sum,
}

/// A ratio of two samples of the same round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRatio {
    /// Head of the column with the numerators.
    pub of: String,
    /// Head of the column with the denominators.
    pub over: String,
    /// Row of the denominators; none: the same row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl SampleColumn {
    /// A column of `median (least … most)` with this number of decimals.
    pub fn new(head: &str, unit: &str, digits: usize) -> Self {
        SampleColumn { head: head.into(), unit: unit.into(), digits, ..SampleColumn::default() }
    }

    /// A column of texts.
    pub fn text(head: &str) -> Self {
        SampleColumn::new(head, "", 0)
    }

    /// "×": the median of the ratios of a column to the same column of another row.
    pub fn times(of: &str, row: &str) -> Self {
        let ratio = Some(SampleRatio { of: of.into(), over: of.into(), row: Some(row.into()) });
        SampleColumn { statistic: SampleStatistic::Median, ratio, ..SampleColumn::new("×", "", 2) }
    }

    /// A column with the ratio of two columns of a row.
    pub fn quotient(head: &str, of: &str, over: &str, digits: usize) -> Self {
        let ratio = Some(SampleRatio { of: of.into(), over: over.into(), row: None });
        SampleColumn { ratio, ..SampleColumn::new(head, "", digits) }
    }

    /// The same column with another statistic.
    #[must_use]
    pub fn with(self, statistic: SampleStatistic) -> Self {
        SampleColumn { statistic, ..self }
    }

    /// The same column with signs before positive numbers.
    #[must_use]
    pub fn signed(self) -> Self {
        SampleColumn { signed: true, ..self }
    }

    fn header(&self) -> String {
        [self.head.as_str(), self.unit.as_str()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// The cell of these samples; a dash if there are none.
    fn write(&self, samples: &[f64]) -> String {
        if samples.is_empty() {
            return "–".into();
        }
        let digits = self.digits;
        let number = |value: f64| if self.signed { format!("{value:+.digits$}") } else { format!("{value:.digits$}") };
        let is_one = samples.len() == 1;
        match self.statistic {
            SampleStatistic::Spread if is_one => number(samples[0]),
            SampleStatistic::Spread => {
                let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
                let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                format!("{} ({} … {})", number(median(samples)), number(least), number(most))
            }
            SampleStatistic::Median => number(median(samples)),
            SampleStatistic::Mean => {
                let mean = number(samples.iter().sum::<f64>() / samples.len() as f64);
                if is_one { mean } else { format!("{mean} ± {:.digits$}", outcome::half_width(samples)) }
            }
            SampleStatistic::Sum => number(samples.iter().sum()),
        }
    }
}

impl SampleTable {
    /// A table without rows.
    pub fn new(name: &str, rows_are: &str, columns: Vec<SampleColumn>) -> Self {
        SampleTable { name: name.into(), rows_are: rows_are.into(), columns, rows: Vec::new() }
    }

    /// The row of this name. It is appended if there is none.
    pub fn row(&mut self, name: &str) -> &mut SampleRow {
        let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(SampleRow { name: name.into(), cells: BTreeMap::new() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// The samples of a cell, with `None` for missing rounds. Empty if there are none.
    pub fn samples(&self, row: &str, column: &str) -> &[Option<f64>] {
        match self.rows.iter().find(|known| known.name == row).and_then(|row| row.cells.get(column)) {
            Some(SampleCell::Samples(samples)) => samples,
            Some(SampleCell::Text(_)) | None => &[],
        }
    }

    /// As a table of Markdown. Ends with a newline.
    pub fn markdown(&self) -> String {
        let header = std::iter::once(self.rows_are.clone()).chain(self.columns.iter().map(SampleColumn::header)).collect();
        let row =
            |row: &SampleRow| std::iter::once(row.name.clone()).chain(self.columns.iter().map(|column| self.cell(row, column))).collect();
        PlainTable::with_header(header, self.rows.iter().map(row).collect()).markdown()
    }

    fn cell(&self, row: &SampleRow, column: &SampleColumn) -> String {
        if let Some(SampleCell::Text(text)) = row.cells.get(&column.head) {
            return text.clone();
        }
        let samples: Vec<f64> = match &column.ratio {
            None => self.samples(&row.name, &column.head).iter().copied().flatten().collect(),
            Some(SampleRatio { of, over, row: other }) => {
                let over = self.samples(other.as_ref().unwrap_or(&row.name), over);
                let pairs = self.samples(&row.name, of).iter().zip(over);
                pairs.filter_map(|(of, over)| Some((*of)? / (*over)?)).collect()
            }
        };
        column.write(&samples)
    }
}

impl SampleRow {
    /// Sets the sample of a round, from 0.
    pub fn add(&mut self, column: &str, round: usize, value: f64) {
        let cell = self.cells.entry(column.into()).or_insert_with(|| SampleCell::Samples(Vec::new()));
        if let SampleCell::Samples(samples) = cell {
            samples.resize(samples.len().max(round + 1), None);
            samples[round] = Some(value);
        }
    }

    /// Sets a text.
    pub fn set(&mut self, column: &str, text: impl Into<String>) {
        self.cells.insert(column.into(), SampleCell::Text(text.into()));
    }
}

/// The median; of an even number of values the mean of the two middle ones.
///
/// # Panics
/// If there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> SampleTable {
        let columns = vec![SampleColumn::new("cost", "s", 1), SampleColumn::times("cost", "base"), SampleColumn::text("verdict")];
        let mut table = SampleTable::new("t", "", columns);
        for (round, [base, other]) in [[1.0, 2.0], [2.0, 1.0], [10.0, 30.0]].into_iter().enumerate() {
            table.row("base").add("cost", round, base);
            table.row("other").add("cost", round, other);
        }
        table.row("other").set("verdict", "✓");
        table
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        // The ratio of the medians is 1.
        assert_eq!(
            table().markdown(),
            "|  | cost, s | × | verdict |\n| --- | --- | --- | --- |\n| base | 2.0 (1.0 … 10.0) | 1.00 | – |\n| other | 2.0 (1.0 … 30.0) | 2.00 | ✓ |\n"
        );
    }

    #[test]
    fn a_round_without_a_sample_has_no_ratio() {
        let mut table = table();
        table.row("late").add("cost", 2, 5.0);
        assert_eq!(table.samples("late", "cost"), [None, None, Some(5.0)]);
        assert!(table.markdown().ends_with("| late | 5.0 | 0.50 | – |\n"), "{}", table.markdown());
    }

    #[test]
    fn a_column_is_written_by_its_statistic() {
        let write = |column: SampleColumn| column.write(&[1.0, 4.0, 2.0, 1.0]);
        let column = || SampleColumn::new("", "", 2);
        assert_eq!(write(column()), "1.50 (1.00 … 4.00)");
        assert_eq!(write(column().signed().with(SampleStatistic::Median)), "+1.50");
        assert_eq!(write(column().with(SampleStatistic::Sum)), "8.00");
        // Student's t with 3 degrees of freedom: 3.182; the deviation is √2.
        assert_eq!(write(column().with(SampleStatistic::Mean)), "2.00 ± 2.25");
        assert_eq!(column().write(&[]), "–");
    }

    #[test]
    fn a_quotient_may_be_of_another_row_and_column() {
        let ratio = Some(SampleRatio { of: "far".into(), over: "near".into(), row: Some("a".into()) });
        let columns = vec![SampleColumn { ratio, ..SampleColumn::new("×", "", 1) }, SampleColumn::quotient("q", "far", "near", 1)];
        let mut table = SampleTable::new("t", "", columns);
        table.row("a").add("near", 0, 2.0);
        table.row("b").add("near", 0, 4.0);
        table.row("b").add("far", 0, 6.0);
        assert!(table.markdown().ends_with("| a | – | – |\n| b | 3.0 | 1.5 |\n"), "{}", table.markdown());
    }
}
