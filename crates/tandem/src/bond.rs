//! `tandem bond`: one stream over several networks, from the end that dials to the end that accepts.

use crate::{
    Failure,
    check::{self, Check},
    service::{self, usage},
};
use clap::{Args, Subcommand};
use intercept::{Destinations, LegProfile, Prefix, parse_address};
use proxy::{
    BondConfig, BondNetwork, BufferSetting, ListenerConfig, NetworkSpec, ProxyConfig, ProxyConfigError, ProxyVersion, Service,
    check::try_start,
};
use std::{net::SocketAddr, path::PathBuf};
use units::{Bytes, Span};

/// Carries each connection over several networks at once: `connect` takes connections where the networks are, `serve` is where they go
/// on to their servers
#[derive(Debug, Subcommand)]
pub(crate) enum Bond {
    Connect(Box<Connect>),
    Serve(Box<Serve>),
}

/// Takes connections, and carries each over all of the networks to the other end of the bond. A configuration file for `tandem proxy`
/// says the same in its section "bond"
#[derive(Debug, Args)]
pub(crate) struct Connect {
    #[arg(
        long,
        value_name = "WAY",
        required = true,
        help = "Where connections come in: socks5=HERE:PORT, forward=HERE:PORT=THERE:PORT or transparent=[::]:5000, as for `tandem proxy`"
    )]
    listen: Vec<ListenerConfig>,
    /// A network: the interface, or the source address, of its connections, and after it ,tier=1 (dearer), ,to=ADDRESS:PORT, ,name=NAME and
    /// keys of a leg's profile such as ,control=bbr
    #[arg(long, value_name = "NETWORK", required = true)]
    network: Vec<NetworkSpec>,
    /// Where the other end listens, for networks that do not say it themselves
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    to: Option<SocketAddr>,
    /// Connections kept ready over each network
    #[arg(long, value_name = "N", default_value_t = 2)]
    spares: u16,
    #[command(flatten)]
    both: Both,
    /// Profile of the accepted leg, as KEY=VALUE,…: control=cubic,keepalive=10min
    #[arg(long, value_name = "PROFILE")]
    near: Option<LegProfile>,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Installs no rules: the operator's own firewall brings the traffic
    #[arg(long)]
    no_rules: bool,
}

/// Accepts the other end's connections, and goes on with each stream to its server
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where the other end's connections come in
    #[arg(long, value_name = "ADDRESS:PORT", required = true, value_parser = parse_address)]
    listen: Vec<SocketAddr>,
    /// Where streams may go, and nowhere else. This host itself and link-local addresses are refused unless named here: 127.0.0.0/8
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<Prefix>,
    /// Where streams may not go, whatever --allow says
    #[arg(long, value_name = "PREFIX")]
    deny: Vec<Prefix>,
    /// Tells servers who the client is, by the PROXY protocol
    #[arg(long, value_name = "VERSION")]
    send_proxy: Option<ProxyVersion>,
    #[command(flatten)]
    both: Both,
    /// Profile of the leg to the server, as KEY=VALUE,…
    #[arg(long, value_name = "PROFILE")]
    far: Option<LegProfile>,
    /// Profile of the connections of the bond, as KEY=VALUE,…
    #[arg(long, value_name = "PROFILE")]
    near: Option<LegProfile>,
}

/// What both ends are told.
#[derive(Debug, Args)]
struct Both {
    /// File with the key that both ends share, at least 16 bytes: openssl rand -hex 32 > bond.key; chmod 600 bond.key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Encrypts what goes over the networks; both ends must say so, or neither
    #[arg(long)]
    tls: bool,
    /// How this end shares out what it sends: score, round-robin, single, redundant, tiers
    #[arg(long, value_name = "NAME", default_value = "score")]
    scheduler: String,
    /// What is held of each stream in each direction until the other end has it: twice what the networks carry in the longest round trip
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    window: Bytes,
    /// How long a stream waits when all its networks are gone
    #[arg(long, value_name = "TIME", default_value = "60s")]
    outage: Span,
    /// What is held besides in each direction, in the plain leg's sockets: a size, or "unlimited" [default: 4MiB]
    #[arg(long, value_name = "B")]
    buffer: Option<BufferSetting>,
    /// Streams at once [default: as many as open files allow]
    #[arg(long, value_name = "N")]
    max_flows: Option<usize>,
    /// How long a server may take to answer
    #[arg(long, value_name = "TIME", default_value = "30s")]
    connect_timeout: Span,
    /// How long nothing may move in a connection before it is reset [default: for ever]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Span>,
    /// Serves metrics for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// What `tandem flows` calls this end
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,
    /// Tries what a start would need, says what cannot work, and ends; "--check=config" looks at the
    /// configuration alone
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<Check>,
}

impl Both {
    fn service(&self) -> Result<Service, ProxyConfigError> {
        let mut bond = BondConfig { key_file: self.key.clone(), tls: self.tls, window: self.window, ..BondConfig::default() };
        bond.outage = self.outage.duration();
        bond.schedule_by(&self.scheduler)?;
        bond.read_key()?;
        let mut config = ProxyConfig { bond: Some(bond), log_flows: true, max_flows: self.max_flows, ..ProxyConfig::default() };
        config.buffer = self.buffer.map_or(config.buffer, BufferSetting::limit);
        config.connect_timeout = self.connect_timeout.duration();
        config.idle_timeout = self.idle_timeout.map(Span::duration);
        Ok(Service { config, name: self.name.clone(), metrics: self.metrics })
    }

    fn run(&self, service: &Service) -> Result<(), Failure> {
        service.config.check().map_err(usage)?;
        if let Some(how) = self.check {
            let tried = || try_start(&service.config, Some(&service.name), service.metrics);
            return check::run(how, tried, "this can work here");
        }
        service::serve(service, || Ok(None))
    }
}

impl Bond {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Bond::Connect(connect) => connect.run(),
            Bond::Serve(serve) => serve.run(),
        }
    }
}

impl Connect {
    fn run(self) -> Result<(), Failure> {
        let mut service = self.both.service().map_err(usage)?;
        let network = |spec: &NetworkSpec| spec.clone().network(self.to).map_err(|why| Failure::Usage(format!("--network: {why}")));
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
        self.both.run(&service)
    }
}

impl Serve {
    fn run(self) -> Result<(), Failure> {
        let mut service = self.both.service().map_err(usage)?;
        let config = &mut service.config;
        config.listen = self.listen.iter().map(|at| ListenerConfig { send_proxy: self.send_proxy, ..ListenerConfig::bond(*at) }).collect();
        config.policy.far = self.far.clone().unwrap_or_default();
        config.policy.near = self.near.clone().unwrap_or_default();
        if let Some(bond) = &mut config.bond {
            bond.destinations = Destinations { allow: self.allow.clone(), deny: self.deny.clone() };
        }
        self.both.run(&service)
    }
}
