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
use detect::{CaptureFile, FindingOptions, Teardown, TraceConditions, findings};
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Aborts downloads through each middlebox, and looks when the server learns of it.
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
    /// Aborts a download through each middlebox of which this machine has the program.
    ///
    /// # Errors
    ///
    /// If the network cannot be built, which needs root, or a download fails.
    pub fn aborted_downloads(&self) -> Result<Vec<AbortedDownload>> {
        let tandem = testbed::resolve_program(&self.tandem);
        let directory = tempfile::tempdir()?;
        let lingering = [Middlebox::Lingering(40), Middlebox::Lingering(12 * 60)].into_iter().filter(|_| self.lingering);
        let thorough = Middlebox::all().into_iter().filter(|middle| middle.is_thorough());
        let mut aborted = Vec::new();
        for middle in std::iter::once(Middlebox::Forwarding).chain(thorough).chain(lingering) {
            if !self.only.is_empty() && !self.only.contains(&middle.name()) {
                continue;
            }
            if let Some(why) = middle.missing_requirement(&tandem) {
                eprintln!("without {}: {why}", middle.name());
                continue;
            }
            let ending = self.abort_download(middle, &tandem, directory.path()).with_context(|| middle.name())?;
            aborted.push(AbortedDownload { middle: middle.name(), ending });
        }
        Ok(aborted)
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
