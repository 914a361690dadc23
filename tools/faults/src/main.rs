//! Fault injection: makes system calls of the proxy and of a bond fail while transfers run, and
//! checks that no flow gets stuck or loses a byte.
//!
//! `campaign` decides which calls fail. `interposer` intercepts the program's system calls, by the
//! seccomp interface in `sys`; `syscalls` has their names and errors. `environment` runs the
//! program between hosts, `endpoints` plays and judges transfers.

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
