//! `tandem proxy`: splits the connections that come to this machine.

use crate::Failure;
use clap::Args;
use proxy::{Action, Config, ConfigError, LegProfile, Listen, Prefix, Proxy as Running, Rule, Service, StartError, control, metrics};
use scenario::{Buffer, Bytes, Span};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Splits the connections that come to this machine, until SIGTERM or Ctrl-C; then it takes no new ones and waits for those
/// there are. A second one resets these. SIGHUP reads the configuration file again, for new connections.
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// Configuration file; what is said here as well, counts before what it says
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(
        long,
        value_name = "WAY",
        required_unless_present = "config",
        help = "Where connections come in: transparent=[::]:5000, forward=HERE:PORT=THERE:PORT or socks5=HERE:PORT; the last two \
                with ,accept-proxy and ,send-proxy=v2 where the PROXY protocol is spoken"
    )]
    listen: Vec<Listen>,
    /// Profile of the accepted leg, as KEY=VALUE,…: control=cubic,keepalive=10min
    #[arg(long, value_name = "PROFILE")]
    near: Option<LegProfile>,
    /// Profile of the dialled leg
    #[arg(long, value_name = "PROFILE")]
    far: Option<LegProfile>,
    /// Lets connections from and to this prefix pass unsplit
    #[arg(long, value_name = "PREFIX")]
    bypass: Vec<Prefix>,
    /// What is held in each direction of a connection at most: a size, or "unlimited" [default: 4MiB]
    #[arg(long, value_name = "B", value_parser = buffer)]
    buffer: Option<Buffer>,
    /// Worker threads [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// How long a far end may take to answer [default: 30s]
    #[arg(long, value_name = "TIME")]
    connect_timeout: Option<Span>,
    /// How long nothing may move in a connection before it is reset [default: for ever]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Span>,
    /// Connections at once; more pass unsplit [default: as many as open files allow]
    #[arg(long, value_name = "N")]
    max_flows: Option<usize>,
    /// TCP memory of this host above which connections pass unsplit [default: where the kernel begins to save]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Serves metrics for Prometheus at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// What `tandem flows` calls this proxy [default: default]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Installs no rules: the operator's own firewall brings the traffic
    #[arg(long)]
    no_rules: bool,
    /// Prints the rules and ends
    #[arg(long)]
    dry_run: bool,
    /// Says whether the configuration can be used on this machine, and ends
    #[arg(long)]
    check: bool,
}

fn buffer(text: &str) -> Result<Buffer, String> {
    match text.parse() {
        Ok(Buffer::Auto) => Err("\"auto\" needs a scenario: give a size, or \"unlimited\"".into()),
        Ok(buffer) => Ok(buffer),
        Err(error) => Err(error.to_string()),
    }
}

impl Proxy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let service = self.service().map_err(usage)?;
        service.config.check().map_err(usage)?;
        if self.dry_run {
            match service.config.rules() {
                Some(rules) => print!("{rules}"),
                None => println!("no rules"),
            }
            return Ok(());
        }
        if self.check {
            println!("the configuration can be used");
            return Ok(());
        }
        self.serve(&service)
    }

    /// What the file says, and what is said here before it.
    fn service(&self) -> Result<Service, ConfigError> {
        let mut service = self.config.as_deref().map_or_else(|| Ok(Service::default()), Service::read)?;
        let config = &mut service.config;
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        }
        match self.buffer {
            Some(Buffer::Bytes(bytes)) => config.buffer = Some(bytes),
            Some(Buffer::Unlimited | Buffer::Auto) => config.buffer = None,
            None => {}
        }
        let policy = &mut config.policy;
        policy.near = self.near.clone().unwrap_or_else(|| policy.near.clone());
        policy.far = self.far.clone().unwrap_or_else(|| policy.far.clone());
        let bypass = |from, to| Rule { from, to, action: Action::Bypass, ..Rule::default() };
        let both_ways = self.bypass.iter().flat_map(|prefix| [bypass(vec![*prefix], vec![]), bypass(vec![], vec![*prefix])]);
        policy.rules.splice(0..0, both_ways);
        config.threads = self.threads.map_or(config.threads, usize::from);
        config.connect_timeout = self.connect_timeout.map_or(config.connect_timeout, Span::duration);
        config.idle_timeout = self.idle_timeout.map(Span::duration).or(config.idle_timeout);
        config.max_flows = self.max_flows.or(config.max_flows);
        config.memory = self.memory.or(config.memory);
        config.install_rules &= !self.no_rules;
        service.metrics = self.metrics.or(service.metrics);
        service.name = self.name.clone().unwrap_or(service.name);
        Ok(service)
    }

    fn serve(&self, service: &Service) -> Result<(), Failure> {
        let mut signals =
            Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|why| Failure::Failed(format!("cannot listen for signals: {why}")))?;
        let proxy = Arc::new(Running::start(service.config.clone(), |_| {}).map_err(start_failure)?);
        control::serve(&proxy, &service.name).map_err(start_failure)?;
        if let Some(at) = service.metrics {
            metrics::serve(&proxy, at).map_err(start_failure)?;
        }
        warn(&service.config);
        tracing::info!("splitting connections");
        tell_manager(&[NotifyState::Ready]);
        for signal in signals.forever() {
            if signal != SIGHUP {
                break;
            }
            self.reload(&proxy, service);
        }
        tell_manager(&[NotifyState::Stopping]);
        tracing::info!(
            flows = proxy.totals().flows,
            "no new connections from now on; waiting for these to end (a second signal resets them)"
        );
        proxy.begin_drain();
        while !proxy.is_idle() && !signals.pending().any(|signal| signal != SIGHUP) {
            thread::sleep(Duration::from_millis(20));
        }
        // Resets what is left and takes the rules away, as soon as nobody asks it anything any more.
        let (begun, mut shared) = (Instant::now(), proxy);
        while let Err(still_shared) = Arc::try_unwrap(shared).map(drop)
            && begun.elapsed() < Duration::from_secs(10)
        {
            thread::sleep(Duration::from_millis(5));
            shared = still_shared;
        }
        tracing::info!("done");
        Ok(())
    }

    /// Reads the configuration again. What is wrong with it is told, and changes nothing.
    fn reload(&self, proxy: &Running, present: &Service) {
        if self.config.is_none() {
            tracing::warn!("SIGHUP: there is no configuration file to read again");
            return;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        tell_manager(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now_us)]);
        let reloaded = self.service().map_err(|error| error.to_string()).and_then(|service| match present.needs_restart(&service) {
            Some(key) => Err(proxy::ChangeError::NeedsRestart(key).to_string()),
            None => proxy.reload(service.config).map_err(|error| error.to_string()),
        });
        match reloaded {
            Ok(()) => tracing::info!("the configuration has been read again, for connections from now on"),
            Err(error) => tracing::error!("the configuration stays as it was: {error}"),
        }
        tell_manager(&[NotifyState::Ready]);
    }
}

/// Tells the service manager, where there is one.
fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(state) {
        tracing::warn!("cannot tell the service manager: {why}");
    }
}

/// Says what works but is likely not meant.
fn warn(config: &Config) {
    let open = config.listen.iter().find(|listen| listen.way == proxy::Way::Socks5 && !listen.at.ip().is_loopback());
    if let Some(listen) = open {
        tracing::warn!("SOCKS at {}: whoever reaches that address can go anywhere from here; keep strangers out", listen.at);
    }
    let missing = config.rules().map_or(Vec::new(), |rules| rules.sysctls());
    for setting in missing {
        let Some((name, wanted)) = setting.split_once('=') else { continue };
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        if std::fs::read_to_string(path).is_ok_and(|value| value.trim() != wanted) {
            tracing::warn!("this host does not forward packets, so that what is not split goes nowhere: sysctl -w {setting}");
        }
    }
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Config(error) => usage(error),
        other => Failure::Failed(other.to_string()),
    }
}

/// What can't work anywhere is wrong usage; what this machine lacks is a failure.
fn usage(error: ConfigError) -> Failure {
    Failure::Usage(error.to_string())
}
