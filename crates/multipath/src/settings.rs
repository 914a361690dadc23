//! The configuration of a bond: its key, its networks, its scheduler and its limits.

use crate::{far_end::FarEnd, zero_copy::PipePool};
use bond::{PresharedKey, Scheduler};
use intercept::{
    Destinations, Interface, OneOrList, Prefix,
    leg::{self, LegProfile},
    list,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::{
    io::{self, Read as _},
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use units::{Bytes, Span};

/// Why a bond cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum BondError {
    /// It has no key.
    #[error(
        "the bond has no key: make one (openssl rand -hex 32 > bond.key; chmod 600 bond.key), give both ends the same, and name it: --key bond.key"
    )]
    NoKey,
    /// The key file cannot be used.
    #[error("cannot read the bond's key from {path}: {why}; {cure}")]
    KeyFile {
        /// Path of the file.
        path: String,
        /// Why it cannot be used.
        why: String,
        /// What to do about it.
        cure: String,
    },
    /// A value cannot be used.
    #[error("cannot use the bond's configuration: {0}")]
    Invalid(String),
}

/// Descriptors that a bond needs in one event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BondDescriptors {
    /// For each stream.
    pub per_stream: usize,
    /// For all streams together, and for connections that belong to no stream.
    pub shared: usize,
}

/// The configuration of a bond, at either end.
#[derive(Debug, Clone)]
pub struct BondConfig {
    /// File with the key that both ends share; empty: there is no file.
    pub key_file: PathBuf,
    /// The key; that of a file after [`read_key`](BondConfig::read_key).
    pub key: Option<PresharedKey>,
    /// Whether connections of the bond are encrypted (TLS 1.3). Both ends must agree.
    pub tls: bool,
    /// How this end divides a stream among its paths.
    pub settings: bond::BondSettings,
    /// Payload of a stream that is held in each direction: sent and not acknowledged by the other
    /// end, or received out of order.
    pub window: Bytes,
    /// Receive window of each connection of the bond. None: the kernel tunes it.
    pub connection_window: Option<Bytes>,
    /// Pooled connections that each worker keeps ready over each network.
    pub spares: usize,
    /// How long a stream waits while it has no connection.
    pub outage: Duration,
    /// Permitted destinations of streams that come out at this end.
    pub destinations: Destinations,
}

impl Default for BondConfig {
    fn default() -> Self {
        BondConfig {
            key_file: PathBuf::new(),
            key: None,
            tls: false,
            settings: bond::BondSettings::new(Scheduler::Score),
            window: Bytes(8 << 20),
            connection_window: None,
            spares: 2,
            outage: Duration::from_secs(60),
            destinations: Destinations::default(),
        }
    }
}

impl BondConfig {
    /// Smallest `window`: a few pieces.
    pub const LEAST_WINDOW: Bytes = Bytes(128 * 1024);
    /// Largest `window` that the handshake can announce.
    pub const MOST_WINDOW: Bytes = Bytes(1 << 30);
    /// The most networks of a bond; the protocol can distinguish no more.
    pub const MOST_NETWORKS: usize = 16;

    /// Number of networks that an accepting end assumes when it reserves descriptors.
    const USUAL_NETWORKS: usize = 2;

    /// Sets the scheduler by its name.
    ///
    /// # Errors
    /// When no scheduler has that name.
    pub fn schedule_by(&mut self, name: &str) -> Result<(), BondError> {
        self.settings.scheduler = scheduler(name).map_err(BondError::Invalid)?;
        Ok(())
    }

    /// Checks the bond and its networks.
    ///
    /// # Errors
    /// When a value is out of its range, two networks have the same name, or there is no key.
    pub fn check(&self, networks: &[BondNetwork]) -> Result<(), BondError> {
        let wrong = |why: String| Err(BondError::Invalid(why));
        if !(BondConfig::LEAST_WINDOW..=BondConfig::MOST_WINDOW).contains(&self.window) {
            let (least, most) = (BondConfig::LEAST_WINDOW, BondConfig::MOST_WINDOW);
            return wrong(format!("the window is {}: set it to {least} to {most}", self.window));
        }
        if networks.len() > BondConfig::MOST_NETWORKS {
            return wrong(format!("it has {} networks: give it at most {}", networks.len(), BondConfig::MOST_NETWORKS));
        }
        if let Err(why) = self.destinations.check_prefixes() {
            return wrong(why);
        }
        for (index, network) in networks.iter().enumerate() {
            if networks[..index].iter().any(|other| other.name == network.name) {
                return wrong(format!("two networks are named {}: give each its own name", network.name));
            }
        }
        if self.key.is_none() { Err(BondError::NoKey) } else { Ok(()) }
    }

    /// The part of the configuration that cannot change while the bond runs.
    pub fn fixed(&self) -> impl PartialEq + use<> {
        // A key without a file is compared by a tag that both ends could make.
        let key = self.key.as_ref().filter(|_| self.key_file.as_os_str().is_empty()).map(|key| key.channel_tag(true, b"fixed"));
        (self.key_file.clone(), key, self.tls, self.window, self.connection_window, self.spares)
    }

    /// The most unauthenticated connections that listeners for bonds keep open.
    pub(crate) fn most_unauthenticated() -> usize {
        (leg::open_files() / 8).min(1024) as usize
    }

    /// The descriptors that one event loop needs for a bond over `networks` networks. `accepts`:
    /// whether it also accepts connections of the other end.
    pub fn descriptors(&self, networks: usize, accepts: bool) -> BondDescriptors {
        let pipes = if self.tls { 0 } else { PipePool::most(leg::open_files()) };
        let accepted = if accepts { Self::most_unauthenticated() } else { 0 };
        BondDescriptors {
            per_stream: 1 + networks.max(if accepts { Self::USUAL_NETWORKS } else { 1 }),
            shared: networks * self.spares + 2 * pipes + accepted,
        }
    }

    /// Reads the key from its file; a key without a file stays.
    ///
    /// # Errors
    /// [`BondError::NoKey`] when no file is named, [`BondError::KeyFile`] when the file cannot be
    /// read, every user of this machine can read it, or the key is too short.
    pub fn read_key(&mut self) -> Result<(), BondError> {
        let path = self.key_file.display().to_string();
        let failed = |why: String, cure: String| BondError::KeyFile { path: path.clone(), why, cure };
        let unreadable = |why: io::Error| {
            let cure = match why.kind() {
                io::ErrorKind::NotFound => format!("make one: openssl rand -hex 32 > {path}; chmod 600 {path}"),
                io::ErrorKind::PermissionDenied => "give the file to the user that runs tandem, or run tandem as root".into(),
                _ => "name a file that has the key and nothing else".into(),
            };
            failed(why.to_string(), cure)
        };
        if self.key_file == Path::new("") {
            return if self.key.is_some() { Ok(()) } else { Err(BondError::NoKey) };
        }
        let mut file = files::open(&self.key_file, LARGEST_KEY_FILE).map_err(unreadable)?;
        let mode = file.source().metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(failed("every user of this machine can access it".into(), format!("chmod o= {path}")));
        }
        let mut secret = Vec::new();
        file.read_to_end(&mut secret).map_err(unreadable)?;
        let key = PresharedKey::new(secret.trim_ascii());
        self.key = Some(key.map_err(|why| failed(why.to_string(), "and give both ends the same".into()))?);
        Ok(())
    }
}

/// The largest file of a key, in bytes.
const LARGEST_KEY_FILE: u64 = 64 << 10;

/// The names that [`scheduler`] knows.
const SCHEDULERS: [&str; 5] = ["score", "round-robin", "single", "redundant", "tiers"];

/// The scheduler that has this name.
fn scheduler(name: &str) -> Result<Scheduler, String> {
    Ok(match name {
        "score" => Scheduler::Score,
        "round-robin" => Scheduler::RoundRobin,
        "single" => Scheduler::Single,
        "redundant" => Scheduler::Redundant,
        "tiers" => Scheduler::Tiers,
        _ => return Err(format!("unknown scheduler {name:?}: expected one of {}", SCHEDULERS.join(", "))),
    })
}

/// A network that a bond uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BondNetwork {
    /// Name in tables, logs and metrics.
    pub name: String,
    /// Interface that its connections leave through, whatever the routes say.
    pub interface: Option<Interface>,
    /// Source address of its connections.
    pub source: Option<IpAddr>,
    /// Where the other end listens over this network.
    pub to: FarEnd,
    /// Cost class. The scheduler `tiers` uses a network with a higher number only while those with
    /// lower numbers are full.
    pub tier: u8,
    /// How its connections are tuned.
    pub profile: LegProfile,
}

/// A network as files and flags write it. Its `to` may be absent: the bond then has one for all
/// networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkSpec {
    name: Option<String>,
    interface: Option<Interface>,
    source: Option<IpAddr>,
    to: Option<FarEnd>,
    tier: u8,
    profile: LegProfile,
}

impl NetworkSpec {
    /// The network. `to` is the address of the other end if this network has none of its own.
    ///
    /// # Errors
    /// When neither an interface nor a source address is given, no address of the other end is
    /// known, source and destination are of different IP versions, or a value cannot be used.
    pub fn network(self, to: Option<&FarEnd>) -> Result<BondNetwork, String> {
        let name = self.name.or_else(|| self.interface.as_ref().map(|it| it.0.clone())).or_else(|| self.source.map(|it| it.to_string()));
        let name = name.ok_or("has neither an interface nor a source address: give one, or both")?;
        let to = self.to.or_else(|| to.cloned());
        let to = to.ok_or_else(|| format!("{name} has no address of the other end: give to = \"192.0.2.1:7000\""))?;
        if let (Some(source), FarEnd::Address(to)) = (self.source, &to)
            && source.is_ipv4() != to.is_ipv4()
        {
            return Err(format!("{name} has a source address of one IP version and a destination of the other: use one version for both"));
        }
        if self.profile.user_timeout.is_some() {
            return Err(format!(
                "{name} has a user_timeout, but a bond detects silent networks itself and keeps their connections for when they recover: \
                 leave it out, and set outage for how long a stream waits while all networks are silent"
            ));
        }
        if self.profile.connect_timeout.is_some() {
            return Err(format!(
                "{name} has a connect_timeout, but a bond gives each of its networks up to 30 s and then tries again: leave it out"
            ));
        }
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        if name.is_empty() || !name.chars().all(fine) {
            return Err(format!("cannot use {name:?} as the name of a network: use letters, digits and - _ . : @"));
        }
        Ok(BondNetwork { name, interface: self.interface, source: self.source, to, tier: self.tier, profile: self.profile })
    }
}

impl FromStr for NetworkSpec {
    type Err = String;

    /// An interface or a source address, then any of `tier=1`, `to=198.51.100.1:7000`,
    /// `name=mobile` and the keys of a leg's profile, separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let first = parts.next().unwrap_or_default();
        let mut table = toml::Table::new();
        let key = if first.parse::<IpAddr>().is_ok() { "source" } else { "interface" };
        table.insert(key.into(), first.into());
        for part in parts.filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').map_or((part, "true"), |(key, value)| (key.trim(), value.trim()));
            let value = value.parse::<toml::Value>().unwrap_or_else(|_| value.into());
            table.insert(key.replace('-', "_"), value);
        }
        toml_file::deserialize(table.into(), |_| &[])
            .map_err(|fault| format!("cannot read the network {text:?}: {} {}", fault.path, fault.message))
    }
}

/// The keys of a bond's network, without those of its leg profile.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(default)]
struct NetworkKeys {
    /// Name where the network is shown. Absent: the interface, else the source address.
    name: Option<String>,
    /// Interface that the network's connections leave through, whatever the routes say. This or
    /// `source` is required.
    interface: Option<Interface>,
    /// Source address of the network's connections.
    source: Option<IpAddr>,
    /// Address or name of the other end over this network, with its port. Absent: `to` of `[bond]`.
    to: Option<FarEnd>,
    /// Cost of the network: the scheduler `tiers` uses one with a higher number only while those
    /// with lower numbers are full.
    tier: u8,
}

impl JsonSchema for NetworkSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BondNetwork".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        intercept::with_profile_keys::<NetworkKeys>("A network of the bond", generator)
    }
}

impl<'de> Deserialize<'de> for NetworkSpec {
    /// A network's own keys and those of its profile are in the same table.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        let own: toml::Table = ["name", "interface", "source", "to", "tier"].iter().filter_map(|key| table.remove_entry(*key)).collect();
        let NetworkKeys { name, interface, source, to, tier } = toml_file::nested(own.into())?;
        let profile = toml_file::nested(table.into())?;
        Ok(NetworkSpec { name, interface, source, to, tier, profile })
    }
}

/// A bond. With networks, far legs are bonds over them; without, `[bond]` is for the streams that
/// come out of a listener.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BondKeys {
    /// File with the key that both ends share (`openssl rand -hex 32`); others must not be able to
    /// read it. This or `key` is required.
    #[schemars(with = "Option<String>")]
    key_file: Option<PathBuf>,
    /// The key itself, in place of a file: `"${NAME}"` of the environment, or in a file that others
    /// cannot read.
    #[serde(deserialize_with = "preshared_key")]
    #[schemars(with = "Option<String>", extend("writeOnly" = true))]
    key: Option<PresharedKey>,
    /// Address or name of the other end, with its port, for networks without a `to` of their own. A
    /// name is looked up at the start and whenever its addresses fail.
    to: Option<FarEnd>,
    /// Whether the bond is encrypted; both ends must say the same.
    tls: bool,
    /// How this end divides what it sends.
    #[schemars(extend("default" = "score", "enum" = SCHEDULERS))]
    scheduler: Option<String>,
    /// Payload that is held of a stream in each direction: twice what all networks carry in the
    /// longest round trip.
    #[schemars(extend("default" = "8MiB"))]
    window: Option<Bytes>,
    /// Receive window of a connection. Absent: the kernel tunes it.
    connection_window: Option<Bytes>,
    /// Connections that each worker keeps ready over each network.
    #[schemars(extend("default" = 2))]
    spares: Option<usize>,
    /// Time that a stream waits while all networks are silent.
    #[schemars(extend("default" = "60s"))]
    outage: Option<Span>,
    /// Prefixes of the only destinations of streams that come out here, one or a list. Absent: all
    /// but this host and link-local addresses.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    allow: Vec<Prefix>,
    /// Prefixes of destinations that are refused, whatever `allow` says.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    deny: Vec<Prefix>,
    /// The networks, at most 16.
    network: Vec<NetworkSpec>,
}

/// Reads a key. Its error does not have the key.
fn preshared_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PresharedKey>, D::Error> {
    PresharedKey::new(String::deserialize(deserializer)?.trim().as_bytes()).map(Some).map_err(de::Error::custom)
}

impl BondKeys {
    /// The bond and its networks.
    ///
    /// # Errors
    /// The key of the file whose value cannot be used, and why.
    pub fn read(&self) -> Result<(BondConfig, Vec<BondNetwork>), (String, String)> {
        let at = |key: &str| {
            let key = key.to_owned();
            move |why: String| (key, why)
        };
        let destinations = Destinations { allow: self.allow.clone(), deny: self.deny.clone() };
        let mut bond = BondConfig { tls: self.tls, destinations, ..BondConfig::default() };
        (bond.key_file, bond.key) = match (&self.key_file, &self.key) {
            (Some(file), None) => (file.clone(), None),
            (None, Some(key)) => (PathBuf::new(), Some(key.clone())),
            (None, None) => return Err(at("bond")("has no key_file: name the file with the key that both ends share".into())),
            (Some(_), Some(_)) => return Err(at("bond.key")("is there beside key_file: leave one of them out".into())),
        };
        if let Some(name) = &self.scheduler {
            bond.settings.scheduler = scheduler(name).map_err(at("bond.scheduler"))?;
        }
        bond.window = self.window.unwrap_or(bond.window);
        bond.connection_window = self.connection_window;
        bond.spares = self.spares.unwrap_or(bond.spares);
        bond.outage = self.outage.map_or(bond.outage, Span::duration);
        let network =
            |(index, spec): (usize, &NetworkSpec)| spec.clone().network(self.to.as_ref()).map_err(at(&format!("bond.network[{index}]")));
        let networks = self.network.iter().enumerate().map(network).collect::<Result<_, _>>()?;
        Ok((bond, networks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_network_may_be_written_on_one_line() {
        let to = Some(&"198.51.100.1:7000".parse().unwrap());
        let network: NetworkSpec = "wlan0".parse().unwrap();
        assert_eq!(network.clone().network(None).unwrap_err(), "wlan0 has no address of the other end: give to = \"192.0.2.1:7000\"");
        assert_eq!(network.network(to).unwrap().name, "wlan0");
        let network: NetworkSpec = "192.0.2.7,name=mobile,tier=1,control=bbr,to=192.0.2.1:7001".parse().unwrap();
        let network = network.network(to).unwrap();
        assert_eq!((network.name.as_str(), network.tier, network.to.to_string().as_str()), ("mobile", 1, "192.0.2.1:7001"));
        assert_eq!((network.source, network.profile.control.as_deref()), (Some("192.0.2.7".parse().unwrap()), Some("bbr")));
        let wrong = "wlan0,contrl=bbr".parse::<NetworkSpec>().unwrap_err();
        assert!(wrong.contains("contrl is not a key here: did you mean control?"), "{wrong}");
        let both: NetworkSpec = "2001:db8::7".parse().unwrap();
        assert!(both.network(to).unwrap_err().contains("one IP version"));
        let timed: NetworkSpec = "wlan0,user_timeout=2s".parse().unwrap();
        assert!(timed.network(to).unwrap_err().contains("wlan0 has a user_timeout"));
        let timed: NetworkSpec = "wlan0,connect_timeout=2s".parse().unwrap();
        assert!(timed.network(to).unwrap_err().contains("wlan0 has a connect_timeout"));
    }

    #[test]
    fn a_world_readable_key_is_refused() {
        let dir = std::env::temp_dir().join(format!("tandem-key-{}", std::process::id()));
        fs::write(&dir, "0123456789abcdef0123\n").unwrap();
        let mut bond = BondConfig { key_file: dir.clone(), ..BondConfig::default() };
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o644)).unwrap();
        let open = bond.read_key().unwrap_err().to_string();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o600)).unwrap();
        let read = bond.read_key();
        fs::write(&dir, "short\n").unwrap();
        let short = bond.read_key().unwrap_err().to_string();
        fs::remove_file(&dir).unwrap();
        assert!(open.ends_with(&format!("; chmod o= {}", dir.display())), "{open}");
        assert!(read.is_ok() && bond.key.is_some());
        assert!(short.contains("has 5 bytes"), "{short}");
    }
}
