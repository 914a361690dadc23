//! The types of the configuration.

use crate::flow_records::FlowRecordsConfig;
use intercept::{
    Controllers, Destination, Destinations, ExperimentShare, ForwardPolicy, Interception, ListenAt, NamedProfile, Policy, Rules, Users,
    leg::Shares,
};
use multipath::{BondConfig, BondNetwork};
use relay::buffer_law::{BufferLimits, IN_PASSING, START};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{net::SocketAddr, time::Duration};
use units::Bytes;

/// B of each direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// This size.
    Fixed(Bytes),
    /// It follows the flow. What a bond reads from a plain leg has such a B in any case, unless a
    /// fixed one is small.
    Adaptive {
        /// The largest.
        most: Bytes,
    },
    /// The kernel's buffers are the only limit.
    Unlimited,
}

impl Buffer {
    /// The largest B; none: it is unlimited.
    pub fn most(self) -> Option<Bytes> {
        match self {
            Buffer::Fixed(most) | Buffer::Adaptive { most } => Some(most),
            Buffer::Unlimited => None,
        }
    }
}

/// A fixed size, or none.
impl From<Option<Bytes>> for Buffer {
    fn from(bytes: Option<Bytes>) -> Self {
        bytes.map_or(Buffer::Unlimited, Buffer::Fixed)
    }
}

/// The configuration of a proxy. A program reads it with [`Service::read`](super::Service::read),
/// or sets fields of the default, and lets [`check`](Self::check) find values that cannot work.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// Listeners, at least one.
    pub listen: Vec<ListenerConfig>,
    /// Which connections are split, and with which profiles.
    pub policy: Policy,
    /// The bond that far legs go over, or whose streams come out of a listener.
    pub bond: Option<BondConfig>,
    /// The networks of the bond at the end that dials; empty: all far legs are plain connections.
    pub networks: Vec<BondNetwork>,
    /// B: the most payload that is held in each direction of a connection.
    pub buffer: Buffer,
    /// Number of worker threads.
    pub threads: usize,
    /// Time limit for connecting a far leg, unless its profile has another.
    pub connect_timeout: Duration,
    /// Time without progress after which a connection is reset; none: never.
    pub idle_timeout: Option<Duration>,
    /// The most connections at once; further ones pass unsplit. None: as many as the limit of open
    /// files allows.
    pub max_flows: Option<usize>,
    /// What all connections may take together; none: as much as the kernel's mark for TCP (the
    /// second value of `net.ipv4.tcp_mem`) and the control group leave, which limit in any case.
    pub memory: Option<Bytes>,
    /// Whether the proxy installs the firewall rules that deliver connections to it; else the
    /// operator does.
    pub install_rules: bool,
    /// Whether other programs' forward chains decide what may be split.
    pub forward_policy: ForwardPolicy,
    /// The share of connections that pass unsplit, to be compared with as many split ones; none: no
    /// experiment.
    pub experiment: Option<ExperimentShare>,
    /// Whether each flow is logged at its end.
    pub log_flows: bool,
    /// Where a record of each flow goes at its end; none: nowhere.
    pub flow_records: Option<FlowRecordsConfig>,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            listen: Vec::new(),
            policy: Policy::default(),
            bond: None,
            networks: Vec::new(),
            buffer: Buffer::Adaptive { most: Self::auto_buffer_max() },
            threads: 1,
            connect_timeout: Duration::from_secs(30),
            idle_timeout: None,
            max_flows: None,
            memory: None,
            install_rules: true,
            forward_policy: ForwardPolicy::default(),
            experiment: None,
            log_flows: false,
            flow_records: None,
        }
    }
}

impl ProxyConfig {
    /// The smallest B: two segments in the receive queue and two unsent ones.
    pub const LEAST_BUFFER: Bytes = Bytes(4 * 1500);

    /// The largest B with `buffer = "auto"`, unless `buffer_max` says otherwise: the window is then
    /// enough for 100 Mbit/s at 600 ms.
    pub const AUTO_BUFFER_MAX: Bytes = Bytes(16 << 20);

    /// [`AUTO_BUFFER_MAX`](Self::AUTO_BUFFER_MAX), or less: so much that the receive queue gets the
    /// maximum of `net.ipv4.tcp_rmem`, as without a proxy. With less, an upload over a long link is
    /// slower than without one; with more, what a window has admitted may be dropped.
    fn auto_buffer_max() -> Bytes {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
        let most = text.split_whitespace().nth(2).and_then(|word| word.parse::<u64>().ok());
        most.map_or(Self::AUTO_BUFFER_MAX, |most| Bytes(most + 2 * IN_PASSING).clamp(Self::LEAST_BUFFER, Self::AUTO_BUFFER_MAX))
    }

    /// Sets B as the keys `buffer` and `buffer_max` say.
    pub fn set_buffer(&mut self, buffer: BufferSetting, max: Option<Bytes>) {
        self.buffer = match buffer {
            BufferSetting::Bytes(bytes) => Buffer::Fixed(bytes),
            BufferSetting::Unlimited => Buffer::Unlimited,
            BufferSetting::Auto => Buffer::Adaptive { most: max.unwrap_or_else(Self::auto_buffer_max) },
        };
    }

    /// How B of a connection is divided at first; none: it has no bound. What fills before the
    /// relay sees it must fit into memory for all connections, so that no B starts larger.
    pub(crate) fn shares(&self) -> Option<Shares> {
        let most = self.buffer.most()?.0 as usize;
        Some(Shares::of(most.min(START as usize)).growing_to(most))
    }

    /// The fixed B that a direction gets once it carries bulk data, bytes; none: it has it from the
    /// start, or its B follows the flow.
    pub(crate) fn raised_buffer(&self) -> Option<usize> {
        match self.buffer {
            Buffer::Fixed(bytes) if bytes.0 > START => Some(bytes.0 as usize),
            _ => None,
        }
    }

    /// Between which values B follows each flow; none: it is fixed.
    pub(crate) fn buffer_limits(&self) -> Option<BufferLimits> {
        match self.buffer {
            Buffer::Adaptive { most } => Some(BufferLimits::up_to(most.0)),
            Buffer::Fixed(_) | Buffer::Unlimited => None,
        }
    }

    /// The configuration of connections that begin while memory is short: B follows the flow from
    /// its beginning where it is unlimited otherwise. None: it is the same.
    pub(crate) fn while_short(&self) -> Option<Self> {
        let limited = || ProxyConfig { buffer: Buffer::Adaptive { most: Self::AUTO_BUFFER_MAX }, ..self.clone() };
        (self.buffer == Buffer::Unlimited).then(limited)
    }

    /// Replaces `[::]` by 0.0.0.0 in listeners if the kernel has no IPv6 (`ipv6.disable=1`).
    pub(crate) fn without_absent_families(&mut self) {
        let mut interception = self.interception();
        interception.without_absent_families();
        for (listen, present) in self.listen.iter_mut().zip(interception.listen) {
            listen.at = present.at;
        }
    }

    /// The part of the configuration for `intercept`.
    pub fn interception(&self) -> Interception {
        Interception {
            listen: self.listen.iter().map(ListenerConfig::at).collect(),
            policy: self.policy.clone(),
            install_rules: self.install_rules,
            forward_policy: self.forward_policy,
            experiment: self.experiment,
            has_carrier: !self.networks.is_empty(),
        }
    }

    /// All profiles, those of the bond's networks too.
    pub(crate) fn profiles(&self) -> impl Iterator<Item = NamedProfile<'_>> {
        let networks = self.networks.iter();
        self.policy.profiles().chain(networks.map(|it| (format!("network {}", it.name), &it.profile, it.interface.as_slice())))
    }

    /// Replaces the names of Tandem's own controllers by those that they have in the kernel.
    pub(crate) fn rename_controllers(&mut self) {
        Controllers::rename(self.policy.profiles_mut().chain(self.networks.iter_mut().map(|network| &mut network.profile)));
    }

    /// The firewall rules of this configuration; none if it has no transparent listener or the
    /// operator installs the rules.
    pub fn rules(&self) -> Option<Rules> {
        self.interception().rules()
    }
}

/// The configuration of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its address. An unspecified IPv6 address of a transparent listener stands for both families.
    pub at: SocketAddr,
    /// How it learns the destination of a connection.
    pub mode: ListenMode,
    /// Whether each connection begins with a PROXY protocol header, version 1 or 2, with the
    /// client's address.
    pub accept_proxy: bool,
    /// The longest PROXY protocol header that is accepted, with its extensions.
    pub accept_proxy_max: Bytes,
    /// Version of the PROXY protocol header that each far leg begins with; none: no header.
    pub send_proxy: Option<ProxyVersion>,
    /// Permitted destinations of [`ListenMode::Socks5`]. [`BondConfig`] has those of a bond.
    pub destinations: Destinations,
    /// Users of [`ListenMode::Socks5`]; empty: every client may use it.
    pub users: Users,
}

/// How a listener learns the destination of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenMode {
    /// Connections that are routed through this host and intercepted by TPROXY. They keep their
    /// destination and the client's address.
    Transparent,
    /// Every connection goes on to this address.
    Forward(SocketAddr),
    /// The client names it: SOCKS version 5 (RFC 1928), with users by name and password (RFC 1929).
    Socks5,
    /// The other end of the bond names it for each stream.
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

impl ListenerConfig {
    /// A listener for intercepted connections.
    pub fn transparent(at: SocketAddr) -> Self {
        ListenerConfig::new(at, ListenMode::Transparent)
    }

    /// The longest header that the PROXY protocol allows, that of version 2.
    pub const MOST_PROXY_HEADER: Bytes = Bytes(16 + 65_535);
    /// The longest header without extensions: with the addresses of Unix sockets.
    pub const LEAST_PROXY_HEADER: Bytes = Bytes(16 + 216);

    fn new(at: SocketAddr, mode: ListenMode) -> Self {
        ListenerConfig {
            at,
            mode,
            accept_proxy: false,
            accept_proxy_max: Self::MOST_PROXY_HEADER,
            send_proxy: None,
            destinations: Destinations::default(),
            users: Users::default(),
        }
    }

    /// A listener at `at` whose connections go on to `to`.
    pub fn forward(at: SocketAddr, to: SocketAddr) -> Self {
        ListenerConfig::new(at, ListenMode::Forward(to))
    }

    /// A listener for SOCKS5 clients.
    pub fn socks5(at: SocketAddr) -> Self {
        ListenerConfig::new(at, ListenMode::Socks5)
    }

    /// A listener for the other end of a bond.
    pub fn bond(at: SocketAddr) -> Self {
        ListenerConfig::new(at, ListenMode::Bond)
    }

    /// Its address, and how its destination is known, for `intercept`.
    pub fn at(&self) -> ListenAt {
        let to = match self.mode {
            ListenMode::Transparent => Destination::Original,
            ListenMode::Forward(to) => Destination::Fixed(to),
            ListenMode::Socks5 | ListenMode::Bond => Destination::Named,
        };
        ListenAt { at: self.at, to }
    }

    /// Whether its connections belong to streams of a bond.
    pub(crate) fn takes_streams(&self) -> bool {
        self.mode == ListenMode::Bond
    }
}

/// The value of `buffer` in files and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferSetting {
    /// The most payload in each direction.
    Bytes(Bytes),
    /// The kernel's buffers are the only limit.
    Unlimited,
    /// It follows each flow.
    Auto,
}
