//! Makes the system calls of the proxy and of a bond fail while transfers run.

mod campaign;
mod endpoints;
mod environment;
mod interposer;
mod sys;
mod syscalls;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    campaign::FaultCampaign::parse().run()
}
