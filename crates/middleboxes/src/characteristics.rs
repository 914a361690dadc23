//! Figure 3 of Wei et al.: burstiness of the sender, advertised window and end-to-end delay of a
//! download over a cellular link, without a middlebox, through Split-TCP and through a TCP proxy.

use crate::{
    conditions::{BulkDirection, CELLULAR, NetworkCondition, PathSpec},
    middlebox::Middlebox,
    play::play,
    run::MiddleboxRun,
};
use anyhow::{Context as _, Result, bail, ensure};
use detect::{CaptureFile, ConnectionFinding, FindingOptions, TraceConditions, findings};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use units::Bytes;

/// Captures downloads over a cellular link without a middlebox, through Split-TCP and through a TCP
/// proxy, draws them as in Figure 3 of Wei et al., and prints their characteristics
#[derive(Debug, clap::Args)]
pub struct Characteristics {
    /// Directory for traces and pages
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Size of the download; the paper's took 200 s
    #[arg(long, default_value = "3MB")]
    bytes: Bytes,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const MIDDLES: [(&str, Middlebox); 3] =
    [("regular TCP", Middlebox::Forwarding), ("Split-TCP", Middlebox::Tandem("operators")), ("TCP proxy", Middlebox::Hold)];

/// Difference of the two clocks, s. Both traces are stamped by one machine.
const ONE_CLOCK: f64 = 0.001;

impl Characteristics {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it cannot do its work.
    pub fn run(&self) -> Result<()> {
        let found = self.findings()?;
        println!(
            "| | verdict | sent for, s | received for, s | the sender: idle, % of stretches of | fastest stretch, in means | window, kB | shut, times | \
             delay, s: least | median | most |\n|---|---|---|---|---|---|---|---|---|---|---|"
        );
        for (what, found) in found {
            println!("{}", row(what, &found));
        }
        println!("\nTraces and pages are in {}.", self.out.display());
        Ok(())
    }

    /// Downloads without a middlebox ("regular TCP"), through "Split-TCP" and through a "TCP proxy", one
    /// after the other, and describes each.
    ///
    /// # Errors
    ///
    /// If the network cannot be built, which needs root, or a download fails.
    pub fn findings(&self) -> Result<Vec<(&'static str, ConnectionFinding)>> {
        let tandem = testbed::resolve_program(&self.tandem);
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make the directory {}", self.out.display()))?;
        MIDDLES.iter().map(|(what, middle)| Ok((*what, self.trace(what, *middle, &tandem).with_context(|| *what)?))).collect()
    }

    /// Runs a download and analyses its traces.
    fn trace(&self, what: &str, middle: Middlebox, tandem: &Path) -> Result<ConnectionFinding> {
        if let Some(why) = middle.missing_requirement(tandem) {
            bail!("{}: {why}", middle.name());
        }
        let file = |end: &str| self.out.join(format!("{}.{end}", what.replace(' ', "-")));
        let [sender, receiver, page] = ["sender.pcap", "receiver.pcap", "html"].map(file);
        let path = PathSpec { bytes: self.bytes.0, ..CELLULAR };
        let run =
            MiddleboxRun { number: 0, middle, direction: BulkDirection::Down, condition: NetworkCondition::Plain, seed: self.seed, path };
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
        meant.context("neither trace has the connection")
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
