//! Benchmarks. Each subcommand measures one subject, prints its tables, and with `--record` writes
//! `NAME.json`. `render` makes the tables of a page, such as `docs/benchmarks.md`, of these files.
//!
//! `emulator`: the lab's links. `proxy`: the proxy beside plain forwarding and other proxies
//! (`comparison`; `rival` starts them, `load` generates the traffic). `bond`: a bond beside a relay
//! (`bond_cost`). `buffer-auto`: the proxy's buffer that follows each flow beside fixed ones
//! (`buffer_auto`). `control`: congestion controllers beside the kernel's. `pairs`: a bond beside
//! the better of its networks (`network_pairs`). `paths`: the data path over rates, round trips and
//! buffers (`path_sweep`). `engines`, `downloads`: scenarios on the lab and in the simulator, and
//! over two networks (`scenario_runs`). `advice`: what `tandem advise` says of three paths, and the
//! lab (`advised_paths`). `bbr`: BBR beside the kernel's own and in the simulator (`bbr_versions`).
//! `pepsal`: PEPsal beside the proxy over a satellite link. `python-study`: a study in Python
//! beside the same by ns-3. `python-calls`: what a call from Python costs. `python-sweeps`: one
//! sweep from Python on cores and on a cluster. `quic`: page loads of a browser with QUIC and
//! without (`quic_pages`). `traces`: controllers over recorded links (`varying_links`).
//! `equations`: how fast the models are evaluated. `experiment`: how often the interval of the
//! proxy's experiment covers the true gain. `simulator`: how fast it is (`simulator_speed`). `ns2`:
//! the simulator beside ns-2. `large-trace`: how fast the detector reads a trace. `memory`: clients
//! that never read, on a small machine (`hostile_clients`). `monday`: what users get with the
//! settings that Tandem writes. `account`: what a link is lost to, beside packet captures
//! (`account_captures`).

mod account_captures;
mod advised_paths;
mod bbr_versions;
mod bond_cost;
mod buffer_auto;
mod comparison;
mod control;
mod emulator;
mod equations;
mod experiment;
mod hostile_clients;
mod large_trace;
mod load;
mod measurement;
mod minimal_relay;
mod monday;
mod network_pairs;
mod ns2;
mod other_program;
mod path_sweep;
mod pepsal;
mod python_calls;
mod python_program;
mod python_study;
mod python_sweeps;
mod quic_pages;
mod resume_file;
mod rival;
mod scenario_runs;
mod simulator_speed;
mod sys;
mod varying_links;
mod workers;

use anyhow::{Context as _, Result};
use clap::Parser;
use measurements::measure;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Measures the emulator, the proxy, the bond, the controllers, the models, the simulator and the
/// detector
#[derive(Debug, Parser)]
struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
    /// Writes samples and circumstances into this directory, as SUBCOMMAND.json
    #[arg(long, global = true, value_name = "DIRECTORY")]
    record: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    #[command(hide = true)]
    Bare(minimal_relay::MinimalRelay),
    Account(account_captures::AccountCaptures),
    Advice(advised_paths::AdvisedPaths),
    Bbr(bbr_versions::BbrVersions),
    Bond(bond_cost::BondCost),
    BufferAuto(buffer_auto::BufferAuto),
    #[command(hide = true)]
    Copy(bond_cost::CopyRelay),
    Control(control::ControllerCost),
    Downloads(scenario_runs::BondDownloads),
    Emulator(emulator::EmulatorCost),
    Engines(scenario_runs::EngineComparison),
    Equations(equations::Equations),
    Experiment(experiment::ExperimentCoverage),
    LargeTrace(large_trace::LargeTrace),
    Memory(hostile_clients::HostileClients),
    Monday(monday::MondaySuite),
    Ns2(ns2::CompareWithNs2),
    Pairs(network_pairs::NetworkPairs),
    Paths(path_sweep::PathSweep),
    Pepsal(pepsal::PepsalComparison),
    Proxy(comparison::ProxyComparison),
    PythonCalls(python_calls::PythonCalls),
    PythonStudy(python_study::PythonStudy),
    PythonSweeps(python_sweeps::PythonSweeps),
    Quic(quic_pages::QuicPages),
    Simulator(simulator_speed::SimulatorSpeed),
    Render(RenderPages),
    Traces(varying_links::VaryingLinks),
}

/// Makes the tables between the comments of pages of recorded measurements
#[derive(Debug, clap::Args)]
struct RenderPages {
    /// The pages
    #[arg(required = true)]
    pages: Vec<PathBuf>,
    /// Directory of the records
    #[arg(long, default_value = "benchmarks", value_name = "DIRECTORY")]
    from: PathBuf,
}

impl RenderPages {
    fn run(&self) -> Result<()> {
        for page in &self.pages {
            let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
            let rendered =
                measurements::render(&text, &self.from).with_context(|| format!("cannot make the tables of {}", page.display()))?;
            fs::write(page, rendered).with_context(|| format!("cannot write {}", page.display()))?;
        }
        Ok(())
    }
}

fn main() -> Result<ExitCode> {
    let arguments = BenchArguments::parse();
    let to: Option<&Path> = arguments.record.as_deref();
    match arguments.command {
        BenchCommand::Bare(bare) => bare.run(),
        BenchCommand::Copy(copying) => copying.run(),
        BenchCommand::Render(pages) => pages.run(),
        BenchCommand::Account(captures) => measure("account", to, |record| captures.measure(record)),
        BenchCommand::Advice(advice) => measure("advice", to, |record| advice.measure(record)),
        BenchCommand::Bbr(versions) => measure("bbr", to, |record| versions.measure(record)),
        BenchCommand::Bond(bond) => measure("bond", to, |record| bond.measure(record)),
        BenchCommand::BufferAuto(buffers) => measure("buffer-auto", to, |record| buffers.measure(record)),
        BenchCommand::Control(control) => measure("control", to, |record| control.measure(record)),
        BenchCommand::Downloads(downloads) => measure("downloads", to, |record| downloads.measure(record)),
        BenchCommand::Engines(engines) => measure("engines", to, |record| engines.measure(record)),
        BenchCommand::Emulator(emulator) => measure("emulator", to, |record| emulator.measure(record)),
        BenchCommand::Equations(equations) => measure("equations", to, |record| equations.measure(record)),
        BenchCommand::Experiment(experiment) => measure("experiment", to, |record| experiment.measure(record)),
        BenchCommand::LargeTrace(large) => measure("large-trace", to, |record| large.measure(record)),
        BenchCommand::Memory(hostile) => measure("memory", to, |record| hostile.measure(record)),
        BenchCommand::Monday(suite) => measure("monday", to, |record| suite.measure(record)),
        BenchCommand::Ns2(ns2) => match ns2.play() {
            Some(what) => ns2::speed::play(what),
            None => measure("ns2", to, |record| ns2.measure(record)),
        },
        BenchCommand::Pairs(pairs) => measure("pairs", to, |record| pairs.measure(record)),
        BenchCommand::Paths(paths) => {
            let mut passes = false;
            measure("paths", to, |record| paths.measure(record).map(|all| passes = all))?;
            return Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        BenchCommand::Pepsal(pepsal) => measure("pepsal", to, |record| pepsal.measure(record)),
        BenchCommand::Proxy(proxy) => measure("proxy", to, |record| proxy.measure(record)),
        BenchCommand::PythonCalls(calls) => measure("python-calls", to, |record| calls.measure(record)),
        BenchCommand::PythonStudy(study) => measure("python-study", to, |record| study.measure(record)),
        BenchCommand::PythonSweeps(sweeps) => measure("python-sweeps", to, |record| sweeps.measure(record)),
        BenchCommand::Quic(pages) => measure("quic", to, |record| pages.measure(record)),
        BenchCommand::Simulator(speed) => measure("simulator", to, |record| speed.measure(record)),
        BenchCommand::Traces(links) => measure("traces", to, |record| links.measure(record)),
    }
    .map(|()| ExitCode::SUCCESS)
}
