//! A leg: one TCP connection of the two, tuned by its profile.

use crate::{receive_bound::bound_receive, sys};
use rustix::fd::AsFd;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    str::FromStr,
    time::{Duration, Instant},
};
use units::{Bytes, Rate, Span};

/// How a leg is tuned. What is absent is the system's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfile {
    /// Congestion controller, one of the kernel's or of Tandem's (`tandem control list`).
    pub control: Option<String>,
    /// Capacity of the link that the leg leaves through, if it is known: the proxy's packets are shaped
    /// to it, and `share`, `xcp` and `mpcp` divide it among flows.
    pub capacity: Option<Rate>,
    /// Interface with that capacity. Absent: those that the profile is chosen by, else that of the
    /// default route.
    pub link: Option<String>,
    /// Whether the proxy's packets are shaped to the capacity. If not, their queue is further on, and the
    /// controllers compute the queue that there would be at that rate.
    #[schemars(extend("default" = true))]
    pub shape: Option<bool>,
    /// Weight of the leg's flow among the flows of its link under `share`, 1 to 65535: twice as much
    /// with 2 as with 1.
    #[schemars(extend("default" = 1))]
    pub weight: Option<NonZeroU16>,
    /// Size of the send buffer, as the kernel accounts it. Absent: the kernel tunes it.
    pub send_buffer: Option<Bytes>,
    /// Size of the receive queue, if it is less than this leg's share of B.
    pub receive_buffer: Option<Bytes>,
    /// Most payload that is unsent in the send queue (TCP_NOTSENT_LOWAT), if it is less than this leg's
    /// share of B.
    pub not_sent: Option<Bytes>,
    /// Time of silence after which keepalive probes are sent. Absent: `net.ipv4.tcp_keepalive_time`.
    pub keepalive: Option<Span>,
    /// Time that sent data may remain unacknowledged before the peer counts as gone. A peer that has
    /// closed its window does not.
    pub user_timeout: Option<Span>,
    /// Mark of the leg's packets (SO_MARK), for policy routing.
    pub mark: Option<u32>,
    /// Code point of the leg's packets: `"keep"` (that of the client's SYN), 0 to 63, or a name such as
    /// `"af21"`.
    #[schemars(with = "Option<DscpSchema>")]
    pub dscp: Option<Dscp>,
    /// Whether the leg has to use ECN. The kernel decides it for all connections or for a route; this only
    /// checks that it does.
    pub ecn: bool,
    /// Maximum segment size that is announced to the peer. Accepted legs announce that of `[near]`.
    pub mss: Option<u16>,
    /// Whether a dialled leg uses TCP Fast Open: data with the SYN, once it has the server's cookie.
    pub fast_open: bool,
    /// Time that a dialled leg may take to connect. Absent: the proxy's `connect_timeout`.
    pub connect_timeout: Option<Span>,
}

impl FromStr for LegProfile {
    type Err = String;

    /// `control=bbr,keepalive=10min,mark=7`: the keys of a file.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut table = toml::Table::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').map_or((part, "true"), |(key, value)| (key.trim(), value.trim()));
            // Numbers and truth stand as they are, all else is text.
            let value = value.parse::<toml::Value>().unwrap_or_else(|_| value.into());
            table.insert(key.replace('-', "_"), value);
        }
        let hint =
            |written: &str| -> &'static [&'static str] { if written == "cc" || written == "congestion" { &["control"] } else { &[] } };
        toml_file::deserialize(table.into(), hint).map_err(|fault| {
            let is_bare = text.split(',').any(|part| part.trim() == fault.path);
            let cure = match fault.path.split_once(':') {
                Some((key, value)) if is_bare => format!("write {key}={value}; "),
                None if is_bare => format!("if this is a congestion controller, write control={}; ", fault.path),
                _ => String::new(),
            };
            format!("cannot read the profile {text:?}: {cure}{} {}", fault.path, fault.message)
        })
    }
}

/// The class of packets that the shaper of their link holds, as a priority of theirs.
pub const SHAPED: u32 = 0x7a6d_0001;

/// The schema of a code point.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)]
enum DscpSchema {
    Name(String),
    Number(u8),
}

/// A code point of a leg's packets (RFC 2474).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dscp {
    /// That of the client's SYN.
    Keep,
    /// This one, 0 to 63.
    Set(u8),
}

impl FromStr for Dscp {
    type Err = String;

    /// `keep`, a number, or a name: `cs0` to `cs7`, `af11` to `af43`, `ef`, `le`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no code point: write \"keep\", 0 to 63, or a name such as cs1, af21, ef");
        let digit = |c: u8, most: u8| (b'0'..=b'0' + most).contains(&c).then(|| c - b'0');
        let value = match text.to_ascii_lowercase().as_bytes() {
            b"keep" => return Ok(Dscp::Keep),
            b"ef" => Some(46),
            b"le" => Some(1),
            [b'c', b's', class] => digit(*class, 7).map(|class| class * 8),
            // RFC 2597 §6
            [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => Some((class - b'0') * 8 + (drop - b'0') * 2),
            _ => text.parse().ok().filter(|value| *value < 64),
        };
        value.map(Dscp::Set).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Dscp;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a code point")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Dscp, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Dscp, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// The congestion controllers of this kernel.
pub fn available_controllers() -> Vec<String> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The controller that a socket has.
pub fn controller_of(socket: &Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\0').into()
}

/// Whether this process can use a controller: a socket tries it.
pub fn try_controller(name: &str) -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?.set_tcp_congestion(name.as_bytes())
}

/// Whether the kernel takes all of a profile: a socket tries it.
pub fn try_profile(profile: &LegProfile) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    let rest = LegProfile { control: None, weight: None, ..profile.clone() };
    apply(&socket, &rest, || Ok(0))?;
    profile.mss.map_or(Ok(()), |mss| socket.set_tcp_mss(u32::from(mss)))
}

/// How many files a worker may have open, once the limit is raised as far as it may be.
pub fn open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20)
}

/// Raises the limit of open files as far as this process may.
pub fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// How B is divided between the two sockets and what moves between them (the buffer of a direction: receive queue of its
/// source, pipe, unsent send queue of its destination).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Bound on the receive queue.
    pub receive: usize,
    /// Bound on what is on its way through the proxy's own hands.
    pub pipe: usize,
    /// Bound on the unsent part of the send queue. The kernel checks it before it begins a segment, so that a splice may pass
    /// it by one.
    pub unsent: usize,
}

impl Shares {
    /// From here up bytes are spliced; below, the granularity of splice (a pipe, a segment of 64 KiB) is too coarse for B.
    pub const SPLICE_FROM: usize = 256 * 1024;

    /// Of a bound of `buffer` bytes.
    pub fn of(buffer: usize) -> Self {
        if buffer < Self::SPLICE_FROM {
            // Copied bytes go straight on, so nothing rests in between, and the relay itself counts what is unsent.
            return Shares { receive: buffer - buffer / 2, pipe: 0, unsent: buffer / 2 };
        }
        // Large splices are cheap ones, and cheapest where the far leg takes one whole; the rest is the near leg's window.
        let pipe = 1 << (buffer / 4).ilog2().min(20);
        let unsent = (buffer / 4).min(2 << 20);
        Shares { receive: buffer - pipe - unsent, pipe, unsent }
    }
}

/// Prepares a socket for either leg: before it connects, or a listener before its first connection, which then inherits all of it.
pub fn prepare(socket: &Socket, shares: Option<Shares>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Closing a leg before its time is a reset, also when it is the kernel who closes it because the process was killed: its peer
    // must not take that for a clean end. A leg whose time has come is closed already and resets nothing.
    socket.set_linger(Some(Duration::ZERO))?;
    // Urgent bytes keep their place in the stream.
    socket.set_out_of_band_inline(true)?;
    if let Some(shares) = shares {
        // Before the handshake, which derives the window scale from the clamp. Without it the scale
        // follows net.ipv4.tcp_rmem, and each ACK rounds the window up to a multiple of 2^scale: with a
        // multiple above one segment the window never closes, and the queue outgrows its buffer. A
        // bound that came later would drop what a larger window has admitted by then.
        bound_receive(socket, shares.receive)?;
        // Otherwise the relay does so when a direction has become a stream.
        if shares.pipe == 0 {
            socket.set_tcp_notsent_lowat(shares.unsent as u32)?;
        }
    }
    Ok(())
}

/// Applies `profile` to a leg of a connection whose packets had the code point `dscp` when it came in.
pub fn apply(socket: &Socket, profile: &LegProfile, dscp: impl FnOnce() -> io::Result<u8>) -> io::Result<()> {
    if *profile == LegProfile::default() {
        return Ok(());
    }
    if let Some(weight) = profile.weight {
        // Read when the controller takes the socket.
        kernel::set_weight(socket, weight.get()).map_err(io::Error::other)?;
    }
    if let Some(name) = &profile.control {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if let Some(bytes) = profile.send_buffer {
        // The kernel doubles what it is given.
        sys::force_send_buffer(socket, bytes.0 as usize / 2)?;
    }
    if let Some(bytes) = profile.receive_buffer {
        bound_receive(socket, bytes.0 as usize)?;
    }
    if let Some(bytes) = profile.not_sent {
        socket.set_tcp_notsent_lowat(u32::try_from(bytes.0).unwrap_or(u32::MAX))?;
    }
    if let Some(idle) = profile.keepalive {
        let (idle, probe) = (idle.duration().max(Duration::from_secs(1)), idle.duration() / 4);
        let probe = probe.clamp(Duration::from_secs(1), Duration::from_secs(75));
        // Where there is a limit to silence it is for that to say when the peer is gone.
        let probes = profile.user_timeout.map_or(0, |limit| limit.duration().div_duration_f64(probe).ceil() as u32 + 2);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(probe).with_retries(probes.clamp(5, 127)))?;
    }
    if let Some(mark) = profile.mark {
        socket.set_mark(mark)?;
    }
    match profile.dscp {
        Some(Dscp::Set(value)) => sys::set_dscp(socket, value)?,
        Some(Dscp::Keep) => sys::set_dscp(socket, dscp()?)?,
        None => {}
    }
    if profile.capacity.is_some() {
        // The class of the shaper; nothing where there is none. After the code point, which in IPv4 sets a priority of its own.
        sys::set_priority(socket, SHAPED)?;
    }
    Ok(())
}

/// Finds out a peer that has been sent something and says nothing for too long. The kernel's own way (TCP_USER_TIMEOUT) won't do: it may
/// count from a retransmission of long ago, and then gives up a live peer when a packet is lost twice; and it gives up a peer that is
/// there and has closed its window.
#[derive(Debug)]
pub struct SilenceTimeout {
    limit: Option<Duration>,
    /// Since when the peer owes an answer, as far as was looked.
    since: Option<Instant>,
}

impl SilenceTimeout {
    /// By the profile of its leg.
    pub fn of(profile: &LegProfile) -> Self {
        SilenceTimeout { limit: profile.user_timeout.map(units::Span::duration), since: None }
    }

    /// How often to look.
    pub fn interval(&self) -> Option<Duration> {
        self.limit.map(|limit| limit / 4)
    }

    /// Whether the peer has been silent for too long.
    pub fn is_too_long(&mut self, socket: &Socket, now: Instant) -> bool {
        let Some(limit) = self.limit else { return false };
        let Some(info) = sys::tcp_info(socket).ok().filter(|info| info.unacked > 0 || info.probes > 0) else {
            self.since = None;
            return false;
        };
        let heard = now.checked_sub(Duration::from_millis(info.last_ack_recv_ms.into())).unwrap_or(now);
        let since = self.since.map_or(now, |since| since.max(heard));
        self.since = Some(since);
        now - since >= limit
    }
}

/// What the far leg of a transparent connection wears of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    client: SocketAddr,
    /// The port too; else one of its own.
    keep_port: bool,
}

impl Source {
    /// For a connection that was accepted as `near`; none if its far leg must have this host's own address.
    ///
    /// Where conntrack tracks the near leg, the far leg must differ in its port. With the same four addresses and ports both would
    /// be one connection to it, which it translates (NAT) but once, and whose sequence numbers make no sense. `route` tells the
    /// interface that leads to an address.
    pub fn of(near: &Socket, client: SocketAddr, server: SocketAddr, mut route: impl FnMut(IpAddr) -> Option<String>) -> Option<Self> {
        let Ok(original) = sys::original_destination(near) else { return Some(Source { client, keep_port: true }) };
        // A client that reaches a server of its own network by this host's address (hairpin NAT): with the client's address the
        // server would answer it directly.
        let is_hairpin = original != server && route(client.ip()) == route(server.ip());
        (!is_hairpin).then_some(Source { client, keep_port: false })
    }

    /// Ports of a leg's own, where conntrack must tell both legs apart. Few clients dial from them: Linux begins at 32768, others
    /// at 49152 (RFC 6335 §6).
    const OWN: std::ops::Range<u16> = 10_240..32_768;
    /// How many of them are tried.
    const TRIES: u16 = 16;

    /// The ports to try, in their order; 0 is any that the kernel chooses.
    fn ports(self) -> impl Iterator<Item = u16> {
        let count = Self::OWN.end - Self::OWN.start;
        let own = move |attempt: u16| Self::OWN.start + (self.client.port() % count + attempt * 1409) % count;
        let kept = self.keep_port.then_some(self.client.port());
        let tries = if self.keep_port { 0 } else { Self::TRIES };
        kept.into_iter().chain((0..tries).map(own)).chain([0])
    }
}

/// A leg that is to be dialled.
#[derive(Debug)]
pub struct DialOptions<'a> {
    /// How it is tuned.
    pub profile: &'a LegProfile,
    /// The shares of the buffer, where it is bounded.
    pub shares: Option<Shares>,
    /// The address it is to wear, where that is to be kept.
    pub from: Option<Source>,
    /// The server.
    pub to: SocketAddr,
    /// Whether its SYN may wait for data to carry.
    pub fast_open: bool,
}

impl DialOptions<'_> {
    /// Begins to connect. The connection completes, or fails, later.
    pub fn dial(&self, dscp: impl Fn() -> io::Result<u8>) -> io::Result<Socket> {
        let Some(source) = self.from else { return self.dial_from(None, &dscp) };
        let mut ports = source.ports().peekable();
        while let Some(port) = ports.next() {
            match self.dial_from(Some(SocketAddr::new(source.client.ip(), port)), &dscp) {
                // Another connection of this client holds the port, or has just held it to this server.
                Err(why) if ports.peek().is_some() && matches!(why.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
                outcome => return outcome,
            }
        }
        Err(io::ErrorKind::AddrNotAvailable.into())
    }

    fn dial_from(&self, from: Option<SocketAddr>, dscp: impl FnOnce() -> io::Result<u8>) -> io::Result<Socket> {
        let domain = Domain::for_address(self.to);
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        prepare(&socket, self.shares)?;
        apply(&socket, self.profile, dscp)?;
        if let Some(mss) = self.profile.mss {
            socket.set_tcp_mss(u32::from(mss))?;
        }
        if self.fast_open {
            sys::set_fast_open_connect(&socket)?;
        } else {
            // The handshake's last acknowledgement goes with the first data, see `acknowledge`.
            rustix::net::sockopt::set_tcp_quickack(&socket, false)?;
        }
        if let Some(from) = from {
            set_transparent(&socket, domain)?;
            socket.set_reuse_address(true)?;
            socket.bind(&SockAddr::from(from))?;
        }
        match socket.connect(&SockAddr::from(self.to)) {
            Err(why) if why.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            outcome => outcome.map(|()| socket),
        }
    }
}

/// Has a leg that has just connected acknowledge so at once: there is no data for it to go with.
pub fn acknowledge(socket: &Socket) {
    // The kernel would do so a moment later.
    let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
}

/// Lets a socket use addresses that are not this machine's.
pub fn set_transparent(socket: &Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV4 { socket.set_ip_transparent_v4(true) } else { sys::set_transparent_v6(socket) }
}

/// Bounds the payload in flight to a socket, in bytes. The kernel counts the overhead of packets
/// too, hence twice the buffer.
///
/// # Errors
/// The kernel refuses it.
pub fn bound_window(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    sys::force_receive_buffer(&socket, 2 * bytes)?;
    sys::clamp_window(&socket, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_may_be_written_on_one_line() {
        let profile: LegProfile = "control=bbr,keepalive=10min, mark=7,dscp=46,fast-open".parse().unwrap();
        let wanted = LegProfile {
            control: Some("bbr".into()),
            keepalive: Some("10min".parse().unwrap()),
            mark: Some(7),
            dscp: Some(Dscp::Set(46)),
            fast_open: true,
            ..LegProfile::default()
        };
        assert_eq!(profile, wanted);
        assert_eq!("".parse(), Ok(LegProfile::default()));
        let error = "contrl=bbr".parse::<LegProfile>().unwrap_err();
        assert!(error.contains("contrl is not a key here: did you mean control?"), "{error}");
    }

    #[test]
    fn code_points_by_name_and_number() {
        for (text, value) in [("cs0", 0), ("cs7", 56), ("af11", 10), ("af43", 38), ("EF", 46), ("63", 63)] {
            assert_eq!(text.parse(), Ok(Dscp::Set(value)), "{text}");
        }
        assert_eq!("keep".parse(), Ok(Dscp::Keep));
        assert!(["64", "cs8", "af14", "af51", "", "-1"].iter().all(|wrong| wrong.parse::<Dscp>().is_err()));
    }

    #[test]
    fn the_shares_add_up_to_the_buffer() {
        for buffer in [6000, 30_000, 262_143, 262_144, 1 << 20, 1 << 26] {
            let shares = Shares::of(buffer);
            assert_eq!(shares.receive + shares.pipe + shares.unsent, buffer);
            assert!(shares.receive >= buffer / 4 && shares.unsent >= 3000, "{shares:?}");
        }
    }
}
