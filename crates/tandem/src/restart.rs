//! `tandem restart`: has a new process take over from a running proxy.

use crate::{CommandError, flows::failed, service::usage};
use clap::Args;
use proxy::{
    Service,
    control::{ControlError, Remote},
};
use std::path::PathBuf;

/// Replace the running proxy or bond by a new process, without losing a connection
///
/// The proxy starts its own program again, with the arguments that it was started with: after an
/// upgrade that is the new program, and the configuration file is read again. Once the new process
/// is ready, it accepts new connections with the same listening sockets and firewall rules. The
/// earlier process ends with its last connection; `tandem flows` shows its flows until then. If the
/// new process cannot start, the one that runs goes on, and the reason is printed. With -c the exit
/// status is 4 in place of 1 if this program can use the file: a stop and a start would work.
#[derive(Debug, Args)]
pub(crate) struct RestartCommand {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
    /// The proxy's configuration file, which has its name
    #[arg(short, long, value_name = "FILE", conflicts_with = "name")]
    config: Option<PathBuf>,
}

impl RestartCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let service = self.config.as_deref().map(Service::read).transpose().map_err(usage)?;
        let name = service.as_ref().map_or(&self.name, |service| &service.name);
        let report = Remote::named(name).restart().map_err(|error| {
            let error = match error {
                ControlError::Refused(why) => CommandError::Failed(format!("the proxy that runs is still in charge: {why}")),
                other => failed(other),
            };
            // An upgrade asks here, where the service manager runs this command as the service: root
            // must not take variables or programs from the process that runs.
            match &service {
                Some(service) if service.config.check().is_ok() => CommandError::NeedsStart(error.to_string()),
                _ => error,
            }
        })?;
        if self.json {
            outln!("{}", serde_json::to_string(&report).unwrap_or_default());
        } else {
            outln!(
                "process {} (version {}) has taken over from process {} (version {}), which ends with its {} flows",
                report.pid,
                report.version,
                report.earlier_pid,
                report.earlier_version,
                report.flows
            );
        }
        Ok(())
    }
}
