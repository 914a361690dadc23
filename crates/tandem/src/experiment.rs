//! `tandem experiment`: how much sooner split connections are than unsplit ones.

use crate::{CommandError, flows::failed, output};
use clap::Args;
use proxy::control::Remote;

/// Show how much sooner split connections were than unsplit ones, in the proxy's experiment
///
/// With experiment = "1 in N" in the proxy's configuration, that share of the connections passes
/// unsplit, chosen by chance, and as many split ones are measured beside them. Shown are both times
/// by destination prefix and size, their ratio with its 95 % interval, and the number of
/// connections behind it.
#[derive(Debug, Args)]
pub(crate) struct ExperimentCommand {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

impl ExperimentCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let Some(view) = Remote::named(&self.name).experiment().map_err(failed)? else {
            let cure = "add experiment = \"1 in 50\" to its configuration, and reload it (SIGHUP)";
            return Err(CommandError::CannotTell(format!("the proxy runs no experiment: {cure}")));
        };
        if self.json {
            outln!("{}", serde_json::to_string(&view).unwrap_or_default());
        } else {
            let totals = Remote::named(&self.name).status().map_err(failed)?.totals;
            let accounts = monitor::accounts_text(&totals);
            out!("{}{}", monitor::experiment_text(&view, output::width()), report::wrap(&accounts, output::width()));
        }
        Ok(())
    }
}
