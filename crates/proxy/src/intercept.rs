//! Where connections come in: the listeners, and where each connection wants to go.

use crate::{
    StartError, bonded,
    config::{Config, Listen, Way},
    leg::{self, Shares},
    sys,
};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

/// Connections that may wait to be accepted, as far as `net.core.somaxconn` allows.
pub(crate) const BACKLOG: usize = 4096;
/// With fewer places the kernel would take a few calls at once for a flood.
pub(crate) const LEAST_BACKLOG: usize = 8;

/// An open listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) listen: Listen,
}

/// A connection that came in.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: Socket,
    pub(crate) client: SocketAddr,
    /// Where it goes on to, where the client need not say it.
    pub(crate) server: Option<SocketAddr>,
}

/// Opens one worker's listeners; all workers share the ports.
pub(crate) fn open(config: &Config, worker: usize) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for listen in config.listen.iter().filter(|listen| bonded::is_listener_of(listen.way, worker)) {
        for at in listen.sockets() {
            let socket =
                listener(config, at, listen.way).map_err(|why| StartError::Listen { address: at.to_string(), cure: cure(&why), why })?;
            listeners.push(Listener { socket, listen: Listen { at, ..listen.clone() } });
        }
    }
    Ok(listeners)
}

pub(crate) fn cure(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: stop it or choose another port",
        io::ErrorKind::PermissionDenied => "run as root, or with CAP_NET_ADMIN (and CAP_NET_BIND_SERVICE for ports below 1024)",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address: listen on one it has, or on [::]",
        _ => "see `tandem doctor` for what this machine can do",
    }
}

fn listener(config: &Config, at: SocketAddr, way: Way) -> io::Result<Socket> {
    let domain = Domain::for_address(at);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(way == Way::Transparent || !at.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    if config.threads > 1 {
        socket.set_reuse_port(true)?;
    }
    if way == Way::Transparent {
        leg::set_transparent(&socket, domain)?;
    }
    // Accepted sockets inherit all of this, so that it holds from the first SYN-ACK on.
    let shares = config.buffer.filter(|_| way != Way::Bond).map(|buffer| Shares::of(buffer.0 as usize));
    leg::prepare(&socket, shares)?;
    if let Some(window) = config.bond.as_ref().and_then(|bond| bond.connection_window).filter(|_| way == Way::Bond) {
        bonded::bound_window(&socket, window)?;
    }
    if let Some(mss) = config.policy.near.mss {
        socket.set_tcp_mss(u32::from(mss))?;
    }
    socket.bind(&SockAddr::from(at))?;
    socket.listen(BACKLOG.min(config.brim_of_a_worker()) as i32)?;
    Ok(socket)
}

/// Tries whether a listener could have this address, and leaves it free. No connection can come in.
pub(crate) fn try_bind(at: SocketAddr, transparent: bool) -> io::Result<()> {
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
    /// Takes the users that a configuration has for it, for clients from now on.
    pub(crate) fn take_users(&mut self, config: &Config) {
        let same = |listen: &&Listen| (listen.at, listen.way) == (self.listen.at, self.listen.way);
        if let Some(listen) = config.listen.iter().find(same) {
            self.listen.users = listen.users.clone();
        }
    }

    /// How many connections wait to be accepted.
    pub(crate) fn waiting(&self) -> usize {
        // Of a listener the kernel tells that here (tcp_get_info).
        sys::tcp_info(&self.socket).map_or(0, |info| info.unacked as usize)
    }

    /// Bounds how many may wait to be accepted; who calls beyond that sends its SYN again.
    pub(crate) fn set_backlog(&self, connections: usize) -> io::Result<()> {
        self.socket.listen(i32::try_from(connections).unwrap_or(i32::MAX))
    }

    /// Lets new calls come again, or has the kernel drop them: who calls sends its SYN again. Handshakes that have begun go on.
    pub(crate) fn hear_calls(&self, hear: bool) -> io::Result<()> {
        if hear {
            return self.socket.detach_filter();
        }
        // The flags are byte 13 of a TCP header, SYN is bit 1: nothing of such a packet is kept, all of others.
        const SYN: u32 = 2;
        self.socket.attach_filter(&[
            SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, 13),
            SockFilter::new((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, 0, 1, SYN),
            SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
            SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
        ])
    }

    /// The next connection, or none when there is none now.
    pub(crate) fn accept(&self) -> io::Result<Option<Arrival>> {
        loop {
            match self.socket.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
                Ok((socket, client)) => {
                    if let Some(arrival) = self.arrival(socket, &client)? {
                        return Ok(Some(arrival));
                    }
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The connection went away while it waited; the next one may not have.
                Err(why) if matches!(why.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Finds out where a connection goes; none when it goes nowhere and has been reset.
    pub(crate) fn arrival(&self, socket: Socket, client: &SockAddr) -> io::Result<Option<Arrival>> {
        let not_ip = || io::Error::other("a TCP socket without an IP address");
        // A listener for both families tells IPv4 addresses in the form of IPv6.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let client = plain(client.as_socket().ok_or_else(not_ip)?);
        let server = match self.listen.way {
            // TPROXY leaves the address that the client meant as the socket's own.
            Way::Transparent => Some(socket.local_addr()?.as_socket().ok_or_else(not_ip)?),
            Way::Forward(to) => Some(to),
            Way::Socks5 | Way::Bond => None,
        };
        let own = server.filter(|server| self.listen.way == Way::Transparent && server.port() == self.listen.at.port() && is_own(*server));
        if let Some(server) = own {
            // It was meant for this listener itself: to dial on would be to call ourselves, and again, without end.
            tracing::warn!(%client, %server, "a transparent listener was called directly, which leads nowhere: reset");
            return Ok(None);
        }
        Ok(Some(Arrival { socket, client, server }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpStream, time::Duration};

    #[test]
    fn a_listener_that_hears_no_calls_hears_them_again_later() {
        let listen = Listen::forward("127.0.0.1:0".parse().unwrap(), "127.0.0.1:1".parse().unwrap());
        let config = Config { listen: vec![listen], ..Config::default() };
        let listener = open(&config, 0).unwrap().remove(0);
        let at = listener.socket.local_addr().unwrap().as_socket().unwrap();
        listener.hear_calls(false).unwrap();
        let called = TcpStream::connect_timeout(&at, Duration::from_millis(300)).map_err(|why| why.kind());
        assert_eq!(called.unwrap_err(), io::ErrorKind::TimedOut, "not refused either");
        listener.hear_calls(true).unwrap();
        let _client = TcpStream::connect_timeout(&at, Duration::from_secs(30)).unwrap();
        assert_eq!(listener.waiting(), 1);
        assert!(listener.accept().unwrap().is_some());
        assert_eq!(listener.waiting(), 0);
    }
}
