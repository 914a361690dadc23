//! A web page about connections: the plots of Figure 3 of Wei et al. (sender throughput, window
//! offered to it, end-to-end delay), and all evidence.

use super::{method, name, says, strength};
use detect::{BehaviourPlot, ConnectionFinding};
use outcome::{Outcome, Series};
use report::WordsTable;

/// Number of connections on the page.
const SHOWN: usize = 4;

/// Returns the page of the first connections: those that both ends saw, the largest first.
pub(super) fn page(found: &[ConnectionFinding], traces: &str) -> String {
    let shown = &found[..found.len().min(SHOWN)];
    let mut about = format!("Traces {traces}.");
    if shown.len() < found.len() {
        about += &format!(" The {} largest of {} connections.", shown.len(), found.len());
    }
    about += "\n\nTimes count from each connection's first packet with data, by the sender's clock.";
    let called = |finding: &ConnectionFinding| format!("{} · {}", name(finding), finding.verdict);
    let notes: Vec<String> = shown.iter().map(|finding| format!("{}: {}", called(finding), finding.reason)).collect();
    let outcomes: Vec<Outcome> = shown
        .iter()
        .map(|finding| Outcome {
            case: called(finding),
            series: finding.character.series.as_ref().map_or_else(Vec::new, series),
            ..Outcome::default()
        })
        .collect();
    let table = |finding: &ConnectionFinding| WordsTable {
        heading: format!("Evidence: {}", called(finding)),
        header: &HEADER,
        rows: evidence(finding),
    };
    let tables: Vec<_> = shown.iter().map(table).collect();
    report::page_of_words("Split-TCP detection", &about, &notes, &outcomes, &tables)
}

const HEADER: [&str; 4] = ["says", "strength", "method", "observation"];

fn evidence(finding: &ConnectionFinding) -> Vec<Vec<String>> {
    finding.evidence.iter().map(|piece| vec![says(piece.says).into(), strength(piece).into(), method(piece), piece.text.clone()]).collect()
}

/// Converts a plot to lines. Times count from the first byte sent.
fn series(plot: &BehaviourPlot) -> Vec<Series> {
    let of = |what: &str, unit: &str, points: Vec<(f64, f64)>| {
        let (t, v) = points.into_iter().filter(|(t, _)| *t >= 0.0).unzip();
        Series { what: what.into(), whose: "all".into(), unit: unit.into(), t, v }
    };
    // The mean of an interval is drawn at its middle.
    let rate = |bytes: &[u64], step: f64, from: f64| -> Vec<(f64, f64)> {
        let at = |index: usize| from - plot.from_s + (index as f64 + 0.5) * step;
        bytes.iter().enumerate().map(|(index, bytes)| (at(index), *bytes as f64 * 8.0 / step)).collect()
    };
    let offered = plot.window.iter().enumerate().filter_map(|(index, window)| {
        Some((plot.window_from_s - plot.from_s + (index as f64 + 0.5) * plot.window_step_s, (*window)? as f64))
    });
    let mut lines = vec![of("sent", "bit/s", rate(&plot.bytes, plot.step_s, plot.from_s)), of("offered", "B", offered.collect())];
    if let Some(received) = &plot.received {
        lines.push(of("received", "bit/s", rate(&received.bytes, received.step_s, received.from_s)));
    }
    lines.push(of("delay", "s", plot.delays.iter().map(|(at, delay)| (at - plot.from_s, *delay)).collect()));
    lines.retain(|line| !line.t.is_empty());
    lines
}
