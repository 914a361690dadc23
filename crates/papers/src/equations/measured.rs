//! What Wei et al. measured, measured again with real connections through real middleboxes. Needs
//! root, and network namespaces. Most of it takes minutes, in real time.

use super::table::{ComputedRow, ComputedTable, exact, over_seeds};
use crate::error::PaperError;
use middleboxes::{Characteristics, ImageDownload, ProbeOperators, ProbedOperator, Termination};
use std::{ffi::OsStr, path::Path};
use theory::Mean;

fn failed(error: impl std::fmt::Display) -> PaperError {
    PaperError::Measurement(format!("{error:#}"))
}

/// The arguments of a measurement that starts this program as its middleboxes.
fn arguments<A: clap::Args>(further: &[&OsStr]) -> Result<A, PaperError> {
    let own = std::env::current_exe().map_err(|why| failed(format!("cannot find the path of this program: {why}")))?;
    middleboxes::arguments(&[&[OsStr::new("--tandem"), own.as_os_str()], further].concat()).map_err(failed)
}

fn cells(of: &[&str]) -> Vec<String> {
    of.iter().map(|cell| (*cell).to_owned()).collect()
}

/// Table I: 1 if every probed direction has the printed verdict, else 0.
pub(super) fn operators() -> Result<ComputedTable, PaperError> {
    let probes: ProbeOperators = arguments(&[])?;
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for ProbedOperator { name: operator, found } in probes.findings().map_err(failed)? {
        match found {
            Err(why) => notes.push(format!("{operator} is left out: {why}")),
            Ok(findings) => rows.extend(findings.into_iter().map(|found| {
                let at = if found.place.is_empty() { String::new() } else { format!(" at {}", found.place) };
                ComputedRow::new(cells(&[operator, found.application]), exact(f64::from(u8::from(found.holds))), 0)
                    .claimed(found.printed, found.holds)
                    .with_note(format!("{}{at}: {}", found.verdicts, found.why))
            })),
        }
    }
    match middleboxes::tunnelled_download() {
        Err(why) => notes.push(format!("CDMA-II's tunnel is left out: {why:#}")),
        Ok((verdict, evidence)) => rows.push(
            ComputedRow::new(cells(&["CDMA-II", "FTP, over UDP"]), exact(f64::from(u8::from(evidence.is_some()))), 0)
                .claimed("the protocol is changed to UDP (§III-B)", evidence.is_some())
                .with_note(format!("{verdict}: {}", evidence.unwrap_or_else(|| "no evidence of the changed protocol".into()))),
        ),
    }
    notes.push(
        "Here: 1 if the detector's verdict is the printed one in each direction that is probed. The middleboxes of each operator are chosen after \
         the table, so that it tests the detector, not the operators."
            .into(),
    );
    Ok(ComputedTable::new(&["operator", "application"], rows, notes))
}

/// The mean of times; a single one has no interval.
fn mean_time(seconds: &[f64]) -> Mean {
    if let [only] = seconds { exact(*only) } else { over_seeds(seconds) }
}

/// How far a time may be from the printed mean: the printed standard deviation.
const PRINTED_TIMES_S: [(&str, f64, f64); 2] = [("109 ± 8", 109.0, 8.0), ("14 ± 1", 14.0, 1.0)];

/// §IV-B with a real picture.
pub(super) fn picture() -> Result<ComputedTable, PaperError> {
    let downloads: ImageDownload = arguments(&[])?;
    let times = downloads.download_times().map_err(failed)?;
    let mut rows = Vec::new();
    for (index, row) in times.iter().enumerate() {
        let time = mean_time(&row.seconds);
        let computed = ComputedRow::new(cells(&["download, s", row.middle]), time, 1).with_note(format!("{} bytes", row.bytes));
        rows.push(match PRINTED_TIMES_S.get(index) {
            Some((printed, mean, deviation)) => computed.claimed(printed, (time.mean - mean).abs() <= *deviation),
            None => computed,
        });
    }
    if let [split, proxies @ ..] = &times[..] {
        for proxy in proxies {
            let ratio = mean_time(&proxy.seconds).mean / mean_time(&split.seconds).mean;
            let computed = ComputedRow::new(cells(&["time, of Split-TCP's", proxy.middle]), exact(ratio), 3);
            rows.push(if proxy.printed_s.is_some() {
                computed.claimed("outperforms significantly: 0.13", ratio < 0.5).with_note("half the time at most is taken as significant")
            } else {
                computed
            });
        }
    }
    let notes =
        vec!["The picture is drawn: noise on every scale, quality 92. How far it can be compressed differs from the paper's.".into()];
    Ok(ComputedTable::new(&["", "in the middle"], rows, notes))
}

/// Figure 3.
pub(super) fn characteristics() -> Result<ComputedTable, PaperError> {
    let directory = tempfile::tempdir().map_err(failed)?;
    let downloads: Characteristics = arguments(&[OsStr::new("--out"), Path::as_os_str(directory.path())])?;
    let found = downloads.findings().map_err(failed)?;
    let [(_, regular), (_, split), (_, proxy)] = &found[..] else { return Err(failed("there are three downloads")) };
    let [regular, split, proxy] = [regular, split, proxy].map(|finding| &finding.character);
    let lacks = || failed("a trace shows too little of its connection");
    let bursts = regular.burstiness.zip(split.burstiness).ok_or_else(lacks)?;
    let windows = split.window.zip(proxy.window).ok_or_else(lacks)?;
    let delays = regular.delay_s.zip(split.delay_s).zip(proxy.delay_s).ok_or_else(lacks)?;
    let ((regular_delay, split_delay), proxy_delay) = delays;
    let sent_for = proxy.sent_for_s.ok_or_else(lacks)?;
    let received_for = proxy.received_for_s.ok_or_else(lacks)?;
    let steadiness = windows.1.least as f64 / windows.1.most as f64;
    let row = |what: &str, middle: &str, here: f64, decimals: usize, says: &str, holds: bool| {
        ComputedRow::new(cells(&[what, middle]), exact(here), decimals).claimed(says, holds)
    };
    let idle = |share: f64| share * 100.0;
    let rows = vec![
        row(
            "the sender is idle, % of the time",
            "Split-TCP",
            idle(bursts.1.idle),
            0,
            "alternates between sending and not",
            bursts.1.idle > 0.5,
        ),
        row(
            "the sender is idle, % of the time",
            "regular TCP",
            idle(bursts.0.idle),
            0,
            "much less bursty",
            bursts.0.idle < bursts.1.idle / 2.0,
        ),
        row(
            "fastest stretch, in means",
            "Split-TCP",
            bursts.1.peak_to_mean,
            1,
            "very short bursts",
            bursts.1.peak_to_mean > 2.0 * bursts.0.peak_to_mean,
        ),
        row(
            "fastest stretch, in means",
            "regular TCP",
            bursts.0.peak_to_mean,
            1,
            "much less bursty",
            bursts.0.peak_to_mean < bursts.1.peak_to_mean / 2.0,
        ),
        row("the window shuts, times", "Split-TCP", windows.0.shuts.into(), 0, "stops because the buffer is full", windows.0.shuts > 1),
        row("least window over largest", "TCP proxy", steadiness, 2, "essentially constant", windows.1.shuts == 0 && steadiness > 0.5),
        row("sent for, s", "TCP proxy", sent_for, 1, "1", sent_for < 2.0),
        row("received for, s", "TCP proxy", received_for, 1, "around 200", (received_for / 200.0 - 1.0).abs() < 0.1),
        row("median delay, s", "Split-TCP", split_delay.median, 2, "most above 10", split_delay.median > 10.0),
        row("longest delay, s", "regular TCP", regular_delay.max, 2, "below a few seconds", regular_delay.max < 5.0),
        row("least delay, s", "TCP proxy", proxy_delay.min, 2, "a few seconds", proxy_delay.min < 5.0),
        row("longest delay, s", "TCP proxy", proxy_delay.max, 1, "more than 200", proxy_delay.max > 200.0),
    ];
    let notes = vec![
        "Much less: by half at least. 3 MB over 128 kbit/s, with 256 KiB in the split point: the paper prints no size of either.".into(),
    ];
    Ok(ComputedTable::new(&["", "download through"], rows, notes))
}

/// §III-D: the printed ending of each operator, and the middlebox that stands for it.
const ENDINGS: [(&str, &str, &str, f64, f64); 3] = [
    ("CDMA-II", "tandem-plain", "immediately", 0.0, 1.0),
    ("CDMA-I", "lingering-40", "within 40 s", 5.0, 41.0),
    ("GPRS-I", "lingering-720", "about 12 minutes, of probes of a shut window", 700.0, 740.0),
];

/// §III-D.
pub(super) fn termination() -> Result<ComputedTable, PaperError> {
    let only = ENDINGS.iter().flat_map(|(_, middle, ..)| [OsStr::new("--only"), OsStr::new(*middle)]);
    let further: Vec<&OsStr> = only.chain([OsStr::new("--lingering")]).collect();
    let aborted = arguments::<Termination>(&further)?.aborted_downloads().map_err(failed)?;
    let mut rows = Vec::new();
    for (operator, middle, printed, from_s, to_s) in ENDINGS {
        let ending = aborted.iter().find(|one| one.middle == middle).and_then(|one| one.ending);
        let ending = ending.ok_or_else(|| failed(format!("the traces through {middle} do not show how the connection ended")))?;
        // A server that is never told goes on until the capture ends.
        let known_s = ending.later_s.or(ending.went_on_s).unwrap_or(f64::NAN);
        let graceful = ending.graceful();
        let holds = (from_s..to_s).contains(&known_s) && graceful == Some(from_s == 0.0);
        let note = if graceful == Some(false) { "the detector: does not end gracefully" } else { "the detector: ends gracefully" };
        rows.push(ComputedRow::new(cells(&[operator, middle]), exact(known_s), 3).claimed(printed, holds).with_note(note));
    }
    let notes = vec![
        "Here: time from the client's reset until the server knows of it, s. How long a lingering middlebox keeps the connection is given to it; \
         what is tested is that the server's TCP stays that long, and what the detector says."
            .into(),
    ];
    Ok(ComputedTable::new(&["operator", "in the middle"], rows, notes))
}
