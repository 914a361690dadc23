//! The start-up of a transfer, beside what Wei et al. print.

use super::{Line, Sheet, exact, rows};
use crate::PaperError;
use serde::Deserialize;
use theory::{Downstream, SlowStart as StartUp};

#[derive(Debug, Deserialize)]
struct Cell {
    table: String,
    row: String,
    column: String,
    value: String,
}

/// What both take alike: the handshake, the request, and half of a round trip of the last byte on its way, s.
const BEFORE_S: f64 = 2.0 * 0.83;

/// The paper's example: 30 ms upstream, 800 ms downstream, 128 kbit/s, 1500 bytes.
fn example() -> Result<StartUp, PaperError> {
    Ok(StartUp::new(0.03, 0.8, 16_000.0, 1500.0)?)
}

pub(super) fn sheet() -> Result<Sheet, PaperError> {
    let start = example()?;
    let sooner = |downstream: Downstream| exact(start.regular_s() - start.split_s(downstream));
    let what = |text: &str| vec![text.to_owned()];
    let mut lines = vec![
        Line::new(what("T_regular, s"), exact(start.regular_s()), 3),
        Line::new(what("sooner by, s, downstream without slow start"), sooner(Downstream::Full), 3).beside("2.5"),
        Line::new(what("sooner by, s, downstream with slow start"), sooner(Downstream::SlowStart), 3)
            .beside("0.12")
            .because("the paper's own formula gives r₁ log₂((r₁ + r₂)v/s) + r₂ log₂((r₁ + r₂)/r₂), which is this; it says about 0.12"),
        Line::new(what("sent before the rate is reached, kB, end to end"), exact(start.bytes_before() / 1e3), 1).beside("25"),
        Line::new(what("the same with delayed ACKs, kB"), exact(start.with_growth(1.5)?.bytes_before() / 1e3), 1)
            .beside("50")
            .because("a window that grows by half a round trip"),
    ];
    let cells: Vec<Cell> = rows("wei/tables.csv")?;
    // The first column is the file's size in kB.
    for cell in cells.iter().filter(|cell| cell.table == "II" && cell.column == "west_improvement_pct") {
        let kilobytes: f64 = cell.row.parse().unwrap_or(f64::NAN);
        let times = [start.transfer_regular_s(kilobytes * 1e3), start.transfer_split_s(kilobytes * 1e3, Downstream::Full)];
        let ratio = (BEFORE_S + times[0]) / (BEFORE_S + times[1]);
        let line = Line::new(what(&format!("rate gained by a file of {kilobytes} kB, %")), exact((ratio - 1.0) * 100.0), 0);
        lines.push(Line { printed: Some(format!("{} measured", cell.value)), ..line });
    }
    let notes = vec![
        "Gains are of the analysis at 128 kbit/s, without delayed ACKs, of the time from the first SYN to the last byte; those printed were measured in 2005 in real networks at about 120 kbit/s \
         (Table II, from the west coast): what can be compared is the shape. Less than nothing for one packet, most at tens of kilobytes, \
         little for a megabyte."
            .into(),
    ];
    Ok(Sheet { head: vec!["of"], lines, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_and_the_shape_come_out() {
        let sheet = sheet().unwrap();
        assert_eq!((sheet.lines[1].holds, sheet.lines[2].holds, sheet.lines[3].holds), (Some(true), Some(false), Some(true)));
        let gains: Vec<f64> = sheet.lines[5..].iter().map(|line| line.here.mean).collect();
        assert_eq!(gains.len(), 7);
        let best = gains.iter().copied().fold(f64::MIN, f64::max);
        // 1, 5, 10, 50, 100, 500, 1000 kB.
        assert!(gains[0] < 0.0 && gains[2..5].contains(&best) && gains[6] < best / 4.0, "{gains:?}");
    }
}
