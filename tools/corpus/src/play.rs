//! Plays a run of the corpus.

use crate::{conditions::TransferDirection, endpoints, middlebox::Middlebox, plan::CorpusRun, run_network::RunNetwork};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;

/// Plays a run with captures at both ends; returns the client's port.
pub(crate) fn play(run: &CorpusRun, tandem: &Path, sender: &Path, receiver: &Path) -> Result<u16> {
    let network = RunNetwork::build(run)?;
    let body = endpoints::body(run.seed, run.path.bytes);
    let server = endpoints::HttpServer::start(network.server(), network.server_address(), body.clone())?;
    let mut running = run.middle.start(&network, tandem, &run.path)?;
    let call = run.middle.access(&network);
    let traces = network.trace(sender, receiver)?;
    let exchange = || endpoints::exchange(network.client(), call, run.direction, &body);
    let mut outcome = exchange();
    if run.middle == Middlebox::SquidAgain && outcome.is_ok() {
        outcome = exchange();
        // A label must be true: what is said to come from a cache does.
        let asked = server.connections();
        ensure!(asked == 1, "the server was asked {asked} times, and the second answer should have come from the cache");
        // What no cache keeps: that it comes to the server shows that its trace ran on.
        endpoints::exchange(network.client(), call, TransferDirection::Up, b"more")?;
    }
    traces.stop()?;
    // Past a transparent one that has ended connections go unsplit.
    running.ensure_running()?;
    outcome.context("the exchange failed")
}
