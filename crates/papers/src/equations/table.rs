//! A computed table.

use outcome::half_width;
use serde::{Deserialize, Serialize};
use theory::Mean;

/// A computed table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputedTable {
    /// The heads of the first columns, which say what a row is about.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<ComputedRow>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

impl ComputedTable {
    /// A table with these heads.
    pub fn new(head: &[&str], rows: Vec<ComputedRow>, notes: Vec<String>) -> Self {
        ComputedTable { head: head.iter().map(|head| (*head).to_owned()).collect(), rows, notes }
    }
}

/// A row of a computed table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputedRow {
    /// What it is about: a cell for each of [`ComputedTable::head`].
    pub of: Vec<String>,
    /// What the paper prints, in its own digits, or says.
    pub printed: Option<String>,
    /// The number here.
    #[serde(with = "recorded_mean")]
    pub here: Mean,
    /// How many decimals of it are shown.
    pub decimals: usize,
    /// Whether the two agree; absent where nothing is claimed.
    pub holds: Option<bool>,
    /// Why they do not agree, or what the number is; empty: nothing to say.
    pub note: String,
}

impl ComputedRow {
    pub(super) fn new(of: Vec<String>, here: Mean, decimals: usize) -> Self {
        ComputedRow { of, printed: None, here, decimals, holds: None, note: String::new() }
    }

    /// Compares with a printed number: it holds if the number here, within its interval, rounds to
    /// the printed one.
    pub(super) fn compared_with(self, printed: &str) -> Self {
        let decimals = printed.split_once('.').map_or(0, |(_, digits)| digits.len());
        let value: f64 = printed.parse().unwrap_or(f64::NAN);
        // Slightly more than half a unit: a number that ends in 5 may be rounded either way.
        let tolerance = 0.500_001 * 0.1f64.powi(decimals as i32) + self.here.half;
        let holds = (self.here.mean - value).abs() <= tolerance;
        ComputedRow { printed: Some(printed.into()), holds: Some(holds), ..self }
    }

    /// Compares with a statement of the paper.
    pub(super) fn claimed(self, says: &str, holds: bool) -> Self {
        ComputedRow { printed: Some(says.into()), holds: Some(holds), ..self }
    }

    pub(super) fn with_note(self, note: impl Into<String>) -> Self {
        ComputedRow { note: note.into(), ..self }
    }

    /// What the row is about, in one line: the cells that are not empty.
    pub fn name(&self) -> String {
        self.of.iter().filter(|cell| !cell.is_empty()).map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// The difference from the printed number, in percent of it; absent where no number is printed.
    pub fn differs_percent(&self) -> Option<f64> {
        let printed: f64 = self.printed.as_ref()?.parse().ok()?;
        (printed != 0.0).then(|| (self.here.mean / printed - 1.0) * 100.0)
    }
}

/// A [`Mean`] in a record: the mean and the half width. JSON has no number for NaN or infinity;
/// both are `null`, and NaN when they are read.
mod recorded_mean {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use theory::Mean;

    pub(super) fn serialize<S: Serializer>(mean: &Mean, to: S) -> Result<S::Ok, S::Error> {
        [mean.mean, mean.half].map(|number| number.is_finite().then_some(number)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mean, D::Error> {
        let [mean, half] = <[Option<f64>; 2]>::deserialize(from)?.map(|number| number.unwrap_or(f64::NAN));
        Ok(Mean { mean, half })
    }
}

/// A number whose error is negligible.
pub(super) fn exact(mean: f64) -> Mean {
    Mean { mean, half: 0.0 }
}

/// A mean over seeds, with its interval.
pub(super) fn over_seeds(values: &[f64]) -> Mean {
    Mean { mean: values.iter().sum::<f64>() / values.len() as f64, half: half_width(values) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_row_leaves_empty_cells_out() {
        let row = ComputedRow::new(["all", "", "", "gain, %"].map(str::to_owned).into(), exact(1.0), 1);
        assert_eq!(row.name(), "all, gain, %");
    }

    #[test]
    fn a_number_holds_where_it_rounds_to_what_is_printed() {
        let row = |value: f64, half: f64| ComputedRow::new(vec![], Mean { mean: value, half }, 3).compared_with("0.57");
        assert_eq!(row(0.5749, 0.0).holds, Some(true));
        assert_eq!(row(0.5761, 0.0).holds, Some(false));
        assert_eq!(row(0.5761, 0.002).holds, Some(true));
        assert!((row(0.5757, 0.0).differs_percent().unwrap() - 1.0).abs() < 1e-9);
    }
}
