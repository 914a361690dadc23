//! Figures, and the tables they make.

use crate::comparison::Test;
use std::{collections::BTreeMap, fmt};
use testbed::Spent;

/// What a figure says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    CpuPerGigabyte,
    ProxyCpuPerGigabyte,
    Throughput,
    Connections,
    CpuPerConnection,
    ProxyCpuPerConnection,
    ExchangeP50,
    ExchangeP99,
    MemoryPerIdle,
}

impl Measure {
    fn heading(self) -> &'static str {
        match self {
            Measure::CpuPerGigabyte => "machine, CPU s/GB",
            Measure::ProxyCpuPerGigabyte => "of it the proxy, CPU s/GB",
            Measure::Throughput => "Gbit/s",
            Measure::Connections => "connections/s",
            Measure::CpuPerConnection => "machine, CPU µs/connection",
            Measure::ProxyCpuPerConnection => "of it the proxy, CPU µs/connection",
            Measure::ExchangeP50 => "exchange p50, µs",
            Measure::ExchangeP99 => "exchange p99, µs",
            Measure::MemoryPerIdle => "memory per idle connection, kB",
        }
    }

    fn digits(self) -> usize {
        match self {
            Measure::CpuPerGigabyte | Measure::ProxyCpuPerGigabyte => 3,
            Measure::Connections => 0,
            _ => 1,
        }
    }
}

/// The figures of one measurement.
#[derive(Debug, Clone)]
pub(crate) struct Measures {
    figures: Vec<(Measure, f64)>,
    spent: Spent,
}

impl Measures {
    pub(crate) fn new(spent: Spent) -> Self {
        Measures { figures: Vec::new(), spent }
    }

    pub(crate) fn with(mut self, measure: Measure, figure: f64) -> Self {
        self.figures.push((measure, figure));
        self
    }

    /// How many cores others kept busy meanwhile.
    pub(crate) fn others(&self) -> f64 {
        self.spent.others.as_secs_f64() / self.spent.wall.as_secs_f64()
    }

    /// More than that, and the figures are not those of the load.
    const MOST_OF_OTHERS: f64 = 0.05;

    pub(crate) fn is_valid(&self) -> bool {
        self.others() <= Self::MOST_OF_OTHERS
    }
}

impl fmt::Display for Measures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (measure, figure) in &self.figures {
            write!(f, "{} {figure:.*}; ", measure.heading(), measure.digits())?;
        }
        write!(f, "others kept {:.2} cores busy{}", self.others(), if self.is_valid() { "" } else { ": INVALID" })
    }
}

/// Every figure of every rival.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// In the order in which they came.
    rivals: Vec<String>,
    figures: BTreeMap<(Test, Measure), BTreeMap<String, BTreeMap<usize, f64>>>,
    given_up: usize,
}

/// The rival that ratios are against.
const YARDSTICK: &str = "haproxy-1";

impl Results {
    /// Takes in what was measured in a round, unless somebody disturbed it.
    pub(crate) fn add(&mut self, round: usize, test: Test, rival: &str, measures: &Measures) {
        if !self.rivals.iter().any(|known| known == rival) {
            self.rivals.push(rival.into());
        }
        if !measures.is_valid() {
            self.given_up += 1;
            return;
        }
        for &(measure, figure) in &measures.figures {
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

pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tests: std::collections::BTreeSet<Test> = self.figures.keys().map(|(test, _)| *test).collect();
        for test in tests {
            let columns: Vec<Measure> = self.figures.keys().filter(|(of, _)| *of == test).map(|(_, measure)| *measure).collect();
            writeln!(f, "\n{test:?}: median (least … most), and the median of the ratios to {YARDSTICK} in the same round\n")?;
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
                    let least = figures.values().copied().fold(f64::INFINITY, f64::min);
                    let most = figures.values().copied().fold(f64::NEG_INFINITY, f64::max);
                    write!(f, " {:.digits$} ({least:.digits$} … {most:.digits$}) |", median(figures.values().copied()))?;
                    let yardstick = |round: &usize| of_all.get(YARDSTICK)?.get(round);
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
