//! Plays a run of the corpus.

use crate::{
    endpoints as ends,
    middlebox::Middle,
    plan::{Run, Way},
    run_network::Stage,
};
use anyhow::{Context as _, Result, ensure};
use std::path::Path;

/// Plays a run with captures at both ends; returns the client's port.
pub(crate) fn play(run: &Run, tandem: &Path, sender: &Path, receiver: &Path) -> Result<u16> {
    let stage = Stage::build(run)?;
    let body = ends::body(run.seed, run.path.bytes);
    let server = ends::Server::start(stage.server(), stage.server_address(), body.clone())?;
    let mut running = run.middle.start(&stage, tandem, &run.path)?;
    let call = run.middle.call(&stage);
    let traces = stage.trace(sender, receiver)?;
    let exchange = || ends::exchange(stage.client(), call, run.way, &body);
    let mut outcome = exchange();
    if run.middle == Middle::SquidAgain && outcome.is_ok() {
        outcome = exchange();
        // A label must be true: what is said to come from a cache does.
        let asked = server.connections();
        ensure!(asked == 1, "the server was asked {asked} times, and the second answer should have come from the cache");
        // What no cache keeps: that it comes to the server shows that its trace ran on.
        ends::exchange(stage.client(), call, Way::Up, b"more")?;
    }
    traces.stop()?;
    // Past a transparent one that has ended connections go unsplit.
    running.still()?;
    outcome.context("the exchange failed")
}
