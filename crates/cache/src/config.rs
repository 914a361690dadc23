//! The configuration of a cache.

use crate::{shrink::ShrinkOptions, store::StoreLimits, worker_pool::WorkerProgram};
use intercept::{
    AccessOptions, Action, Destination, ForwardPolicy, Interception, InterceptionError, LegProfile, ListenAt, ListenerAccess, Policy,
    Ports, Rule, UsersError, parse_address,
};
use std::{net::SocketAddr, str::FromStr, time::Duration};
use units::Bytes;

/// A listener, by how it learns the destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Connections that are routed through this host, intercepted by TPROXY, at this address. Each
    /// goes on to its original destination.
    Transparent(SocketAddr),
    /// Connections to the first address are forwarded to the second.
    Forward(SocketAddr, SocketAddr),
    /// An explicit HTTP proxy: its address, which clients may use it, and which destinations they
    /// may name.
    Http(SocketAddr, ListenerAccess),
}

impl FromStr for Listen {
    type Err = String;

    /// Parses `transparent=[::]:5000`, `forward=127.0.0.1:8080=192.0.2.10:80` or
    /// `http=127.0.0.1:3128`. The last may be followed by any number of `,allow=PREFIX` and
    /// `,deny=PREFIX`, and by `,users=FILE` or `,user=NAME:PASSWORD`.
    ///
    /// # Errors
    /// What cannot be parsed, and what was expected.
    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "cannot parse listener {text:?}: expected transparent=ADDRESS:PORT, forward=ADDRESS:PORT=ADDRESS:PORT or http=ADDRESS:PORT"
            )
        };
        match text.split_once('=').ok_or_else(unknown)? {
            ("transparent", at) => Ok(Listen::Transparent(parse_address(at)?)),
            ("http", rest) => parse_http_listener(rest),
            ("forward", both) => {
                let (at, to) = both
                    .split_once('=')
                    .ok_or_else(|| format!("listener {text:?} has no destination: expected forward=ADDRESS:PORT=ADDRESS:PORT"))?;
                Ok(Listen::Forward(parse_address(at)?, parse_address(to)?))
            }
            _ => Err(unknown()),
        }
    }
}

/// Parses what follows `http=`: the address and the access options.
fn parse_http_listener(text: &str) -> Result<Listen, String> {
    let mut options = text.split(',');
    let at = parse_address(options.next().unwrap_or_default())?;
    let mut access = AccessOptions::default();
    for option in options {
        if !access.take(option)? {
            // The value is left out: it may be the rest of a password that contains a comma.
            let name = option.split('=').next().unwrap_or_default();
            return Err(format!("unknown listener option {name:?}: expected {}", AccessOptions::EXPECTED));
        }
    }
    Ok(Listen::Http(at, access.finish()?))
}

impl Listen {
    /// Which clients may use it, and which destinations they may name. Without limits where clients
    /// name no destination.
    pub(crate) fn access(&self) -> ListenerAccess {
        if let Listen::Http(_, access) = self { access.clone() } else { ListenerAccess::default() }
    }

    /// Its address, and how the destination of its connections is found.
    pub fn at(&self) -> ListenAt {
        let (at, to) = match self {
            Listen::Transparent(at) => (*at, Destination::Original),
            Listen::Forward(at, to) => (*at, Destination::Fixed(*to)),
            Listen::Http(at, _) => (*at, Destination::Named),
        };
        ListenAt { at, to }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value that must be more than 0 is 0.
    #[error("{0} is 0, which would let nothing through: set it to more than 0, or leave it out")]
    Zero(&'static str),
    /// Interception cannot work with these settings.
    #[error(transparent)]
    Interception(#[from] InterceptionError),
    /// No listener is configured.
    #[error("the cache has no listener: give at least one, such as --listen transparent=[::]:5000")]
    NoListener,
}

/// How connections are relayed that are neither clear-text HTTP nor TLS. TLS is always streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawMode {
    /// Each direction is stored, and forwarded when its sender has finished, or has paused for this
    /// long. None: only when it has finished.
    StoreAndForward(Option<Duration>),
    /// Bytes are forwarded as they are received.
    Stream,
}

/// The configuration of a cache. [`Config::check`] says what cannot work.
#[derive(Debug, Clone)]
pub struct Config {
    /// The listeners; at least one.
    pub listen: Vec<Listen>,
    /// Server ports whose connections a transparent listener intercepts. Other ports bypass it.
    pub ports: Vec<Ports>,
    /// Profile of the near leg: accepted sockets.
    pub near: LegProfile,
    /// Profile of the far leg: dialled sockets.
    pub far: LegProfile,
    /// Upper bound of the memory for messages. Three quarters of it are for stored messages, one
    /// quarter is for requests in progress and connections to servers.
    pub memory: Bytes,
    /// The share of that quarter that one client address may have, percent. An IPv6 client counts
    /// by its /64.
    pub client_share: u8,
    /// Upper bound of the disk space for stored messages.
    pub disk: Bytes,
    /// Size up to which one message, or one direction of a connection, is stored. What is larger is
    /// streamed.
    pub largest: Bytes,
    /// Whether responses are stored for later requests (RFC 9111).
    pub keep: bool,
    /// Whether a message is forwarded only when it has been received completely.
    pub hold: bool,
    /// Whether bodies are compressed for clients that accept that.
    pub compress: bool,
    /// The quality, 1 to 100, to which JPEG and PNG pictures are transcoded. None: pictures pass
    /// unchanged.
    pub pictures: Option<u8>,
    /// Pictures with more pixels pass unchanged.
    pub most_pixels: u64,
    /// How long the transcoding of a picture may take. One that takes longer passes unchanged.
    pub picture_timeout: Duration,
    /// The program of the picture workers, which decode and encode pictures.
    pub picture_worker: WorkerProgram,
    /// How connections are relayed that are neither clear-text HTTP nor TLS. With
    /// [`RawMode::Stream`], HTTP/2 in clear text to a known server is streamed too.
    pub raw: RawMode,
    /// How long it may take to connect to a server. A request also waits for memory this long.
    pub connect_timeout: Duration,
    /// How long a peer may send nothing while the cache waits for its request or response, and how
    /// long it may read nothing of what the cache has written to it.
    pub patience: Duration,
    /// Connections at a time. Further ones pass unsplit (transparent listeners), or wait in the
    /// listen queue.
    pub max_connections: usize,
    /// Threads of the async runtime.
    pub threads: usize,
    /// Whether the cache installs the firewall rules of its transparent listeners.
    pub install_rules: bool,
    /// Whether forward chains of other programs decide what may be intercepted.
    pub forward_policy: ForwardPolicy,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            ports: vec![Ports { first: 80, last: 80 }],
            near: LegProfile::default(),
            far: LegProfile::default(),
            memory: Bytes(64 << 20),
            client_share: 25,
            disk: Bytes(1 << 30),
            largest: Bytes(256 << 20),
            keep: true,
            hold: false,
            compress: true,
            pictures: Some(25),
            most_pixels: 24_000_000,
            picture_timeout: Duration::from_secs(30),
            picture_worker: WorkerProgram::default(),
            raw: RawMode::StoreAndForward(Some(Duration::from_millis(500))),
            connect_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            max_connections: 4096,
            threads: 2,
            install_rules: true,
            forward_policy: ForwardPolicy::default(),
        }
    }
}

impl Config {
    /// Reads the user files of the listeners.
    ///
    /// # Errors
    /// When a file cannot be read, is readable by other users of this host, or names no user.
    pub fn read_users(&mut self) -> Result<(), UsersError> {
        self.listen.iter_mut().try_for_each(|listen| if let Listen::Http(_, access) = listen { access.users.read() } else { Ok(()) })
    }

    /// Checks the configuration before anything is set up.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("patience", self.patience.is_zero()),
            ("picture_timeout", self.picture_timeout.is_zero()),
            ("max_connections", self.max_connections == 0),
            ("memory", self.memory.0 == 0),
            ("client_share", self.client_share == 0),
            ("lull", self.raw == RawMode::StoreAndForward(Some(Duration::ZERO))),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::Zero(key));
        }
        if self.listen.is_empty() {
            return Err(ConfigError::NoListener);
        }
        Ok(self.interception().prepare().map(drop)?)
    }

    /// What `intercept` is to set up: listeners, firewall rules, leg profiles.
    pub fn interception(&self) -> Interception {
        let transparent = self.listen.iter().any(|listen| matches!(listen, Listen::Transparent(_)));
        let rules = if transparent && self.install_rules && !self.ports.is_empty() {
            vec![Rule { ports: self.ports.clone(), ..Rule::default() }, Rule { action: Action::Bypass, ..Rule::default() }]
        } else {
            Vec::new()
        };
        Interception {
            listen: self.listen.iter().map(Listen::at).collect(),
            policy: Policy { rules, near: self.near.clone(), far: self.far.clone(), ..Policy::default() },
            install_rules: self.install_rules,
            forward_policy: self.forward_policy,
            experiment: None,
            has_carrier: false,
        }
    }

    /// Explicit proxies that other hosts can reach and that limit neither clients nor destinations:
    /// the address of each, why that is doubtful, and the cure.
    pub fn open_listeners(&self) -> Vec<(SocketAddr, &'static str, &'static str)> {
        let open = self.listen.iter().filter_map(|listen| match listen {
            Listen::Http(at, access) if !at.ip().is_loopback() && access.is_open() => Some(*at),
            _ => None,
        });
        open.map(|at| (at, ListenerAccess::OPEN, ListenerAccess::CLOSE)).collect()
    }

    pub(crate) fn store_limits(&self) -> StoreLimits {
        StoreLimits {
            // The last quarter is for requests in progress: `MemoryLimits::new`.
            memory: self.memory.0 - self.memory.0 / 4,
            disk: self.disk.0,
            max_blob_bytes: self.largest.0,
            // Dozens of bodies of the largest size in memory must fit side by side.
            spill_threshold: (self.memory.0 / 64).clamp(4096, 1 << 20),
        }
    }

    pub(crate) fn shrink_options(&self) -> ShrinkOptions {
        ShrinkOptions { quality: self.pictures.unwrap_or(100), most_pixels: self.most_pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::Destinations;

    #[test]
    fn listeners_are_parsed() {
        assert_eq!("http=127.0.0.1:3128".parse(), Ok(Listen::Http("127.0.0.1:3128".parse().unwrap(), ListenerAccess::default())));
        let limited: Listen = "http=127.0.0.1:3128,allow=10.0.0.0/8,allow=::1,deny=10.1.2.3".parse().unwrap();
        let Listen::Http(_, ListenerAccess { destinations: Destinations { allow, deny }, .. }) = limited else { panic!("{limited:?}") };
        assert_eq!((allow.len(), deny.len()), (2, 1));
        assert_eq!("transparent=[::]:5000".parse(), Ok(Listen::Transparent("[::]:5000".parse().unwrap())));
        let forward = Listen::Forward("127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap());
        assert_eq!("forward=127.0.0.1:1=[::1]:2".parse(), Ok(forward));
        for (text, expected) in
            [("socks5=1.2.3.4:5", "cannot parse listener"), ("http=here", "is not an address"), ("forward=1.2.3.4:5", "has no destination")]
        {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn other_ports_bypass_a_transparent_listener() {
        let config = Config { listen: vec!["transparent=[::]:5000".parse().unwrap()], ..Config::default() };
        let rules = config.interception().rules().unwrap().to_string();
        assert!(rules.contains("intercept tcp dport { 80 } goto guard") && rules.contains("counter name bypassed goto direct"), "{rules}");
        assert!(matches!(Config { memory: Bytes(0), ..config }.check(), Err(ConfigError::Zero("memory"))));
    }
}
