//! `tandem lab`: builds the network of a scenario for other programs.

use crate::{CommandError, runs};
use clap::Args;
use lab::{Host, KeptHosts, KeptNetwork};
use runner::RunError;
use scenario::Assignment;
use std::{net::IpAddr, path::PathBuf, sync::atomic::Ordering::Relaxed, thread, time::Duration};

/// Interval at which proxies follow changes of their links, and Ctrl-C is noticed.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Build the emulated network of a scenario, and keep it up for other programs
///
/// Creates the hosts, links, proxies and bonds, prints the commands that run programs on the hosts, and
/// removes everything on Ctrl-C. Links change as the scenario says, from the moment at which the
/// network is up. The traffic of the scenario is not started.
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
        if let Some(sweep) = self.sets.iter().find(|set| set.values().len() != 1) {
            let (key, count) = (sweep.key(), sweep.values().len());
            return Err(CommandError::Usage(format!("--set gives {key} {count} values, but tandem lab builds one network: give it one")));
        }
        let variants = runs::read_variants(&self.file, &self.sets, self.case.as_slice())?;
        let variant = &variants[0];
        let interrupted = runner::interrupt_flag();
        let failed = |error| runs::failure(RunError { case: variant.case.clone(), error }.into());
        let mut network = KeptNetwork::build(&variant.scenario).map_err(failed)?;
        match network.hosts() {
            KeptHosts::Parallel(networks) => {
                let [sender, receiver] = networks.hosts();
                print_host(sender, &networks.sender_addresses());
                print_host(receiver, &networks.receiver_addresses());
                for bond in networks.bonds() {
                    let (from, to) = (bond.from.name(), bond.to.name());
                    outln!("\nbond: connections to {} on the {from} are passed on to {} on the {to}", bond.entry, bond.exit);
                }
            }
            KeptHosts::Series(series) => {
                for host in series.hosts() {
                    match host.name() {
                        "sender" => print_host(host, &series.sender_addresses()),
                        "receiver" => print_host(host, &series.receiver_addresses()),
                        _ => print_host(host, &[]),
                    }
                }
            }
        }
        let traffic = network.traffic_keys();
        if !traffic.is_empty() {
            outln!("\nnot started, besides the flows: {} (tandem run plays them)", traffic.join(", "));
        }
        if let Some(control) = network.control_to_choose() {
            outln!(
                "\nprograms have to choose the sender's controller {control:?} themselves: this kernel permits it as no default \
                 (net.ipv4.tcp_allowed_congestion_control)"
            );
        }
        outln!("\nup until Ctrl-C{}", if network.changes() { "; the times of changes, traces and outages count from now" } else { "" });
        network.start_clock();
        while !interrupted.load(Relaxed) {
            network.follow().map_err(|error| CommandError::Failed(error.to_string()))?;
            thread::sleep(CHECK_INTERVAL);
        }
        Ok(())
    }
}

/// Prints how to run programs on a host, and its addresses.
fn print_host(host: &Host, addresses: &[IpAddr]) {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let name = host.published_name().unwrap_or_default();
    outln!("{}", format!("{:<10} ip netns exec {name:<28} {}", host.name(), addresses.join("  ")).trim_end());
}
