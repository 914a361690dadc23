//! `tandem lab`: builds the network of a scenario for other programs.

use crate::{CommandError, runs};
use clap::Args;
use lab::{Host, LabError, NetworkOptions, ParallelNetworks, SeriesNetwork};
use outcome::Engine;
use runner::RunError;
use scenario::Assignment;
use std::{
    net::IpAddr,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Build the emulated network of a scenario, and keep it up for other programs
///
/// Creates the hosts, links, proxies and bonds, prints the commands that run programs on the hosts, and
/// removes everything on Ctrl-C. The flows of the scenario are not started.
#[derive(Debug, Args)]
pub(crate) struct LabCommand {
    /// Scenario file (TOML)
    file: PathBuf,
    /// Case of the file [default: the first]
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Override a key of the scenario: link.2.rate=5Mbit
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Assignment>,
}

impl LabCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let variants = runs::read_variants(&self.file, &self.sets, self.case.as_slice())?;
        let variant = &variants[0];
        let unanswered = |error| runs::failure(RunError { case: variant.case.clone(), error }.into());
        lab::Lab::default().can_answer(&variant.scenario).map_err(unanswered)?;
        let interrupted = runner::interrupt_flag();
        let options = NetworkOptions { published: true, ..NetworkOptions::default() };
        let (scenario, seed) = (&variant.scenario, variant.scenario.seed);
        let failed = |error: LabError| CommandError::Failed(error.to_string());
        if scenario.parallel().is_some() {
            let networks = ParallelNetworks::build(scenario, seed, &options).map_err(failed)?;
            let [sender, receiver] = networks.hosts();
            print_host(sender, &networks.sender_addresses());
            print_host(receiver, &networks.receiver_addresses());
            for bond in networks.bonds() {
                let (from, to) = (bond.from.name(), bond.to.name());
                outln!("\nbond: connections to {} on the {from} are passed on to {} on the {to}", bond.entry, bond.exit);
            }
            wait_for(&interrupted);
            return Ok(());
        }
        let network = SeriesNetwork::build(scenario, seed, &options, |_, _| {}).map_err(failed)?;
        for host in network.hosts() {
            match host.name() {
                "sender" => print_host(host, &network.sender_addresses()),
                "receiver" => print_host(host, &network.receiver_addresses()),
                _ => print_host(host, &[]),
            }
        }
        wait_for(&interrupted);
        Ok(())
    }
}

/// Prints how to run programs on a host, and its addresses.
fn print_host(host: &Host, addresses: &[IpAddr]) {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let name = host.published_name().unwrap_or_default();
    outln!("{}", format!("{:<10} ip netns exec {name:<28} {}", host.name(), addresses.join("  ")).trim_end());
}

fn wait_for(interrupted: &AtomicBool) {
    outln!("\nup until Ctrl-C");
    while !interrupted.load(Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
}
