//! Results of the comparison, and their tables.

use crate::{
    measurement::{BenchMetric, Measurement},
    statistics::{median, spread},
};
use std::{collections::BTreeMap, fmt};

/// A kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum ComparisonTest {
    /// One flow at full speed
    Bulk1,
    /// Eight flows
    Bulk8,
    /// Short connections, 64 in parallel
    Short,
    /// Exchanges in turn on one connection
    Exchange,
    /// Memory of idle connections
    Idle,
}

/// All figures of all rivals.
#[derive(Debug, Default)]
pub(crate) struct ComparisonResults {
    /// In the order of their first measurement.
    rivals: Vec<String>,
    figures: BTreeMap<(ComparisonTest, BenchMetric), BTreeMap<String, BTreeMap<usize, f64>>>,
    given_up: usize,
}

/// The rival to which ratios are computed.
const BASELINE: &str = "haproxy-1";

impl ComparisonResults {
    /// Adds the figures of a round, unless other programs disturbed the measurement.
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
                    let baseline = |round: &usize| of_all.get(BASELINE)?.get(round);
                    let mut ratios =
                        figures.iter().filter_map(|(round, figure)| baseline(round).map(|baseline| figure / baseline)).peekable();
                    match ratios.peek() {
                        Some(_) => write!(f, " {:.2} |", median(ratios))?,
                        None => write!(f, " – |")?,
                    }
                }
                writeln!(f)?;
            }
        }
        if self.given_up > 0 {
            writeln!(f, "\n{} measurements are missing: other programs disturbed every attempt.", self.given_up)?;
        }
        Ok(())
    }
}
