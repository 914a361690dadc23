//! A soak: the proxy at about half of what the machine can do, for a long time.

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
