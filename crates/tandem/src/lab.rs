//! `tandem lab`: keeps a scenario's network up, so that other programs can be tried in it.

use crate::{Failure, runs};
use clap::Args;
use lab::{NetworkOptions, SeriesNetwork};
use outcome::Engine;
use runner::RunError;
use scenario::Assignment;
use std::{path::PathBuf, sync::atomic::Ordering::Relaxed, thread, time::Duration};

/// Builds the hosts, links and proxies of a scenario, says how to run programs in them, and keeps them up until Ctrl-C.
/// The scenario's own flows are not started.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    /// The scenario
    file: PathBuf,
    /// Which case, where the file has several
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Changes a key
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<Assignment>,
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let variants = runs::select_cases(runs::read_variants(&self.file, &self.sets)?, self.case.as_slice())?;
        let variant = &variants[0];
        let unanswered = |error| runs::failure(RunError { case: variant.case.clone(), error }.into());
        lab::Lab::default().can_answer(&variant.scenario).map_err(unanswered)?;
        let interrupted = runner::interrupt_flag();
        let extras = NetworkOptions { published: true, ..NetworkOptions::default() };
        let network = SeriesNetwork::build(&variant.scenario, variant.scenario.seed, &extras, |_, _| {})
            .map_err(|error| Failure::Failed(error.to_string()))?;
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
