//! `tandem config`: checks, shows and explains the proxy's configuration file.

mod explain;
mod show;

use crate::{
    CommandError,
    check::{self, CheckScope},
    service::usage,
};
use clap::{Args, Subcommand};
use proxy::Service;
use std::path::PathBuf;

/// Where the packages put the file.
const DEFAULT_FILE: &str = "/etc/tandem/proxy.toml";

/// Check, show or explain the proxy's configuration file
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    Check(CheckCommand),
    Show(ShowCommand),
    Explain(explain::ExplainCommand),
}

/// Check a configuration file and those that it includes
///
/// Exits with 0 if it can be used, with 2 if a file is invalid, and with --host with 1 if this host
/// lacks something that it needs.
#[derive(Debug, Args)]
pub(crate) struct CheckCommand {
    /// Configuration file (TOML)
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    file: PathBuf,
    /// Check this host too, as `tandem proxy --check` does: interfaces, routes, ports, firewall
    #[arg(long)]
    host: bool,
}

/// Print the effective configuration: each key with where it is set, and defaults
///
/// The output is TOML with the keys of all included files. Secrets are not printed; those of the
/// environment have the name of their variable.
#[derive(Debug, Args)]
pub(crate) struct ShowCommand {
    /// Configuration file (TOML)
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    file: PathBuf,
    /// Print JSON: a list of keys with value, file and line
    #[arg(long)]
    json: bool,
}

impl ConfigCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self {
            ConfigCommand::Check(command) => command.run(),
            ConfigCommand::Show(command) => command.run(),
            ConfigCommand::Explain(command) => command.run(),
        }
    }
}

impl CheckCommand {
    fn run(self) -> Result<(), CommandError> {
        let service = Service::read(&self.file).map_err(usage)?;
        service.check().map_err(usage)?;
        let scope = if self.host { CheckScope::All } else { CheckScope::Config };
        check::run(scope, || check::try_proxy(&service))
    }
}

impl ShowCommand {
    fn run(self) -> Result<(), CommandError> {
        let service = Service::read(&self.file).map_err(usage)?;
        let keys = show::keys(&service.source);
        if self.json {
            outln!("{}", serde_json::to_string(&keys).unwrap_or_default());
        } else {
            out!("{}", show::text(&service.source, &keys));
        }
        Ok(())
    }
}
