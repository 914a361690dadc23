//! Benchmarks, whose tables are in `docs/benchmarks.md`.
//!
//! Without a subcommand: the proxy beside plain forwarding and other proxies (`comparison`; `rival`
//! starts them, `load` generates the traffic, `results` prints the tables). `bond`: a bond beside a
//! relay (`bond_cost`). `control`: congestion controllers beside the kernel's (`control`). `pairs`:
//! a bond beside the better of its networks (`network_pairs`). `paths`: the data path over rates,
//! round trips and buffers (`path_sweep`). `pepsal`: PEPsal beside the proxy over a satellite link.
//! `equations`: how fast the models are evaluated. `ns2`: the simulator beside ns-2. `large-trace`:
//! how fast the detector reads a trace.

mod bond_cost;
mod comparison;
mod control;
mod equations;
mod large_trace;
mod load;
mod measurement;
mod minimal_relay;
mod network_pairs;
mod ns2;
mod path_sweep;
mod pepsal;
mod results;
mod rival;
mod statistics;
mod sys;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Measures the proxy beside plain forwarding and other proxies. Subcommands measure the bond, the
/// controllers, the models, the simulator and the detector
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct BenchArguments {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    bench: comparison::ProxyComparison,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    #[command(hide = true)]
    Bare(minimal_relay::MinimalRelay),
    Bond(bond_cost::BondCost),
    #[command(hide = true)]
    Copy(bond_cost::CopyRelay),
    Control(control::ControllerCost),
    Equations(equations::Equations),
    LargeTrace(large_trace::LargeTrace),
    Ns2(ns2::CompareWithNs2),
    Pairs(network_pairs::NetworkPairs),
    Paths(path_sweep::PathSweep),
    Pepsal(pepsal::PepsalComparison),
}

fn main() -> Result<ExitCode> {
    let arguments = BenchArguments::parse();
    match arguments.command {
        Some(BenchCommand::Bare(bare)) => bare.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Bond(bonded)) => bonded.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Copy(copying)) => copying.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Control(control)) => control.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Equations(equations)) => equations.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::LargeTrace(large)) => large.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Ns2(ns2)) => ns2.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Pairs(pairs)) => pairs.run().map(|()| ExitCode::SUCCESS),
        Some(BenchCommand::Paths(paths)) => paths.run(),
        Some(BenchCommand::Pepsal(pepsal)) => pepsal.run().map(|()| ExitCode::SUCCESS),
        None => comparison::measure(&arguments.bench).map(|()| ExitCode::SUCCESS),
    }
}
