//! Listeners, and where each accepted connection goes on to.

use crate::{
    interception::OpenError,
    leg::{self, Shares},
    listen::{Destination, ListenAt},
    sys,
};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

/// Connections that may wait to be accepted, as far as `net.core.somaxconn` allows.
pub const BACKLOG: usize = 4096;
/// A shorter queue would make the kernel take a few connections for a SYN flood.
pub const LEAST_BACKLOG: usize = 8;

/// An open listener.
#[derive(Debug)]
pub struct Listener {
    /// Its socket, which does not block.
    pub socket: Socket,
    /// Where it listens, and where its connections go on to.
    pub listen: ListenAt,
}

/// A connection that came in. Its socket does not block, and resets its peer when it is dropped
/// before it was shut down and read to its end.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The near leg.
    pub socket: Socket,
    /// The client.
    pub client: SocketAddr,
    /// Where it goes on to; none where the client names it.
    pub server: Option<SocketAddr>,
}

/// What accepted sockets inherit from their listener, so that it holds from the first SYN-ACK on.
#[derive(Debug, Clone, Copy)]
pub struct ListenerOptions {
    /// Several listeners share the port, one a thread (SO_REUSEPORT).
    pub shares_port: bool,
    /// The shares of the buffer, where it is bounded.
    pub shares: Option<Shares>,
    /// Upper bound on the advertised window, in bytes.
    pub window: Option<usize>,
    /// The maximum segment size, in bytes of payload.
    pub mss: Option<u16>,
    /// Connections that may wait to be accepted.
    pub backlog: usize,
}

impl ListenerOptions {
    /// One listener to a port, with the kernel's own buffers.
    pub fn new() -> Self {
        ListenerOptions { shares_port: false, shares: None, window: None, mss: None, backlog: BACKLOG }
    }
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions::new()
    }
}

/// What can be done about an address that refuses a listener.
pub fn cure(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port",
        io::ErrorKind::PermissionDenied => "run as root, or with CAP_NET_ADMIN (and CAP_NET_BIND_SERVICE for ports below 1024)",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address: listen on one it has, or on [::]",
        _ => "see `tandem doctor` for what this machine can do",
    }
}

fn open(at: SocketAddr, transparent: bool, options: &ListenerOptions) -> io::Result<Socket> {
    let domain = Domain::for_address(at);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(transparent || !at.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    if options.shares_port {
        socket.set_reuse_port(true)?;
    }
    if transparent {
        leg::set_transparent(&socket, domain)?;
    }
    leg::prepare(&socket, options.shares)?;
    if let Some(window) = options.window {
        leg::bound_window(&socket, window)?;
    }
    if let Some(mss) = options.mss {
        socket.set_tcp_mss(u32::from(mss))?;
    }
    socket.bind(&SockAddr::from(at))?;
    socket.listen(options.backlog as i32)?;
    Ok(socket)
}

/// Tries whether a listener could have this address, and leaves it free. No connection can come in.
pub fn try_bind(at: SocketAddr, transparent: bool) -> io::Result<()> {
    let domain = Domain::for_address(at);
    let socket = Socket::new(domain, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(transparent || !at.ip().is_unspecified())?;
    }
    // As listeners do, for the sake of connections that have ended. Not SO_REUSEPORT, by which the
    // port of another proxy of this user would seem free.
    socket.set_reuse_address(true)?;
    if transparent {
        leg::set_transparent(&socket, domain)?;
    }
    socket.bind(&SockAddr::from(at))
}

/// Whether this machine has that address. A link-local one is found by its scope.
fn is_own(mut address: SocketAddr) -> bool {
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

impl Listener {
    /// Opens the listeners of `listen`: two where it stands for both families.
    ///
    /// # Errors
    /// The address that refuses a listener, why, and what can be done.
    pub fn open(listen: &ListenAt, options: &ListenerOptions) -> Result<Vec<Self>, OpenError> {
        let open = |at| {
            let socket = open(at, listen.is_transparent(), options);
            let refused = |why| OpenError::Listen { address: at.to_string(), cure: cure(&why), why };
            Ok(Listener { socket: socket.map_err(refused)?, listen: ListenAt { at, ..*listen } })
        };
        listen.sockets().into_iter().map(open).collect()
    }

    /// Its address, with the port that the system chose where none was given.
    ///
    /// # Errors
    /// The kernel does not tell it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("a TCP socket without an IP address"))
    }

    /// How many connections wait to be accepted.
    pub fn waiting(&self) -> usize {
        // Of a listener the kernel tells that here (tcp_get_info).
        sys::tcp_info(&self.socket).map_or(0, |info| info.unacked as usize)
    }

    /// Bounds how many may wait to be accepted; clients beyond that send their SYN again.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_backlog(&self, connections: usize) -> io::Result<()> {
        self.socket.listen(i32::try_from(connections).unwrap_or(i32::MAX))
    }

    /// Accepts new connections again, or has the kernel drop their SYNs, which clients retransmit.
    /// Handshakes that have begun go on.
    ///
    /// # Errors
    /// The kernel does not attach or detach the filter.
    pub fn set_accepting(&self, accepting: bool) -> io::Result<()> {
        if accepting {
            return self.socket.detach_filter();
        }
        // The flags are byte 13 of a TCP header, SYN is bit 1: nothing of such a packet is kept,
        // all of others.
        const SYN: u32 = 2;
        self.socket.attach_filter(&[
            SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, 13),
            SockFilter::new((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, 0, 1, SYN),
            SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
            SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
        ])
    }

    /// The next connection, or none when there is none now.
    ///
    /// # Errors
    /// The kernel cannot accept one, for want of descriptors or memory.
    pub fn accept(&self) -> io::Result<Option<AcceptedConnection>> {
        loop {
            match self.socket.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Ok((socket, client)) => {
                    if let Some(accepted) = self.accepted(socket, &client)? {
                        return Ok(Some(accepted));
                    }
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The connection went away while it waited; the next one may not have.
                Err(why) if matches!(why.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Finds out where an accepted connection goes; none when it leads back to this listener and
    /// has been reset.
    ///
    /// # Errors
    /// The kernel does not tell the addresses of the socket.
    pub fn accepted(&self, socket: Socket, client: &SockAddr) -> io::Result<Option<AcceptedConnection>> {
        let not_ip = || io::Error::other("a TCP socket without an IP address");
        // A listener for both families tells IPv4 addresses in the form of IPv6.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let client = plain(client.as_socket().ok_or_else(not_ip)?);
        let server = match self.listen.to {
            // TPROXY leaves the address that the client dialled as the socket's own.
            Destination::Original => Some(socket.local_addr()?.as_socket().ok_or_else(not_ip)?),
            Destination::Fixed(to) => Some(to),
            Destination::Named => None,
        };
        let own = server.filter(|server| self.listen.is_transparent() && server.port() == self.listen.at.port() && is_own(*server));
        if let Some(server) = own {
            // It was meant for this listener itself: to dial on would be to call ourselves, and
            // again, without end.
            tracing::warn!(%client, %server, "a transparent listener was called directly, which leads nowhere: reset");
            return Ok(None);
        }
        Ok(Some(AcceptedConnection { socket, client, server }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpStream, time::Duration};

    #[test]
    fn a_listener_that_was_paused_accepts_again() {
        let listen = ListenAt { at: "127.0.0.1:0".parse().unwrap(), to: Destination::Fixed("127.0.0.1:1".parse().unwrap()) };
        let listener = Listener::open(&listen, &ListenerOptions::default()).unwrap().remove(0);
        let at = listener.socket.local_addr().unwrap().as_socket().unwrap();
        listener.set_accepting(false).unwrap();
        let called = TcpStream::connect_timeout(&at, Duration::from_millis(300)).map_err(|why| why.kind());
        assert_eq!(called.unwrap_err(), io::ErrorKind::TimedOut, "not refused either");
        listener.set_accepting(true).unwrap();
        let _client = TcpStream::connect_timeout(&at, Duration::from_secs(30)).unwrap();
        assert_eq!(listener.waiting(), 1);
        assert!(listener.accept().unwrap().is_some());
        assert_eq!(listener.waiting(), 0);
    }
}
