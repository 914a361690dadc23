//! `tandem bypass`: lists or changes what a running proxy does not split.

use crate::{CommandError, flows::failed};
use clap::{Args, Subcommand};
use intercept::Prefix;
use proxy::{BypassChange, control::Remote};

/// List or change the prefixes that the running proxy does not split
///
/// A connection passes unsplit if its client or its server is in one of the prefixes. Changes last
/// until the proxy ends.
#[derive(Debug, Args)]
pub(crate) struct BypassCommand {
    #[command(subcommand)]
    action: Option<BypassAction>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    name: String,
}

#[derive(Debug, Subcommand)]
enum BypassAction {
    /// List the prefixes
    List,
    /// Add prefixes
    Add {
        /// Address prefixes: 192.0.2.0/24
        #[arg(value_name = "PREFIX", required = true)]
        prefixes: Vec<Prefix>,
    },
    /// Remove prefixes
    Remove {
        /// Address prefixes: 192.0.2.0/24
        #[arg(value_name = "PREFIX", required = true)]
        prefixes: Vec<Prefix>,
    },
}

impl BypassCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let remote = Remote::named(&self.name);
        let change = match self.action {
            None | Some(BypassAction::List) => BypassChange::Nothing,
            Some(BypassAction::Add { prefixes }) => BypassChange::Add(prefixes),
            Some(BypassAction::Remove { prefixes }) => {
                let listed = remote.bypass(BypassChange::Nothing).map_err(failed)?;
                let absent = prefixes.iter().filter(|prefix| !listed.contains(prefix));
                absent.for_each(|prefix| eprintln!("tandem: {prefix} was not in the list"));
                BypassChange::Remove(prefixes)
            }
        };
        let list = remote.bypass(change).map_err(failed)?;
        if self.json {
            outln!("{}", serde_json::to_string(&list).unwrap_or_default());
        } else if list.is_empty() {
            outln!("no bypass prefixes besides those of the configuration");
        } else {
            list.iter().for_each(|prefix| outln!("{prefix}"));
        }
        Ok(())
    }
}
