//! A leg: one TCP connection of the two, tuned by its profile.

use crate::sys;
use rustix::fd::AsFd;
use scenario::Bytes;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{fs, io, net::SocketAddr, time::Duration};

/// How a leg is tuned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LegProfile {
    /// Congestion controller; none: the system's default.
    pub control: Option<String>,
    /// Size of the send buffer; none: the kernel tunes it.
    pub send_buffer: Option<Bytes>,
}

/// The congestion controllers of this kernel.
pub fn available_controllers() -> Vec<String> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Whether this process can use a controller: a socket tries it.
pub(crate) fn try_controller(name: &str) -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?.set_tcp_congestion(name.as_bytes())
}

/// How B is divided between the two sockets and what moves between them (the buffer of a direction: receive queue of its
/// source, pipe, unsent send queue of its destination).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Bound on the receive queue.
    pub(crate) receive: usize,
    /// Bound on what is on its way through the proxy's own hands.
    pub(crate) pipe: usize,
    /// Bound on the unsent part of the send queue. The kernel checks it before it begins a segment, so that a splice may pass
    /// it by one.
    pub(crate) unsent: usize,
}

impl Shares {
    /// From here up bytes are spliced; below, the granularity of splice (a pipe, a segment of 64 KiB) is too coarse for B.
    pub(crate) const SPLICE_FROM: usize = 256 * 1024;

    /// Of a bound of `buffer` bytes.
    pub(crate) fn of(buffer: usize) -> Self {
        if buffer < Self::SPLICE_FROM {
            // Copied bytes go straight on, so nothing rests in between, and the relay itself counts what is unsent.
            return Shares { receive: buffer - buffer / 2, pipe: 0, unsent: buffer / 2 };
        }
        // The far leg must not run dry between two wake-ups; more unsent than that only delays. Large splices are cheap ones.
        let pipe = 1 << (buffer / 4).ilog2().min(20);
        let unsent = (buffer / 4).min(512 * 1024);
        Shares { receive: buffer - pipe - unsent, pipe, unsent }
    }
}

/// Applies `profile` and the bounds of B to a socket: before it connects, or to a listener before its first connection, since
/// window scale and first window are fixed by the handshake.
pub(crate) fn tune(socket: &Socket, profile: &LegProfile, shares: Option<Shares>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Closing a leg before its time is a reset, also when it is the kernel who closes it because the process was killed: its peer
    // must not take that for a clean end. A leg whose time has come is closed already and resets nothing.
    socket.set_linger(Some(Duration::ZERO))?;
    // Urgent bytes keep their place in the stream.
    socket.set_out_of_band_inline(true)?;
    if let Some(bytes) = profile.send_buffer {
        socket.set_send_buffer_size(bytes.0 as usize)?;
    }
    // Otherwise the relay does so when a direction has become a stream.
    if let Some(shares) = shares.filter(|shares| shares.pipe == 0) {
        bound_receive(socket, shares.receive)?;
        socket.set_tcp_notsent_lowat(shares.unsent as u32)?;
    }
    choose_controller(socket, profile)
}

/// Bounds payload in the receive queue to `bytes`, and so the window. The kernel counts a packet with its overhead, of which
/// there may be little or more than payload: only a buffer of that size with the overhead in it is a bound on payload.
/// TCP_WINDOW_CLAMP would not do: it bounds the window, not the queue, and is forgotten when a larger segment comes.
fn bound_receive(socket: &Socket, bytes: usize) -> io::Result<()> {
    // The kernel doubles what it is given.
    sys::force_receive_buffer(socket.as_fd(), bytes / 2)
}

/// Gives `socket` the controller of `profile`, where it names one.
pub(crate) fn choose_controller(socket: &Socket, profile: &LegProfile) -> io::Result<()> {
    match &profile.control {
        Some(name) => socket.set_tcp_congestion(name.as_bytes()),
        None => Ok(()),
    }
}

/// Begins to connect to `to`, from `from` where the source is to be kept. The connection completes, or fails, later.
pub(crate) fn dial(profile: &LegProfile, shares: Option<Shares>, from: Option<SocketAddr>, to: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(to);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    if let Some(from) = from {
        set_transparent(&socket, domain)?;
        socket.set_reuse_address(true)?;
        match socket.bind(&SockAddr::from(from)) {
            // Another connection of this client holds the port: keep the address at least.
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => socket.bind(&SockAddr::from(SocketAddr::new(from.ip(), 0)))?,
            bound => bound?,
        }
    }
    tune(&socket, profile, shares)?;
    match socket.connect(&SockAddr::from(to)) {
        Err(why) if why.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        connected => connected.map(|()| socket),
    }
}

/// Lets a socket use addresses that are not this machine's.
pub(crate) fn set_transparent(socket: &Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV4 { socket.set_ip_transparent_v4(true) } else { sys::set_transparent_v6(socket) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_add_up_to_the_buffer() {
        for buffer in [6000, 30_000, 262_143, 262_144, 1 << 20, 1 << 26] {
            let shares = Shares::of(buffer);
            assert_eq!(shares.receive + shares.pipe + shares.unsent, buffer);
            assert!(shares.receive >= buffer / 4 && shares.unsent >= 3000, "{shares:?}");
        }
    }
}
