//! What a cache is to do.

use crate::{shrink::Wish, store::Bounds, worker_pool::WorkerProgram};
use intercept::{
    AccessOptions, Action, Destination, ForwardPolicy, Interception, InterceptionError, LegProfile, ListenAt, ListenerAccess, Policy,
    Ports, Rule, UsersError, parse_address,
};
use std::{net::SocketAddr, str::FromStr, time::Duration};
use units::Bytes;

/// Where connections come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Connections routed through this machine, taken by TPROXY.
    Transparent(SocketAddr),
    /// Connections to the first address go on to the second.
    Forward(SocketAddr, SocketAddr),
    /// An explicit HTTP proxy: its address, its clients and where they may go.
    Http(SocketAddr, ListenerAccess),
}

impl FromStr for Listen {
    type Err = String;

    /// `transparent=[::]:5000`, `forward=127.0.0.1:8080=192.0.2.10:80` or `http=127.0.0.1:3128`;
    /// the last with `,allow=PREFIX` and `,deny=PREFIX`, as often as wanted, and with `,users=FILE`
    /// or `,user=NAME:PASSWORD`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "cannot parse listener {text:?}: expected transparent=ADDRESS:PORT, forward=ADDRESS:PORT=ADDRESS:PORT or http=ADDRESS:PORT"
            )
        };
        match text.split_once('=').ok_or_else(wrong)? {
            ("transparent", at) => Ok(Listen::Transparent(parse_address(at)?)),
            ("http", rest) => {
                let mut options = rest.split(',');
                let at = parse_address(options.next().unwrap_or_default())?;
                let mut access = AccessOptions::default();
                for option in options {
                    if !access.take(option)? {
                        // Without its value, which may be the rest of a password that has a comma.
                        let name = option.split('=').next().unwrap_or_default();
                        return Err(format!("unknown listener option {name:?}: expected {}", AccessOptions::EXPECTED));
                    }
                }
                Ok(Listen::Http(at, access.finish()?))
            }
            ("forward", both) => {
                let (at, to) = both
                    .split_once('=')
                    .ok_or_else(|| format!("{text:?} says where to listen but not where to go on to: write forward=HERE=THERE"))?;
                Ok(Listen::Forward(parse_address(at)?, parse_address(to)?))
            }
            _ => Err(wrong()),
        }
    }
}

impl Listen {
    /// Which clients may use it, and which destinations they may name. The default, without limits, for
    /// a listener whose clients name no destination.
    pub(crate) fn access(&self) -> ListenerAccess {
        if let Listen::Http(_, access) = self { access.clone() } else { ListenerAccess::default() }
    }

    /// Its address, and where its connections go on to.
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
    #[error("{0} is 0, with which nothing would get through: give more, or leave it out")]
    Zero(&'static str),
    /// Interception cannot work so.
    #[error(transparent)]
    Interception(#[from] InterceptionError),
    /// There is no listener.
    #[error("the cache has no listener: give at least one, such as --listen transparent=[::]:5000")]
    NoListener,
}

/// What becomes of connections that are not clear-text HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw {
    /// Each direction is stored and forwarded: when its sender has finished, or has said nothing for so long; none: only when it has finished.
    Store(Option<Duration>),
    /// They are sent on as they come.
    Stream,
}

/// What a cache is to do.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where connections come in.
    pub listen: Vec<Listen>,
    /// Ports of servers whose connections a transparent listener takes; the others bypass.
    pub ports: Vec<Ports>,
    /// How accepted legs are tuned …
    pub near: LegProfile,
    /// … and dialled ones.
    pub far: LegProfile,
    /// What is held in memory at most. Three quarters of it are for messages that are stored, one
    /// is for requests in progress and connections to servers.
    pub memory: Bytes,
    /// The share of that quarter that one client address may have, in percent. An IPv6 client
    /// counts by its /64.
    pub client_share: u8,
    /// What is held on disk at most.
    pub disk: Bytes,
    /// What is held of one message, or one direction of a connection, at most: more is sent on as it comes.
    pub largest: Bytes,
    /// Whether answers are kept for those who ask later.
    pub keep: bool,
    /// Whether messages are forwarded only when they are whole.
    pub hold: bool,
    /// Whether bodies are compressed for clients that accept it.
    pub compress: bool,
    /// The quality, 1 to 100, of the pictures that JPEG and PNG ones are made into; none: they stay as they are.
    pub pictures: Option<u8>,
    /// Pictures with more pixels stay as they are.
    pub most_pixels: u64,
    /// How long a picture may take to be made smaller; one that takes longer passes unchanged.
    pub picture_timeout: Duration,
    /// The program that is run as a picture worker: it decodes pictures and encodes smaller ones.
    pub picture_worker: WorkerProgram,
    /// What becomes of connections that are not HTTP.
    pub raw: Raw,
    /// How long a server may take to be reached, and a request may wait for room before that.
    pub connect_timeout: Duration,
    /// How long an end that owes something may say nothing.
    pub patience: Duration,
    /// Connections at once; more pass unsplit, or wait.
    pub max_connections: usize,
    /// Worker threads.
    pub threads: usize,
    /// Whether the rules that bring traffic to a transparent listener are installed here.
    pub install_rules: bool,
    /// Whether other programs' forward chains decide what may be taken.
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
            raw: Raw::Store(Some(Duration::from_millis(500))),
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
    /// Reads the files of users that listeners have.
    ///
    /// # Errors
    /// When one cannot be read, others can read it too, or it has no users.
    pub fn read_users(&mut self) -> Result<(), UsersError> {
        self.listen.iter_mut().try_for_each(|listen| if let Listen::Http(_, access) = listen { access.users.read() } else { Ok(()) })
    }

    /// Finds what can't work before anything is set up.
    pub fn check(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("patience", self.patience.is_zero()),
            ("picture_timeout", self.picture_timeout.is_zero()),
            ("max_connections", self.max_connections == 0),
            ("memory", self.memory.0 == 0),
            ("client_share", self.client_share == 0),
            ("lull", self.raw == Raw::Store(Some(Duration::ZERO))),
        ];
        if let Some((key, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(ConfigError::Zero(key));
        }
        if self.listen.is_empty() {
            return Err(ConfigError::NoListener);
        }
        Ok(self.interception().prepare().map(drop)?)
    }

    /// What interception is to do.
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
        }
    }

    /// Explicit proxies that are reachable from other hosts and limit neither clients nor
    /// destinations: the address of each, why that is doubtful, and the cure.
    pub fn open_listeners(&self) -> Vec<(SocketAddr, &'static str, &'static str)> {
        let open = self.listen.iter().filter_map(|listen| match listen {
            Listen::Http(at, access) if !at.ip().is_loopback() && access.is_open() => Some(*at),
            _ => None,
        });
        open.map(|at| (at, ListenerAccess::OPEN, ListenerAccess::CLOSE)).collect()
    }

    pub(crate) fn bounds(&self) -> Bounds {
        // So many large ones fit into memory that others do too.
        let spill_from = (self.memory.0 / 64).clamp(4096, 1 << 20);
        // The rest is for requests in progress: `Limits::new`.
        Bounds { memory: self.memory.0 - self.memory.0 / 4, disk: self.disk.0, largest: self.largest.0, spill_from }
    }

    pub(crate) fn wish(&self) -> Wish {
        Wish { quality: self.pictures.unwrap_or(100), most_pixels: self.most_pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::Destinations;

    #[test]
    fn the_ways_to_listen() {
        assert_eq!("http=127.0.0.1:3128".parse(), Ok(Listen::Http("127.0.0.1:3128".parse().unwrap(), ListenerAccess::default())));
        let limited: Listen = "http=127.0.0.1:3128,allow=10.0.0.0/8,allow=::1,deny=10.1.2.3".parse().unwrap();
        let Listen::Http(_, ListenerAccess { destinations: Destinations { allow, deny }, .. }) = limited else { panic!("{limited:?}") };
        assert_eq!((allow.len(), deny.len()), (2, 1));
        assert_eq!("transparent=[::]:5000".parse(), Ok(Listen::Transparent("[::]:5000".parse().unwrap())));
        let forward = Listen::Forward("127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap());
        assert_eq!("forward=127.0.0.1:1=[::1]:2".parse(), Ok(forward));
        for (text, said) in
            [("socks5=1.2.3.4:5", "cannot parse listener"), ("http=here", "is not an address"), ("forward=1.2.3.4:5", "not where to go")]
        {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.contains(said), "{error}");
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
