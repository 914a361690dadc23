//! A leg: one of the two TCP connections of a split connection. How it is tuned by its profile, and
//! how it is dialled.

pub use crate::receive_bound::{bound_receive, bound_receive_at_first};
use crate::{capacity::CapacitySource, sys};
use kernel::Controller;
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
use units::{Bytes, Span};

/// How a leg is tuned. Absent keys keep the system's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfile {
    /// Congestion controller, one of the kernel's, of Tandem's or an own one (`tandem control list`),
    /// or the path of the file of an own one.
    pub control: Option<String>,
    /// Capacity of the leg's egress link: the proxy's packets are shaped to it, and `share`, `xcp`
    /// and `mpcp` divide it among flows. `"auto"`: unknown or varying; `share` estimates it, and
    /// nothing is shaped. `{ file = "PATH" }`: the rate in that file, which the link's modem keeps up to date.
    pub capacity: Option<CapacitySource>,
    /// Interface with that capacity. Absent: the interfaces that the profile is chosen by, or else
    /// that of the default route.
    pub link: Option<String>,
    /// Whether the proxy's packets are shaped to the capacity. If not, their queue is at a later
    /// hop, and the controllers compute the queue that there would be at that rate. Not with
    /// `capacity = "auto"`.
    #[schemars(extend("default" = true))]
    pub shape: Option<bool>,
    /// Weight of the leg's flow among the flows of its link under `share`, 1 to 65535: with 2 it
    /// gets twice as much as with 1.
    #[schemars(extend("default" = 1))]
    pub weight: Option<NonZeroU16>,
    /// Size of the send buffer, as the kernel accounts it. Absent: the kernel tunes it, and with
    /// `buffer = "auto"` it may exceed the maximum of `net.ipv4.tcp_wmem`.
    pub send_buffer: Option<Bytes>,
    /// Size of the receive queue, if it is less than this leg's share of B.
    pub receive_buffer: Option<Bytes>,
    /// Upper bound on unsent payload in the send queue (TCP_NOTSENT_LOWAT), if it is less than this
    /// leg's share of B.
    pub not_sent: Option<Bytes>,
    /// Time of silence after which keepalive probes are sent. Absent:
    /// `net.ipv4.tcp_keepalive_time`.
    pub keepalive: Option<Span>,
    /// Time that sent data may remain unacknowledged before the peer counts as lost. A peer that
    /// closes its window and answers probes does not count as lost.
    pub user_timeout: Option<Span>,
    /// Mark of the leg's packets (SO_MARK), for policy routing.
    pub mark: Option<u32>,
    /// DSCP of the leg's packets: `"keep"` (that of the client's SYN), 0 to 63, or a name such as
    /// `"af21"`.
    #[schemars(with = "Option<DscpSchema>")]
    pub dscp: Option<Dscp>,
    /// Whether ECN is required. The kernel enables it for all connections or for a route; this key
    /// only checks that it is enabled.
    pub ecn: bool,
    /// Maximum segment size that is announced to the peer. Accepted legs announce that of `[near]`.
    pub mss: Option<u16>,
    /// Whether a dialled leg uses TCP Fast Open: its SYN carries data if the server has given a
    /// cookie before.
    pub fast_open: bool,
    /// Time that a dialled leg may take to connect. Absent: the proxy's `connect_timeout`.
    /// Does not apply to a bond, which has its own limits.
    pub connect_timeout: Option<Span>,
}

impl FromStr for LegProfile {
    type Err = String;

    /// Parses the keys of a file on one line, such as `control=bbr,keepalive=10min,mark=7`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut table = toml::Table::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').map_or((part, "true"), |(key, value)| (key.trim(), value.trim()));
            // What is not valid TOML is a text without quotes.
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

/// The socket priority that puts packets into the class of the link's shaper (see `egress`).
pub const SHAPED: u32 = 0x7a6d_0001;

/// The JSON Schema of a DSCP.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)]
enum DscpSchema {
    Name(String),
    Number(u8),
}

/// The DSCP of a leg's packets (RFC 2474).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dscp {
    /// The DSCP of the client's SYN.
    Keep,
    /// This value, 0 to 63.
    Set(u8),
}

impl FromStr for Dscp {
    type Err = String;

    /// Parses `keep`, a number, or a name: `cs0` to `cs7`, `af11` to `af43`, `ef`, `le`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("cannot parse DSCP {text:?}: write \"keep\", 0 to 63, or a name such as cs1, af21, ef");
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
                f.write_str("a DSCP such as \"af21\"")
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

/// The names of the congestion controllers that this kernel has loaded.
pub fn available_controllers() -> Vec<String> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The name of a socket's congestion controller.
pub fn controller_of(socket: &Socket) -> String {
    let name = socket.tcp_congestion().unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\0').into()
}

/// Whether a controller, by its name, sets the window by a model of the path (a rate, a capacity)
/// and not by losses.
pub fn sets_window_by_model(name: &str) -> bool {
    Controller::named(name).map_or(name.starts_with("bbr"), Controller::owns_window)
}

/// Tries a congestion controller, by its name in the kernel, on a socket that is then closed.
///
/// # Errors
/// `NotFound` if the kernel has no such controller, `PermissionDenied` if this process may not use
/// it.
pub fn try_controller(name: &str) -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?.set_tcp_congestion(name.as_bytes())
}

/// Tries the options of a profile, except controller and weight, on a socket that is then closed.
///
/// # Errors
/// The kernel refuses an option.
pub fn try_profile(profile: &LegProfile) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    let rest = LegProfile { control: None, weight: None, ..profile.clone() };
    apply(&socket, &rest, || Ok(0))?;
    profile.mss.map_or(Ok(()), |mss| socket.set_tcp_mss(u32::from(mss)))
}

/// The number of files that a worker may have open after [`raise_open_files`].
pub fn open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20)
}

/// Raises the soft limit of open files (RLIMIT_NOFILE) to the hard limit.
pub fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// How B, the buffer of one direction, is divided: receive queue of the source socket, pipe, unsent
/// part of the destination socket's send queue. In bytes of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Bound on the receive queue.
    pub receive: usize,
    /// Bound on the bytes in the pipe between the sockets.
    pub pipe: usize,
    /// Bound on the unsent part of the send queue. The kernel checks it before it begins a segment,
    /// so that a splice may exceed it by one segment.
    pub unsent: usize,
    /// The most that the bound on the receive queue may become later.
    pub most_receive: usize,
}

impl Shares {
    /// The smallest B with which bytes are spliced. Below it, the granularity of splice (a pipe, a
    /// segment of 64 KiB) is too coarse.
    pub const SPLICE_FROM: usize = 256 * 1024;

    /// Divides a B of `buffer` bytes.
    pub fn of(buffer: usize) -> Self {
        if buffer < Self::SPLICE_FROM {
            // Copied bytes are not kept in a pipe, and the relay itself counts unsent bytes.
            return Shares::from_parts(buffer - buffer / 2, 0, buffer / 2);
        }
        // Large splices cost the least per byte, provided that the destination takes each at once.
        // The rest is the window of the source.
        let pipe = 1 << (buffer / 4).ilog2().min(20);
        let unsent = (buffer / 4).min(2 << 20);
        Shares::from_parts(buffer - pipe - unsent, pipe, unsent)
    }

    fn from_parts(receive: usize, pipe: usize, unsent: usize) -> Self {
        Shares { receive, pipe, unsent, most_receive: receive }
    }

    /// B, bytes.
    pub fn buffer(&self) -> usize {
        self.receive + self.pipe + self.unsent
    }

    /// The same shares of a B that may grow up to `most` bytes.
    #[must_use]
    pub fn growing_to(self, most: usize) -> Self {
        Shares { most_receive: Self::of(most).receive.max(self.receive), ..self }
    }

    /// Divides a B of `buffer` bytes with at most `most` each in the pipe and unsent, so that more
    /// of it is the window of the source.
    pub fn with_window(buffer: usize, most: usize) -> Self {
        let Shares { pipe, unsent, .. } = Self::of(buffer);
        if pipe == 0 {
            return Self::of(buffer);
        }
        let (pipe, unsent) = (pipe.min(1 << most.max(Self::SPLICE_FROM / 4).ilog2()), unsent.min(most.max(Self::SPLICE_FROM / 4)));
        Self::from_parts(buffer - pipe - unsent, pipe, unsent)
    }
}

/// Sets the options that every leg needs. Call it before a socket connects, or on a listener before
/// it listens: accepted sockets inherit the options.
///
/// # Errors
/// The kernel refuses an option.
pub fn prepare(socket: &Socket, shares: Option<Shares>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // A leg that is closed early must send a reset, also if the kernel closes it because the
    // process was killed: the peer must not see a clean end. A leg that has ended cleanly was shut
    // down before, and sends no reset.
    socket.set_linger(Some(Duration::ZERO))?;
    // Urgent data keeps its place in the stream.
    socket.set_out_of_band_inline(true)?;
    if let Some(shares) = shares {
        // Before the handshake, which derives the window scale from the clamp. Without the clamp
        // the scale follows net.ipv4.tcp_rmem, and each ACK rounds the window up to a multiple of
        // 2^scale. If that multiple exceeds one segment, the window never closes, and the queue
        // outgrows its buffer. A bound that is set later would drop data that a larger window has
        // already admitted.
        if shares.most_receive > shares.receive {
            bound_receive_at_first(socket, shares.receive, shares.most_receive)?;
        } else {
            bound_receive(socket, shares.receive)?;
        }
        // With splice, the relay sets it once a direction carries a stream.
        if shares.pipe == 0 {
            socket.set_tcp_notsent_lowat(shares.unsent as u32)?;
        }
    }
    Ok(())
}

/// Applies `profile` to a leg. `dscp` returns the DSCP of the client's SYN; it is called only for
/// [`Dscp::Keep`].
///
/// # Errors
/// The kernel refuses an option, or `dscp` fails.
pub fn apply(socket: &Socket, profile: &LegProfile, dscp: impl FnOnce() -> io::Result<u8>) -> io::Result<()> {
    if *profile == LegProfile::default() {
        return Ok(());
    }
    if let Some(weight) = profile.weight {
        // Before the controller is set, which reads the weight when it is attached to the socket.
        kernel::set_weight(socket, weight.get()).map_err(io::Error::other)?;
    }
    if let Some(name) = &profile.control {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if let Some(bytes) = profile.send_buffer {
        // The kernel doubles the value.
        sys::force_send_buffer(socket, bytes.0 as usize / 2)?;
    }
    if let Some(bytes) = profile.receive_buffer {
        bound_receive(socket, bytes.0 as usize)?;
    }
    if let Some(bytes) = profile.not_sent {
        let limit = u32::try_from(bytes.0).unwrap_or(u32::MAX);
        // `prepare` has set the share of a small B, which holds if it is less: otherwise the kernel
        // would report room that the relay may not use. Zero: not set.
        let share = Some(socket.tcp_notsent_lowat()?).filter(|share| *share > 0);
        socket.set_tcp_notsent_lowat(share.map_or(limit, |share| share.min(limit)))?;
    }
    if let Some(idle) = profile.keepalive {
        let (idle, probe) = (idle.duration().max(Duration::from_secs(1)), idle.duration() / 4);
        let probe = probe.clamp(Duration::from_secs(1), Duration::from_secs(75));
        // With `user_timeout`, `SilenceTimeout` decides when the peer counts as lost: keepalive
        // must not give up earlier.
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
        // Without a shaper the priority has no effect. After the DSCP: setting IP_TOS changes the
        // priority.
        sys::set_priority(socket, SHAPED)?;
    }
    Ok(())
}

/// Detects a peer that has not acknowledged data for too long (`user_timeout` of the profile).
///
/// TCP_USER_TIMEOUT does not work for this. It may count from a retransmission long ago, and then
/// gives up a live peer when a packet is lost twice. It also gives up a live peer that has closed
/// its window.
///
/// Call [`is_too_long`](Self::is_too_long) about every [`interval`](Self::interval).
#[derive(Debug)]
pub struct SilenceTimeout {
    limit: Option<Duration>,
    /// When the oldest unanswered data was first seen, or the peer last answered. `None`: no data
    /// is unacknowledged.
    since: Option<Instant>,
}

impl SilenceTimeout {
    /// For a leg with this profile.
    pub fn of(profile: &LegProfile) -> Self {
        SilenceTimeout { limit: profile.user_timeout.map(units::Span::duration), since: None }
    }

    /// How often to call [`is_too_long`](Self::is_too_long). `None`: never, there is no limit.
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
        let last_ack = now.checked_sub(Duration::from_millis(info.last_ack_recv_ms.into())).unwrap_or(now);
        let since = self.since.map_or(now, |since| since.max(last_ack));
        self.since = Some(since);
        now - since >= limit
    }
}

/// The source address of a transparent connection's far leg: the client's address, with or without
/// the client's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    client: SocketAddr,
    /// Whether the far leg has the client's port. If not, it has another one.
    keep_port: bool,
}

impl Source {
    /// The source of the far leg of the connection that was accepted as `near`. `None` if the far
    /// leg must have an address of this host. `route` returns the interface through which an
    /// address is reached.
    ///
    /// If conntrack tracks the near leg, the far leg must have another port. With the same
    /// addresses and ports both legs would be one connection to conntrack: it would translate (NAT)
    /// only one of them, and its checks of sequence numbers would fail.
    pub fn of(near: &Socket, client: SocketAddr, server: SocketAddr, mut route: impl FnMut(IpAddr) -> Option<String>) -> Option<Self> {
        let Ok(original) = sys::original_destination(near) else { return Some(Source { client, keep_port: true }) };
        // Hairpin NAT: the client reaches a server in its own network by an address of this host.
        // If the far leg had the client's address, the server would answer the client directly.
        let is_hairpin = original != server && route(client.ip()) == route(server.ip());
        (!is_hairpin).then_some(Source { client, keep_port: false })
    }

    /// Source ports of far legs that conntrack must distinguish from near legs. Clients rarely dial
    /// from them: Linux uses ports from 32768 on, other systems from 49152 on (RFC 6335 §6).
    const OWN_PORTS: std::ops::Range<u16> = 10_240..32_768;
    /// How many of these ports are tried.
    const TRIES: u16 = 16;

    /// The ports to try, in this order. 0: the kernel chooses.
    fn ports(self) -> impl Iterator<Item = u16> {
        let count = Self::OWN_PORTS.end - Self::OWN_PORTS.start;
        let own = move |attempt: u16| Self::OWN_PORTS.start + (self.client.port() % count + attempt * 1409) % count;
        let kept = self.keep_port.then_some(self.client.port());
        let tries = if self.keep_port { 0 } else { Self::TRIES };
        kept.into_iter().chain((0..tries).map(own)).chain([0])
    }
}

/// How a leg is dialled.
#[derive(Debug)]
pub struct DialOptions<'a> {
    /// The profile of the leg.
    pub profile: &'a LegProfile,
    /// How the buffer is divided, if it is bounded.
    pub shares: Option<Shares>,
    /// The source address. `None`: the kernel chooses an address of this host.
    pub from: Option<Source>,
    /// The server.
    pub to: SocketAddr,
    /// Whether the SYN waits for the first data, to carry it (TCP Fast Open).
    pub fast_open: bool,
}

impl DialOptions<'_> {
    /// Begins to connect. The socket does not block: the connection completes or fails later.
    /// `dscp` returns the DSCP of the client's SYN.
    ///
    /// # Errors
    /// A socket option, bind or connect was refused, or no source port is free.
    pub fn dial(&self, dscp: impl Fn() -> io::Result<u8>) -> io::Result<Socket> {
        let Some(source) = self.from else { return self.dial_from(None, &dscp) };
        let mut ports = source.ports().peekable();
        while let Some(port) = ports.next() {
            match self.dial_from(Some(SocketAddr::new(source.client.ip(), port)), &dscp) {
                // The port is in use by another connection of this client, or was until a moment
                // ago.
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
            // The last ACK of the handshake is sent with the first data, see `acknowledge`.
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

/// Sends the last ACK of a dialled leg's handshake at once, because no data is ready to carry it.
pub fn acknowledge(leg: impl AsFd) {
    // On failure the kernel sends the ACK after its delayed-ACK timeout.
    let _ = rustix::net::sockopt::set_tcp_quickack(leg, true);
}

/// Allows a socket to have a local address that is not one of this host (IP_TRANSPARENT).
///
/// # Errors
/// The process lacks CAP_NET_ADMIN and CAP_NET_RAW.
pub fn set_transparent(socket: &Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV4 { socket.set_ip_transparent_v4(true) } else { sys::set_transparent_v6(socket) }
}

/// Bounds the payload in flight to a socket, in bytes. The receive buffer gets twice as much,
/// because the kernel charges the overhead of packets to it.
///
/// # Errors
/// The kernel refuses an option.
pub fn bound_window(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    sys::force_receive_buffer(&socket, 2 * bytes)?;
    sys::clamp_window(&socket, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_can_be_written_on_one_line() {
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
    fn dscp_by_name_and_number() {
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
            assert_eq!(shares.growing_to(buffer / 2), shares);
            assert!(shares.growing_to(4 * buffer).most_receive > 2 * shares.receive);
            for most in [0, 70_000, 1 << 30] {
                let other = Shares::with_window(buffer, most);
                assert_eq!(other.receive + other.pipe + other.unsent, buffer);
                assert!(other.receive >= shares.receive && other.pipe <= shares.pipe, "{other:?}");
                assert!(other.pipe == 0 || other.unsent <= most.max(64 * 1024), "{other:?}");
            }
        }
    }
}
