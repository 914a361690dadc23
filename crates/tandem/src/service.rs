//! A proxy as a service: it runs until it is told to end, and reads its configuration again when it is told to.

use crate::{Failure, watchdog};
use proxy::{Proxy as Running, ProxyConfig, ProxyConfigError, ProxyFailure, ProxyStartError, Service, control, metrics};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

/// Runs it. `again` reads the configuration again, where there is a file to read.
pub(crate) fn serve(service: &Service, again: impl Fn() -> Result<Option<Service>, ProxyConfigError>) -> Result<(), Failure> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|why| Failure::Failed(format!("cannot listen for signals: {why}")))?;
    let proxy = Arc::new(Running::start(service.config.clone(), |_| {}).map_err(start_failure)?);
    let failed = end_on_failure(&proxy, signals.handle()).map_err(no_thread)?;
    // Until the end, so that nobody else has the name while there are rules.
    let _control = control::serve(&proxy, &service.name).map_err(start_failure)?;
    let metrics = service.metrics.map(|at| metrics::serve(&proxy, at).map_err(|error| Failure::Failed(error.to_string()))).transpose()?;
    warn(&service.config);
    tracing::info!("splitting connections");
    watchdog::start(proxy.liveness()).map_err(no_thread)?;
    tell_manager(&[NotifyState::Ready]);
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        reload(&proxy, service, &again);
    }
    tell_manager(&[NotifyState::Stopping]);
    if failed.get().is_none() {
        drain(&proxy, &mut signals, &failed);
    }
    drop(metrics);
    // Resets what is left and takes the rules away, as soon as no control request holds it.
    let (begun, mut shared) = (Instant::now(), proxy);
    while let Err(still_shared) = Arc::try_unwrap(shared).map(drop)
        && begun.elapsed() < Duration::from_secs(10)
    {
        thread::sleep(Duration::from_millis(5));
        shared = still_shared;
    }
    if let Some(failure) = failed.get() {
        return Err(Failure::Failed(failure.to_string()));
    }
    tracing::info!("done");
    Ok(())
}

/// Waits until the proxy has ended what it carries, a second signal comes, or a part of it fails.
fn drain(proxy: &Running, signals: &mut Signals, failed: &OnceLock<ProxyFailure>) {
    tracing::info!(flows = proxy.totals().flows, "no new connections from now on; waiting for these to end (a second signal resets them)");
    proxy.begin_drain();
    while !proxy.is_idle() && failed.get().is_none() && !signals.pending().any(|signal| signal != SIGHUP) {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the wait for signals when a part of the proxy fails for good, and keeps why.
fn end_on_failure(proxy: &Running, signals: signal_hook::iterator::Handle) -> std::io::Result<Arc<OnceLock<ProxyFailure>>> {
    let failed = Arc::new(OnceLock::new());
    if let Some(failures) = proxy.failures() {
        let first = failed.clone();
        thread::Builder::new().name("tandem-failures".into()).spawn(move || {
            if let Ok(failure) = failures.recv() {
                let _ = first.set(failure);
                signals.close();
            }
        })?;
    }
    Ok(failed)
}

/// Reads the configuration again. What is wrong with it is told, and changes nothing.
fn reload(proxy: &Running, present: &Service, again: impl Fn() -> Result<Option<Service>, ProxyConfigError>) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    tell_manager(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
    let reloaded = again().map_err(|error| error.to_string()).and_then(|service| match service {
        None => Err("SIGHUP: there is no configuration file to read again".into()),
        Some(service) => match present.needs_restart(&service) {
            Some(key) => Err(proxy::ChangeError::NeedsRestart(key).to_string()),
            None => proxy.reload(service.config).map_err(|error| error.to_string()),
        },
    });
    match reloaded {
        Ok(()) => tracing::info!("the configuration has been read again, for connections from now on"),
        Err(error) => tracing::error!("the configuration stays as it was: {error}"),
    }
    tell_manager(&[NotifyState::Ready]);
}

/// Tells the service manager, where there is one.
pub(crate) fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(state) {
        tracing::warn!("cannot tell the service manager: {why}");
    }
}

/// Says what works but is likely not meant.
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

fn no_thread(why: std::io::Error) -> Failure {
    Failure::Failed(format!("cannot start a thread: {why}"))
}

fn start_failure(error: ProxyStartError) -> Failure {
    match error {
        ProxyStartError::Config(error) => usage(error),
        other => Failure::Failed(other.to_string()),
    }
}

/// What can't work anywhere is wrong usage; what this machine lacks is a failure.
pub(crate) fn usage(error: ProxyConfigError) -> Failure {
    Failure::Usage(error.to_string())
}
