//! The life of a proxy service: start, reload on SIGHUP, drain on SIGTERM or SIGINT.

use crate::{
    CommandError,
    signals::{ServiceEvent, ServiceEvents},
    watchdog, web,
};
use proxy::{Proxy, ProxyConfig, ProxyConfigError, ProxyFailure, ProxyStartError, Service, control};
use sd_notify::NotifyState;
use std::{
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

/// Interval at which a proxy that drains is checked for remaining flows.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a proxy until a signal ends it. `read_again` returns the configuration for a reload;
/// `None`: the configuration comes from the command line.
pub(crate) fn serve(service: &Service, read_again: impl Fn() -> Result<Option<Service>, ProxyConfigError>) -> Result<(), CommandError> {
    let events = ServiceEvents::start(true)?;
    let proxy = Arc::new(Proxy::start(service.config.clone(), |_| {}).map_err(start_failure)?);
    let failed = end_on_failure(&proxy, &events).map_err(no_thread)?;
    // Held to the end: no other proxy can take the name while this one's rules are installed.
    let _control = control::serve(&proxy, &service.name).map_err(start_failure)?;
    let web = web::serve(&proxy, service).map_err(|error| CommandError::Failed(error.to_string()))?;
    warn(&service.config);
    tracing::info!("splitting connections");
    watchdog::start(proxy.liveness()).map_err(no_thread)?;
    tell_manager(&[NotifyState::Ready]);
    while events.next() == ServiceEvent::Reload {
        reload(&proxy, service, &read_again);
    }
    tell_manager(&[NotifyState::Stopping]);
    if failed.get().is_none() {
        drain(&proxy, &events);
    }
    drop(web);
    // Dropping the last reference resets the remaining flows and removes the rules. Control
    // requests may hold a reference for a moment.
    let (begun, mut shared) = (Instant::now(), proxy);
    while let Err(still_shared) = Arc::try_unwrap(shared).map(drop)
        && begun.elapsed() < Duration::from_secs(10)
    {
        thread::sleep(Duration::from_millis(5));
        shared = still_shared;
    }
    if let Some(failure) = failed.get() {
        return Err(CommandError::Failed(failure.to_string()));
    }
    tracing::info!("done");
    Ok(())
}

/// Waits until all flows have ended, a second signal arrives, or a part of the proxy fails.
fn drain(proxy: &Proxy, events: &ServiceEvents) {
    tracing::info!(
        flows = proxy.totals().flows,
        "no new connections are accepted; waiting for the existing ones to end (a second signal resets them)"
    );
    proxy.begin_drain();
    while !proxy.is_idle() && !events.ends_within(DRAIN_INTERVAL) {}
}

/// Ends the wait for signals when a part of the proxy fails permanently. Returns the cell that then
/// holds the reason.
fn end_on_failure(proxy: &Proxy, events: &ServiceEvents) -> std::io::Result<Arc<OnceLock<ProxyFailure>>> {
    let failed = Arc::new(OnceLock::new());
    if let Some(failures) = proxy.failures() {
        let (first, events) = (failed.clone(), events.sender());
        thread::Builder::new().name("tandem-failures".into()).spawn(move || {
            if let Ok(failure) = failures.recv() {
                let _ = first.set(failure);
                let _ = events.send(ServiceEvent::Failure);
            }
        })?;
    }
    Ok(failed)
}

/// Reloads the configuration. An invalid one is logged and changes nothing.
fn reload(proxy: &Proxy, present: &Service, read_again: impl Fn() -> Result<Option<Service>, ProxyConfigError>) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    tell_manager(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
    let reloaded = read_again().map_err(|error| error.to_string()).and_then(|service| match service {
        None => Err("SIGHUP: there is no configuration file to reload".into()),
        Some(service) => match present.needs_restart(&service) {
            Some(key) => Err(proxy::ChangeError::NeedsRestart(key).to_string()),
            None => proxy.reload(service.config).map_err(|error| error.to_string()),
        },
    });
    match reloaded {
        Ok(()) => tracing::info!("the configuration has been read again; it applies to new connections"),
        Err(error) => tracing::error!("the configuration stays as it was: {error}"),
    }
    tell_manager(&[NotifyState::Ready]);
}

/// Notifies the service manager, if there is one.
pub(crate) fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {why}");
    }
}

/// Warns of settings that work but are probably unintended.
fn warn(config: &ProxyConfig) {
    config.open_listeners().iter().for_each(|(at, why, cure)| tracing::warn!("listener at {at}: {why}; {cure}"));
    let missing = config.rules().map_or(Vec::new(), |rules| rules.sysctls());
    for setting in missing {
        let Some((name, wanted)) = setting.split_once('=') else { continue };
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        if std::fs::read_to_string(path).is_ok_and(|value| value.trim() != wanted) {
            tracing::warn!("this host does not forward packets, so that what is not split goes nowhere: sysctl -w {setting}");
        }
    }
}

fn no_thread(why: std::io::Error) -> CommandError {
    CommandError::Failed(format!("cannot start a thread: {why}"))
}

fn start_failure(error: ProxyStartError) -> CommandError {
    match error {
        ProxyStartError::Config(error) => usage(error),
        other => CommandError::Failed(other.to_string()),
    }
}

/// An invalid configuration is a usage error, unlike a requirement that this machine lacks.
pub(crate) fn usage(error: ProxyConfigError) -> CommandError {
    CommandError::Usage(error.to_string())
}
