//! Figures, and the tables they make.

use crate::{Test, machine::Spent};
use std::{collections::BTreeMap, fmt};

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
    pub(crate) fn foreign(&self) -> f64 {
        self.spent.foreign.as_secs_f64() / self.spent.wall.as_secs_f64()
    }

    /// More than that, and the figures are not those of the load.
    pub(crate) const MOST_FOREIGN: f64 = 0.05;

    pub(crate) fn is_valid(&self) -> bool {
        self.foreign() <= Self::MOST_FOREIGN
    }
}

impl fmt::Display for Measures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (measure, figure) in &self.figures {
            write!(f, "{} {figure:.*}; ", measure.heading(), measure.digits())?;
        }
        write!(f, "others kept {:.2} cores busy{}", self.foreign(), if self.is_valid() { "" } else { ": INVALID" })
    }
}

/// Every figure of every rival.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// In the order in which they came.
    rivals: Vec<String>,
    figures: BTreeMap<(Test, Measure), BTreeMap<String, Vec<f64>>>,
    invalid: usize,
}

/// The rival that ratios are against.
const YARDSTICK: &str = "haproxy-1";

impl Results {
    pub(crate) fn add(&mut self, test: Test, rival: &str, measures: &Measures) {
        if !self.rivals.iter().any(|known| known == rival) {
            self.rivals.push(rival.into());
        }
        self.invalid += usize::from(!measures.is_valid());
        for &(measure, figure) in &measures.figures {
            self.figures.entry((test, measure)).or_default().entry(rival.into()).or_default().push(figure);
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

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
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
                    let (Some(figures), digits) = (of_all.get(rival), column.digits()) else { continue };
                    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
                    let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    write!(f, " {:.digits$} ({least:.digits$} … {most:.digits$}) |", median(figures))?;
                    match of_all.get(YARDSTICK).filter(|yardstick| yardstick.len() == figures.len()) {
                        Some(yardstick) => {
                            let ratios: Vec<f64> = figures.iter().zip(yardstick).map(|(figure, yardstick)| figure / yardstick).collect();
                            write!(f, " {:.2} |", median(&ratios))?;
                        }
                        None => write!(f, " – |")?,
                    }
                }
                writeln!(f)?;
            }
        }
        if self.invalid > 0 {
            writeln!(f, "\n{} measurements were INVALID: the machine was busy with something else.", self.invalid)?;
        }
        Ok(())
    }
}
