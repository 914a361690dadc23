//! `tandem completions` and `tandem man`: the command line as shells and manual pages have it, for
//! packages and their users.

use crate::{Arguments, Failure};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::path::PathBuf;

/// Prints what a shell completes of this program's command line
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "tandem", &mut script);
        out!("{}", String::from_utf8_lossy(&script));
        Ok(())
    }
}

/// Writes the manual pages, one for each subcommand, into a directory
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// Which is there already
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Manual {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let written = clap_mangen::generate_to(Arguments::command(), &self.directory);
        written.map_err(|why| Failure::Failed(format!("cannot write manual pages into {}: {why}", self.directory.display())))
    }
}
