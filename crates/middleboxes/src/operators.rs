//! Table I of Wei et al.: for each operator of the paper a network with its middleboxes, through
//! which `tandem detect probe` probes a responder. Every cell of the table must be found.
//!
//! Operators redirected connections by the server's port, and treated pictures by their content. An
//! operator that redirects FTP's control connections also redirects its data connections, to ports
//! that the server's kernel chooses.

use crate::{
    conditions::{BulkDirection, NetworkCondition, PathSpec},
    deployment::{MiddleboxProcesses, intercept},
    middlebox::Middlebox,
    run::MiddleboxRun,
    run_network::RunNetwork,
};
use anyhow::{Context as _, Result, bail, ensure};
use detect::SplitVerdict;
use probe::CONTROL_PORT;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};
use units::{Bytes, Rate, Span};

/// Builds a network like that of each operator of Wei et al. and probes through it. Exit code 1 if
/// a cell of Table I is not found
#[derive(Debug, clap::Args)]
pub struct ProbeOperators {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Only operators whose name begins with this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Rate of the mobile's link
    #[arg(long, default_value = "2Mbit")]
    rate: Rate,
    /// One-way delay of the mobile's link
    #[arg(long, value_name = "TIME", default_value = "30ms")]
    delay: Span,
    /// Size of a transfer
    #[arg(long, default_value = "100kB")]
    bytes: Bytes,
    /// Writes all measurements, with the traces of both ends, into this directory: one file for
    /// each operator
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// An operator, and what the paper prints for it.
struct MobileOperator {
    name: &'static str,
    /// Its middleboxes, and the server ports that each of them intercepts.
    takes: &'static [(Middlebox, &'static str)],
    /// Printed verdicts, in the order of [`ROWS`].
    printed: [SplitVerdict; ROWS.len()],
}

/// Ports of FTP's control and data connections.
const FTP: &str = "21, 32768-60999";
const HTTP: &str = "80";
const TCP: &str = "5001";

/// Rows of the table, and the directions that are probed. For HTTP the paper tried downloads.
const ROWS: [(&str, &[&str]); 4] =
    [("FTP", &["down", "up"]), ("HTTP data", &["down"]), ("HTTP image", &["down"]), ("TCP", &["down", "up"])];

const OPERATORS: [MobileOperator; 5] = [
    MobileOperator {
        name: "CDMA-I",
        takes: &[(Middlebox::Haproxy, FTP), (Middlebox::Cache("hold"), HTTP)],
        printed: [SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    // It later used Split-TCP for data (the paper's third footnote).
    MobileOperator {
        name: "CDMA-I since September 2005",
        takes: &[(Middlebox::Haproxy, FTP), (Middlebox::Cache("pictures"), HTTP)],
        printed: [SplitVerdict::SplitTcp, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    // The server sees the address of its proxy.
    MobileOperator {
        name: "CDMA-II",
        takes: &[(Middlebox::HaproxyOwn, FTP), (Middlebox::Cache("pictures"), HTTP)],
        printed: [SplitVerdict::SplitTcp, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    // Its users choose whether TCP is split.
    MobileOperator {
        name: "GPRS-I",
        takes: &[(Middlebox::Cache("pictures"), HTTP)],
        printed: [SplitVerdict::EndToEnd, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    MobileOperator {
        name: "GPRS-I, TCP split by choice",
        takes: &[(Middlebox::Cache("pictures"), HTTP), (Middlebox::Tandem("plain"), TCP)],
        printed: [SplitVerdict::EndToEnd, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::SplitTcp],
    },
];

/// Port of the first middlebox; the others follow.
const FIRST: u16 = 5100;

impl ProbeOperators {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it cannot do its work.
    pub fn run(&self) -> Result<ExitCode> {
        let tandem = testbed::resolve_program(&self.tandem);
        let wanted = |operator: &&MobileOperator| self.only.as_ref().is_none_or(|only| operator.name.starts_with(only.as_str()));
        ensure!(
            OPERATORS.iter().any(|operator| wanted(&operator)),
            "no operator matches --only; there are: {}",
            OPERATORS.map(|one| one.name).join(", ")
        );
        if let Some(out) = &self.out {
            fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
        }
        println!("| operator | application | printed | found | where | why |\n|---|---|---|---|---|---|");
        let (mut cells, mut wrong) = (0, 0);
        for operator in OPERATORS.iter().filter(wanted) {
            for found in self.probe(operator, &tandem).with_context(|| operator.name)? {
                (cells, wrong) = (cells + 1, wrong + usize::from(!found.holds));
                let mark = if found.holds { "" } else { " (!)" };
                let OperatorFinding { operator, application, printed, verdicts, place, why, .. } = found;
                println!("| {operator} | {application} | {printed} | {verdicts}{mark} | {place} | {why} |");
            }
        }
        println!("\n{} of {cells} cells are found as they are printed.", cells - wrong);
        Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Probes through the network of every operator. An operator whose middleboxes this machine lacks
    /// has the reason instead of findings.
    ///
    /// # Errors
    ///
    /// If a network cannot be built, which needs root, or a probe fails.
    pub fn findings(&self) -> Result<Vec<ProbedOperator>> {
        let tandem = testbed::resolve_program(&self.tandem);
        let probe = |operator: &MobileOperator| {
            let lacking = operator.takes.iter().find_map(|(middle, _)| middle.missing_requirement(&tandem));
            let found = match lacking {
                Some(why) => Err(why),
                None => Ok(self.probe(operator, &tandem).with_context(|| operator.name)?),
            };
            Ok(ProbedOperator { name: operator.name, found })
        };
        OPERATORS.iter().map(probe).collect()
    }

    /// Builds the operator's network, probes through it, and compares with the printed cells.
    fn probe(&self, operator: &MobileOperator, tandem: &Path) -> Result<Vec<OperatorFinding>> {
        let rows = self.probed_rows(operator, tandem)?;
        let finding = |((application, directions), printed): (&(&'static str, &[&'static str]), SplitVerdict)| {
            let cell = OperatorCell::of(&rows, application, directions)?;
            Ok(OperatorFinding {
                operator: operator.name,
                application,
                printed: in_print(printed),
                holds: cell.verdicts.iter().all(|(_, verdict)| *verdict == printed.to_string()),
                verdicts: cell.said(),
                place: cell.place,
                why: cell.why,
            })
        };
        ROWS.iter().zip(operator.printed).map(finding).collect()
    }

    /// Builds the operator's network and probes through it. Returns the rows that the probe
    /// printed.
    fn probed_rows(&self, operator: &MobileOperator, tandem: &Path) -> Result<Vec<Value>> {
        let path = PathSpec {
            slow_kbit: self.rate.bits_per_s() / 1000,
            slow_delay_us: self.delay.0 / 1000,
            queue_packets: 100,
            fast_kbit: 100_000,
            fast_delay_us: 10_000,
            bytes: self.bytes.0,
        };
        let network = RunNetwork::build(&MiddleboxRun {
            number: 0,
            middle: Middlebox::Forwarding,
            direction: BulkDirection::Down,
            condition: NetworkCondition::Plain,
            seed: 1,
            path,
        })?;
        let ports: Vec<u16> = (FIRST..).take(operator.takes.len()).collect();
        let taken: Vec<(&str, u16)> = operator.takes.iter().map(|(_, ports)| *ports).zip(ports.iter().copied()).collect();
        intercept(&network, &taken)?;
        let mut running = Vec::new();
        for ((middle, _), at) in operator.takes.iter().zip(ports) {
            if let Some(why) = middle.missing_requirement(tandem) {
                bail!("its middlebox {} is not available: {why}", middle.name());
            }
            running.push(middle.start_at(&network, tandem, &path, at)?);
        }
        running.push(MiddleboxProcesses::start(network.server(), tandem, &["detect", "respond", "--ports", "21,80,5001"], CONTROL_PORT)?);
        let mut command = network.client().command(&tandem.to_string_lossy());
        let bytes = format!("{}B", self.bytes.0);
        command.args(["detect", "probe", &network.server_address().ip().to_string()]);
        command.args(["--responder", "--ports", "21,80,5001", "--json", "--bytes", &bytes]);
        if let Some(out) = &self.out {
            command.arg("--evidence").arg(out.join(format!("{}.json", operator.name.replace([' ', ','], "-"))));
        }
        let output = command.output().context("cannot run the prober")?;
        let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(matches!(output.status.code(), Some(0 | 3)), "the prober failed: {}", said());
        let probed: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("the prober printed no JSON: {}", said()))?;
        probed["rows"].as_array().cloned().context("the prober printed no rows")
    }
}

/// An operator of Table I.
#[derive(Debug, Clone)]
pub struct ProbedOperator {
    /// Its name.
    pub name: &'static str,
    /// A finding for each cell, or which of its middleboxes this machine lacks.
    pub found: Result<Vec<OperatorFinding>, String>,
}

/// What the probe found for one cell of Table I.
#[derive(Debug, Clone)]
pub struct OperatorFinding {
    /// The operator.
    pub operator: &'static str,
    /// The application.
    pub application: &'static str,
    /// The printed cell.
    pub printed: &'static str,
    /// Whether every probed direction has the printed verdict.
    pub holds: bool,
    /// The verdict, or one for each direction if they differ.
    pub verdicts: String,
    /// The hop of the split; empty: there is none.
    pub place: String,
    /// The reason for the verdict.
    pub why: String,
}

/// The result for one cell of the table.
struct OperatorCell {
    /// Verdict for each direction.
    verdicts: Vec<(&'static str, String)>,
    place: String,
    why: String,
}

impl OperatorCell {
    fn of(rows: &[Value], application: &str, directions: &[&'static str]) -> Result<OperatorCell> {
        let row = |direction: &str| {
            let fits = |row: &&Value| row["application"] == application && row["direction"] == direction;
            rows.iter().find(fits).with_context(|| format!("the prober has no row of {application}, {direction}"))
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let verdicts = directions.iter().map(|direction| Ok((*direction, text(&row(direction)?["verdict"])))).collect::<Result<_>>()?;
        let first = row(directions[0])?;
        let place = first["place"]["hop"].as_u64().map_or(String::new(), |hop| format!("hop {hop}"));
        Ok(OperatorCell { verdicts, place, why: text(&first["reason"]) })
    }

    /// The verdict, or one for each direction if they differ.
    fn said(&self) -> String {
        let all: Vec<String> = self.verdicts.iter().map(|(direction, verdict)| format!("{verdict} {direction}")).collect();
        match &self.verdicts[..] {
            [(_, first), rest @ ..] if rest.iter().all(|(_, verdict)| verdict == first) => first.clone(),
            _ => all.join(", "),
        }
    }
}

/// The verdict in the paper's words.
fn in_print(verdict: SplitVerdict) -> &'static str {
    match verdict {
        SplitVerdict::EndToEnd => "No",
        SplitVerdict::SplitTcp => "Split-TCP",
        SplitVerdict::TcpProxy => "TCP proxy",
        SplitVerdict::CannotTell => "–",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_is_what_all_its_ways_say() {
        let row = |application: &str, direction: &str, verdict: &str| json!({ "application": application, "direction": direction, "verdict": verdict, "reason": "so", "place": { "hop": 2 } });
        let rows = [
            row("FTP", "down", "split-tcp"),
            row("FTP", "up", "end-to-end"),
            row("TCP", "down", "end-to-end"),
            row("TCP", "up", "end-to-end"),
        ];
        let of = |application: &str| OperatorCell::of(&rows, application, &["down", "up"]).unwrap();
        assert_eq!((of("FTP").said(), of("FTP").place), ("split-tcp down, end-to-end up".into(), "hop 2".into()));
        assert_eq!(of("TCP").said(), "end-to-end");
        assert!(OperatorCell::of(&rows, "HTTP data", &["down"]).is_err());
    }

    #[test]
    fn each_operator_takes_what_it_is_printed_to_split() {
        for operator in &OPERATORS {
            for (port, rows) in [(FTP, &[0][..]), (HTTP, &[1, 2]), (TCP, &[3])] {
                let taken = operator.takes.iter().any(|(_, ports)| *ports == port);
                let printed = rows.iter().any(|row| operator.printed[*row] != SplitVerdict::EndToEnd);
                assert_eq!(taken, printed, "{}: {port}", operator.name);
            }
        }
    }
}
