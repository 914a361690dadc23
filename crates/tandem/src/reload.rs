//! Reads the configuration of a running proxy again, and says what changed: on SIGHUP in the log,
//! for `tandem reload` in its answer too.

use crate::{CommandError, flows::failed, manager::tell_manager};
use clap::Args;
use proxy::{Application, KeyChange, Proxy, ProxyConfigError, ReloadReport, Service, control::Remote};
use sd_notify::NotifyState;

/// Have the running proxy read its configuration file again, and print what changed
///
/// The same as SIGHUP: new connections get the new configuration, and existing ones keep theirs.
/// Nothing is applied if the file is invalid, or changes a key that needs `tandem restart` or a new
/// start. Exits with 1 then.
#[derive(Debug, Args)]
pub(crate) struct ReloadCommand {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
}

impl ReloadCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let report = Remote::named(&self.name).reload().map_err(failed)?;
        if self.json {
            outln!("{}", serde_json::to_string(&report).unwrap_or_default());
        } else {
            if report.changes.is_empty() && !report.unfinished {
                outln!("no key has changed");
            }
            // A refusal names the changes that cannot be applied.
            if report.refused.is_none() {
                report.changes.iter().for_each(|change| outln!("{change} ({})", change.application));
            }
        }
        if report.unfinished {
            return Err(CommandError::Failed("the proxy is still reading its configuration: the log will say what came of it".into()));
        }
        match report.refused {
            // The changes have been printed.
            Some(_) if self.json => Err(CommandError::Silent(1)),
            Some(why) => Err(CommandError::Failed(why)),
            None => Ok(()),
        }
    }
}

/// Reads the configuration again and applies it to new connections. `present` is the one that
/// applies. An invalid one is logged and changes nothing.
///
/// # Errors
/// The configuration cannot be read, or is invalid.
pub(crate) fn reload(
    proxy: &Proxy,
    present: &mut Service,
    read_again: impl Fn() -> Result<Option<Service>, ProxyConfigError>,
) -> Result<ReloadReport, String> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    tell_manager(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
    let outcome = try_reload(proxy, present, read_again);
    match &outcome {
        Ok(ReloadReport { refused: None, changes, .. }) => {
            changes.iter().for_each(|change| tracing::info!("reload: {change}"));
            tracing::info!(changes = changes.len(), "the configuration has been read again; it applies to new connections");
        }
        Ok(ReloadReport { refused: Some(why), .. }) | Err(why) => tracing::error!("the configuration stays as it was: {why}"),
    }
    tell_manager(&[NotifyState::Ready]);
    outcome
}

fn try_reload(
    proxy: &Proxy,
    present: &mut Service,
    read_again: impl Fn() -> Result<Option<Service>, ProxyConfigError>,
) -> Result<ReloadReport, String> {
    let service = read_again().map_err(|error| error.to_string())?.ok_or("there is no configuration file to reload")?;
    let mut changes = present.source.changes(&service.source);
    if let Some(key) = present.needs_restart(&service).or_else(|| service.config.needs_restart(&present.config)) {
        // The size of a buffer decides whether a listening socket depends on it.
        for change in changes.iter_mut().filter(|change| change.key == key && change.application == Application::Reload) {
            change.application = Application::Start;
        }
        return Ok(ReloadReport { refused: Some(refusal(&changes, key)), changes, unfinished: false });
    }
    proxy.reload(service.config.clone()).map_err(|error| service.hide(&error))?;
    *present = service;
    Ok(ReloadReport { changes, ..ReloadReport::default() })
}

/// Why a reload cannot apply these changes, by key.
fn refusal(changes: &[KeyChange], key: &'static str) -> String {
    let of = |wanted: Application| {
        let texts: Vec<String> = changes.iter().filter(|change| change.application == wanted).map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| format!("{} ({wanted})", texts.join("; ")))
    };
    let fixed: Vec<String> = [Application::Restart, Application::Start].into_iter().filter_map(of).collect();
    if fixed.is_empty() {
        return proxy::ChangeError::NeedsRestart(key).to_string();
    }
    format!("a reload cannot change {}; nothing has been changed", fixed.join("; "))
}
