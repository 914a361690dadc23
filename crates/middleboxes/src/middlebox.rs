//! Which middleboxes there are, and how each splits a connection.

use crate::conditions::BulkDirection;

/// Variants of `tandem proxy`: name and arguments. SIDE, LINK and CAPACITY stand for the leg
/// towards the receiver, its interface and its rate.
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

/// A variant that the corpus does not have: like an operator's proxy it buffers 16 s of 128 kbit/s.
pub(crate) const FURTHER_TANDEMS: [(&str, &str); 1] = [("operators", "--buffer 256KiB")];

/// Variants of `tandem cache`: name and arguments.
pub(crate) const CACHES: [(&str, &str); 3] = [
    // With all its functions.
    ("plain", ""),
    // Forwards nothing before it has received all of it.
    ("hold", "--hold"),
    // Holds and compresses only pictures.
    ("pictures", "--no-keep --no-compress"),
];

/// What stands between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Middlebox {
    /// A plain router.
    Forwarding,
    /// `tandem proxy` in one of its variants.
    Tandem(&'static str),
    /// `tandem cache`, transparent, in one of its variants.
    Cache(&'static str),
    /// `tandem bond`, transparent, with both ends on one host.
    Bond,
    /// HAProxy in TCP mode, transparent.
    Haproxy,
    /// The same, but it dials servers from its own address.
    HaproxyOwn,
    /// HAProxy in TCP mode, transparent, with a tunnel over UDP (VXLAN) between it and the client, as
    /// Wei et al. conjecture of one operator. The corpus does not have it: the client's trace has no TCP.
    HaproxyTunnel,
    /// HAProxy in HTTP mode; clients address it.
    HaproxyHttp,
    /// nginx's stream proxy; clients address it.
    NginxStream,
    /// nginx's HTTP proxy; clients address it. It stores uploads before it forwards them.
    NginxHttp,
    /// socat; clients address it.
    Socat,
    /// Squid as an HTTP proxy that clients address.
    Squid,
    /// The same at the second request, which its cache answers.
    SquidAgain,
    /// Varnish, which stores downloads before it forwards them.
    Varnish,
    /// A transparent relay that receives each message completely before it forwards it.
    Hold,
    /// A transparent relay that, when the client has reset its connection, keeps the server's for so
    /// many seconds and reads nothing from it. The corpus does not have it.
    Lingering(u16),
}

/// How a connection is really split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroundTruth {
    /// Not at all.
    EndToEnd,
    /// Bytes are forwarded as they arrive.
    SplitTcp,
    /// A message is stored completely before it is forwarded.
    TcpProxy,
}

impl Middlebox {
    /// All middleboxes of the corpus except plain forwarding.
    pub fn all() -> Vec<Middlebox> {
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

    /// Its name in labels and files.
    pub fn name(self) -> String {
        match self {
            Middlebox::Forwarding => "forwarding".into(),
            Middlebox::Tandem(variant) => format!("tandem-{variant}"),
            Middlebox::Cache(variant) => format!("cache-{variant}"),
            Middlebox::Bond => "bond".into(),
            Middlebox::Haproxy => "haproxy".into(),
            Middlebox::HaproxyOwn => "haproxy-own".into(),
            Middlebox::HaproxyTunnel => "haproxy-tunnel".into(),
            Middlebox::HaproxyHttp => "haproxy-http".into(),
            Middlebox::NginxStream => "nginx-stream".into(),
            Middlebox::NginxHttp => "nginx-http".into(),
            Middlebox::Socat => "socat".into(),
            Middlebox::Squid => "squid".into(),
            Middlebox::SquidAgain => "squid-again".into(),
            Middlebox::Varnish => "varnish".into(),
            Middlebox::Hold => "hold".into(),
            Middlebox::Lingering(seconds) => format!("lingering-{seconds}"),
        }
    }

    /// Whether it is played under every condition.
    pub fn is_thorough(self) -> bool {
        match self {
            Middlebox::Tandem(variant) => matches!(variant, "plain" | "small" | "unlimited"),
            Middlebox::Cache(_) | Middlebox::Bond | Middlebox::SquidAgain | Middlebox::Varnish | Middlebox::HaproxyHttp => false,
            _ => true,
        }
    }

    /// Whether the corpus has it for this direction.
    pub fn supports(self, direction: BulkDirection) -> bool {
        direction == BulkDirection::Down || !matches!(self, Middlebox::SquidAgain | Middlebox::Varnish)
    }

    /// How it splits a connection whose payload has this direction.
    pub fn truth(self, direction: BulkDirection) -> GroundTruth {
        match self {
            Middlebox::Forwarding => GroundTruth::EndToEnd,
            Middlebox::Cache("hold") | Middlebox::Hold | Middlebox::SquidAgain | Middlebox::Varnish => GroundTruth::TcpProxy,
            // nginx's default is `proxy_request_buffering on`.
            Middlebox::NginxHttp if direction == BulkDirection::Up => GroundTruth::TcpProxy,
            _ => GroundTruth::SplitTcp,
        }
    }
}
