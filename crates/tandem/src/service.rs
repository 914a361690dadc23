//! The life of a proxy service: start, or takeover from the one that runs; drain on SIGTERM or
//! SIGINT, or after another process has taken over. `reload` reads its configuration again.

use crate::{
    CommandError, end_guard,
    manager::tell_manager,
    reload,
    signals::{ServiceEvent, ServiceEvents},
    watchdog,
    web::{self, WebServers},
};
use intercept::check::{TrialResult, try_forwarding_of_routed};
use proxy::{
    Proxy, ProxyConfig, ProxyConfigError, ProxyFailure, ProxyStartError, Service, control,
    takeover::{ControlEvent, EarlierLink, Launch, StartedProxy, Takeover, TakeoverError, Takeovers},
};
use sd_notify::NotifyState;
use std::{
    net::TcpListener,
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Interval at which a proxy that drains is checked for remaining flows.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process that ends waits until the answer of `tandem restart` is sent.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a proxy until a signal ends it, or another process takes over. `take_over`: it takes over
/// from the one that runs. `file`: its configuration file. `read_again` returns the configuration
/// for a reload; `None`: the configuration comes from the command line.
pub(crate) fn serve(
    service: &Service,
    take_over: bool,
    file: Option<&Path>,
    read_again: impl Fn() -> Result<Option<Service>, ProxyConfigError>,
) -> Result<(), CommandError> {
    // Early: see `Launch`.
    let launch = Launch::of_this_process().ok();
    let events = ServiceEvents::start(true)?;
    let (link, sender) = (Arc::new(OnceLock::new()), events.sender());
    let (left, sender) = (link.clone(), Mutex::new(sender));
    let on_takeover = move |event| {
        let event = match event {
            ControlEvent::Left(link) => {
                let _ = left.set(link);
                ServiceEvent::Left
            }
            ControlEvent::Stop => ServiceEvent::Stop,
            ControlEvent::Reload(reply) => ServiceEvent::Reload(Some(reply)),
        };
        let _ = sender.lock().unwrap_or_else(PoisonError::into_inner).send(event);
    };
    let running = if take_over { Running::take_over(service, launch, on_takeover) } else { Running::start(service, launch, on_takeover) };
    let Running { proxy, mut control, mut web, takeovers } = running?;
    if let Some(file) = file.and_then(|file| file.canonicalize().ok()) {
        proxy.set_config_file(file);
    }
    let failed = end_on_failure(&proxy, &events).map_err(no_thread)?;
    warn(&service.config);
    tracing::info!("splitting connections");
    let watchdog = watchdog::start(proxy.liveness()).map_err(no_thread)?;
    tell_manager(&[NotifyState::Ready]);
    let (mut event, mut present) = (events.next(), service.clone());
    while let ServiceEvent::Reload(reply) = event {
        let outcome = reload::reload(&proxy, &mut present, &read_again);
        if let Some(reply) = reply {
            let _ = reply.send(outcome);
        }
        event = events.next();
    }
    if matches!(event, ServiceEvent::Left) || !takeovers.close() {
        let link = link.wait();
        if matches!(event, ServiceEvent::Stop) {
            // It came before the service manager knew the new main process.
            link.stop_next();
        }
        // It is the main process from now on, and only messages of that count.
        tell_manager(&[NotifyState::MainPid(link.pid)]);
        drop((watchdog, control, web));
        return end_as_earlier(&proxy, &events, link, &takeovers);
    }
    tell_manager(&[NotifyState::Stopping]);
    if failed.get().is_none() {
        drain(&proxy, &events, || {
            // The listeners are closed, and a proxy without rules cannot conflict with another one: the
            // next one may have its name and addresses while its last flows end.
            if present.config.rules().is_none() {
                (control, web) = (None, WebServers::default());
            }
        });
    }
    let deadline = proxy.begin_end();
    end_guard::start(deadline);
    // The name is held until here: no other proxy can take it while this one's rules are installed.
    drop(web);
    // Dropping the last reference resets the remaining flows and removes the rules. Control
    // requests may hold a reference for a moment.
    let mut shared = proxy;
    while let Err(still_shared) = Arc::try_unwrap(shared).map(drop)
        && Instant::now() < deadline
    {
        thread::sleep(Duration::from_millis(5));
        shared = still_shared;
    }
    drop(control);
    if let Some(failure) = failed.get() {
        return Err(CommandError::Failed(failure.to_string()));
    }
    tracing::info!("done");
    Ok(())
}

/// A proxy and what the service has beside it.
struct Running {
    proxy: Arc<Proxy>,
    control: Option<control::ControlSocket>,
    web: WebServers,
    takeovers: Arc<Takeovers>,
}

impl Running {
    fn start(
        service: &Service,
        launch: Option<Launch>,
        on_takeover: impl Fn(ControlEvent) + Send + Sync + 'static,
    ) -> Result<Self, CommandError> {
        // First: a proxy that cannot get its name must not have accepted connections.
        let name = control::claim(&service.name).map_err(|error| start_failure(service, error))?;
        let proxy = Arc::new(Proxy::start(service.config.clone(), |_| {}).map_err(|error| start_failure(service, error))?);
        let listeners = web::listen(service);
        let copies = listeners.iter().flatten().flat_map(TcpListener::try_clone).collect();
        let takeovers = Arc::new(Takeovers::new(launch, copies, on_takeover));
        let control = control::serve_claimed(&proxy, name, takeovers.clone()).map_err(|error| start_failure(service, error))?;
        let web = listeners.and_then(|listeners| web::serve(&proxy, service, listeners)).map_err(|error| start_failure(service, error))?;
        Ok(Running { proxy, control, web, takeovers })
    }

    fn take_over(
        service: &Service,
        launch: Option<Launch>,
        on_takeover: impl Fn(ControlEvent) + Send + Sync + 'static,
    ) -> Result<Self, CommandError> {
        let failed = |error: TakeoverError| match error {
            TakeoverError::Start(error) => start_failure(service, error),
            other => CommandError::Failed(service.hide(&other)),
        };
        let takeover = Takeover::request(&service.name).map_err(failed)?;
        let mut takeovers = None;
        let context = |listeners| takeovers.insert(Arc::new(Takeovers::new(launch, listeners, on_takeover))).clone();
        let StartedProxy { proxy, control, web } = takeover.start(service, |_| {}, context).map_err(failed)?;
        // The proxy is in charge, so that its end would reset connections.
        let web = web::serve(&proxy, service, web).unwrap_or_else(|error| {
            tracing::error!("metrics and page are not served: {error}");
            WebServers::default()
        });
        let takeovers = takeovers.expect("the context of a takeover that succeeded was made");
        Ok(Running { proxy, control: Some(control), web, takeovers })
    }
}

/// Waits until all flows have ended, after another process has taken over.
fn end_as_earlier(proxy: &Proxy, events: &ServiceEvents, link: &EarlierLink, takeovers: &Takeovers) -> Result<(), CommandError> {
    let (pid, version) = (link.pid, &link.version);
    tracing::info!("process {pid}, version {version}, has taken over; waiting for the existing flows to end (a signal resets them)");
    while !proxy.is_idle() && !events.ends_within(DRAIN_INTERVAL) {}
    end_guard::start(proxy.begin_end());
    link.end(proxy.end());
    takeovers.wait_for_answer(ANSWER_PATIENCE);
    tracing::info!("done: all flows that began before the takeover have ended");
    Ok(())
}

/// Closes the listeners, calls `closed`, and waits until all flows have ended, a second signal
/// arrives, or a part of the proxy fails.
fn drain(proxy: &Proxy, events: &ServiceEvents, closed: impl FnOnce()) {
    // A log that nobody reads must not keep the proxy.
    if end_guard::log_has_room() {
        tracing::info!(
            flows = proxy.totals().flows,
            "no new connections are accepted; waiting for the existing ones to end (a second signal resets them)"
        );
    }
    proxy.begin_drain();
    closed();
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

/// Warns of settings that work but are probably unintended.
fn warn(config: &ProxyConfig) {
    config.open_listeners().iter().for_each(|(at, why, cure)| tracing::warn!("listener at {at}: {why}; {cure}"));
    for trial in try_forwarding_of_routed(&config.interception()) {
        if let TrialResult::Fails { why, cure } = trial.result {
            tracing::warn!("{why}; {cure}");
        }
    }
}

fn no_thread(why: std::io::Error) -> CommandError {
    CommandError::Failed(format!("cannot start a thread: {why}"))
}

/// The text has no values of variables of the environment.
fn start_failure(service: &Service, error: impl Into<ProxyStartError>) -> CommandError {
    match error.into() {
        ProxyStartError::Config(error) => CommandError::Usage(service.hide(&error)),
        other => CommandError::Failed(service.hide(&other)),
    }
}

/// An invalid configuration is a usage error, unlike a requirement that this machine lacks.
pub(crate) fn usage(error: ProxyConfigError) -> CommandError {
    CommandError::Usage(error.to_string())
}
