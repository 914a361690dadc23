//! `tandem detect probe`: is a connection to this host split?

use crate::{
    Failure,
    detect::{method, says, strength},
};
use clap::Args;
use detect::{
    Evidence, Verdict,
    probe::{Probed, Row},
};
use std::io::{IsTerminal as _, Write as _};

/// Opens connections to a host, and tells from what is measured whether somebody splits them on the way
///
/// Alone it tells from this end: data and SYNs that may go fewer hops than the host is away, the time to connect against that of ICMP, ports where nobody
/// listens. Most of it needs no root; what could not be had is said. Exit status 3 when nothing can be told of any port.
#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// The host, by name or address
    host: String,
    /// Ports to be probed
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_values_t = [80, 443, 21])]
    ports: Vec<u16>,
    /// Prints all evidence, and the way there
    #[arg(long, short)]
    verbose: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

impl Probe {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let progress = std::io::stderr().is_terminal();
        let say = |what: &str| {
            if progress {
                eprintln!("tandem: {what}");
            }
        };
        let probed = detect::probe::probe(&self.host, &self.ports, say).map_err(|why| Failure::Failed(why.to_string()))?;
        let text = if self.json { json(&probed) } else { text(&probed, self.verbose) };
        // Who reads no further has read enough.
        let _ = std::io::stdout().write_all(text.as_bytes());
        match probed.rows.iter().all(|row| row.verdict == Verdict::CannotTell) {
            true => Err(Failure::CannotTell(format!("cannot tell whether connections to {} are split: see each reason", self.host))),
            false => Ok(()),
        }
    }
}

fn json(probed: &Probed) -> String {
    serde_json::to_string_pretty(probed).expect("what was probed has only text keys") + "\n"
}

/// What a row is about.
fn name(row: &Row) -> Vec<String> {
    vec![row.port.to_string(), row.application.clone(), row.direction.unwrap_or("").into()]
}

/// Where it is split.
fn place(row: &Row) -> String {
    row.place.map_or(String::new(), |place| {
        let address = place.address.map_or(String::new(), |address| format!(", {address}"));
        format!("hop {}{address}", place.hop)
    })
}

fn text(probed: &Probed, verbose: bool) -> String {
    let row = |row: &Row| [name(row), vec![row.verdict.to_string(), place(row), row.reason.clone()]].concat();
    let rows: Vec<Vec<String>> = probed.rows.iter().map(row).collect();
    let mut text = report::words_table(&["port", "application", "direction", "verdict", "where", "why"], &rows);
    let mut missing: Vec<&String> = probed.rows.iter().flat_map(|row| &row.missing).collect();
    missing.sort();
    missing.dedup();
    for what in missing {
        text += &format!("not looked at: {what}\n");
    }
    if verbose {
        text += &way(probed);
        text.extend(probed.rows.iter().map(listing));
    }
    text
}

fn way(probed: &Probed) -> String {
    let way = &probed.way;
    let mut text = format!("\nthe way to {}\n", probed.host);
    for hop in &way.hops {
        text += &format!("{:>3}  {}\n", hop.ttl, hop.from.map_or("?".into(), |from| from.to_string()));
    }
    if let Some(reached) = way.reached {
        text += &format!("{reached:>3}  {}\n", probed.host);
    }
    if let Some(trip) = way.round_trip {
        text += &format!("there and back, by UDP or ICMP: {:.6} s, the least of {}\n", trip.least_s, trip.of);
    }
    text
}

/// All that is known of a row.
fn listing(row: &Row) -> String {
    let piece = |piece: &Evidence| vec![says(piece.says).into(), strength(piece).into(), method(piece), piece.text.clone()];
    let rows: Vec<Vec<String>> = row.evidence.iter().map(piece).collect();
    let table = if rows.is_empty() { String::new() } else { report::words_table(&["says", "strength", "method", "what was seen"], &rows) };
    format!("\nport {}\n{table}", name(row).join(" "))
}
