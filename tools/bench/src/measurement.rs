//! One measurement: its figures, and whether other programs disturbed it.

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
    pub(crate) fn heading(self) -> &'static str {
        match self {
            BenchMetric::CpuPerGigabyte => "machine, CPU s/GB",
            BenchMetric::ProxyCpuPerGigabyte => "of it the proxy, CPU s/GB",
            BenchMetric::Throughput => "Gbit/s",
            BenchMetric::Connections => "connections/s",
            BenchMetric::CpuPerConnection => "machine, CPU µs/connection",
            BenchMetric::ProxyCpuPerConnection => "of it the proxy, CPU µs/connection",
            BenchMetric::ExchangeP50 => "exchange p50, µs",
            BenchMetric::ExchangeP99 => "exchange p99, µs",
            BenchMetric::MemoryPerIdle => "memory per idle connection, kB",
        }
    }

    pub(crate) fn digits(self) -> usize {
        match self {
            BenchMetric::CpuPerGigabyte | BenchMetric::ProxyCpuPerGigabyte => 3,
            BenchMetric::Connections => 0,
            _ => 1,
        }
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
            write!(f, "{} {figure:.*}; ", measure.heading(), measure.digits())?;
        }
        write!(f, "others kept {:.2} cores busy{}", self.others(), if self.is_valid() { "" } else { ": INVALID" })
    }
}
