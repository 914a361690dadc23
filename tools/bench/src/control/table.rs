//! Results of the controllers, and their table.

use super::bpf_costs::BpfRunCount;
use crate::statistics::{median, spread};
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
/// Callbacks that run less often than once in this many ACKs are not printed.
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

/// All valid measurements of all controllers.
#[derive(Debug, Default)]
pub(super) struct ControllerTable {
    /// Rows in the order of their first measurement; measurements by round.
    rows: Vec<(String, BTreeMap<usize, ControllerTurn>)>,
}

impl ControllerTable {
    pub(super) fn add(&mut self, round: usize, name: &str, turn: ControllerTurn) {
        let at = self.rows.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.rows.push((name.to_owned(), BTreeMap::new()));
            self.rows.len() - 1
        });
        self.rows[at].1.insert(round, turn);
    }

    fn turns(&self) -> impl Iterator<Item = &ControllerTurn> {
        self.rows.iter().flat_map(|(_, turns)| turns.values())
    }

    /// Median of the ratios to another row in the same round.
    fn ratio(&self, turns: &BTreeMap<usize, ControllerTurn>, to: &str, figure: impl Fn(&ControllerTurn) -> f64) -> String {
        let Some((_, baselines)) = self.rows.iter().find(|(name, _)| name == to) else { return "–".into() };
        let ratios = turns.iter().filter_map(|(round, turn)| Some(figure(turn) / figure(baselines.get(round)?)));
        let ratios: Vec<f64> = ratios.collect();
        if ratios.is_empty() { "–".into() } else { format!("{:.2}", median(ratios.into_iter())) }
    }
}

fn ns_a_run(count: BpfRunCount) -> f64 {
    count.time_ns as f64 / count.runs.max(1) as f64
}

/// For each callback: runs per ACK, and nanoseconds per run.
fn callbacks(turns: &BTreeMap<usize, ControllerTurn>) -> String {
    let names: std::collections::BTreeSet<&String> = turns.values().flat_map(|turn| turn.callbacks.keys()).collect();
    let of = |name: &String, figure: &dyn Fn(&ControllerTurn, BpfRunCount) -> f64| {
        median(turns.values().map(|turn| figure(turn, turn.callbacks.get(name).copied().unwrap_or_default())))
    };
    let mut all: Vec<(f64, f64, &String)> = names
        .into_iter()
        .map(|name| (of(name, &|turn, count| count.runs as f64 / turn.acks as f64), of(name, &|_, count| ns_a_run(count)), name))
        .filter(|(runs, _, _)| *runs * SELDOM >= 1.0)
        .collect();
    all.sort_by(|one, other| (other.0 * other.1).total_cmp(&(one.0 * one.1)));
    all.iter().map(|(runs, ns, name)| format!("`{name}` {runs:.2} × {ns:.0}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for ControllerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nControllers: median (least … most), and × : the median of the ratios to {BASELINE} (of processor time: to {NATIVE}) in the same round\n"
        )?;
        writeln!(f, "| | ns an ACK | × | less counting | callbacks: runs an ACK × ns | machine, CPU s/GB | × |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for (name, turns) in &self.rows {
            write!(f, "| {name} |")?;
            if turns.values().any(|turn| turn.callbacks.is_empty()) {
                write!(f, " – | – | – | – |")?;
            } else {
                let ns = |turn: &ControllerTurn| turn.an_ack().1;
                write!(f, " {} | {} |", spread(turns.values().map(ns), 0), self.ratio(turns, BASELINE, ns))?;
                write!(f, " {} |", spread(turns.values().map(ControllerTurn::net_ns), 0))?;
                write!(f, " {} |", callbacks(turns))?;
            }
            let cpu = |turn: &ControllerTurn| turn.cpu_s_per_gb;
            writeln!(f, " {} | {} |", spread(turns.values().map(cpu), 3), self.ratio(turns, NATIVE, cpu))?;
        }
        let empty: Vec<f64> = self.turns().map(|turn| ns_a_run(turn.empty)).collect();
        if empty.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nCounting: {} ns are counted of a run of a program that does nothing.", spread(empty, 0))?;
        let watched: Vec<(BpfRunCount, u64)> = self.turns().filter_map(|turn| Some((turn.monitor?, turn.packets))).collect();
        if !watched.is_empty() {
            let runs = spread(watched.iter().map(|(count, packets)| count.runs as f64 / *packets as f64), 2);
            let ns = spread(watched.iter().map(|(count, packets)| count.time_ns as f64 / *packets as f64), 0);
            writeln!(f, "The monitor (`td_dequeue`): {ns} ns a packet sent, in {runs} runs.")?;
        }
        Ok(())
    }
}
