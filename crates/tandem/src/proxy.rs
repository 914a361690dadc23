//! `tandem proxy`: the split-TCP proxy.

use crate::{
    CommandError,
    check::{self, CheckScope},
    service::{self, usage},
    web::PageArguments,
};
use clap::Args;
use intercept::{Action, ExperimentShare, ForwardPolicy, LegProfile, Prefix, Rule, parse_address};
use proxy::{BufferSetting, ListenerConfig, ProxyConfigError, Service};
use std::{net::SocketAddr, path::PathBuf};
use units::{Bytes, Span};

/// Run the split-TCP proxy
///
/// Splits each TCP connection that its listeners accept into two legs, relayed through a bounded
/// buffer. On SIGTERM or Ctrl-C it accepts no new connections and waits for the existing ones to
/// end; a second signal resets them. SIGHUP reloads the configuration file, for new connections.
/// `tandem restart` has a new process take over without losing a connection.
#[derive(Debug, Args)]
pub(crate) struct ProxyCommand {
    /// Configuration file (TOML); options on the command line take precedence
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(
        long,
        value_name = "LISTENER",
        required_unless_present = "config",
        help = "A listener: transparent=[::]:5000 for routed connections, forward=ADDRESS:PORT=ADDRESS:PORT to one server, or \
                socks5=ADDRESS:PORT; the last two with ,accept-proxy and ,send-proxy=v2 for the PROXY protocol, socks5 with \
                ,allow=PREFIX and ,deny=PREFIX for destinations and ,users=FILE (NAME:PASSWORD per line) for authentication"
    )]
    listen: Vec<ListenerConfig>,
    /// Profile of the accepted (near) leg, as KEY=VALUE,…: control=cubic,keepalive=10min
    #[arg(long, value_name = "PROFILE")]
    near: Option<LegProfile>,
    /// Profile of the dialled (far) leg
    #[arg(long, value_name = "PROFILE")]
    far: Option<LegProfile>,
    /// Prefix of clients or servers whose connections pass unsplit
    #[arg(long, value_name = "PREFIX")]
    bypass: Vec<Prefix>,
    /// Maximum data buffered per direction of a connection (B): a size, "auto" (it follows each
    /// flow), or "unlimited" [default: auto]
    #[arg(long, value_name = "B")]
    buffer: Option<BufferSetting>,
    /// The largest B of --buffer auto [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    buffer_max: Option<Bytes>,
    /// Worker threads [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Time limit for connecting to a server [default: 30s]
    #[arg(long, value_name = "TIME")]
    connect_timeout: Option<Span>,
    /// Reset a connection after this time without progress [default: never]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Span>,
    /// Maximum concurrent connections; more pass unsplit [default: derived from the limit of open
    /// files]
    #[arg(long, value_name = "N")]
    max_flows: Option<usize>,
    /// What all connections together may take [default: what the kernel's mark, the second value of
    /// net.ipv4.tcp_mem, leaves beside other programs, and the control group]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    page: PageArguments,
    /// Name of this proxy for `tandem flows --name` [default: default]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Install no firewall rules: the operator's own rules redirect the traffic
    #[arg(long)]
    no_rules: bool,
    /// Policy for the forward chains of other programs: heed (split only what they accept; the
    /// first connection of a client to a server port passes unsplit) or ignore [default: heed]
    #[arg(long, value_name = "POLICY")]
    forward_policy: Option<ForwardPolicy>,
    /// Let this share of the connections pass unsplit, as in "1 in 50", and compare them with as
    /// many split ones: see `tandem experiment`
    #[arg(long, value_name = "SHARE")]
    experiment: Option<ExperimentShare>,
    /// Take over from the proxy of this name that runs: it hands its listening sockets and firewall
    /// rules over, and ends with its last connection. `tandem restart` starts such a process
    #[arg(long)]
    take_over: bool,
    /// Print the firewall rules and exit
    #[arg(long)]
    dry_run: bool,
    /// Check whether this host meets the requirements of a start, and exit; "--check=config" checks
    /// the configuration alone
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<CheckScope>,
}

impl ProxyCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let service = self.service().map_err(usage)?;
        service.check().map_err(usage)?;
        if let Some(how) = self.check {
            return check::run(how, || check::try_proxy(&service));
        }
        if self.dry_run {
            match service.config.rules() {
                Some(rules) => out!("{rules}"),
                None => outln!("no rules"),
            }
            return Ok(());
        }
        let read_again = || if self.config.is_some() { self.service().map(Some) } else { Ok(None) };
        service::serve(&service, self.take_over, self.config.as_deref(), read_again)
    }

    /// Merges the command line into the configuration file; the command line takes precedence.
    fn service(&self) -> Result<Service, ProxyConfigError> {
        let mut service = self.config.as_deref().map_or_else(|| Ok(Service::default()), Service::read)?;
        let config = &mut service.config;
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
            config.read_users()?;
        }
        match (self.buffer, self.buffer_max) {
            (Some(buffer), max) => config.set_buffer(buffer, max),
            (None, Some(max)) => config.set_buffer(BufferSetting::Auto, Some(max)),
            (None, None) => {}
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
        config.forward_policy = self.forward_policy.unwrap_or(config.forward_policy);
        config.experiment = self.experiment.or(config.experiment);
        service.metrics = self.metrics.or(service.metrics);
        service.page = self.page.merge(service.page)?;
        service.host_names = self.page.host_names(service.host_names);
        service.name = self.name.clone().unwrap_or(service.name);
        Ok(service)
    }
}
