//! `tandem completions` and `tandem man`: shell completions and manual pages, generated from the
//! definition of the command line.

use crate::{Arguments, CommandError};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::path::PathBuf;

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub(crate) struct CompletionsCommand {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "tandem", &mut script);
        out!("{}", String::from_utf8_lossy(&script));
        Ok(())
    }
}

/// Write the manual pages, one per subcommand, into a directory
#[derive(Debug, Args)]
pub(crate) struct ManualCommand {
    /// Existing directory for the pages
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl ManualCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let written = clap_mangen::generate_to(Arguments::command(), &self.directory);
        written.map_err(|why| CommandError::Failed(format!("cannot write manual pages into {}: {why}", self.directory.display())))
    }
}
