//! `tandem detect probe` and `tandem detect respond`: active measurement of connection splitting.

use crate::{
    CommandError,
    evidence::{method, says, strength},
    output,
};
use clap::Args;
use detect::{Evidence, SplitVerdict};
use probe::{
    Baseline, CONTROL_PORT, MAX_HOLD_S, MAX_TRANSFER_BYTES, ProbeReport, ProbeRow, ResponderOptions, TransferDirection, TwoEndedOptions,
};
use std::{
    fs,
    io::{IsTerminal as _, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};
use units::{Bytes, Span};

/// Probe whether a middlebox splits connections to a host
///
/// Without a responder, measures from this end: data and SYNs whose TTL is too small to reach the
/// host, connect time compared with the ICMP RTT, and ports without a service. Most of this needs
/// no root; measurements that were not possible are listed. With --responder (`tandem detect
/// respond` runs on the host), transfers data over each port and application in both directions,
/// and measures at both ends. Exit status 3 if there is no verdict on any port.
#[derive(Debug, Args)]
pub(crate) struct ProbeCommand {
    /// Name or address of the host
    host: String,
    /// Use `tandem detect respond` on the host, at this control port [default: 7707]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = USUAL)]
    responder: Option<u16>,
    /// Token of the responder [default: $TANDEM_TOKEN]
    #[arg(long, value_name = "WORD", requires = "responder")]
    token: Option<String>,
    /// Ports to probe. With a responder, 21 carries FTP; 80, 8000, 8080 and 8888 carry HTTP; others
    /// carry plain bytes
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_values_t = [80, 443, 21])]
    ports: Vec<u16>,
    /// Payload of each transfer
    #[arg(long, value_name = "BYTES", default_value = "100kB", requires = "responder")]
    bytes: Bytes,
    /// Minimum time by which receivers delay their ACKs (method 3 of Wei et al.)
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "responder")]
    ack_delay: Span,
    /// Write all measurements and the traces of both ends to a file (JSON)
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Print all evidence and the network path
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Run the responder, the other end of `tandem detect probe --responder`
///
/// Transfers data over its ports and sends the prober a packet trace of them (headers only). Serves
/// one prober at a time until Ctrl-C, and leaves no files or rules behind. Ports below 1024 and the
/// trace need root.
#[derive(Debug, Args)]
pub(crate) struct RespondCommand {
    /// Address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "::")]
    listen: IpAddr,
    /// Control port, TCP and UDP
    #[arg(long, value_name = "PORT", default_value_t = CONTROL_PORT)]
    control: u16,
    /// Data ports
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_values_t = [80, 443, 21, 5001])]
    ports: Vec<u16>,
    /// Token that probers must present [default: $TANDEM_TOKEN]. Without a token any host may probe
    #[arg(long, value_name = "WORD")]
    token: Option<String>,
}

/// The responder's default control port, as text for clap.
const USUAL: &str = "7707";
const _: () = assert!(CONTROL_PORT == 7707);

/// Returns the token given, else that of the environment, which other users cannot read.
fn token(said: Option<String>) -> Option<String> {
    said.or_else(|| std::env::var("TANDEM_TOKEN").ok()).filter(|token| !token.is_empty())
}

impl RespondCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let over = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let failed = |why| CommandError::Failed(format!("cannot install a handler for signal {signal}: {why}"));
            signal_hook::flag::register(signal, over.clone()).map_err(failed)?;
        }
        let how = ResponderOptions { listen: self.listen, control: self.control, ports: self.ports, token: token(self.token) };
        probe::respond(&how, &over, |what| eprintln!("tandem: {what}")).map_err(|why| CommandError::Failed(why.to_string()))
    }
}

impl ProbeCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let progress = std::io::stderr().is_terminal();
        let say = |what: &str| {
            if progress {
                eprintln!("tandem: {what}");
            }
        };
        if let Some(path) = &self.evidence {
            can_write(path)?;
        }
        let probed = match self.responder {
            None => probe::probe(&self.host, &self.ports, say),
            Some(control) => {
                let (most, longest) = (MAX_TRANSFER_BYTES, MAX_HOLD_S);
                if self.bytes.0 > most || self.ack_delay.duration().as_secs_f64() > longest {
                    return Err(CommandError::Usage(format!(
                        "--bytes must be at most {most} and --ack-delay at most {longest} s, the limits of a responder"
                    )));
                }
                let (host, ports, hold_s) = (self.host.clone(), self.ports.clone(), self.ack_delay.duration().as_secs_f64());
                let how = TwoEndedOptions { host, ports, control, token: token(self.token.clone()), bytes: self.bytes.0, hold_s };
                probe::probe_with_responder(&how, say)
            }
        };
        let probed = probed.map_err(|why| CommandError::Failed(why.to_string()))?;
        if let Some(path) = &self.evidence {
            write_evidence(path, &probed)?;
        }
        let text = if self.json { json(&probed) } else { text(&probed, self.verbose) };
        // A closed pipe (`| head`) is not an error.
        let _ = std::io::stdout().write_all(text.as_bytes());
        match probed.rows.iter().all(|row| row.verdict == SplitVerdict::CannotTell) {
            true => Err(CommandError::CannotTell(format!(
                "cannot tell whether connections to {} are split: the table shows the reasons",
                self.host
            ))),
            false => Ok(()),
        }
    }
}

/// Checks that the path can be written to, before anything is measured.
fn can_write(path: &Path) -> Result<(), CommandError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if directory.is_dir() && !path.is_dir() {
        return Ok(());
    }
    Err(CommandError::Usage(format!(
        "could not write the evidence to {}: {} is not a directory, or the path itself is one",
        path.display(),
        directory.display()
    )))
}

/// Writes the report and the traces (capture files in hexadecimal) to one file.
fn write_evidence(path: &Path, probed: &ProbeReport) -> Result<(), CommandError> {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let traces =
        probed.traces.as_ref().map(|[prober, responder]| serde_json::json!({ "prober": hex(prober), "responder": hex(responder) }));
    let all = serde_json::json!({ "format": "tandem-probe-1", "probed": probed, "traces": traces });
    let failed = |why: std::io::Error| CommandError::Failed(format!("could not write the evidence to {}: {why}", path.display()));
    fs::write(path, serde_json::to_vec(&all).expect("a report has only text keys")).map_err(failed)
}

fn json(probed: &ProbeReport) -> String {
    serde_json::to_string_pretty(probed).expect("a report has only text keys") + "\n"
}

fn word(direction: TransferDirection) -> &'static str {
    match direction {
        TransferDirection::Down => "down",
        TransferDirection::Up => "up",
    }
}

/// Returns port, application and direction of a row.
fn name(row: &ProbeRow) -> Vec<String> {
    vec![row.port.to_string(), row.application.clone(), row.direction.map_or("", word).into()]
}

/// Returns the position of the middlebox: its hop, and its address if known.
fn place(row: &ProbeRow) -> String {
    row.place.map_or(String::new(), |place| {
        let address = place.address.map_or(String::new(), |address| format!(", {address}"));
        format!("hop {}{address}", place.hop)
    })
}

fn text(probed: &ProbeReport, verbose: bool) -> String {
    let row = |row: &ProbeRow| [name(row), vec![row.verdict.to_string(), place(row), row.reason.clone()]].concat();
    let rows: Vec<Vec<String>> = probed.rows.iter().map(row).collect();
    let mut text = output::words_table(&["port", "application", "direction", "verdict", "where", "why"], &rows);
    let mut missing: Vec<&String> = probed.rows.iter().flat_map(|row| &row.missing).collect();
    missing.sort();
    missing.dedup();
    for what in missing {
        text += &format!("not measured: {what}\n");
    }
    if verbose {
        text += &path_text(probed);
        text.extend(probed.rows.iter().map(listing));
    }
    text
}

/// Returns the hops to the host, the RTT and the clock offset.
fn path_text(probed: &ProbeReport) -> String {
    let way = &probed.way;
    let mut text = format!("\nthe network path to {}\n", probed.host);
    for hop in &way.hops {
        text += &format!("{:>3}  {}\n", hop.ttl, hop.from.map_or("?".into(), |from| from.to_string()));
    }
    if let Some(reached) = way.reached {
        text += &format!("{reached:>3}  {}\n", probed.host);
    }
    if let Some(trip) = way.round_trip {
        let by = if trip.by == Baseline::Icmp { "UDP or ICMP" } else { "UDP to the responder" };
        text += &format!("shortest round trip by {by}: {:.6} s, of {}\n", trip.least_s, trip.of);
    }
    if let Some(clocks) = probed.clocks {
        text += &format!("the responder's clock is {:.6} s ahead (± {:.6} s)\n", clocks.offset_s, clocks.error_s);
    }
    text
}

/// Returns the text of --verbose: all evidence of a row.
fn listing(row: &ProbeRow) -> String {
    let piece = |piece: &Evidence| vec![says(piece.says).into(), strength(piece).into(), method(piece), piece.text.clone()];
    let rows: Vec<Vec<String>> = row.evidence.iter().map(piece).collect();
    let table = if rows.is_empty() { String::new() } else { output::words_table(&["says", "strength", "method", "observation"], &rows) };
    format!("\nport {}\n{table}", name(row).join(" "))
}
