//! Runs the proxy for a long time at about half of the machine's capacity, with honest and hostile
//! clients, cut links and reloaded configurations, and checks that everything adds up.
//!
//! `soak` runs it. `workload` is what honest clients do, `hostile` what hostile ones do,
//! `fault_injection` what goes wrong. `endpoints` are both ends of honest connections, which follow
//! a `plan`. `ledger` compares what the endpoints and the proxy's log say of each connection.
//! `monitor` reads the proxy's metrics, log and memory.

mod addresses;
mod endpoints;
mod fault_injection;
mod hostile;
mod ledger;
mod monitor;
mod payload;
mod plan;
mod proxy_process;
mod shared;
mod soak;
mod workload;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    soak::Soak::parse().run()
}
