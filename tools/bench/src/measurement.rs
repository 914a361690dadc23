//! One measurement: its figures, and whether other programs disturbed it.

use anyhow::Result;
use measurements::{MeasurementRecord, SampleColumn};
use std::fmt;
use testbed::CpuUsage;

/// What a figure measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BenchMetric {
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

impl BenchMetric {
    /// The column in which it stands.
    pub(crate) fn column(self) -> SampleColumn {
        let (head, unit, digits) = match self {
            BenchMetric::CpuPerGigabyte => ("machine", "CPU s/GB", 3),
            BenchMetric::ProxyCpuPerGigabyte => ("of it the proxy", "CPU s/GB", 3),
            BenchMetric::Throughput => ("throughput", "Gbit/s", 1),
            BenchMetric::Connections => ("rate", "connections/s", 0),
            BenchMetric::CpuPerConnection => ("machine", "CPU µs/connection", 1),
            BenchMetric::ProxyCpuPerConnection => ("of it the proxy", "CPU µs/connection", 1),
            BenchMetric::ExchangeP50 => ("p50", "µs", 1),
            BenchMetric::ExchangeP99 => ("p99", "µs", 1),
            BenchMetric::MemoryPerIdle => ("memory", "kB", 1),
        };
        SampleColumn::new(head, unit, digits)
    }

    /// Whether it is of the processes in the middle, of which plain forwarding has none.
    pub(crate) fn is_of_proxy(self) -> bool {
        matches!(self, BenchMetric::ProxyCpuPerGigabyte | BenchMetric::ProxyCpuPerConnection)
    }
}

/// The figures of one measurement.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    figures: Vec<(BenchMetric, f64)>,
    spent: CpuUsage,
}

impl Measurement {
    pub(crate) fn new(spent: CpuUsage) -> Self {
        Measurement { figures: Vec::new(), spent }
    }

    pub(crate) fn with(mut self, measure: BenchMetric, figure: f64) -> Self {
        self.figures.push((measure, figure));
        self
    }

    pub(crate) fn figures(&self) -> &[(BenchMetric, f64)] {
        &self.figures
    }

    /// The figure of a metric, if it was measured.
    pub(crate) fn figure(&self, metric: BenchMetric) -> Option<f64> {
        self.figures.iter().find(|(known, _)| *known == metric).map(|(_, figure)| *figure)
    }

    /// Number of cores that unrelated programs kept busy meanwhile.
    pub(crate) fn others(&self) -> f64 {
        self.spent.others.as_secs_f64() / self.spent.wall.as_secs_f64()
    }

    /// Above this number of cores the measurement is invalid.
    const MOST_OF_OTHERS: f64 = 0.05;

    pub(crate) fn is_valid(&self) -> bool {
        self.others() <= Self::MOST_OF_OTHERS
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (measure, figure) in &self.figures {
            let SampleColumn { head, unit, digits, .. } = measure.column();
            write!(f, "{head} {figure:.digits$} {unit}; ")?;
        }
        write!(f, "others kept {:.2} cores busy{}", self.others(), if self.is_valid() { "" } else { ": INVALID" })
    }
}

/// Repeats a measurement that other programs disturb, at most `tries` times. `None` if they
/// disturbed every attempt.
pub(crate) fn undisturbed<T>(tries: usize, mut attempt: impl FnMut() -> Result<(Measurement, T)>) -> Result<Option<T>> {
    for _ in 0..tries.max(1) {
        let (measures, found) = attempt()?;
        if measures.is_valid() {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Notes how many measurements were disturbed in every attempt.
pub(crate) fn note_given_up(record: &mut MeasurementRecord, count: usize) {
    if count > 0 {
        record.notes.push(format!("{count} measurements are missing: other programs disturbed every attempt."));
    }
}
