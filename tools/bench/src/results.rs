//! Figures, and the tables they make.

use crate::{
    measurement::{BenchMetric, Measurement},
    statistics::{median, spread},
};
use std::{collections::BTreeMap, fmt};

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum ComparisonTest {
    /// One flow, as fast as it goes
    Bulk1,
    /// Eight flows
    Bulk8,
    /// Short connections, 64 at a time
    Short,
    /// One exchange after the other on one connection
    Exchange,
    /// Memory of idle connections
    Idle,
}

/// Every figure of every rival.
#[derive(Debug, Default)]
pub(crate) struct ComparisonResults {
    /// In the order in which they came.
    rivals: Vec<String>,
    figures: BTreeMap<(ComparisonTest, BenchMetric), BTreeMap<String, BTreeMap<usize, f64>>>,
    given_up: usize,
}

/// The rival that ratios are against.
const BASELINE: &str = "haproxy-1";

impl ComparisonResults {
    /// Takes in what was measured in a round, unless somebody disturbed it.
    pub(crate) fn add(&mut self, round: usize, test: ComparisonTest, rival: &str, measures: &Measurement) {
        if !self.rivals.iter().any(|known| known == rival) {
            self.rivals.push(rival.into());
        }
        if !measures.is_valid() {
            self.given_up += 1;
            return;
        }
        for &(measure, figure) in measures.figures() {
            self.figures.entry((test, measure)).or_default().entry(rival.into()).or_default().insert(round, figure);
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        self.figures
            .iter()
            .map(|((test, measure), rivals)| {
                serde_json::json!({ "test": format!("{test:?}").to_lowercase(), "measure": measure.heading(), "rivals": rivals })
            })
            .collect()
    }
}

impl fmt::Display for ComparisonResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tests: std::collections::BTreeSet<ComparisonTest> = self.figures.keys().map(|(test, _)| *test).collect();
        for test in tests {
            let columns: Vec<BenchMetric> = self.figures.keys().filter(|(of, _)| *of == test).map(|(_, measure)| *measure).collect();
            writeln!(f, "\n{test:?}: median (least … most), and the median of the ratios to {BASELINE} in the same round\n")?;
            write!(f, "| |")?;
            for column in &columns {
                write!(f, " {} | × |", column.heading())?;
            }
            writeln!(f, "\n|---|{}", "---|---|".repeat(columns.len()))?;
            for rival in &self.rivals {
                if !columns.iter().any(|column| self.figures[&(test, *column)].contains_key(rival)) {
                    continue;
                }
                write!(f, "| {rival} |")?;
                for column in &columns {
                    let of_all = &self.figures[&(test, *column)];
                    let (Some(figures), digits) = (of_all.get(rival), column.digits()) else {
                        write!(f, " – | – |")?;
                        continue;
                    };
                    write!(f, " {} |", spread(figures.values().copied(), digits))?;
                    let yardstick = |round: &usize| of_all.get(BASELINE)?.get(round);
                    let mut ratios =
                        figures.iter().filter_map(|(round, figure)| yardstick(round).map(|yardstick| figure / yardstick)).peekable();
                    match ratios.peek() {
                        Some(_) => write!(f, " {:.2} |", median(ratios))?,
                        None => write!(f, " – |")?,
                    }
                }
                writeln!(f)?;
            }
        }
        if self.given_up > 0 {
            writeln!(f, "\n{} measurements are missing: however often, the machine was busy with something else.", self.given_up)?;
        }
        Ok(())
    }
}
