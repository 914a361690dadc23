//! What each end learns of a download that the client gives up (Wei et al., §III-D), and when: the client resets its connection, and both ends' traces are
//! looked at.

use super::{
    ends,
    middle::Middle,
    plan::{self, Condition, Run, Way},
    stage::Stage,
};
use anyhow::{Context as _, Result};
use detect::{CaptureFile, CloseKind, FindingOptions, TraceConditions, findings};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Gives up downloads through each middle, and prints when the server learnt of it
#[derive(Debug, clap::Args)]
pub(crate) struct Termination {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// How long the traces go on after the client has gone
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// What chance begins with
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What the client wants, and what it has read when it goes: enough to find it in the other trace by, less than would be all with what a middle holds.
const PATH: plan::Path = plan::Path {
    slow_kbit: 16_000,
    slow_delay_us: 30_000,
    queue_packets: 150,
    fast_kbit: 100_000,
    fast_delay_us: 10_000,
    bytes: 24_000_000,
};
const READ: usize = 6_000_000;

impl Termination {
    pub(crate) fn run(&self) -> Result<()> {
        let tandem = fs::canonicalize(&self.tandem).unwrap_or_else(|_| self.tandem.clone());
        let directory = tempfile::tempdir()?;
        println!("| middle | what came to the server | after | it went on sending for |\n|---|---|---|---|");
        for middle in std::iter::once(Middle::Forwarding).chain(Middle::all()).filter(|middle| middle.is_thorough()) {
            if let Some(why) = middle.lacks(&tandem) {
                eprintln!("without {}: {why}", middle.name());
                continue;
            }
            let [what, after, on] = self.give_up(middle, &tandem, directory.path()).with_context(|| middle.name())?;
            println!("| {} | {what} | {after} | {on} |", middle.name());
        }
        Ok(())
    }

    fn give_up(&self, middle: Middle, tandem: &Path, directory: &Path) -> Result<[String; 3]> {
        let run = Run { number: 0, middle, way: Way::Down, condition: Condition::Plain, seed: self.seed, path: PATH };
        let stage = Stage::build(&run)?;
        let server = ends::Server::start(stage.server(), stage.server_address(), ends::body(run.seed, PATH.bytes))?;
        let running = middle.start(&stage, tandem, &PATH)?;
        let [sender, receiver] = ["sender", "receiver"].map(|end| directory.join(format!("{}.{end}.pcap", middle.name())));
        let traces = stage.trace(&sender, &receiver)?;
        let port = ends::give_up(stage.client(), middle.call(&stage), READ)?;
        thread::sleep(Duration::from_secs_f64(self.seconds));
        traces.stop()?;
        drop((running, server));
        // Of what a middle holds the clocks' offset is known to a round trip alone; these are one clock.
        let known = TraceConditions { synchronised_s: Some(0.001), ack_delay_s: None };
        let found =
            findings(Some(&CaptureFile::read(&sender)?), Some(&CaptureFile::read(&receiver)?), &FindingOptions { known, series: false });
        let is_meant = |end: &std::net::SocketAddr| end.port() == port;
        let finding = found.iter().find(|finding| finding.sender.iter().chain(&finding.receiver).flatten().any(is_meant));
        let finding = finding.context("its connection is in neither trace")?;
        let Some(ending) = finding.character.ending else { return Ok([finding.reason.clone(), "–".into(), "–".into()]) };
        let what = match ending.sender {
            Some(CloseKind::Reset) => "a reset",
            Some(CloseKind::Fin) => "a close",
            None => "nothing",
        };
        // What has all that the server had to send has let it go.
        let seconds = |span: Option<f64>| match span {
            None => "–".into(),
            Some(span) if span < 0.0 => format!("{:.3} s before", -span),
            Some(span) => format!("{span:.3} s"),
        };
        Ok([what.into(), seconds(ending.later_s), seconds(ending.went_on_s)])
    }
}
