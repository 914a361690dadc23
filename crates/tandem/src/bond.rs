//! `tandem bond`: each stream over several networks, from the dialling end to the accepting end.

use crate::{
    CommandError,
    check::{self, CheckScope},
    service::{self, usage},
    web::PageArguments,
};
use clap::{Args, Subcommand};
use intercept::{Destinations, LegProfile, Prefix, parse_address};
use proxy::{
    BondConfig, BondNetwork, BufferSetting, FarEnd, ListenerConfig, NetworkSpec, ProxyConfig, ProxyConfigError, ProxyVersion, Service,
    check::try_service,
};
use std::{net::SocketAddr, path::PathBuf};
use units::{Bytes, Span};

/// Carry each connection over several networks at once (multipath)
///
/// `connect` runs on the host that has the networks, `serve` on a host that all networks reach, from
/// which connections continue to their servers.
#[derive(Debug, Subcommand)]
pub(crate) enum BondCommand {
    Connect(Box<ConnectCommand>),
    Serve(Box<ServeCommand>),
}

/// Run the dialling end of a bond: accept connections, and carry each over all networks
///
/// The section "bond" of a configuration file for `tandem proxy` has the same options.
#[derive(Debug, Args)]
pub(crate) struct ConnectCommand {
    #[arg(
        long,
        value_name = "LISTENER",
        required = true,
        help = "A listener: socks5=ADDRESS:PORT, forward=ADDRESS:PORT=ADDRESS:PORT or transparent=[::]:5000, as for `tandem proxy`"
    )]
    listen: Vec<ListenerConfig>,
    /// A network: the interface or source address of its connections, optionally followed by
    /// ,tier=N (cost; used by the scheduler `tiers`), ,to=HOST:PORT, ,name=NAME and keys of a
    /// leg profile such as ,control=bbr
    #[arg(long, value_name = "NETWORK", required = true)]
    network: Vec<NetworkSpec>,
    /// Address or name of the accepting end, for networks without a `to` of their own. A name is
    /// looked up at the start and whenever its addresses fail
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<FarEnd>,
    /// Connections that each worker keeps ready over each network
    #[arg(long, value_name = "N", default_value_t = 2)]
    spares: u16,
    #[command(flatten)]
    options: BondOptions,
    /// Profile of the accepted (near) leg, as KEY=VALUE,…: control=cubic,keepalive=10min
    #[arg(long, value_name = "PROFILE")]
    near: Option<LegProfile>,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Install no firewall rules: the operator's own rules redirect the traffic
    #[arg(long)]
    no_rules: bool,
}

/// Run the accepting end of a bond: connect each stream to its server
#[derive(Debug, Args)]
pub(crate) struct ServeCommand {
    /// Address for the connections of the dialling end
    #[arg(long, value_name = "ADDRESS:PORT", required = true, value_parser = parse_address)]
    listen: Vec<SocketAddr>,
    /// Allowed destinations of streams; all others are refused. Without this option, all are
    /// allowed except this host and link-local addresses
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<Prefix>,
    /// Refused destinations of streams; takes precedence over --allow
    #[arg(long, value_name = "PREFIX")]
    deny: Vec<Prefix>,
    /// Begin each connection to a server with a PROXY protocol header of this version
    #[arg(long, value_name = "VERSION")]
    send_proxy: Option<ProxyVersion>,
    #[command(flatten)]
    options: BondOptions,
    /// Profile of the leg to the server (far), as KEY=VALUE,…
    #[arg(long, value_name = "PROFILE")]
    far: Option<LegProfile>,
    /// Profile of the connections of the bond (near), as KEY=VALUE,…
    #[arg(long, value_name = "PROFILE")]
    near: Option<LegProfile>,
}

/// The options of both ends.
#[derive(Debug, Args)]
struct BondOptions {
    /// File with the pre-shared key of both ends, at least 16 bytes: openssl rand -hex 32 >
    /// bond.key; chmod 600 bond.key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Encrypt the connections of the bond by TLS; must be set at both ends or at neither
    #[arg(long)]
    tls: bool,
    /// Scheduler of the data that this end sends: score, round-robin, single, redundant or tiers
    #[arg(long, value_name = "NAME", default_value = "score")]
    scheduler: String,
    /// Data of a stream that is held per direction until the other end acknowledges it: twice what
    /// all networks carry in the longest RTT
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    window: Bytes,
    /// Time that a stream survives without any network
    #[arg(long, value_name = "TIME", default_value = "60s")]
    outage: Span,
    /// Maximum data buffered per direction in the sockets of the plain leg: a size, "auto" (it
    /// follows each stream), or "unlimited" [default: auto]
    #[arg(long, value_name = "B")]
    buffer: Option<BufferSetting>,
    /// Maximum concurrent streams [default: derived from the limit of open files]
    #[arg(long, value_name = "N")]
    max_flows: Option<usize>,
    /// Time limit for connecting to a server
    #[arg(long, value_name = "TIME", default_value = "30s")]
    connect_timeout: Span,
    /// Reset a connection after this time without progress [default: never]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Span>,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    page: PageArguments,
    /// Name of this end for `tandem flows --name`
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
    /// Take over from the process of this name that runs: it hands its listening sockets and
    /// firewall rules over, and ends with its last stream. `tandem restart` starts such a process
    #[arg(long)]
    take_over: bool,
    /// Check whether this host meets the requirements of a start, and exit; "--check=config" checks
    /// the options alone
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<CheckScope>,
}

impl BondOptions {
    fn service(&self) -> Result<Service, ProxyConfigError> {
        let mut bond = BondConfig { key_file: self.key.clone(), tls: self.tls, window: self.window, ..BondConfig::default() };
        bond.outage = self.outage.duration();
        bond.schedule_by(&self.scheduler)?;
        bond.read_key()?;
        let mut config = ProxyConfig { bond: Some(bond), log_flows: true, max_flows: self.max_flows, ..ProxyConfig::default() };
        if let Some(buffer) = self.buffer {
            config.set_buffer(buffer, None);
        }
        config.connect_timeout = self.connect_timeout.duration();
        config.idle_timeout = self.idle_timeout.map(Span::duration);
        let (page, host_names) = (self.page.merge(None)?, self.page.host_names(Vec::new()));
        Ok(Service { config, name: self.name.clone(), metrics: self.metrics, page, host_names, ..Service::default() })
    }

    fn run(&self, service: &Service) -> Result<(), CommandError> {
        service.check().map_err(usage)?;
        if let Some(how) = self.check {
            let tried = || try_service(service);
            return check::run(how, tried);
        }
        service::serve(service, self.take_over, None, || Ok(None))
    }
}

impl BondCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self {
            BondCommand::Connect(connect) => connect.run(),
            BondCommand::Serve(serve) => serve.run(),
        }
    }
}

impl ConnectCommand {
    fn run(self) -> Result<(), CommandError> {
        let mut service = self.options.service().map_err(usage)?;
        let network =
            |spec: &NetworkSpec| spec.clone().network(self.to.as_ref()).map_err(|why| CommandError::Usage(format!("--network: {why}")));
        let networks: Vec<BondNetwork> = self.network.iter().map(network).collect::<Result<_, _>>()?;
        let config = &mut service.config;
        config.listen.clone_from(&self.listen);
        config.read_users().map_err(usage)?;
        config.networks = networks;
        config.policy.near = self.near.clone().unwrap_or_default();
        config.threads = self.threads.into();
        config.install_rules = !self.no_rules;
        if let Some(bond) = &mut config.bond {
            bond.spares = self.spares.into();
        }
        self.options.run(&service)
    }
}

impl ServeCommand {
    fn run(self) -> Result<(), CommandError> {
        let mut service = self.options.service().map_err(usage)?;
        let config = &mut service.config;
        config.listen = self.listen.iter().map(|at| ListenerConfig { send_proxy: self.send_proxy, ..ListenerConfig::bond(*at) }).collect();
        config.policy.far = self.far.clone().unwrap_or_default();
        config.policy.near = self.near.clone().unwrap_or_default();
        if let Some(bond) = &mut config.bond {
            bond.destinations = Destinations { allow: self.allow.clone(), deny: self.deny.clone() };
        }
        self.options.run(&service)
    }
}
