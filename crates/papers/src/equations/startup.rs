//! The start-up of a transfer, compared with what Wei et al. print.

use super::table::{ComputedRow, ComputedTable, exact};
use crate::{embedded::csv_rows, error::PaperError};
use serde::Deserialize;
use theory::{Downstream, SlowStart};

#[derive(Debug, Deserialize)]
struct Cell {
    table: String,
    row: String,
    column: String,
    value: String,
}

/// The time that both have in common, s: handshake, request, and half a round trip for the last byte.
const COMMON_S: f64 = 2.0 * 0.83;

/// The paper's example: RTTs upstream (r₁) and downstream (r₂), s; 128 kbit/s, 1500 bytes.
const UPSTREAM_S: f64 = 0.03;
const DOWNSTREAM_S: f64 = 0.8;

fn example() -> Result<SlowStart, PaperError> {
    Ok(SlowStart::new(UPSTREAM_S, DOWNSTREAM_S, 16_000.0, 1500.0)?)
}

pub(super) fn table() -> Result<ComputedTable, PaperError> {
    let start = example()?;
    let saved = |downstream: Downstream| exact(start.regular_s() - start.split_s(downstream));
    let approximate = |downstream: Downstream| exact(start.approximate_difference_s(downstream));
    let what = |text: &str| vec![text.to_owned()];
    // The paper takes log₂(1 + x) for x.
    let ratio = UPSTREAM_S / DOWNSTREAM_S;
    let slip = (1.0 + ratio).log2() / ratio;
    let mut rows = vec![
        ComputedRow::new(what("T_regular, s"), exact(start.regular_s()), 3),
        ComputedRow::new(what("sooner by, s, downstream without slow start"), approximate(Downstream::Full), 3)
            .compared_with("2.5")
            .with_note("the paper's last line, r₁ + r₂ log₂(r₂ v/s)"),
        ComputedRow::new(what("the same, not approximated"), saved(Downstream::Full), 3).compared_with("2.5"),
        ComputedRow::new(what("sooner by, s, downstream with slow start"), approximate(Downstream::SlowStart), 3)
            .compared_with("0.12")
            .with_note("the paper's last line, r₁ (log₂(r₂ v/s) + 1)"),
        ComputedRow::new(what("the same, not approximated"), saved(Downstream::SlowStart), 3)
            .with_note("r₁ log₂((r₁ + r₂)v/s) + r₂ log₂(1 + r₁/r₂): more than the last line, by the next row"),
        ComputedRow::new(what("log₂(1 + r₁/r₂) in units of r₁/r₂"), exact(slip), 3)
            .claimed("1: log(1 + r₁/r₂) ≈ r₁/r₂", (slip - 1.0).abs() < 0.05)
            .with_note("true of the natural logarithm; to base 2, log₂(1 + x) ≈ x/ln 2 = 1.443 x for a small x"),
        ComputedRow::new(what("sent before the rate is reached, kB, end to end"), exact(start.bytes_before() / 1e3), 1).compared_with("25"),
        ComputedRow::new(what("the same with delayed ACKs, kB"), exact(start.with_growth(1.5)?.bytes_before() / 1e3), 1)
            .compared_with("50")
            .with_note("a window that grows by half a round trip"),
    ];
    let cells: Vec<Cell> = csv_rows("wei/tables.csv")?;
    // The first column is the file's size in kB.
    for cell in cells.iter().filter(|cell| cell.table == "II" && cell.column == "west_improvement_pct") {
        let kilobytes: f64 = cell.row.parse().unwrap_or(f64::NAN);
        let times = [start.transfer_regular_s(kilobytes * 1e3), start.transfer_split_s(kilobytes * 1e3, Downstream::Full)];
        let ratio = (COMMON_S + times[0]) / (COMMON_S + times[1]);
        let row = ComputedRow::new(what(&format!("rate gained by a file of {kilobytes} kB, %")), exact((ratio - 1.0) * 100.0), 0);
        rows.push(ComputedRow { printed: Some(format!("{} measured", cell.value)), ..row });
    }
    let notes = vec![
        "Gains here: by the analysis, at 128 kbit/s and without delayed ACKs, in the time from the first SYN to the last byte. Printed: measured in 2005 in \
         real networks at about 120 kbit/s (Table II, from the west coast). Only the shape can be compared: a loss for one packet, the largest \
         gain at tens of kilobytes, little for a megabyte."
            .into(),
    ];
    Ok(ComputedTable::new(&["of"], rows, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_and_the_shape_match_the_paper() {
        let table = table().unwrap();
        let holds: Vec<Option<bool>> = table.rows[..8].iter().map(|row| row.holds).collect();
        // Both printed approximations hold. The step that leads to them does not, nor do the 50 kB.
        assert_eq!(holds, [None, Some(true), Some(true), Some(true), None, Some(false), Some(true), Some(false)]);
        let gains: Vec<f64> = table.rows[8..].iter().map(|row| row.here.mean).collect();
        assert_eq!(gains.len(), 7);
        let best = gains.iter().copied().fold(f64::MIN, f64::max);
        // 1, 5, 10, 50, 100, 500, 1000 kB.
        assert!(gains[0] < 0.0 && gains[2..5].contains(&best) && gains[6] < best / 4.0, "{gains:?}");
    }
}
