//! `tandem proxy`: splits the connections that come to this machine.

use crate::{
    Failure,
    check::{self, Check},
    service::{self, usage},
};
use clap::Args;
use intercept::{Action, ForwardPolicy, LegProfile, Prefix, Rule, parse_address};
use proxy::{BufferSetting, ListenerConfig, ProxyConfigError, Service, check::try_start};
use std::{net::SocketAddr, path::PathBuf};
use units::{Bytes, Span};

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
                with ,accept-proxy and ,send-proxy=v2 where the PROXY protocol is spoken, socks5 with ,allow=PREFIX and ,deny=PREFIX (where clients may go) and ,users=FILE (who may use it, NAME:PASSWORD a line); bonds come in by `tandem bond serve`"
    )]
    listen: Vec<ListenerConfig>,
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
    #[arg(long, value_name = "B")]
    buffer: Option<BufferSetting>,
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
    /// Serves metrics for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// What `tandem flows` calls this proxy [default: default]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Installs no rules: the operator's own firewall brings the traffic
    #[arg(long)]
    no_rules: bool,
    /// What the forward chains of other programs decide: heed (split only what they let pass; the
    /// first connection of a client to a port of a server passes unsplit) or ignore [default: heed]
    #[arg(long, value_name = "POLICY")]
    forward_policy: Option<ForwardPolicy>,
    /// Prints the rules and ends
    #[arg(long)]
    dry_run: bool,
    /// Tries what a start would need, says what cannot work, and ends; "--check=config" looks at the
    /// configuration alone
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<Check>,
}

impl Proxy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let service = self.service().map_err(usage)?;
        service.config.check().map_err(usage)?;
        if let Some(how) = self.check {
            let tried = || try_start(&service.config, Some(&service.name), service.metrics);
            return check::run(how, tried, "the configuration can be used");
        }
        if self.dry_run {
            match service.config.rules() {
                Some(rules) => out!("{rules}"),
                None => outln!("no rules"),
            }
            return Ok(());
        }
        service::serve(&service, || if self.config.is_some() { self.service().map(Some) } else { Ok(None) })
    }

    /// What the file says, and what is said here before it.
    fn service(&self) -> Result<Service, ProxyConfigError> {
        let mut service = self.config.as_deref().map_or_else(|| Ok(Service::default()), Service::read)?;
        let config = &mut service.config;
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
            config.read_users()?;
        }
        config.buffer = self.buffer.map_or(config.buffer, BufferSetting::limit);
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
        service.metrics = self.metrics.or(service.metrics);
        service.name = self.name.clone().unwrap_or(service.name);
        Ok(service)
    }
}
