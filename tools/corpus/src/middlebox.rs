//! Which programs can stand between the ends of a connection, and what that makes of it.

use crate::conditions::TransferDirection;

/// Ways to run Tandem: what it is called, and its arguments, into which the leg towards the receiver, its link and its rate are put.
pub(crate) const TANDEMS: [(&str, &str); 15] = [
    ("plain", ""),
    ("small", "--buffer 64KiB"),
    ("unlimited", "--buffer unlimited --near control=bbr --far control=bbr"),
    ("large", "--buffer 16MiB --near control=cubic,not_sent=64KiB --far control=cubic,not_sent=64KiB"),
    ("forward", ""),
    ("socks5", ""),
    ("reno", "--near control=reno --far control=reno"),
    ("cubic", "--near control=cubic --far control=cubic"),
    ("hybla", "--near control=hybla --far control=hybla"),
    ("vegas", "--near control=td_vegas --far control=td_vegas"),
    ("westwood", "--near control=td_westwood --far control=td_westwood"),
    ("dctcp", "--near control=td_dctcp --far control=td_dctcp"),
    ("share", "--SIDE control=share,capacity=CAPACITY,link=LINK"),
    ("xcp", "--SIDE control=xcp,capacity=CAPACITY,link=LINK"),
    ("mpcp", "--SIDE control=mpcp,capacity=CAPACITY,link=LINK"),
];

/// Further ways, which the corpus has not: a buffer that holds what an operator's did, 16 s of 128 kbit/s.
pub(crate) const FURTHER_TANDEMS: [(&str, &str); 1] = [("operators", "--buffer 256KiB")];

/// Ways to run Tandem's cache.
pub(crate) const CACHES: [(&str, &str); 3] = [
    // All that it does, as it comes.
    ("plain", ""),
    // Nothing goes on before it is whole.
    ("hold", "--hold"),
    // Pictures alone are held, and made smaller.
    ("pictures", "--no-keep --no-compress"),
];

/// What stands in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Middlebox {
    /// Nothing but a router.
    Forwarding,
    /// Ours, in one of its ways.
    Tandem(&'static str),
    /// Our cache, transparent, in one of its ways.
    Cache(&'static str),
    /// Our bond, transparent, both of its ends on one host.
    Bond,
    /// In TCP mode, transparent.
    Haproxy,
    /// The same, calling servers from its own address.
    HaproxyOwn,
    /// In HTTP mode, called by name.
    HaproxyHttp,
    /// Its TCP proxy, called by name.
    NginxStream,
    /// Its HTTP proxy, called by name: holds all that goes up.
    NginxHttp,
    Socat,
    /// As an HTTP proxy that clients know.
    Squid,
    /// The second time: it has the answer.
    SquidAgain,
    /// Holds all that goes down.
    Varnish,
    /// A relay that holds each message until it has all of it, transparent.
    Hold,
}

/// What a run's connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroundTruth {
    EndToEnd,
    SplitTcp,
    TcpProxy,
}

impl Middlebox {
    /// All that the corpus has, but none.
    pub(crate) fn all() -> Vec<Middlebox> {
        let others = [
            Middlebox::Cache("plain"),
            Middlebox::Cache("hold"),
            Middlebox::Bond,
            Middlebox::Haproxy,
            Middlebox::HaproxyHttp,
            Middlebox::NginxStream,
            Middlebox::NginxHttp,
            Middlebox::Socat,
            Middlebox::Squid,
            Middlebox::SquidAgain,
            Middlebox::Varnish,
            Middlebox::Hold,
        ];
        TANDEMS.iter().map(|(name, _)| Middlebox::Tandem(name)).chain(others).collect()
    }

    pub(crate) fn name(self) -> String {
        match self {
            Middlebox::Forwarding => "forwarding".into(),
            Middlebox::Tandem(variant) => format!("tandem-{variant}"),
            Middlebox::Cache(variant) => format!("cache-{variant}"),
            Middlebox::Bond => "bond".into(),
            Middlebox::Haproxy => "haproxy".into(),
            Middlebox::HaproxyOwn => "haproxy-own".into(),
            Middlebox::HaproxyHttp => "haproxy-http".into(),
            Middlebox::NginxStream => "nginx-stream".into(),
            Middlebox::NginxHttp => "nginx-http".into(),
            Middlebox::Socat => "socat".into(),
            Middlebox::Squid => "squid".into(),
            Middlebox::SquidAgain => "squid-again".into(),
            Middlebox::Varnish => "varnish".into(),
            Middlebox::Hold => "hold".into(),
        }
    }

    /// Whether it is met under every condition.
    pub(crate) fn is_thorough(self) -> bool {
        match self {
            Middlebox::Tandem(variant) => matches!(variant, "plain" | "small" | "unlimited"),
            Middlebox::Cache(_) | Middlebox::Bond | Middlebox::SquidAgain | Middlebox::Varnish | Middlebox::HaproxyHttp => false,
            _ => true,
        }
    }

    /// Whether it is of interest that direction.
    pub(crate) fn supports(self, direction: TransferDirection) -> bool {
        direction == TransferDirection::Down || !matches!(self, Middlebox::SquidAgain | Middlebox::Varnish)
    }

    pub(crate) fn truth(self, direction: TransferDirection) -> GroundTruth {
        match self {
            Middlebox::Forwarding => GroundTruth::EndToEnd,
            Middlebox::Cache("hold") | Middlebox::Hold | Middlebox::SquidAgain | Middlebox::Varnish => GroundTruth::TcpProxy,
            // proxy_request_buffering is on unless it is turned off.
            Middlebox::NginxHttp if direction == TransferDirection::Up => GroundTruth::TcpProxy,
            _ => GroundTruth::SplitTcp,
        }
    }
}
