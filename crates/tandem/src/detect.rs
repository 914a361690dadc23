//! `tandem detect`: whether a middlebox splits a connection.

mod page;

use crate::{
    CommandError,
    evidence::{method, says, strength},
    output, probe,
};
use clap::{Args, Subcommand};
use detect::{CaptureFile, CaptureTally, ConnectionFinding, Evidence, FindingOptions, SplitVerdict, TraceConditions};
use std::{io::Write as _, net::SocketAddr, path::PathBuf};
use units::Span;

/// Detect whether a middlebox splits a connection
#[derive(Debug, Args)]
pub(crate) struct DetectCommand {
    #[command(subcommand)]
    action: DetectAction,
}

#[derive(Debug, Subcommand)]
enum DetectAction {
    Trace(TraceCommand),
    Probe(probe::ProbeCommand),
    Respond(probe::RespondCommand),
}

/// Analyse packet traces (pcap or pcapng) of one end or both ends of a connection
///
/// The verdict on each connection is end-to-end, split-tcp (data flow on both legs at once) or
/// tcp-proxy (data are held until they are complete, or changed), with the evidence. The largest
/// connections come first. Exit status 3 if there is no verdict on the first one.
#[derive(Debug, Args)]
struct TraceCommand {
    /// Trace taken at the host that sends the data
    #[arg(long, value_name = "FILE", required_unless_present = "receiver")]
    sender: Option<PathBuf>,
    /// Trace taken at the host that receives the data; give it again for each further receiver
    #[arg(long, value_name = "FILE")]
    receiver: Vec<PathBuf>,
    /// Maximum clock difference of the two hosts, if they are synchronised (method 1 of Wei et al.)
    #[arg(long, value_name = "TIME")]
    synchronised: Option<Span>,
    /// Time by which the receiver was configured to delay every ACK (method 3 of Wei et al.)
    #[arg(long, value_name = "TIME")]
    ack_delay: Option<Span>,
    /// Print all evidence, and statistics of each connection
    #[arg(long, short)]
    verbose: bool,
    /// Print all connections instead of the first 20
    #[arg(long)]
    all: bool,
    /// Write a self-contained web page with plots and evidence of the largest connections
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Print JSON: a list with one object per connection
    #[arg(long)]
    json: bool,
    /// Add time series of bytes sent and windows advertised to the JSON
    #[arg(long, requires = "json")]
    series: bool,
}

/// Number of connections in the table.
const SHOWN: usize = 20;

impl DetectCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.action {
            DetectAction::Trace(trace) => trace.run(),
            DetectAction::Probe(probe) => probe.run(),
            DetectAction::Respond(respond) => respond.run(),
        }
    }
}

impl TraceCommand {
    fn run(self) -> Result<(), CommandError> {
        let read = |path: &PathBuf| CaptureFile::read(path).map_err(|why| CommandError::Usage(why.to_string()));
        let sender = self.sender.as_ref().map(read).transpose()?;
        let receivers = self.receiver.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        for capture in sender.iter().chain(&receivers) {
            for remark in remarks(capture.tally()) {
                eprintln!("tandem: {}: {remark}", capture.path().display());
            }
        }
        let known = TraceConditions { synchronised_s: self.synchronised.map(seconds), ack_delay_s: self.ack_delay.map(seconds) };
        let series = self.series || self.page.is_some();
        let mut found = detect::findings(sender.as_ref(), &receivers, &FindingOptions { known, series });
        if let Some(path) = &self.page {
            let ends = self.sender.iter().map(|path| ("the sender", path)).chain(self.receiver.iter().map(|path| ("a receiver", path)));
            let traces: Vec<String> = ends.map(|(end, path)| format!("at {end}: {}", path.display())).collect();
            output::write_page(path, &page::page(&found, &traces.join(", ")))?;
        }
        if !self.series {
            found.iter_mut().for_each(|finding| finding.character.series = None);
        }
        let text = if self.json { json(&found) } else { self.text(&found) };
        // A closed pipe (`| head`) is not an error.
        let _ = std::io::stdout().write_all(text.as_bytes());
        match found.first() {
            None => {
                let what = |capture: &CaptureFile| format!("{}: {}", capture.path().display(), capture.without_tcp());
                let all: Vec<String> = sender.iter().chain(&receivers).map(what).collect();
                Err(CommandError::CannotTell(format!("the traces have no TCP connection: {}", all.join("; "))))
            }
            Some(first) if first.verdict == SplitVerdict::CannotTell => {
                // The reason is in the table, and in the JSON.
                Err(CommandError::CannotTell(format!("cannot tell whether {} is split: the output has the reason", name(first))))
            }
            Some(_) => Ok(()),
        }
    }

    fn text(&self, found: &[ConnectionFinding]) -> String {
        let shown = if self.all { found } else { &found[..found.len().min(SHOWN)] };
        let row = |finding: &ConnectionFinding| {
            let mut row = vec![name(finding), finding.bytes.to_string(), finding.verdict.to_string(), finding.reason.clone()];
            if self.receiver.len() > 1 {
                row.insert(1, finding.receiver_trace.clone().unwrap_or_else(|| "–".into()));
            }
            row
        };
        let mut columns = vec!["connection", "bytes", "verdict", "why"];
        if self.receiver.len() > 1 {
            columns.insert(1, "receiver's trace");
        }
        let mut text = output::words_table(&columns, &shown.iter().map(row).collect::<Vec<_>>());
        if self.verbose {
            text.extend(shown.iter().map(listing));
        }
        if shown.len() < found.len() {
            text += &format!("{} more connections: --all shows them\n", found.len() - shown.len());
        }
        text
    }
}

fn seconds(span: Span) -> f64 {
    span.duration().as_secs_f64()
}

fn json(found: &[ConnectionFinding]) -> String {
    serde_json::to_string_pretty(found).expect("findings have only text keys") + "\n"
}

/// Returns remarks on the parts of a capture that were left out.
fn remarks(tally: &CaptureTally) -> Vec<String> {
    let some = |count: u64, what: String| (count > 0).then_some(what);
    let unreadable = |(obstacle, count): (&detect::Obstacle, &u64)| {
        format!("{count} of {} frames are {}, which cannot be read: {}", tally.frames, obstacle.name(), obstacle.cure())
    };
    [
        tally.cut_at.map(|at| format!("ends within a record, at byte {at}: everything before it was read")),
        some(tally.short, format!("{} of {} frames are too short to show the headers: they were left out", tally.short, tally.frames)),
        some(tally.fragments, format!("{} fragments of IP packets were left out", tally.fragments)),
        tally.unknown_link.map(|(number, count)| format!("{count} frames of the unsupported link type {number} were left out")),
        some(tally.orphans, format!("{} packets belong to interfaces that the file does not describe: they were left out", tally.orphans)),
        some(
            tally.untimed,
            format!(
                "{} of {} frames have no time (Simple Packet Blocks): all that depends on times was left out (take the capture with tcpdump or dumpcap)",
                tally.untimed, tally.frames
            ),
        ),
        some(
            tally.copies,
            format!("{} of {} TCP segments are there more than once, from several interfaces or tunnels: one of each was used", tally.copies, tally.segments),
        ),
        some(tally.forgotten, format!("has too many connections: the {} smallest were left out", tally.forgotten)),
    ]
    .into_iter()
    .flatten()
    .chain(tally.unreadable.iter().map(unreadable))
    .collect()
}

/// Returns the addresses of the connection, sender first, and those at the receiver if they differ.
fn name(finding: &ConnectionFinding) -> String {
    let arrow = |ends: &[SocketAddr; 2]| format!("{} → {}", ends[0], ends[1]);
    match (&finding.sender, &finding.receiver) {
        (Some(here), Some(there)) if here != there => format!("{} ({} at the receiver)", arrow(here), arrow(there)),
        (Some(ends), _) | (None, Some(ends)) => arrow(ends),
        (None, None) => String::new(),
    }
}

/// Returns the text of --verbose: all evidence about a connection, and its behaviour.
fn listing(finding: &ConnectionFinding) -> String {
    let mut text = format!("\n{}\n", name(finding));
    let row = |piece: &Evidence| vec![says(piece.says).into(), strength(piece).into(), method(piece), piece.text.clone()];
    let rows: Vec<Vec<String>> = finding.evidence.iter().map(row).collect();
    if !rows.is_empty() {
        text += &output::words_table(&["says", "strength", "method", "observation"], &rows);
    }
    if let Some(clocks) = &finding.clocks {
        text += &format!(
            "the receiver's clock is {:.6} s ahead (± {:.6} s) and {:.1} ppm faster (± {:.1} ppm)\n",
            clocks.offset_s, clocks.error_s, clocks.drift_ppm, clocks.drift_error_ppm
        );
    }
    let said = &finding.character;
    let mut say = |what: &str, value: Option<String>| text.extend(value.map(|value| format!("{what}: {value}\n")));
    say("sent for", said.sent_for_s.map(|span| format!("{span:.3} s")));
    say("received for", said.received_for_s.map(|span| format!("{span:.3} s")));
    say("retransmitted", said.sent_again.map(|bytes| format!("{bytes} bytes")));
    say(
        "the sender",
        said.burstiness.map(|bursts| {
            let (idle, peak) = (bursts.idle * 100.0, bursts.peak_to_mean);
            format!("idle in {idle:.0} % of intervals of {:.2} s, {peak:.1} times the mean in the fastest", bursts.bin_s)
        }),
    );
    say(
        "end-to-end delay",
        said.delay_s.map(|delay| format!("minimum {:.4} s, median {:.4} s, maximum {:.4} s", delay.min, delay.median, delay.max)),
    );
    say("window advertised", said.window.map(|window| format!("{} to {} bytes, closed {} times", window.least, window.most, window.shuts)));
    say(
        "ending",
        said.ending.and_then(|ending| {
            let later = ending.later_s?;
            let how = |left: Option<detect::CloseKind>| match left {
                Some(detect::CloseKind::Fin) => "closed",
                Some(detect::CloseKind::Reset) => "reset",
                None => "nothing",
            };
            let went_on = ending.went_on_s.map_or(String::new(), |span| format!("; the sender kept sending for {span:.3} s"));
            let grace = if ending.graceful() == Some(false) { "; it does not end gracefully" } else { "" };
            Some(format!(
                "{} by the receiver, {} at the sender {later:.3} s later{went_on}{grace}",
                how(ending.receiver),
                how(ending.sender)
            ))
        }),
    );
    text
}
