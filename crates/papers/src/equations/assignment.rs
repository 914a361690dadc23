//! The CAN model beside optimal decisions: fair shares that foreground jobs may leave unused, and
//! whole files that are assigned to one of two networks.

use super::{
    can::{loads, mean},
    parallel_map::parallel_map,
    table::{ComputedRow, ComputedTable, exact},
};
use crate::error::PaperError;
use theory::{AssignmentRule, Can, Mean, TheoryError};

/// The rules for whole files, with their names.
const RULES: [(AssignmentRule, &str); 6] = [
    (AssignmentRule::Optimal, "whole files, optimum"),
    (AssignmentRule::Index, "whole files, index"),
    (AssignmentRule::IndexOfTotals, "whole files, index of totals"),
    (AssignmentRule::ShortestExpectedDelay, "whole files, shortest expected delay"),
    (AssignmentRule::LargestRate, "whole files, largest rate on arrival"),
    (AssignmentRule::Random, "whole files, at random"),
];

/// The largest total load, and load of a background, at which the chains are solved. Above
/// it queues are long, and the chains have more states.
const MOST_LOAD: [f64; 2] = [0.85, 0.9];

/// The cells of Tables I to III that are solved.
fn solved() -> Result<Vec<[f64; 3]>, PaperError> {
    let is_solved = |[rho0, rho1, rho2]: &[f64; 3]| (rho0 + rho1 + rho2) / 2.0 < MOST_LOAD[0] + 1e-9 && rho1.max(*rho2) <= MOST_LOAD[1];
    Ok(loads()?.into_iter().filter(is_solved).collect())
}

/// E[S₀] at the loads of a cell, s.
struct Cell {
    loads: [f64; 3],
    /// The CAN model.
    split: Mean,
    /// The best use of fair shares.
    fair: Mean,
    /// By each of [`RULES`].
    whole: [Mean; 6],
}

impl Cell {
    fn new(loads: [f64; 3]) -> Result<Self, TheoryError> {
        let can = Can::new(loads[0], &loads[1..])?;
        let mut whole = [exact(f64::NAN); 6];
        for (time, (rule, _)) in whole.iter_mut().zip(RULES) {
            *time = mean(Some(can.assigned(rule)?));
        }
        Ok(Cell { loads, split: mean(can.solve().sojourn_s[0]), fair: mean(Some(can.best_fair_split()?)), whole })
    }

    fn row(&self, what: &str, here: Mean) -> ComputedRow {
        ComputedRow::new(self.loads.iter().map(f64::to_string).chain([what.to_owned()]).collect(), here, 4)
    }

    /// "Optimal" (Remark 1): no use of the fair shares, and no assignment of whole files, has a
    /// shorter time, within the errors.
    fn is_split_optimal(&self) -> bool {
        let best = self.whole[0];
        self.split.mean <= self.fair.mean + self.fair.half && self.split.mean < best.mean - best.half
    }

    /// By how much a rule's time is above the optimum of whole files, percent.
    fn above_optimum(&self, rule: usize) -> Mean {
        let (best, time) = (self.whole[0], self.whole[rule]);
        Mean { mean: (time.mean / best.mean - 1.0) * 100.0, half: (time.half + best.half) / best.mean * 100.0 }
    }

    /// By how much the CAN model's time is above the best use of fair shares, percent.
    fn above_fair(&self) -> Mean {
        let fair = self.fair;
        Mean { mean: (self.split.mean / fair.mean - 1.0) * 100.0, half: fair.half / fair.mean * 100.0 }
    }

    /// By how much the CAN model's time is below the optimum of whole files, percent.
    fn split_below_optimum(&self) -> Mean {
        let best = self.whole[0];
        Mean { mean: (1.0 - self.split.mean / best.mean) * 100.0, half: best.half / best.mean * 100.0 }
    }

    fn rows(&self) -> Vec<ComputedRow> {
        let split =
            self.row("split as a fluid (CAN)", self.split).claimed("the fluid split is optimal (Remark 1)", self.is_split_optimal());
        let note = if self.is_split_optimal() {
            String::new()
        } else {
            format!("{:.2} % above the best use of fair shares", self.above_fair().mean)
        };
        let mut rows = vec![split.with_note(note), self.row("fair shares used at will, optimum", self.fair)];
        rows.extend(RULES.iter().zip(&self.whole).map(|((_, name), time)| self.row(name, *time)));
        rows
    }
}

/// The extreme of a number over all cells, and where it is.
fn extreme(cells: &[Cell], what: &str, number: impl Fn(&Cell) -> Mean, is_before: impl Fn(f64, f64) -> bool) -> Option<ComputedRow> {
    let (cell, here) = cells.iter().map(|cell| (cell, number(cell))).reduce(|a, b| if is_before(b.1.mean, a.1.mean) { b } else { a })?;
    let of = ["all", "", "", what].map(str::to_owned).to_vec();
    Some(ComputedRow::new(of, here, 2).with_note(format!("at {}", cell.loads.map(|load| load.to_string()).join(", "))))
}

/// The CAN model beside the optimum, at the loads of Tables I to III.
pub(super) fn table() -> Result<ComputedTable, PaperError> {
    let cells: Vec<Cell> = parallel_map(&solved()?, |loads| Cell::new(*loads)).into_iter().collect::<Result<_, _>>()?;
    let mut rows: Vec<ComputedRow> = cells.iter().flat_map(Cell::rows).collect();
    rows.extend(extreme(&cells, "CAN, least below the optimum of whole files, %", Cell::split_below_optimum, |a, b| a < b));
    rows.extend(extreme(&cells, "CAN, most below the optimum of whole files, %", Cell::split_below_optimum, |a, b| a > b));
    rows.extend(extreme(&cells, "CAN, most above the best use of fair shares, %", Cell::above_fair, |a, b| a > b));
    for (rule, (_, name)) in RULES.iter().enumerate().skip(1) {
        rows.extend(extreme(&cells, &format!("{name}: most above the optimum, %"), |cell| cell.above_optimum(rule), |a, b| a > b));
    }
    let notes = vec![
        "Remark 1 calls the CAN model optimal while \"foreground jobs receive no more than their fair share\", and has no decision process. \
         \"Optimal\" holds where neither optimum here is below it, within the errors (±): that of foreground jobs which may leave a part of their \
         fair share of a network to its background, and that of whole files."
            .into(),
        "The cells of Tables I to III with a total load of at most 0.85: heavier ones were not tried. Exponential sizes. The chains are truncated; ± is the change by the last enlargement of the box and the distance of bounds of the \
         truncated chain's mean."
            .into(),
        "Index: the smallest 2a(m + 1) + bn, for m foreground and n background jobs in a network. It is the first step of policy iteration from \
         assignment at random, whose value is known in closed form. Index of totals: its mean if only the number of all jobs in each network is \
         known. Both were derived here: the text of the authors' later index rule was not available."
            .into(),
    ];
    Ok(ComputedTable::new(&["ρ0", "ρ1", "ρ2", "E[S0]"], rows, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(split: f64, fair: f64, best: f64) -> Cell {
        let mean = |mean: f64| Mean { mean, half: 0.01 };
        Cell { loads: [0.1, 0.2, 0.3], split: exact(split), fair: mean(fair), whole: [best, best, best, best, best, 1.1 * best].map(mean) }
    }

    #[test]
    fn the_split_is_optimal_unless_an_optimum_is_below_it() {
        assert!(cell(1.0, 1.0, 1.5).is_split_optimal());
        assert!(cell(1.0, 0.995, 1.5).is_split_optimal(), "within the error");
        assert!(!cell(1.0, 0.98, 1.5).is_split_optimal(), "shares left unused");
        assert!(!cell(1.0, 1.0, 1.005).is_split_optimal(), "whole files");
    }

    #[test]
    fn the_extreme_names_its_cell() {
        let cells = [cell(1.0, 1.0, 1.25), Cell { loads: [0.9, 0.1, 0.1], ..cell(1.0, 1.0, 2.0) }];
        let row = extreme(&cells, "gain", Cell::split_below_optimum, |a, b| a > b).unwrap();
        assert!((row.here.mean - 50.0).abs() < 1e-9 && row.note == "at 0.9, 0.1, 0.1", "{row:?}");
        assert!((cells[0].above_optimum(5).mean - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_cell_has_all_rules_in_order() {
        let rows = Cell::new([0.1, 0.1, 0.3]).unwrap().rows();
        let times: Vec<f64> = rows.iter().map(|row| row.here.mean).collect();
        assert_eq!((rows.len(), rows[0].holds, rows[1].holds), (8, Some(true), None));
        assert!(times[0] < times[2] && times[2] <= times[3] + 1e-3 && times[3] < times[7], "{times:?}");
    }
}
