//! `tandem lab`: builds the network of a scenario for other programs.

use crate::{CommandError, runs};
use clap::Args;
use lab::{Extras, Network};
use outcome::Engine;
use runner::RunError;
use scenario::Assignment;
use std::{path::PathBuf, sync::atomic::Ordering::Relaxed, thread, time::Duration};

/// Build the emulated network of a scenario, and keep it up for other programs
///
/// Creates the hosts, links and proxies, prints the commands that run programs on the hosts, and
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
        let variants = runs::select_cases(runs::read_variants(&self.file, &self.sets)?, self.case.as_slice())?;
        let variant = &variants[0];
        let unanswered = |error| runs::failure(RunError { case: variant.case.clone(), error }.into());
        lab::Lab::default().can_answer(&variant.scenario).map_err(unanswered)?;
        let interrupted = runner::interrupt_flag();
        let extras = Extras { published: true, ..Extras::default() };
        let network = Network::build(&variant.scenario, variant.scenario.seed, &extras, |_, _| {})
            .map_err(|error| CommandError::Failed(error.to_string()))?;
        for host in network.hosts() {
            let addresses = match host.name() {
                "sender" => network.sender_addresses().map(|address| address.to_string()).join("  "),
                "receiver" => network.receiver_addresses().map(|address| address.to_string()).join("  "),
                _ => String::new(),
            };
            let line = format!("{:<10} ip netns exec {:<28} {addresses}", host.name(), host.published_name().unwrap_or_default());
            outln!("{}", line.trim_end());
        }
        outln!("\nup until Ctrl-C");
        while !interrupted.load(Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
