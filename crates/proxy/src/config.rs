//! What a proxy is to do: from a file, from flags, or made by hand.

use crate::bonded::{self, BondConfig, Network, Pipes, settings::BondKeys};
use intercept::{
    AccessOptions, Action, AddressSchema, Controllers, Destination, Destinations, ForwardPolicy, Interception, InterceptionError, Leg,
    LegProfile, ListenAt, ListenerAccess, NamedProfile, OneOrList, Policy, Prefix, Rule, Rules, Users, UsersError, check_secrecy, leg,
    list, optional_address, parse_address,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::{fmt, fs, io, net::SocketAddr, str::FromStr, time::Duration};
use toml_file::{Fault, FileError};
use units::{Bytes, Span, UnitError};

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
    /// B: payload held in each direction of a connection; none: as much as the kernel's own buffers take.
    pub buffer: Option<Bytes>,
    /// Worker threads.
    pub threads: usize,
    /// How long a far leg may take to connect, where its profile does not say.
    pub connect_timeout: Duration,
    /// How long nothing may move in a connection before it is reset; none: for ever.
    pub idle_timeout: Option<Duration>,
    /// Connections at once; more pass unsplit. None: as many as open files allow.
    pub max_flows: Option<usize>,
    /// TCP memory of this host above which connections pass unsplit; none: where the kernel itself begins to save
    /// (the second value of `net.ipv4.tcp_mem`).
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

/// Where connections come in, and how they say where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Where. For transparent listening an unspecified IPv6 address stands for both families.
    pub at: SocketAddr,
    /// How it is known where a connection goes on to.
    pub way: Way,
    /// Each connection begins with a PROXY protocol header, version 1 or 2, that tells who the client is.
    pub accept_proxy: bool,
    /// Each far leg is to begin with such a header.
    pub send_proxy: Option<ProxyVersion>,
    /// Where clients of [`Way::Socks5`] may go. [`BondConfig`] has the same of a bond.
    pub destinations: Destinations,
    /// Who may use a listener of [`Way::Socks5`].
    pub users: Users,
}

/// How it is known where a connection goes on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Connections routed through this machine, taken by TPROXY; they go on to where they were going, from where they came.
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

impl FromStr for ProxyVersion {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "v1" => Ok(ProxyVersion::V1),
            "v2" => Ok(ProxyVersion::V2),
            _ => Err(format!("{text:?} is no version of the PROXY protocol: it can be v1 or v2")),
        }
    }
}

impl Listen {
    /// Routed connections, taken here.
    pub fn transparent(at: SocketAddr) -> Self {
        Listen::new(at, Way::Transparent)
    }

    fn new(at: SocketAddr, way: Way) -> Self {
        Listen { at, way, accept_proxy: false, send_proxy: None, destinations: Destinations::default(), users: Users::default() }
    }

    /// Connections to `at` go on to `to`.
    pub fn forward(at: SocketAddr, to: SocketAddr) -> Self {
        Listen::new(at, Way::Forward(to))
    }

    /// Clients say where to.
    pub fn socks5(at: SocketAddr) -> Self {
        Listen::new(at, Way::Socks5)
    }

    /// The other end of a bond.
    pub fn bond(at: SocketAddr) -> Self {
        Listen::new(at, Way::Bond)
    }
}

impl FromStr for Listen {
    type Err = String;

    /// `transparent=[::]:5000`, `forward=127.0.0.1:8080=192.0.2.10:80`, `socks5=127.0.0.1:1080` or `bond=[::]:7000`; all but the first with
    /// `,send-proxy=v2`, the second and third with `,accept-proxy` where wanted, the third with
    /// `,allow=PREFIX` and `,deny=PREFIX`, as often as wanted, and with `,users=FILE` or
    /// `,user=NAME:PASSWORD`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let way = parts.next().unwrap_or_default();
        let mut listen = match way.split_once('=') {
            Some(("transparent", at)) => Listen::transparent(parse_address(at)?),
            Some(("forward", both)) => {
                let (at, to) = both
                    .split_once('=')
                    .ok_or_else(|| format!("{way:?} says where to listen but not where to go on to: write forward=HERE=THERE"))?;
                Listen::forward(parse_address(at)?, parse_address(to)?)
            }
            Some(("socks5", at)) => Listen::socks5(parse_address(at)?),
            Some(("bond", at)) => Listen::bond(parse_address(at)?),
            _ => {
                return Err(format!(
                    "cannot parse listener {way:?}: expected transparent=ADDRESS:PORT, forward=ADDRESS:PORT=ADDRESS:PORT, \
                     socks5=ADDRESS:PORT or bond=ADDRESS:PORT"
                ));
            }
        };
        let mut access = AccessOptions::default();
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("accept-proxy", "") => listen.accept_proxy = true,
                ("send-proxy", version) => listen.send_proxy = Some(version.parse()?),
                _ if access.take(part)? => {}
                (option, _) => {
                    // Without its value, which may be the rest of a password that has a comma.
                    return Err(format!(
                        "unknown listener option {option:?}: expected accept-proxy, send-proxy=v2, {}",
                        AccessOptions::EXPECTED
                    ));
                }
            }
        }
        let ListenerAccess { destinations, users } = access.finish()?;
        (listen.destinations, listen.users) = (destinations, users);
        listen.check()?;
        Ok(listen)
    }
}

impl Listen {
    fn check(&self) -> Result<(), String> {
        if self.way == Way::Transparent && (self.accept_proxy || self.send_proxy.is_some()) {
            return Err("transparent connections keep their addresses and need no PROXY protocol: leave it out".into());
        }
        if self.way == Way::Bond && self.accept_proxy {
            return Err("streams of a bond tell who their client is without the PROXY protocol: leave accept_proxy out".into());
        }
        if self.way == Way::Bond && self.destinations.has_lists() {
            return Err("destinations of a bond are set for all its listeners: move allow and deny to [bond]".into());
        }
        if self.way != Way::Socks5 && self.destinations.has_lists() {
            return Err("allow and deny are for clients that name their destination (socks5): leave them out".into());
        }
        if self.way != Way::Socks5 && self.users.are_required() {
            return Err("users are for clients that name their destination (socks5): leave them out".into());
        }
        self.destinations.check_prefixes()
    }

    /// Its address, and where its connections go on to.
    pub fn at(&self) -> ListenAt {
        let to = match self.way {
            Way::Transparent => Destination::Original,
            Way::Forward(to) => Destination::Fixed(to),
            Way::Socks5 | Way::Bond => Destination::Named,
        };
        ListenAt { at: self.at, to }
    }

    /// What of it cannot be changed while it listens.
    fn fixed(&self) -> Listen {
        Listen { users: Users::default(), ..self.clone() }
    }
}

/// A listener. Exactly one of `transparent`, `forward`, `socks5` and `bond` says where it listens, and
/// how the destination of a connection is known.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListenKeys {
    /// Address for connections that are routed through this host: they go on to where they were going,
    /// from the client's address. `[::]` stands for both families.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    transparent: Option<SocketAddr>,
    /// Address for connections that go on to `to`, from the proxy's address.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    forward: Option<SocketAddr>,
    /// Address for clients that name their destination by SOCKS version 5 (CONNECT).
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    socks5: Option<SocketAddr>,
    /// Address for the connections of another host's bond, whose streams come out here. Needs `[bond]`.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    bond: Option<SocketAddr>,
    /// Destination of the connections of `forward`.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    to: Option<SocketAddr>,
    /// `forward`, `socks5`: whether each connection begins with a PROXY protocol header, of either
    /// version.
    #[serde(default)]
    accept_proxy: bool,
    /// `forward`, `socks5`, `bond`: version of the PROXY protocol header that far legs begin with. Absent:
    /// none.
    send_proxy: Option<ProxyVersion>,
    /// `socks5`: prefixes of the only destinations that clients may name, one or a list. Absent: all but
    /// this host and link-local addresses.
    #[serde(default, deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    allow: Vec<Prefix>,
    /// `socks5`: prefixes of destinations that are refused, whatever `allow` says.
    #[serde(default, deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    deny: Vec<Prefix>,
    /// `socks5`: the users, a file with one `NAME:PASSWORD` a line, or a list of these. Absent: every
    /// client.
    #[serde(default)]
    users: Users,
}

impl JsonSchema for Listen {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        ListenKeys::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = ListenKeys::deserialize(deserializer)?;
        let mut listen = match (keys.transparent, keys.forward, keys.socks5, keys.bond, keys.to) {
            (Some(at), None, None, None, None) => Listen::transparent(at),
            (None, Some(at), None, None, Some(to)) => Listen::forward(at, to),
            (None, None, Some(at), None, None) => Listen::socks5(at),
            (None, None, None, Some(at), None) => Listen::bond(at),
            _ => {
                return Err(de::Error::custom(
                    "needs exactly one of transparent = \"[::]:5000\", forward = \"HERE:PORT\" with to = \"THERE:PORT\", socks5 = \"HERE:PORT\" \
                     and bond = \"HERE:PORT\"",
                ));
            }
        };
        (listen.accept_proxy, listen.send_proxy) = (keys.accept_proxy, keys.send_proxy);
        listen.destinations = Destinations { allow: keys.allow, deny: keys.deny };
        listen.users = keys.users;
        listen.check().map_err(de::Error::custom)?;
        Ok(listen)
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

impl FromStr for BufferSetting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(BufferSetting::Unlimited),
            // A scenario knows its links; a proxy does not know its own.
            "auto" => Err("\"auto\" needs a scenario: give a size, or \"unlimited\"".into()),
            _ => text.parse().map(BufferSetting::Bytes).map_err(|error: UnitError| error.to_string()),
        }
    }
}

impl fmt::Display for BufferSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BufferSetting::Bytes(bytes) => write!(f, "{bytes}"),
            BufferSetting::Unlimited => f.write_str("unlimited"),
        }
    }
}
units::impl_text!(BufferSetting, "a size or \"unlimited\"", "4MiB");

/// A configuration file. The comments are the descriptions of its keys in the documentation.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// Worker threads.
    #[schemars(extend("default" = 1))]
    threads: Option<usize>,
    /// B, the payload that is held at most in each direction of a connection; or `"unlimited"`.
    #[schemars(extend("default" = "4MiB"))]
    buffer: Option<BufferSetting>,
    /// Time that a dialled leg may take to connect, unless its profile says otherwise.
    #[schemars(extend("default" = "30s"))]
    connect_timeout: Option<Span>,
    /// Time without progress after which a connection is reset. Absent: never.
    idle_timeout: Option<Span>,
    /// Connections at once; more pass unsplit. Absent: as many as open files allow.
    max_flows: Option<usize>,
    /// TCP memory of the host above which connections pass unsplit. Absent: where the kernel begins to
    /// save (the second value of `net.ipv4.tcp_mem`).
    memory: Option<Bytes>,
    /// Whether the proxy installs the firewall rules that bring it traffic. `false`: the operator's
    /// own do.
    #[schemars(extend("default" = true))]
    install_rules: Option<bool>,
    /// Whether the forward chains of other programs decide what is split.
    #[schemars(extend("default" = "heed"))]
    forward_policy: Option<ForwardPolicy>,
    /// Whether each flow is logged at its end.
    #[schemars(extend("default" = true))]
    log_flows: Option<bool>,
    /// Name of the proxy for `tandem flows --name` and the like.
    #[schemars(extend("default" = "default"))]
    name: Option<String>,
    /// Address at which metrics for Prometheus are served. Absent: nowhere.
    #[serde(deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    metrics: Option<SocketAddr>,
    /// Listeners, at least one.
    listen: Vec<Listen>,
    /// Profile of accepted legs for which no `[[leg]]` fits.
    near: LegProfile,
    /// Profile of dialled legs for which no `[[leg]]` fits.
    far: LegProfile,
    /// Profiles of legs by interface or prefix, or for rules that name them. The first that fits a leg
    /// is its profile, whichever end opened the connection.
    leg: Vec<Leg>,
    /// What is split, and what is not: the first rule that fits a connection decides. If none fits, it
    /// is split, over the bond if there are networks for one.
    rule: Vec<Rule>,
    /// The bond that far legs are, or whose streams come out of a listener.
    bond: Option<BondKeys>,
}

/// The JSON Schema of a configuration file.
pub fn config_schema() -> schemars::Schema {
    let mut schema = schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<File>();
    schema.insert("title".into(), "Configuration file of the proxy".into());
    schema
}

/// A configuration, and how the program that runs the proxy is reached.
#[derive(Debug, Clone)]
pub struct Service {
    /// What the proxy is to do.
    pub config: Config,
    /// What `tandem flows` and the like call this proxy; it is of its network namespace.
    pub name: String,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
}

impl Default for Service {
    fn default() -> Self {
        Service { config: Config { log_flows: true, ..Config::default() }, name: "default".into(), metrics: None }
    }
}

impl Service {
    /// Reads a configuration file.
    pub fn read(path: &std::path::Path) -> Result<Self, ConfigError> {
        let origin = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|why| ConfigError::Unreadable { path: origin.clone(), why })?;
        let mut service = Self::parse(&text, &origin).map_err(|error| ConfigError::File(Box::new(error)))?;
        service.config.bond.as_mut().map_or(Ok(()), BondConfig::read_key)?;
        if service.config.listen.iter().any(|listen| listen.users.are_inline()) {
            check_secrecy(path)?;
        }
        service.config.read_users()?;
        Ok(service)
    }

    /// What of `other`, beyond its configuration, differs in a way that only a restart can bring about.
    pub fn needs_restart(&self, other: &Service) -> Option<&'static str> {
        let differs = [("name", self.name != other.name), ("metrics", self.metrics != other.metrics)];
        differs.iter().find(|(_, differs)| *differs).map(|(key, _)| *key)
    }

    /// Reads the text of one; `origin` is what its errors call it. A bond's key and files of users are not read.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        let file: File = toml_file::read_toml(text, origin, File::check)?;
        let mut service = Service::default();
        let config = &mut service.config;
        config.listen = file.listen;
        let (bond, networks) = file.bond.as_ref().and_then(|keys| keys.read().ok()).unzip();
        config.policy = Policy { rules: file.rule, legs: file.leg, near: file.near, far: file.far };
        config.networks = networks.unwrap_or_default();
        config.bond = bond;
        config.buffer = file.buffer.map_or(config.buffer, BufferSetting::limit);
        config.threads = file.threads.unwrap_or(config.threads);
        config.connect_timeout = file.connect_timeout.map_or(config.connect_timeout, Span::duration);
        config.idle_timeout = file.idle_timeout.map(Span::duration);
        config.max_flows = file.max_flows;
        config.memory = file.memory;
        config.install_rules = file.install_rules.unwrap_or(config.install_rules);
        config.forward_policy = file.forward_policy.unwrap_or(config.forward_policy);
        config.log_flows = file.log_flows.unwrap_or(config.log_flows);
        service.name = file.name.unwrap_or(service.name);
        service.metrics = file.metrics;
        Ok(service)
    }
}

impl File {
    /// What is wrong though each key by itself is right.
    fn check(&self) -> Result<(), Fault> {
        let need = |ok: bool, path: String, message: &str| if ok { Ok(()) } else { Err(Fault::new(path, message)) };
        need(self.threads != Some(0), "threads".into(), "is 0: nothing would ever be done; give at least 1")?;
        let networks = self.bond.as_ref().map_or(Ok(Vec::new()), |keys| keys.read().map(|(_, networks)| networks));
        let networks = networks.map_err(|(path, why)| Fault::new(path, &why))?;
        let listens = self.listen.iter().position(|listen| listen.way == Way::Bond);
        if let Some(index) = listens.filter(|_| self.bond.is_none()) {
            need(false, format!("listen[{index}]"), "waits for the other end of a bond, and there is no [bond] with the key of both ends")?;
        }
        for (index, leg) in self.leg.iter().enumerate() {
            need(
                leg.name.is_some() || !leg.to.is_empty() || !leg.interface.is_empty(),
                format!("leg[{index}]"),
                "matches no leg: give it an interface, a prefix (to), or a name that a rule refers to",
            )?;
            need(
                leg.name.is_none() || self.leg[..index].iter().all(|other| other.name != leg.name),
                format!("leg[{index}].name"),
                "is the name of another leg too: give each its own",
            )?;
        }
        for (index, rule) in self.rule.iter().enumerate() {
            need(
                rule.action != Action::Bond || !networks.is_empty(),
                format!("rule[{index}].action"),
                "is \"bond\", and there is no [[bond.network]] for one: give some",
            )?;
            for (key, name) in [("near", &rule.near), ("far", &rule.far)] {
                let Some(name) = name else { continue };
                let path = format!("rule[{index}].{key}");
                need(
                    rule.action == Action::Split,
                    path.clone(),
                    "is for what is split, and this rule lets connections bypass or refuses them: leave it out",
                )?;
                let known: Vec<&str> = self.leg.iter().filter_map(|leg| leg.name.as_deref()).collect();
                let message = format!("no [[leg]] is named {name:?}; those with a name are: {}", known.join(", "));
                need(known.contains(&name.as_str()), path, &message)?;
            }
        }
        Ok(())
    }
}

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read the configuration {path}: {why}")]
    Unreadable {
        /// Which.
        path: String,
        /// The system's reason.
        why: io::Error,
    },
    /// The file is wrong.
    #[error("{0}")]
    File(Box<FileError>),
    /// Nothing would ever come in.
    #[error("the proxy has no listener: give at least one, such as --listen transparent=[::]:5000")]
    NoListener,
    /// Interception cannot work so.
    #[error(transparent)]
    Interception(#[from] InterceptionError),
    /// A bond has no key.
    #[error(
        "the bond has no key: make one (openssl rand -hex 32 > bond.key; chmod 600 bond.key), give both ends the same, and name it: --key bond.key"
    )]
    NoKey,
    /// The key can't be read, or is none.
    #[error("cannot take the bond's key from {path}: {why}")]
    KeyFile {
        /// Which file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Users cannot be read, or others can read them too.
    #[error(transparent)]
    Users(#[from] UsersError),
    /// A bond can't work so.
    #[error("the bond: {0}")]
    Bond(String),
    /// What must be more than nothing is nothing.
    #[error("{0} is 0, with which nothing would get through: give more, or leave it out")]
    Zero(&'static str),
    /// B is below what the kernel can hold to.
    #[error("a buffer of {asked} is less than this host can hold to: give at least {least}")]
    BufferTooSmall {
        /// What was asked for.
        asked: Bytes,
        /// The least that can be kept.
        least: Bytes,
    },
    /// More flows than descriptors.
    #[error(
        "{asked} flows need more open files than the {files} that the limit allows each of {threads} threads, enough for \
         {most}: raise it (ulimit -n, LimitNOFILE=), take more threads, or give less"
    )]
    TooManyFlows {
        /// What was asked for.
        asked: usize,
        /// The limit of open files.
        files: u64,
        /// Worker threads.
        threads: usize,
        /// What there is room for.
        most: usize,
    },
}

impl Config {
    /// The least B: two segments in the receive queue and two unsent.
    pub const LEAST_BUFFER: Bytes = Bytes(4 * 1500);
    /// Descriptors of a worker that are not for flows: listeners, pipes, what comes in while interception ends.
    const RESERVED_FILES: u64 = 400;
    /// Over how many networks the other end of a bond is taken to come.
    const USUAL_NETWORKS: usize = 2;

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

    /// Reads the files of users that listeners have, again if they have been read.
    ///
    /// # Errors
    /// When one cannot be read, others can read it too, or it has no users.
    pub fn read_users(&mut self) -> Result<(), ConfigError> {
        Ok(self.listen.iter_mut().try_for_each(|listen| listen.users.read())?)
    }

    /// Finds what can't work before anything is set up.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.prepare().map(drop)
    }

    /// As [`Config::check`]; what the profiles need of the kernel is there for as long as the result is.
    pub(crate) fn prepare(&self) -> Result<Controllers, ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::NoListener);
        }
        let zeros = [
            ("max_flows", self.max_flows == Some(0)),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("idle_timeout", self.idle_timeout.is_some_and(|limit| limit.is_zero())),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::Zero(key));
        }
        let interception = self.interception();
        interception.check()?;
        if let Some(asked) = self.buffer.filter(|buffer| *buffer < Self::LEAST_BUFFER) {
            return Err(ConfigError::BufferTooSmall { asked, least: Self::LEAST_BUFFER });
        }
        let most = self.threads.max(1) * self.flows_of_a_worker();
        if let Some(asked) = self.max_flows.filter(|asked| *asked > most) {
            return Err(ConfigError::TooManyFlows { asked, files: leg::open_files(), threads: self.threads, most });
        }
        // Over a bond it is the other end that connects.
        if self.networks.is_empty() {
            interception.check_forwards()?;
        }
        if let Some(bond) = &self.bond {
            bonded::settings::check(bond, &self.networks)?;
        }
        self.profiles().try_for_each(|(leg, profile, _)| intercept::check_profile(leg, profile))?;
        Ok(Controllers::of(self.profiles()).map_err(InterceptionError::from)?)
    }

    /// How many flows a worker has descriptors for: two each, or as many as a bond has networks and one.
    pub(crate) fn flows_of_a_worker(&self) -> usize {
        let serves = self.listen.iter().any(|listen| listen.way == Way::Bond);
        let (networks, spares) = (self.networks.len(), self.bond.as_ref().map_or(0, |bond| bond.spares));
        let of_a_flow = 1 + networks.max(if serves { Self::USUAL_NETWORKS } else { 1 });
        let pipes = self.bond.as_ref().filter(|bond| !bond.tls).map_or(0, |_| Pipes::most(leg::open_files()));
        let of_none = networks * spares + 2 * pipes + if serves { Self::most_strangers() } else { 0 };
        (leg::open_files().saturating_sub(Self::RESERVED_FILES + of_none as u64) / of_a_flow as u64).max(1) as usize
    }

    /// How many connections a worker of a bond's listener has that have not shown that they have the key.
    pub(crate) fn most_strangers() -> usize {
        (leg::open_files() / 8).min(1024) as usize
    }

    /// How many flows a worker can have at all; between this and what it has room for are those that come before the firewall lets
    /// them pass.
    pub(crate) fn brim_of_a_worker(&self) -> usize {
        self.flows_of_a_worker() + Self::RESERVED_FILES as usize / 4
    }

    /// How many flows a worker takes before it is full.
    pub(crate) fn room_of_a_worker(&self) -> usize {
        let most = self.flows_of_a_worker();
        self.max_flows.map_or(most, |flows| flows.div_ceil(self.threads.max(1)).min(most))
    }

    /// The rules this configuration needs; none when it takes no routed traffic or the operator brings it.
    pub fn rules(&self) -> Option<Rules> {
        self.interception().rules()
    }

    /// Listeners for named destinations (SOCKS5, bonds) that are reachable from other hosts and limit
    /// neither clients (`users`) nor destinations (`allow`): the address of each, why that is
    /// doubtful, and the cure.
    pub fn open_listeners(&self) -> Vec<(SocketAddr, &'static str, &'static str)> {
        let mut found = Vec::new();
        for Listen { at, way, destinations, users, .. } in self.listen.iter().filter(|listen| !listen.at.ip().is_loopback()) {
            let of_bond = self.bond.as_ref().map(|bond| &bond.destinations);
            match way {
                Way::Socks5 if destinations.allow.is_empty() && !users.are_required() => {
                    found.push((*at, ListenerAccess::OPEN, ListenerAccess::CLOSE));
                }
                Way::Bond if of_bond.is_none_or(|destinations| destinations.allow.is_empty()) => found.push((
                    *at,
                    "every peer that has the bond's key can connect to every host that this one reaches",
                    "limit its destinations (allow of [bond], --allow PREFIX)",
                )),
                _ => {}
            }
        }
        found
    }

    /// What of this configuration differs from `other` in a way that only a restart can bring about.
    pub fn needs_restart(&self, other: &Config) -> Option<&'static str> {
        let differs = [
            ("listen", !self.listen.iter().map(Listen::fixed).eq(other.listen.iter().map(Listen::fixed))),
            ("threads", self.threads != other.threads),
            ("install_rules", self.install_rules != other.install_rules),
            ("forward_policy", self.forward_policy != other.forward_policy),
            ("buffer", self.small_buffer() != other.small_buffer()),
            ("near.mss", self.policy.near.mss != other.policy.near.mss),
            ("bond", self.bond.as_ref().map(BondConfig::fixed) != other.bond.as_ref().map(BondConfig::fixed)),
            ("bond.network", self.networks != other.networks),
        ];
        differs.iter().find(|(_, differs)| *differs).map(|(key, _)| *key)
    }

    /// A buffer so small that listeners have it from the start.
    fn small_buffer(&self) -> Option<Bytes> {
        self.buffer.filter(|bytes| leg::Shares::of(bytes.0 as usize).pipe == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_listen() {
        assert_eq!("transparent=[::]:5000".parse(), Ok(Listen::transparent("[::]:5000".parse().unwrap())));
        let forward = Listen::forward("127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap());
        assert_eq!("forward=127.0.0.1:80=[::1]:8080".parse(), Ok(forward.clone()));
        assert_eq!(
            "forward=127.0.0.1:80=[::1]:8080,accept-proxy,send-proxy=v2".parse(),
            Ok(Listen { accept_proxy: true, send_proxy: Some(ProxyVersion::V2), ..forward })
        );
        assert_eq!("socks5=[::1]:1080".parse(), Ok(Listen::socks5("[::1]:1080".parse().unwrap())));
        let wrong = ["5000", "transparent=5000", "forward=127.0.0.1:80", "socks=[::]:1", "socks5=[::]:1,send-proxy=v3"];
        for wrong in wrong.into_iter().chain(["transparent=[::]:1,accept-proxy"]) {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_at_start() {
        let listen = vec![Listen::forward("127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap())];
        let good = Config { listen, ..Config::default() };
        assert!(good.check().is_ok());
        assert!(matches!(Config::default().check(), Err(ConfigError::NoListener)));
        assert!(matches!(Config { buffer: Some(Bytes(100)), ..good.clone() }.check(), Err(ConfigError::BufferTooSmall { .. })));
        let far = LegProfile { control: Some("cubik".into()), ..LegProfile::default() };
        let policy = Policy { far, ..Policy::default() };
        for zero in [
            Config { max_flows: Some(0), ..good.clone() },
            Config { connect_timeout: Duration::ZERO, ..good.clone() },
            Config { idle_timeout: Some(Duration::ZERO), ..good.clone() },
        ] {
            assert!(matches!(zero.check(), Err(ConfigError::Zero(_))));
        }
        let error = Config { policy, ..good.clone() }.check().unwrap_err().to_string();
        assert!(error.starts_with("far leg: there is no congestion controller \"cubik\": the kernel has "), "{error}");
    }

    #[test]
    fn more_flows_than_descriptors_are_refused() {
        let listen = vec![Listen::socks5("127.0.0.1:80".parse().unwrap())];
        let error = Config { listen, max_flows: Some(100_000_000), ..Config::default() }.check().unwrap_err().to_string();
        assert!(error.starts_with("100000000 flows need more open files than the "), "{error}");
    }

    const FILE: &str = include_str!("../tests/proxy.toml");

    #[test]
    fn the_documentation_has_the_whole_file() {
        assert!(include_str!("../../../docs/operation.md").contains(FILE), "docs/operation.md shows another file than tests/proxy.toml");
    }

    #[test]
    fn the_whole_file_is_read() {
        let Service { config, name, metrics } = Service::parse(FILE, "proxy.toml").unwrap();
        assert_eq!((name.as_str(), metrics), ("gateway", Some("127.0.0.1:9155".parse().unwrap())));
        assert_eq!((config.threads, config.buffer, config.max_flows), (2, Some(Bytes(4 << 20)), Some(9000)));
        assert_eq!(config.listen.len(), 4);
        assert_eq!((config.listen[3].way, config.networks.len()), (Way::Bond, 2));
        let bond = config.bond.unwrap();
        assert_eq!((bond.tls, bond.spares, bond.connection_window), (true, 2, Some(Bytes(4 << 20))));
        assert_eq!((config.networks[1].name.as_str(), config.networks[1].tier), ("mobile", 1));
        assert_eq!(config.listen[1].send_proxy, Some(ProxyVersion::V2));
        assert_eq!(config.policy.legs[0].profile.dscp, Some(leg::Dscp::Set(18)));
        assert_eq!(config.policy.rules[0].action, Action::Bypass);
        assert_eq!(config.policy.rules[1].far.as_deref(), Some("gentle"));
    }

    #[test]
    fn a_wrong_file_is_named_by_line_and_key() {
        let wrong = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            Service::parse(&FILE.replacen(from, to, 1), "proxy.toml").unwrap_err().to_string()
        };
        let cases = [
            ("threads         = 2", "treads = 2", "treads: is not a key here: did you mean threads? The keys are threads, "),
            ("\"af21\"", "\"af51\"", "leg[1]: \"af51\" is no code point: write "),
            ("far   = \"gentle\"", "far   = \"genlte\"", "rule[2].far: no [[leg]] is named \"genlte\"; those with a name are: gentle"),
            ("action = \"bypass\"", "action = \"bipass\"", "rule[1].action: cannot be \"bipass\": did you mean \"bypass\"?"),
            ("\"score\"", "\"scor\"", "bond.scheduler: \"scor\" is no scheduler"),
            ("interface = \"wlan0\"", "", "bond.network[1]: says neither through which interface"),
            ("key_file  = \"/etc/tandem/bond.key\"", "", "bond: has no key_file"),
            ("\"10.0.0.0/8\"", "\"10.0.0.0/80\"", "\"10.0.0.0/80\" is no address prefix"),
            ("to      = \"192.0.2.10:80\"", "", "listen[2]: needs exactly one of transparent"),
        ];
        for (from, to, said) in cases {
            let error = wrong(from, to);
            assert!(error.starts_with("proxy.toml:") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn only_what_listeners_have_needs_a_restart() {
        let old = Service::parse(FILE, "old").unwrap().config;
        let new = |from: &str, to: &str| Service::parse(&FILE.replacen(from, to, 1), "new").unwrap().config.needs_restart(&old);
        assert_eq!(new("threads         = 2", "threads = 3"), Some("threads"));
        assert_eq!(new("[::]:5000", "[::]:5001"), Some("listen"));
        assert_eq!(new("\"reno\"", "\"cubic\""), None);
        assert_eq!(new("\"bbr\"", "\"reno\""), Some("bond.network"));
        assert_eq!(new("\"4MiB\"", "\"8MiB\""), None);
    }
}
