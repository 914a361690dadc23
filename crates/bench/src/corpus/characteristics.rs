//! Figure 3 of Wei et al.: how the sender of a download over a cellular link behaves, the window that it is offered, and end-to-end delays, where the connection
//! is split, held by a TCP proxy, or neither.

use super::{
    middle::Middle,
    plan::{CELLULAR, Condition, Path as Line, Run, Way},
    play,
};
use anyhow::{Context as _, Result, bail, ensure};
use detect::{CaptureFile, ConnectionFinding, FindingOptions, TraceConditions, findings};
use scenario::Bytes;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Takes traces of downloads over a cellular link, split, held by a TCP proxy and neither, draws them as Figure 3 of Wei et al. does, and prints what they show
#[derive(Debug, clap::Args)]
pub(crate) struct Characteristics {
    /// Where traces and pages go
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// What is downloaded: the paper's took 200 s
    #[arg(long, default_value = "3MB")]
    bytes: Bytes,
    /// What chance begins with
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const MIDDLES: [(&str, Middle); 3] =
    [("regular TCP", Middle::Forwarding), ("Split-TCP", Middle::Tandem("operators")), ("TCP proxy", Middle::Hold)];

/// How well the ends' clocks agree, s: they are one.
const ONE_CLOCK: f64 = 0.001;

impl Characteristics {
    pub(crate) fn run(&self) -> Result<()> {
        // A name without a directory is looked for in PATH.
        let tandem = fs::canonicalize(&self.tandem).unwrap_or_else(|_| self.tandem.clone());
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make the directory {}", self.out.display()))?;
        println!(
            "| | verdict | sent for, s | received for, s | the sender: idle, % of stretches of | fastest stretch, in means | window, kB | shut, times | \
             delay, s: least | median | most |\n|---|---|---|---|---|---|---|---|---|---|---|"
        );
        for (what, middle) in MIDDLES {
            let found = self.trace(what, middle, &tandem).with_context(|| what)?;
            println!("{}", row(what, &found));
        }
        println!("\nTraces and pages are in {}.", self.out.display());
        Ok(())
    }

    /// Plays a download, and looks at its traces.
    fn trace(&self, what: &str, middle: Middle, tandem: &Path) -> Result<ConnectionFinding> {
        if let Some(why) = middle.lacks(tandem) {
            bail!("{}: {why}", middle.name());
        }
        let file = |end: &str| self.out.join(format!("{}.{end}", what.replace(' ', "-")));
        let [sender, receiver, page] = ["sender.pcap", "receiver.pcap", "html"].map(file);
        let path = Line { bytes: self.bytes.0, ..CELLULAR };
        let run = Run { number: 0, middle, way: Way::Down, condition: Condition::Plain, seed: self.seed, path };
        let port = play(&run, tandem, &sender, &receiver)?;
        let mut draw = Command::new(tandem);
        draw.args(["detect", "trace", "--synchronised", "1ms", "--sender"]).arg(&sender).arg("--receiver").arg(&receiver);
        let drawn = draw.arg("--page").arg(&page).stdout(Stdio::null()).status().context("cannot run tandem detect trace")?;
        ensure!(drawn.success(), "tandem detect trace could not draw {}", page.display());
        let known = TraceConditions { synchronised_s: Some(ONE_CLOCK), ack_delay_s: None };
        let found =
            findings(Some(&CaptureFile::read(&sender)?), Some(&CaptureFile::read(&receiver)?), &FindingOptions { known, series: false });
        let is_meant = |end: &SocketAddr| end.port() == port;
        let meant = found.into_iter().find(|finding| finding.sender.iter().chain(&finding.receiver).flatten().any(is_meant));
        meant.context("its connection is in neither trace")
    }
}

fn row(what: &str, found: &ConnectionFinding) -> String {
    let character = &found.character;
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let span = |span: Option<f64>| or_none(span.map(|span| format!("{span:.1}")));
    let bursts = character.burstiness;
    let window = character.window;
    let delay = |of: fn(&detect::DelaySummary) -> f64| or_none(character.delay_s.as_ref().map(|delay| format!("{:.2}", of(delay))));
    let cells = [
        what.to_owned(),
        found.verdict.to_string(),
        span(character.sent_for_s),
        span(character.received_for_s),
        or_none(bursts.map(|bursts| format!("{:.0} of {:.2} s", bursts.idle * 100.0, bursts.bin_s))),
        or_none(bursts.map(|bursts| format!("{:.1}", bursts.peak_to_mean))),
        or_none(window.map(|window| format!("{:.0} to {:.0}", window.least as f64 / 1e3, window.most as f64 / 1e3))),
        or_none(window.map(|window| window.shuts.to_string())),
        delay(|delay| delay.min),
        delay(|delay| delay.median),
        delay(|delay| delay.max),
    ];
    format!("| {} |", cells.join(" | "))
}
