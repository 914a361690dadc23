//! What a proxy can be told: the types of its configuration.

use intercept::{Controllers, Destination, Destinations, ForwardPolicy, Interception, ListenAt, NamedProfile, Policy, Rules, Users};
use multipath::{BondConfig, Network};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{net::SocketAddr, time::Duration};
use units::Bytes;

/// What a proxy is to do.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where connections come in.
    pub listen: Vec<Listen>,
    /// What is split, and as what.
    pub policy: Policy,
    /// The bond that far legs are, or that connections come out of.
    pub bond: Option<BondConfig>,
    /// The networks over which far legs are bonds; none: all far legs are plain connections.
    pub networks: Vec<Network>,
    /// B: payload held in each direction of a connection; none: as much as the kernel's own buffers
    /// take.
    pub buffer: Option<Bytes>,
    /// Worker threads.
    pub threads: usize,
    /// How long a far leg may take to connect, where its profile does not say.
    pub connect_timeout: Duration,
    /// How long nothing may move in a connection before it is reset; none: for ever.
    pub idle_timeout: Option<Duration>,
    /// Connections at once; more pass unsplit. None: as many as open files allow.
    pub max_flows: Option<usize>,
    /// TCP memory of this host above which connections pass unsplit; none: where the kernel itself
    /// begins to save (the second value of `net.ipv4.tcp_mem`).
    pub memory: Option<Bytes>,
    /// Whether the proxy installs the rules that bring it traffic; else the operator does.
    pub install_rules: bool,
    /// Whether other programs' forward chains decide what may be split.
    pub forward_policy: ForwardPolicy,
    /// Whether each flow is logged at its end.
    pub log_flows: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            policy: Policy::default(),
            bond: None,
            networks: Vec::new(),
            // The window of a path of 600 ms, more than half of it, is good for 30 Mbit/s then.
            buffer: Some(Bytes(4 << 20)),
            threads: 1,
            connect_timeout: Duration::from_secs(30),
            idle_timeout: None,
            max_flows: None,
            memory: None,
            install_rules: true,
            forward_policy: ForwardPolicy::default(),
            log_flows: false,
        }
    }
}

impl Config {
    /// The least B: two segments in the receive queue and two unsent.
    pub const LEAST_BUFFER: Bytes = Bytes(4 * 1500);

    /// Listens on 0.0.0.0 in place of `[::]` where this kernel has IPv6 switched off
    /// (`ipv6.disable=1`).
    pub(crate) fn without_absent_families(&mut self) {
        let mut interception = self.interception();
        interception.without_absent_families();
        for (listen, present) in self.listen.iter_mut().zip(interception.listen) {
            listen.at = present.at;
        }
    }

    /// What interception is to do.
    pub fn interception(&self) -> Interception {
        Interception {
            listen: self.listen.iter().map(Listen::at).collect(),
            policy: self.policy.clone(),
            install_rules: self.install_rules,
            forward_policy: self.forward_policy,
        }
    }

    /// Every profile there is, those of a bond's networks too.
    pub(crate) fn profiles(&self) -> impl Iterator<Item = NamedProfile<'_>> {
        let networks = self.networks.iter();
        self.policy.profiles().chain(networks.map(|it| (format!("network {}", it.name), &it.profile, it.interface.as_slice())))
    }

    /// Calls controllers of ours what the kernel calls them.
    pub(crate) fn rename_controllers(&mut self) {
        Controllers::rename(self.policy.profiles_mut().chain(self.networks.iter_mut().map(|network| &mut network.profile)));
    }

    /// The rules this configuration needs; none when it takes no routed traffic or the operator
    /// brings it.
    pub fn rules(&self) -> Option<Rules> {
        self.interception().rules()
    }
}

/// Where connections come in, and how they say where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Where. For transparent listening an unspecified IPv6 address stands for both families.
    pub at: SocketAddr,
    /// How it learns where a connection goes on to.
    pub mode: ListenMode,
    /// Each connection begins with a PROXY protocol header, version 1 or 2, that tells who the
    /// client is.
    pub accept_proxy: bool,
    /// Each far leg is to begin with such a header.
    pub send_proxy: Option<ProxyVersion>,
    /// Where clients of [`ListenMode::Socks5`] may go. [`BondConfig`] has the same of a bond.
    pub destinations: Destinations,
    /// Who may use a listener of [`ListenMode::Socks5`].
    pub users: Users,
}

/// How a listener learns where its connections go on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenMode {
    /// Connections routed through this machine, taken by TPROXY; they go on to where they were
    /// going, from where they came.
    Transparent,
    /// To this address.
    Forward(SocketAddr),
    /// The client says it (SOCKS version 5, RFC 1928; with users by name and password, RFC 1929).
    Socks5,
    /// The other end of the bond says it, for each of the streams that come out here.
    Bond,
}

/// A version of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyVersion {
    /// A line of text
    V1,
    /// Binary
    V2,
}

impl Listen {
    /// Routed connections, taken here.
    pub fn transparent(at: SocketAddr) -> Self {
        Listen::new(at, ListenMode::Transparent)
    }

    fn new(at: SocketAddr, mode: ListenMode) -> Self {
        Listen { at, mode, accept_proxy: false, send_proxy: None, destinations: Destinations::default(), users: Users::default() }
    }

    /// Connections to `at` go on to `to`.
    pub fn forward(at: SocketAddr, to: SocketAddr) -> Self {
        Listen::new(at, ListenMode::Forward(to))
    }

    /// Clients say where to.
    pub fn socks5(at: SocketAddr) -> Self {
        Listen::new(at, ListenMode::Socks5)
    }

    /// The other end of a bond.
    pub fn bond(at: SocketAddr) -> Self {
        Listen::new(at, ListenMode::Bond)
    }

    /// Its address, and where its connections go on to.
    pub fn at(&self) -> ListenAt {
        let to = match self.mode {
            ListenMode::Transparent => Destination::Original,
            ListenMode::Forward(to) => Destination::Fixed(to),
            ListenMode::Socks5 | ListenMode::Bond => Destination::Named,
        };
        ListenAt { at: self.at, to }
    }

    /// Whether its connections are parts of streams, which a carrier takes.
    pub(crate) fn takes_streams(&self) -> bool {
        self.mode == ListenMode::Bond
    }
}

/// The buffer of a direction, as a file or an option gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferSetting {
    /// At most this much payload.
    Bytes(Bytes),
    /// No bound but the kernel's.
    Unlimited,
}

impl BufferSetting {
    /// As [`Config::buffer`] has it: none is unlimited.
    pub fn limit(self) -> Option<Bytes> {
        match self {
            BufferSetting::Bytes(bytes) => Some(bytes),
            BufferSetting::Unlimited => None,
        }
    }
}
