//! `tandem lab`: holds a scenario's network up, so that anybody's programs can be tried in it.

use crate::{
    Failure,
    answer::{self, Unanswered},
    run,
};
use clap::Args;
use lab::{Extras, Network};
use scenario::Assignment;
use std::{path::PathBuf, sync::atomic::Ordering::Relaxed, thread, time::Duration};

/// Builds the hosts, links and proxies of a scenario, says how to run programs in them, and holds them up until Ctrl-C.
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
        let variants = run::pick(run::read(&self.file, &self.sets)?, self.case.as_slice())?;
        let variant = &variants[0];
        let engine = lab::Lab::default();
        if let Err(why) = outcome::Engine::can_answer(&engine, &variant.scenario) {
            let unanswered = Unanswered { case: variant.case.clone(), why };
            return Err(answer::part(vec![Err(unanswered)]).1.unwrap_or(Failure::Silent(1)));
        }
        let interrupted = answer::interruption();
        let extras = Extras { published: true, ..Extras::default() };
        let network = Network::build(&variant.scenario, variant.scenario.seed, &extras, |_, _| {})
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
        outln!("\nuntil Ctrl-C");
        while !interrupted.load(Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
