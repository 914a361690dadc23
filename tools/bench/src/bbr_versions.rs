//! BBR of version 1 beside the kernel's own, and of version 3 on the lab beside the simulator: the
//! tables of `docs/explanations/bbr.md`.

use crate::scenario_runs::{ScenarioRuns, fill, goodput, note_invalid};
use anyhow::Result;
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use outcome::Outcome;
use scenario::{ScenarioFile, Variant};

/// Plays BBR of version 1 beside the kernel's own, and of version 3 on the lab and in the simulator
#[derive(Debug, clap::Args)]
pub(crate) struct BbrVersions {
    #[command(flatten)]
    runs: ScenarioRuns,
    /// Runs of each setting with random losses or two flows, where chance decides
    #[arg(long, default_value_t = 10)]
    many: u64,
}

/// Paths of version 1: rate, delay one way after the first millisecond, queue, losses.
const PATHS: [(&str, [&str; 4]); 5] = [
    ("20 Mbit/s, 40 ms, 1 BDP of buffer", ["20Mbit", "19ms", "1BDP", ""]),
    ("100 Mbit/s, 20 ms, 2 BDP", ["100Mbit", "9ms", "2BDP", ""]),
    ("50 Mbit/s, 100 ms, 0.5 BDP", ["50Mbit", "49ms", "0.5BDP", ""]),
    ("10 Mbit/s, 600 ms, 1 BDP, 0.1 % lost", ["10Mbit", "299ms", "1BDP", "0.1%"]),
    ("20 Mbit/s, 60 ms, 4 BDP, 2 % lost", ["20Mbit", "29ms", "4BDP", "2%"]),
];
/// Cases of version 3, over 50 Mbit/s and 40 ms: queue, losses, and keys of the flow.
const CASES: [(&str, [&str; 3]); 6] = [
    ("no loss", ["1BDP", "", ""]),
    ("0.25 BDP of buffer", ["0.25BDP", "", ""]),
    ("a file of 4 MB", ["1BDP", "", "bytes = \"4MB\""]),
    ("1 % lost", ["1BDP", "1%", ""]),
    ("2 % lost", ["1BDP", "2%", ""]),
    ("5 % lost", ["1BDP", "5%", ""]),
];
/// The first of the cases in which chance decides.
const LOSSY: usize = 3;
/// Two flows of which the first has CUBIC: queue, its controller, and the other's.
const PAIRS: [(&str, [&str; 3]); 5] = [
    ("version 3", ["1BDP", "td_cubic", "bbr3"]),
    ("version 3, the kernel's CUBIC", ["1BDP", "cubic", "bbr3"]),
    ("version 3, 4 BDP of buffer", ["4BDP", "td_cubic", "bbr3"]),
    ("version 1", ["1BDP", "td_cubic", "td_bbr"]),
    ("version 1, 4 BDP of buffer", ["4BDP", "td_cubic", "td_bbr"]),
];
const ENGINES: [&str; 2] = ["lab", "simulator"];

impl BbrVersions {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs.seeds();
        let mut played = Vec::new();
        record.tables = vec![self.version_1(&mut played)?, self.version_3(&mut played)?, self.beside_cubic(&mut played)?];
        note_invalid(record, &played);
        Ok(())
    }

    /// One flow on each path, with the kernel's controller, Tandem's, and in the simulator.
    fn version_1(&self, played: &mut Vec<Outcome>) -> Result<SampleTable> {
        const SOURCES: [&str; 3] = ["kernel's bbr", "td_bbr", "simulator"];
        const KINDS: [&str; 3] = ["", ": retransmitted", ": mean window"];
        let head = |source: usize, kind: usize| format!("{}{}", SOURCES[source], KINDS[kind]);
        let mut columns = Vec::new();
        for source in 0..SOURCES.len() {
            columns.push(median(&head(source, 0), "Mbit/s", 2));
            columns.push(median(&head(source, 1), "segments", 0));
            columns.push(median(&head(source, 2), "segments", 0));
        }
        let mut table = SampleTable::new("version 1", "path", columns);
        for (name, [rate, delay, queue, loss]) in PATHS {
            let variant = |control: &str| variant(control, &path(25, [rate, delay, queue, loss], &flow(control, "")));
            let lab = self.runs.lab(&[variant("bbr")?, variant("td_bbr")?])?;
            let sim = self.runs.sim(&[variant("td_bbr")?])?;
            for (source, outcomes, case) in [(0, &lab, "bbr"), (1, &lab, "td_bbr"), (2, &sim, "td_bbr")] {
                let row = table.row(name);
                fill(row, &head(source, 0), (outcomes, case), goodput)?;
                fill(row, &head(source, 1), (outcomes, case), |outcome| Ok(outcome.retransmits() as f64))?;
                fill(row, &head(source, 2), (outcomes, case), |outcome| Ok(outcome.flows[0].legs[0].mean_cwnd_pkt))?;
            }
            played.extend(lab);
        }
        Ok(table)
    }

    /// One flow of version 3.
    fn version_3(&self, played: &mut Vec<Outcome>) -> Result<SampleTable> {
        let mut table = SampleTable::new("version 3", "", compared("goodput", "Mbit/s", 2));
        for (index, (name, [queue, loss, keys])) in CASES.into_iter().enumerate() {
            let variant = variant(name, &path(30, ["50Mbit", "19ms", queue, loss], &flow("bbr3", keys)))?;
            let runs = if index < LOSSY { self.runs } else { self.runs.with_seeds(self.many) };
            let (lab, sim) = (runs.lab(std::slice::from_ref(&variant))?, runs.sim(&[variant])?);
            // Of a file, its own time counts, and not what follows until the run ends.
            add(&mut table, name, "goodput", [&lab, &sim], |outcome| outcome.flows[0].goodput_bps / 1e6)?;
            played.extend(lab);
        }
        Ok(table)
    }

    /// A flow of CUBIC beside one of BBR.
    fn beside_cubic(&self, played: &mut Vec<Outcome>) -> Result<SampleTable> {
        let columns = [compared("both", "Mbit/s", 1), compared("CUBIC's share", "%", 0)].concat();
        let mut table = SampleTable::new("beside CUBIC", "CUBIC beside", columns);
        for (name, [queue, cubic, bbr]) in PAIRS {
            let flows = format!("{}{}", flow(cubic, ""), flow(bbr, ""));
            let variant = variant(name, &path(60, ["50Mbit", "19ms", queue, ""], &flows))?;
            let runs = self.runs.with_seeds(self.many);
            let lab = runs.lab(std::slice::from_ref(&variant))?;
            // In the simulator there is one CUBIC.
            let sim = if cubic == "cubic" { Vec::new() } else { runs.sim(&[variant])? };
            let rates = |outcome: &Outcome| [0, 1].map(|flow| outcome.flows[flow].goodput_bps / 1e6);
            add(&mut table, name, "both", [&lab, &sim], |outcome| rates(outcome).iter().sum())?;
            add(&mut table, name, "CUBIC's share", [&lab, &sim], |outcome| 100.0 * rates(outcome)[0] / rates(outcome).iter().sum::<f64>())?;
            played.extend(lab);
        }
        Ok(table)
    }
}

fn median(head: &str, unit: &str, digits: usize) -> SampleColumn {
    SampleColumn::new(head, unit, digits).with(SampleStatistic::Median)
}

/// A column for each engine.
fn compared(what: &str, unit: &str, digits: usize) -> Vec<SampleColumn> {
    ENGINES.map(|engine| SampleColumn::new(&format!("{what}, {engine}"), unit, digits)).into()
}

/// Puts a figure of all runs of a row into the columns of the two engines.
fn add(table: &mut SampleTable, row: &str, what: &str, engines: [&[Outcome]; 2], figure: impl Fn(&Outcome) -> f64) -> Result<()> {
    for (engine, outcomes) in ENGINES.into_iter().zip(engines) {
        fill(table.row(row), &format!("{what}, {engine}"), (outcomes, row), |outcome| Ok(figure(outcome)))?;
    }
    Ok(())
}

/// A `[[flow]]`.
fn flow(control: &str, keys: &str) -> String {
    format!("[[flow]]\nstart = {{ uniform = [\"0ms\", \"100ms\"] }}\ncontrol = \"{control}\"\n{keys}\n")
}

/// A path behind a link of 1 Gbit/s, with these flows.
fn path(seconds: u64, [rate, delay, queue, loss]: [&str; 4], flows: &str) -> String {
    let loss = if loss.is_empty() { String::new() } else { format!("loss = {{ per_packet = \"{loss}\" }}\n") };
    format!(
        "name = \"bbr\"\nduration = \"{seconds}s\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n\
         [[link]]\nrate = \"{rate}\"\ndelay = \"{delay}\"\nqueue = \"{queue}\"\n{loss}{flows}"
    )
}

/// The case of this name of a scenario.
fn variant(case: &str, text: &str) -> Result<Variant> {
    Ok(Variant::new(case, ScenarioFile::parse(text, "the paths of BBR")?.variants(&[])?.remove(0).scenario))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_paths_are_scenarios() {
        for (name, figures) in PATHS {
            let links = variant(name, &path(25, figures, &flow("bbr", ""))).unwrap().scenario.links;
            assert_eq!((links.len(), links[1].loss.forward.is_some()), (2, !figures[3].is_empty()), "{name}");
        }
        for (name, [queue, loss, keys]) in CASES {
            variant(name, &path(30, ["50Mbit", "19ms", queue, loss], &flow("bbr3", keys))).unwrap();
        }
        for (name, [queue, cubic, bbr]) in PAIRS {
            let flows = format!("{}{}", flow(cubic, ""), flow(bbr, ""));
            assert_eq!(variant(name, &path(60, ["50Mbit", "19ms", queue, ""], &flows)).unwrap().scenario.flows.len(), 2);
        }
    }
}
