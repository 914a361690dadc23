//! Listening sockets, and the destination of each accepted connection.

use crate::{
    interception::OpenError,
    leg::{self, Shares},
    listen::{Destination, ListenAt},
    syn_filter::{Accepting, drop_syns, drop_syns_of},
    sys,
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

/// Default length of the accept queue, in connections. The kernel limits it to
/// `net.core.somaxconn`.
pub const BACKLOG: usize = 4096;
/// Minimum length of the accept queue, in connections. With a shorter one the kernel mistakes a few
/// connections for a SYN flood.
pub const LEAST_BACKLOG: usize = 8;

/// An open listener.
#[derive(Debug)]
pub struct Listener {
    /// Its nonblocking socket.
    pub socket: Socket,
    /// Its address, and how the destination of its connections is determined.
    pub listen: ListenAt,
}

/// An accepted connection. Its nonblocking socket sends a reset if it is dropped before it was shut
/// down and read to its end.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The near leg.
    pub socket: Socket,
    /// The client's address.
    pub client: SocketAddr,
    /// The destination. `None` if the client will name it.
    pub server: Option<SocketAddr>,
}

/// Options of a listener. Accepted sockets inherit them, so that they apply from the SYN-ACK on.
#[derive(Debug, Clone, Copy)]
pub struct ListenerOptions {
    /// Whether several listeners share the port, one per thread (SO_REUSEPORT).
    pub shares_port: bool,
    /// How the buffer is divided, if it is bounded.
    pub shares: Option<Shares>,
    /// Upper bound on the advertised window, in bytes.
    pub window: Option<usize>,
    /// The maximum segment size to announce, in bytes of payload.
    pub mss: Option<u16>,
    /// Length of the accept queue, in connections.
    pub backlog: usize,
}

impl ListenerOptions {
    /// One listener per port, buffers tuned by the kernel, a backlog of [`BACKLOG`].
    pub fn new() -> Self {
        ListenerOptions { shares_port: false, shares: None, window: None, mss: None, backlog: BACKLOG }
    }
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions::new()
    }
}

/// The cure for an error of bind or listen.
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

/// Tries whether a listener could bind this address. The socket does not listen and is closed
/// again, so that no connection is accepted.
///
/// # Errors
/// The address cannot be bound.
pub fn try_bind(at: SocketAddr, transparent: bool) -> io::Result<()> {
    let domain = Domain::for_address(at);
    let socket = Socket::new(domain, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(transparent || !at.ip().is_unspecified())?;
    }
    // As for listeners: connections in TIME_WAIT must not block the address. Not SO_REUSEPORT: with
    // it the port of another proxy of this user would seem free.
    socket.set_reuse_address(true)?;
    if transparent {
        leg::set_transparent(&socket, domain)?;
    }
    socket.bind(&SockAddr::from(at))
}

/// Whether it is an address of this host. A link-local address needs its scope.
fn is_own(mut address: SocketAddr) -> bool {
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

impl Listener {
    /// Opens the sockets of `listen`: two if it is transparent and for both families.
    ///
    /// # Errors
    /// [`OpenError::Listen`] if an address cannot be used.
    pub fn open(listen: &ListenAt, options: &ListenerOptions) -> Result<Vec<Self>, OpenError> {
        listen.sockets().into_iter().map(|at| Listener::open_one(ListenAt { at, ..*listen }, options)).collect()
    }

    /// Opens one socket, at this address alone.
    ///
    /// # Errors
    /// [`OpenError::Listen`] if the address cannot be used.
    pub fn open_one(listen: ListenAt, options: &ListenerOptions) -> Result<Self, OpenError> {
        let refused = |why| OpenError::Listen { address: listen.at.to_string(), cure: cure(&why), why };
        let socket = open(listen.at, listen.is_transparent(), options).map_err(refused)?;
        Ok(Listener { socket, listen })
    }

    /// Its local address, with the port that the kernel chose if the configured one was 0.
    ///
    /// # Errors
    /// The kernel does not return the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("a TCP socket without an IP address"))
    }

    /// The number of connections in the accept queue.
    pub fn waiting(&self) -> usize {
        // For a listener the kernel puts it into this field (tcp_get_info).
        sys::tcp_info(&self.socket).map_or(0, |info| info.unacked as usize)
    }

    /// Changes the length of the accept queue. When it is full, SYNs are dropped and clients
    /// retransmit them.
    ///
    /// # Errors
    /// The kernel refuses the option.
    pub fn set_backlog(&self, connections: usize) -> io::Result<()> {
        self.socket.listen(i32::try_from(connections).unwrap_or(i32::MAX))
    }

    /// Has the kernel accept new connections, or drop their SYNs, which clients retransmit.
    /// Handshakes that have begun are not affected.
    ///
    /// # Errors
    /// The kernel does not attach or detach the filter.
    pub fn set_accepting(&self, accepting: &Accepting) -> io::Result<()> {
        match accepting {
            Accepting::All => self.socket.detach_filter(),
            Accepting::NotFrom(clients) => self.socket.attach_filter(&drop_syns_of(clients)),
            Accepting::None => self.socket.attach_filter(&drop_syns()),
        }
    }

    /// The next connection, or `None` if the accept queue is empty.
    ///
    /// # Errors
    /// The kernel cannot accept a connection, because descriptors or memory are short.
    pub fn accept(&self) -> io::Result<Option<AcceptedConnection>> {
        loop {
            match self.socket.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Ok((socket, client)) => {
                    if let Some(accepted) = self.accepted(socket, &client)? {
                        return Ok(Some(accepted));
                    }
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // This connection was reset in the accept queue; try the next one.
                Err(why) if matches!(why.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Determines the destination of a socket that was accepted from this listener. `None` if the
    /// destination is this listener itself; the connection has been reset then.
    ///
    /// # Errors
    /// The kernel does not return the socket's address.
    pub fn accepted(&self, socket: Socket, client: &SockAddr) -> io::Result<Option<AcceptedConnection>> {
        let not_ip = || io::Error::other("a TCP socket without an IP address");
        // A listener for both families returns IPv4 addresses as IPv4-mapped ones.
        let unmapped = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let client = unmapped(client.as_socket().ok_or_else(not_ip)?);
        let server = match self.listen.to {
            // With TPROXY the local address of the socket is the address that the client dialled.
            Destination::Original => Some(socket.local_addr()?.as_socket().ok_or_else(not_ip)?),
            Destination::Fixed(to) => Some(to),
            Destination::Named => None,
        };
        let own = server.filter(|server| self.listen.is_transparent() && server.port() == self.listen.at.port() && is_own(*server));
        if let Some(server) = own {
            // The client dialled this listener's own address. To dial it would loop forever.
            tracing::warn!(%client, %server, "reset a connection to the address of a transparent listener: clients must dial their server instead");
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
        listener.set_accepting(&Accepting::None).unwrap();
        let refused = TcpStream::connect_timeout(&at, Duration::from_millis(300)).map_err(|why| why.kind());
        assert_eq!(refused.unwrap_err(), io::ErrorKind::TimedOut, "the SYN is dropped, not refused");
        listener.set_accepting(&Accepting::All).unwrap();
        let _client = TcpStream::connect_timeout(&at, Duration::from_secs(30)).unwrap();
        assert_eq!(listener.waiting(), 1);
        assert!(listener.accept().unwrap().is_some());
        assert_eq!(listener.waiting(), 0);
    }
}
