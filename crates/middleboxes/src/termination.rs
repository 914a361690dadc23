//! §III-D of Wei et al.: what each end sees, and when, if the client aborts a download. The client
//! resets its connection, and both ends' traces are analysed.

use crate::{
    conditions::{BulkDirection, NetworkCondition, PathSpec},
    endpoints,
    middlebox::Middlebox,
    run::MiddleboxRun,
    run_network::RunNetwork,
};
use anyhow::{Context as _, Result};
use detect::{CaptureFile, CloseKind, FindingOptions, Teardown, TraceConditions, findings};
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Aborts downloads through each middlebox and prints when the server learnt of it
#[derive(Debug, clap::Args)]
pub struct Termination {
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// How long the captures go on after the abort
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// Only this middlebox; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Also through middleboxes that keep the server's connection for 40 s and for 12 minutes after the
    /// abort, as two of the paper's operators did
    #[arg(long)]
    lingering: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The download, and what the client has read when it aborts: enough to find the connection in the
/// other trace, and less than the download minus what a middlebox buffers.
const PATH: PathSpec =
    PathSpec { slow_kbit: 16_000, slow_delay_us: 30_000, queue_packets: 150, fast_kbit: 100_000, fast_delay_us: 10_000, bytes: 24_000_000 };
const READ: usize = 6_000_000;

impl Termination {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it cannot do its work.
    pub fn run(&self) -> Result<()> {
        println!("| middle | what came to the server | after | it went on sending for | gracefully |\n|---|---|---|---|---|");
        self.play(|aborted| println!("{}", aborted.row()))
    }

    /// Aborts a download through each middlebox of which this machine has the program.
    ///
    /// # Errors
    ///
    /// If the network cannot be built, which needs root, or a download fails.
    pub fn aborted_downloads(&self) -> Result<Vec<AbortedDownload>> {
        let mut all = Vec::new();
        self.play(|aborted| all.push(aborted))?;
        Ok(all)
    }

    fn play(&self, mut each: impl FnMut(AbortedDownload)) -> Result<()> {
        let tandem = testbed::resolve_program(&self.tandem);
        let directory = tempfile::tempdir()?;
        let lingering = [Middlebox::Lingering(40), Middlebox::Lingering(12 * 60)].into_iter().filter(|_| self.lingering);
        let all = Middlebox::all().into_iter().filter(|middle| middle.is_thorough());
        for middle in std::iter::once(Middlebox::Forwarding).chain(all).chain(lingering) {
            if !self.only.is_empty() && !self.only.contains(&middle.name()) {
                continue;
            }
            if let Some(why) = middle.missing_requirement(&tandem) {
                eprintln!("without {}: {why}", middle.name());
                continue;
            }
            let ending = self.abort_download(middle, &tandem, directory.path()).with_context(|| middle.name())?;
            each(AbortedDownload { middle: middle.name(), ending });
        }
        Ok(())
    }

    fn abort_download(&self, middle: Middlebox, tandem: &Path, directory: &Path) -> Result<Option<Teardown>> {
        let run = MiddleboxRun {
            number: 0,
            middle,
            direction: BulkDirection::Down,
            condition: NetworkCondition::Plain,
            seed: self.seed,
            path: PATH,
        };
        let network = RunNetwork::build(&run)?;
        let server = endpoints::HttpServer::start(network.server(), network.server_address(), endpoints::body(run.seed, PATH.bytes))?;
        let running = middle.start(&network, tandem, &PATH)?;
        let [sender, receiver] = ["sender", "receiver"].map(|end| directory.join(format!("{}.{end}.pcap", middle.name())));
        let traces = network.trace(&sender, &receiver)?;
        let port = endpoints::abort_download(network.client(), middle.access(&network), READ)?;
        let lingers = if let Middlebox::Lingering(seconds) = middle { f64::from(seconds) + 5.0 } else { 0.0 };
        thread::sleep(Duration::from_secs_f64(self.seconds.max(lingers)));
        traces.stop()?;
        drop((running, server));
        // Through a middlebox the offset of the clocks can be inferred only within an RTT, but here
        // both traces have one clock.
        let known = TraceConditions { synchronised_s: Some(0.001), ack_delay_s: None };
        let found =
            findings(Some(&CaptureFile::read(&sender)?), Some(&CaptureFile::read(&receiver)?), &FindingOptions { known, series: false });
        let is_meant = |end: &std::net::SocketAddr| end.port() == port;
        let finding = found.iter().find(|finding| finding.sender.iter().chain(&finding.receiver).flatten().any(is_meant));
        let finding = finding.context("neither trace has the connection")?;
        Ok(finding.character.ending)
    }
}

/// How a download ended that the client had aborted.
#[derive(Debug, Clone)]
pub struct AbortedDownload {
    /// The middlebox.
    pub middle: String,
    /// How the two ends learnt of it; none if the traces do not show that.
    pub ending: Option<Teardown>,
}

impl AbortedDownload {
    fn row(&self) -> String {
        let Some(ending) = self.ending else { return format!("| {} | – | – | – | – |", self.middle) };
        let what = match ending.sender {
            Some(CloseKind::Reset) => "a reset",
            Some(CloseKind::Fin) => "a close",
            None => "nothing",
        };
        // A middlebox that holds the complete answer has already closed the server's connection.
        let seconds = |span: Option<f64>| match span {
            None => "–".into(),
            Some(span) if span < 0.0 => format!("{:.3} s before", -span),
            Some(span) => format!("{span:.3} s"),
        };
        let gracefully = ending.graceful().map_or("–", |graceful| if graceful { "yes" } else { "no" });
        format!("| {} | {what} | {} | {} | {gracefully} |", self.middle, seconds(ending.later_s), seconds(ending.went_on_s))
    }
}
