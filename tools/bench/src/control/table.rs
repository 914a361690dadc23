//! The figures of the turns, and the tables they make.

use super::bpf_costs::BpfRunCount;
use crate::statistics::{median, spread};
use std::{collections::BTreeMap, fmt};

/// What was seen in a turn.
#[derive(Debug, Clone)]
pub(super) struct ControllerTurn {
    /// Segments that came to the sender's host. The bytes go one way only: they are ACKs.
    pub(super) acks: u64,
    /// Segments that left it.
    pub(super) packets: u64,
    /// The program that does nothing.
    pub(super) empty: BpfRunCount,
    /// The controller's callbacks by name; none of a controller that is not BPF's.
    pub(super) callbacks: BTreeMap<String, BpfRunCount>,
    /// The monitor's program; none where the link has no record.
    pub(super) monitor: Option<BpfRunCount>,
    /// Of the whole machine.
    pub(super) cpu_s_per_gb: f64,
}

/// The row that the others' nanoseconds are laid beside, and the one that their processor time is.
pub(super) const BASELINE: &str = "cubic by BPF";
pub(super) const NATIVE: &str = "cubic";
/// A callback that runs less often than once in so many ACKs is not worth its place in the table.
const SELDOM: f64 = 200.0;

impl ControllerTurn {
    /// Runs of callbacks an ACK, and the nanoseconds in them.
    fn an_ack(&self) -> (f64, f64) {
        let (runs, time_ns) = self.callbacks.values().fold((0, 0), |(runs, time_ns), count| (runs + count.runs, time_ns + count.time_ns));
        (runs as f64 / self.acks as f64, time_ns as f64 / self.acks as f64)
    }

    /// Nanoseconds of an ACK, less what counting added to each run in this same turn: a virtual machine's clock is not equally quick
    /// at all times.
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

/// Every turn of every controller that counts.
#[derive(Debug, Default)]
pub(super) struct ControllerTable {
    /// In the order in which they came; by round.
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

    /// The median of the ratios to another row in the same round.
    fn ratio(&self, turns: &BTreeMap<usize, ControllerTurn>, to: &str, figure: impl Fn(&ControllerTurn) -> f64) -> String {
        let Some((_, yardsticks)) = self.rows.iter().find(|(name, _)| name == to) else { return "–".into() };
        let ratios = turns.iter().filter_map(|(round, turn)| Some(figure(turn) / figure(yardsticks.get(round)?)));
        let ratios: Vec<f64> = ratios.collect();
        if ratios.is_empty() { "–".into() } else { format!("{:.2}", median(ratios.into_iter())) }
    }
}

fn ns_a_run(count: BpfRunCount) -> f64 {
    count.time_ns as f64 / count.runs.max(1) as f64
}

/// Each callback: how often it runs an ACK, and the nanoseconds of a run.
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
