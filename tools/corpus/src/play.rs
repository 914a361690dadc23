//! Plays a run of the corpus.

use crate::{conditions::BulkDirection, endpoints, middlebox::Middlebox, plan::CorpusRun, run_network::RunNetwork};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;

/// Plays a run while capturing at both ends. Returns the client's port.
pub(crate) fn play(run: &CorpusRun, tandem: &Path, sender: &Path, receiver: &Path) -> Result<u16> {
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
