//! Table I of Wei et al.: a network of the lab for each operator of the paper, with what that had in its middle, and `tandem detect probe` with a responder
//! behind it. Every cell must be found.
//!
//! Operators took connections by the server's port; what they did with pictures, by the message. Whoever takes FTP's control connections takes its data
//! connections too, to ports that the server has of its kernel.

use super::{
    middle::{Middle, Running, intercept},
    plan::{Condition, Path as Line, Run, Way},
    stage::Stage,
};
use anyhow::{Context as _, Result, bail, ensure};
use detect::SplitVerdict;
use probe::CONTROL_PORT;
use scenario::{Bytes, Rate, Span};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Sets up a network as each operator of Wei et al. had it, and probes through it: exit status 1 where a cell of Table I is not found
#[derive(Debug, clap::Args)]
pub(crate) struct Operators {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Only operators whose names begin so
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// What the mobile's link carries
    #[arg(long, default_value = "2Mbit")]
    rate: Rate,
    /// How long it is, one way
    #[arg(long, value_name = "TIME", default_value = "30ms")]
    delay: Span,
    /// How much a transfer carries
    #[arg(long, default_value = "100kB")]
    bytes: Bytes,
    /// Writes all that was measured, with the traces of both ends, into this directory: a file an operator
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// An operator, and what the paper prints of it.
struct Operator {
    name: &'static str,
    /// What stands in its middle, and the ports of servers to which it takes connections.
    takes: &'static [(Middle, &'static str)],
    /// By the order of [`ROWS`].
    printed: [SplitVerdict; ROWS.len()],
}

/// FTP's two connections.
const FTP: &str = "21, 32768-60999";
const HTTP: &str = "80";
const TCP: &str = "5001";

/// The table's rows, and which ways they are asked for: of HTTP the paper tried downloads.
const ROWS: [(&str, &[&str]); 4] =
    [("FTP", &["down", "up"]), ("HTTP data", &["down"]), ("HTTP image", &["down"]), ("TCP", &["down", "up"])];

const OPERATORS: [Operator; 5] = [
    Operator {
        name: "CDMA-I",
        takes: &[(Middle::Haproxy, FTP), (Middle::Cache("hold"), HTTP)],
        printed: [SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    // It went over to Split-TCP for data (the paper's third footnote).
    Operator {
        name: "CDMA-I since September 2005",
        takes: &[(Middle::Haproxy, FTP), (Middle::Cache("pictures"), HTTP)],
        printed: [SplitVerdict::SplitTcp, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    // Its split point's address is what the server sees.
    Operator {
        name: "CDMA-II",
        takes: &[(Middle::HaproxyOwn, FTP), (Middle::Cache("pictures"), HTTP)],
        printed: [SplitVerdict::SplitTcp, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    // Its users choose whether TCP is split.
    Operator {
        name: "GPRS-I",
        takes: &[(Middle::Cache("pictures"), HTTP)],
        printed: [SplitVerdict::EndToEnd, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::EndToEnd],
    },
    Operator {
        name: "GPRS-I, TCP split by choice",
        takes: &[(Middle::Cache("pictures"), HTTP), (Middle::Tandem("plain"), TCP)],
        printed: [SplitVerdict::EndToEnd, SplitVerdict::SplitTcp, SplitVerdict::TcpProxy, SplitVerdict::SplitTcp],
    },
];

/// Where the first in the middle listens; the others follow.
const FIRST: u16 = 5100;

impl Operators {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        // A name without a directory is looked for in PATH.
        let tandem = fs::canonicalize(&self.tandem).unwrap_or_else(|_| self.tandem.clone());
        let wanted = |operator: &&Operator| self.only.as_ref().is_none_or(|only| operator.name.starts_with(only.as_str()));
        ensure!(
            OPERATORS.iter().any(|operator| wanted(&operator)),
            "no operator's name begins so: {}",
            OPERATORS.map(|one| one.name).join(", ")
        );
        if let Some(out) = &self.out {
            fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
        }
        println!("| operator | application | printed | found | where | why |\n|---|---|---|---|---|---|");
        let (mut cells, mut wrong) = (0, 0);
        for operator in OPERATORS.iter().filter(wanted) {
            let rows = self.probe(operator, &tandem).with_context(|| operator.name)?;
            for ((application, ways), printed) in ROWS.iter().zip(operator.printed) {
                let cell = Cell::of(&rows, application, ways)?;
                let holds = cell.verdicts.iter().all(|(_, verdict)| *verdict == printed.to_string());
                (cells, wrong) = (cells + 1, wrong + usize::from(!holds));
                let mark = if holds { "" } else { " (!)" };
                println!(
                    "| {} | {application} | {} | {}{mark} | {} | {} |",
                    operator.name,
                    in_print(printed),
                    cell.said(),
                    cell.place,
                    cell.why
                );
            }
        }
        println!("\n{} of {cells} cells are found as they are printed.", cells - wrong);
        Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Builds the operator's network, and returns the rows that a mobile's probe gave.
    fn probe(&self, operator: &Operator, tandem: &Path) -> Result<Vec<Value>> {
        let path = Line {
            slow_kbit: self.rate.bits_per_s() / 1000,
            slow_delay_us: self.delay.0 / 1000,
            queue_packets: 100,
            fast_kbit: 100_000,
            fast_delay_us: 10_000,
            bytes: self.bytes.0,
        };
        let stage =
            Stage::build(&Run { number: 0, middle: Middle::Forwarding, way: Way::Down, condition: Condition::Plain, seed: 1, path })?;
        let ports: Vec<u16> = (FIRST..).take(operator.takes.len()).collect();
        let taken: Vec<(&str, u16)> = operator.takes.iter().map(|(_, ports)| *ports).zip(ports.iter().copied()).collect();
        intercept(&stage, &taken)?;
        let mut running = Vec::new();
        for ((middle, _), at) in operator.takes.iter().zip(ports) {
            if let Some(why) = middle.lacks(tandem) {
                bail!("it has {}: {why}", middle.name());
            }
            running.push(middle.start_at(&stage, tandem, &path, at)?);
        }
        running.push(Running::start(stage.server(), tandem, &["detect", "respond", "--ports", "21,80,5001"], CONTROL_PORT)?);
        let mut command = stage.client().command(&tandem.to_string_lossy());
        let bytes = format!("{}B", self.bytes.0);
        command.args(["detect", "probe", &stage.server_address().ip().to_string()]);
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

/// What was found of a cell.
struct Cell {
    /// A way, and its verdict.
    verdicts: Vec<(&'static str, String)>,
    place: String,
    why: String,
}

impl Cell {
    fn of(rows: &[Value], application: &str, ways: &[&'static str]) -> Result<Cell> {
        let row = |way: &str| {
            let fits = |row: &&Value| row["application"] == application && row["direction"] == way;
            rows.iter().find(fits).with_context(|| format!("the prober has no row of {application}, {way}"))
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let verdicts = ways.iter().map(|way| Ok((*way, text(&row(way)?["verdict"])))).collect::<Result<_>>()?;
        let first = row(ways[0])?;
        let place = first["place"]["hop"].as_u64().map_or(String::new(), |hop| format!("hop {hop}"));
        Ok(Cell { verdicts, place, why: text(&first["reason"]) })
    }

    /// The verdict, or one for each way where they are not the same.
    fn said(&self) -> String {
        let all: Vec<String> = self.verdicts.iter().map(|(way, verdict)| format!("{verdict} {way}")).collect();
        match &self.verdicts[..] {
            [(_, first), rest @ ..] if rest.iter().all(|(_, verdict)| verdict == first) => first.clone(),
            _ => all.join(", "),
        }
    }
}

/// As the paper has it.
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
        let of = |application: &str| Cell::of(&rows, application, &["down", "up"]).unwrap();
        assert_eq!((of("FTP").said(), of("FTP").place), ("split-tcp down, end-to-end up".into(), "hop 2".into()));
        assert_eq!(of("TCP").said(), "end-to-end");
        assert!(Cell::of(&rows, "HTTP data", &["down"]).is_err());
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
