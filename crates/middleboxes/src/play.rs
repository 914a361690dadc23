//! Plays a run of the corpus.

use crate::{
    conditions::{BulkDirection, NetworkCondition, PathSpec},
    endpoints,
    middlebox::Middlebox,
    run::MiddleboxRun,
    run_network::RunNetwork,
};
use anyhow::{Context as _, Result, bail, ensure};
use detect::{CaptureFile, FindingOptions, Method, SplitVerdict, findings};
use std::path::Path;

/// A download through a Split-TCP proxy with a tunnel over UDP between it and the client (Wei et al.
/// §III-B, footnote 2). Returns the verdict, and the detector's evidence of the changed protocol if it
/// has some.
///
/// # Errors
///
/// If the network cannot be built, which needs root, HAProxy is not installed, or the download fails.
pub fn tunnelled_download() -> Result<(SplitVerdict, Option<String>)> {
    let middle = Middlebox::HaproxyTunnel;
    let none = Path::new("tandem");
    if let Some(why) = middle.missing_requirement(none) {
        bail!("{}: {why}", middle.name());
    }
    let path = PathSpec {
        slow_kbit: 4_000,
        slow_delay_us: 30_000,
        queue_packets: 100,
        fast_kbit: 100_000,
        fast_delay_us: 10_000,
        bytes: 1_000_000,
    };
    let run = MiddleboxRun { number: 0, middle, direction: BulkDirection::Down, condition: NetworkCondition::Plain, seed: 1, path };
    let directory = tempfile::tempdir()?;
    let [sender, receiver] = ["sender", "receiver"].map(|end| directory.path().join(format!("{end}.pcap")));
    play(&run, none, &sender, &receiver)?;
    let found = findings(Some(&CaptureFile::read(&sender)?), Some(&CaptureFile::read(&receiver)?), &FindingOptions::default());
    let [finding] = &found[..] else { bail!("the traces have {} connections instead of one", found.len()) };
    let evidence = finding.evidence.iter().find(|piece| piece.method == Method::Transport);
    Ok((finding.verdict, evidence.map(|piece| piece.text.clone())))
}

/// Plays a run while capturing at both ends: into `sender` and `receiver`, which become pcap files.
/// `tandem` is the program. Returns the client's port.
///
/// # Errors
///
/// If the network cannot be built, which needs root, the middlebox does not start, or the exchange
/// fails.
pub fn play(run: &MiddleboxRun, tandem: &Path, sender: &Path, receiver: &Path) -> Result<u16> {
    let network = RunNetwork::build(run)?;
    let body = endpoints::body(run.seed, run.path.bytes);
    let server = endpoints::HttpServer::start(network.server(), network.server_address(), body.clone())?;
    let mut running = run.middle.start(&network, tandem, &run.path)?;
    let access = run.middle.access(&network);
    let traces = network.trace(sender, receiver)?;
    let exchange = || endpoints::exchange(network.client(), access, run.direction, &body);
    let mut outcome = exchange();
    if run.middle == Middlebox::SquidAgain && outcome.is_ok() {
        outcome = exchange();
        // The label must be true: the second answer has to come from the cache.
        let asked = server.connections();
        ensure!(asked == 1, "the server got {asked} requests though the second answer should have come from the cache");
        // No cache answers this request: that it reaches the server shows that the server's capture
        // is still running.
        endpoints::exchange(network.client(), access, BulkDirection::Up, b"more")?;
    }
    traces.stop()?;
    // If a transparent middlebox has ended, its connection was not split.
    running.ensure_running()?;
    outcome.context("the exchange failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_shows_by_its_datagrams() {
        const TEST: &str = "a_tunnel_shows_by_its_datagrams";
        let lacks = lab::Host::new("probe").err().map(|why| why.to_string());
        let missing = || testing::missing(&["tcpdump", "ethtool", "nft", "haproxy"]).map(|program| format!("there is no {program}"));
        if let Some(why) = lacks.or_else(missing) {
            return testing::skipped(TEST, &why);
        }
        let (verdict, evidence) = tunnelled_download().unwrap();
        assert!(evidence.as_ref().is_some_and(|text| text.contains("datagrams instead")), "{verdict} {evidence:?}");
    }
}
