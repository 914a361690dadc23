//! Measures the proxy against plain forwarding and against other proxies: the same hosts, the same ends, the same congestion
//! control on every leg, turn by turn, and prints the tables of `docs/benchmarks.md`.
//!
//! `tandem-bench control` measures what congestion controllers cost (`control`), `tandem-bench equations` how fast models are answered, and
//! `tandem-bench ns2` holds the simulator against ns-2 (`ns2`), `tandem-bench pairs` a bond against the better of its networks (`pairs`), and
//! `tandem-bench bond` what a bond costs (`bonded`), `tandem-bench paths` tries the data path over rates, round trips and buffers (`paths`);
//! `tandem-bench faults` makes system calls of the proxy and of a bond fail (`faults`).
//! `tandem-bench soak` is something else: a long run in which everything goes wrong now and then (`soak`). `tandem-bench corpus` makes traces of
//! which is known whether they are split, and `tandem-bench corpus-check` holds the detector to them (`corpus`); `tandem-bench large-trace`
//! measures how fast it is (`large`). `operators`, `image`, `characteristics` and `termination` do again what Wei et al. measured (`corpus`).
//!
//! `network` makes the three hosts, `rival` starts what stands in the middle, `load` is the ends, `machine` counts the
//! processors' time.

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
mod results;
mod rival;
mod statistics;
mod sys;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Measures the proxy against plain forwarding and against other proxies.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    bench: comparison::Comparison,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
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
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Bare(bare)) => bare.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Bond(bonded)) => bonded.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Copy(copying)) => copying.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Control(control)) => control.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Equations(equations)) => equations.run().map(|()| ExitCode::SUCCESS),
        Some(Command::LargeTrace(large)) => large.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Ns2(ns2)) => ns2.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Pairs(pairs)) => pairs.run().map(|()| ExitCode::SUCCESS),
        Some(Command::Paths(paths)) => paths.run(),
        None => comparison::measure(&arguments.bench).map(|()| ExitCode::SUCCESS),
    }
}
