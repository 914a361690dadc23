//! Results of the controllers, and their tables.

use super::bpf_costs::BpfRunCount;
use crate::measurement::BenchMetric;
use measurements::{SampleColumn, SampleTable};
use std::{collections::BTreeMap, fmt};

/// One measurement of a controller.
#[derive(Debug, Clone)]
pub(super) struct ControllerTurn {
    /// Segments that the sender's host received. Data flow in one direction, so these are ACKs.
    pub(super) acks: u64,
    /// Segments that the sender's host sent.
    pub(super) packets: u64,
    /// Counts of the empty program.
    pub(super) empty: BpfRunCount,
    /// Counts of the controller's callbacks, by name; empty if it is not a BPF controller.
    pub(super) callbacks: BTreeMap<String, BpfRunCount>,
    /// Counts of the monitor's program; `None` if the link has no record.
    pub(super) monitor: Option<BpfRunCount>,
    /// Processor time of the whole machine.
    pub(super) cpu_s_per_gb: f64,
}

/// The rows to which nanoseconds and processor time are compared.
pub(super) const BASELINE: &str = "cubic by BPF";
pub(super) const NATIVE: &str = "cubic";
const AN_ACK: &str = "ns an ACK";
const LESS_COUNTING: &str = "less counting";
/// Callbacks that run less often than once in this many ACKs are left out.
const SELDOM: f64 = 200.0;

impl ControllerTurn {
    /// Runs of callbacks per ACK, and nanoseconds in them.
    fn an_ack(&self) -> (f64, f64) {
        let (runs, time_ns) = self.callbacks.values().fold((0, 0), |(runs, time_ns), count| (runs + count.runs, time_ns + count.time_ns));
        (runs as f64 / self.acks as f64, time_ns as f64 / self.acks as f64)
    }

    /// Nanoseconds per ACK without what counting added to each run in this measurement. It is
    /// subtracted for each measurement, because the clock of a virtual machine varies in speed.
    fn net_ns(&self) -> f64 {
        let (runs, ns) = self.an_ack();
        ns - runs * ns_a_run(self.empty)
    }
}

impl fmt::Display for ControllerTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, ns) = self.an_ack();
        write!(
            f,
            "{ns:.0} ns an ACK in {runs:.2} runs, of nothing {:.0}; {} ACKs of {} packets",
            ns_a_run(self.empty),
            self.acks,
            self.packets
        )
    }
}

/// What is measured beside the controllers.
const EMPTY: &str = "an empty program, ns a run";
const MONITOR_NS: &str = "the monitor (`td_dequeue`), ns a packet sent";
const MONITOR_RUNS: &str = "the monitor, runs a packet sent";
/// The other tables have one column of numbers, or two.
const COUNTED: &str = "counted";
const RUNS: &str = "runs an ACK";
const NS: &str = "ns a run";

/// The tables, without rows: controllers, their callbacks, what counting and the monitor cost.
pub(super) fn tables() -> Vec<SampleTable> {
    let (an_ack, machine) = (SampleColumn::new(AN_ACK, "", 0), BenchMetric::CpuPerGigabyte.column());
    let [times_ack, times_machine] = [SampleColumn::times(AN_ACK, BASELINE), SampleColumn::times(&machine.head, NATIVE)];
    let less = SampleColumn::new(LESS_COUNTING, "ns", 0);
    vec![
        SampleTable::new("cost", "", vec![an_ack, times_ack, less, machine, times_machine]),
        SampleTable::new("callbacks", "", vec![SampleColumn::new(RUNS, "", 2), SampleColumn::new(NS, "", 0)]),
        SampleTable::new("counting", "", vec![SampleColumn::new(COUNTED, "", 2)]),
    ]
}

/// Adds a measurement of a controller. `at` counts all measurements.
pub(super) fn add(tables: &mut [SampleTable], round: usize, at: usize, name: &str, turn: &ControllerTurn) {
    let [cost, callbacks, counting] = tables else { return };
    let row = cost.row(name);
    if !turn.callbacks.is_empty() {
        row.add(AN_ACK, round, turn.an_ack().1);
        row.add(LESS_COUNTING, round, turn.net_ns());
    }
    row.add(&BenchMetric::CpuPerGigabyte.column().head, round, turn.cpu_s_per_gb);
    for (callback, count) in turn.callbacks.iter().filter(|(_, count)| count.runs as f64 * SELDOM >= turn.acks as f64) {
        let row = callbacks.row(&format!("{name}, `{callback}`"));
        row.add(RUNS, round, count.runs as f64 / turn.acks as f64);
        row.add(NS, round, ns_a_run(*count));
    }
    counting.row(EMPTY).add(COUNTED, at, ns_a_run(turn.empty));
    if let Some(monitor) = turn.monitor {
        counting.row(MONITOR_NS).add(COUNTED, at, monitor.time_ns as f64 / turn.packets as f64);
        counting.row(MONITOR_RUNS).add(COUNTED, at, monitor.runs as f64 / turn.packets as f64);
    }
}

fn ns_a_run(count: BpfRunCount) -> f64 {
    count.time_ns as f64 / count.runs.max(1) as f64
}
