//! Data connections that the responder has accepted and no order has claimed yet. Their number,
//! their bytes and their time are bounded, and none is answered.

use crate::{
    error::ProbeError,
    http::{self, HEAD},
    transfer_record::Application,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// Upper bounds: pending connections, the time that each may wait, and the kernel's accept queue.
const MAX_PENDING: usize = 64;
const MAX_WAIT: Duration = Duration::from_secs(20);
const BACKLOG: i32 = 32;

/// A pending connection and the bytes that it has sent.
struct PendingConnection {
    port: u16,
    socket: Socket,
    heard: Vec<u8>,
    since: Instant,
    greeted: bool,
    gone: bool,
}

/// The listeners and their pending connections. Call [`poll`](Self::poll) regularly.
pub(crate) struct PendingConnections {
    listeners: Vec<(u16, Socket)>,
    waiting: Vec<PendingConnection>,
}

/// Opens a non-blocking listener. Port 0 chooses a free port.
///
/// # Errors
/// The address or port cannot be used. The error names the cure.
pub(crate) fn listen(address: IpAddr, port: u16) -> Result<(u16, Socket), ProbeError> {
    let to = SocketAddr::new(address, port);
    let open = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&to.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.as_socket().map_or(port, |own| own.port());
        Ok((port, socket))
    };
    open().map_err(|why: std::io::Error| {
        let cure = match why.kind() {
            ErrorKind::AddrInUse => " (another program listens there: stop it, or give other ports)",
            ErrorKind::PermissionDenied => " (ports below 1024 need root or CAP_NET_BIND_SERVICE)",
            _ => "",
        };
        ProbeError::Socket { what: format!("listen at {to}{cure}"), why }
    })
}

impl PendingConnections {
    pub(crate) fn new(listeners: Vec<(u16, Socket)>) -> Self {
        PendingConnections { listeners, waiting: Vec::new() }
    }

    pub(crate) fn listener(&self, port: u16) -> Option<&Socket> {
        self.listeners.iter().find(|(own, _)| *own == port).map(|(_, socket)| socket)
    }

    /// Accepts connections, reads what has arrived, and drops connections that have waited too
    /// long.
    pub(crate) fn poll(&mut self) {
        for (port, listener) in &self.listeners {
            while let Ok((socket, _)) = listener.accept() {
                let ready = socket.set_nonblocking(true).is_ok() && socket.set_tcp_nodelay(true).is_ok();
                if self.waiting.len() >= MAX_PENDING {
                    self.waiting.remove(0);
                }
                self.waiting.push(PendingConnection {
                    port: *port,
                    socket,
                    heard: Vec::new(),
                    since: Instant::now(),
                    greeted: false,
                    gone: !ready,
                });
            }
        }
        for one in &mut self.waiting {
            let mut buffer = [0; 1024];
            // More data stay in the kernel's receive queue.
            while one.heard.len() < HEAD && !one.gone {
                match one.socket.read(&mut buffer) {
                    Ok(0) => one.gone = one.heard.is_empty() || one.since.elapsed() > MAX_WAIT / 4,
                    Ok(count) => {
                        one.heard.extend(&buffer[..count]);
                        continue;
                    }
                    Err(why) => one.gone = why.kind() != ErrorKind::WouldBlock,
                }
                break;
            }
        }
        self.waiting.retain(|one| !one.gone && one.since.elapsed() < MAX_WAIT);
    }

    /// Takes the oldest connection of a port.
    pub(crate) fn take_any(&mut self, port: u16) -> Option<Socket> {
        let index = self.waiting.iter().position(|one| one.port == port)?;
        Some(self.waiting.remove(index).socket)
    }

    /// Drops all connections of a port.
    pub(crate) fn drop_port(&mut self, port: u16) {
        self.waiting.retain(|one| one.port != port);
    }

    /// Takes the connection that has sent this nonce in the form of its application. Also returns
    /// what followed the nonce, or, for HTTP, the whole head.
    pub(crate) fn claim(&mut self, application: Application, port: u16, nonce: &str) -> Option<(Socket, Vec<u8>)> {
        if application == Application::Ftp {
            // An FTP server speaks first.
            for one in self.waiting.iter_mut().filter(|one| one.port == port && !one.greeted) {
                one.greeted = true;
                one.gone = one.socket.write_all(b"220 ready\r\n").is_err();
            }
        }
        let (index, heard) = self.waiting.iter().enumerate().find_map(|(index, one)| {
            let heard = after_nonce(&one.heard, application, nonce).filter(|_| one.port == port)?;
            Some((index, heard))
        })?;
        let socket = self.waiting.remove(index).socket;
        socket.set_nonblocking(false).ok()?;
        Some((socket, heard))
    }
}

/// The bytes after the nonce, if they have the form of the application. For HTTP, all bytes
/// including the head.
pub(super) fn after_nonce(heard: &[u8], application: Application, nonce: &str) -> Option<Vec<u8>> {
    match application {
        Application::Tcp => Some(heard.strip_prefix(nonce.as_bytes())?.strip_prefix(b"\n")?.to_vec()),
        Application::Ftp => Some(heard.strip_prefix(format!("USER {nonce}\r\n").as_bytes())?.to_vec()),
        Application::HttpData | Application::HttpImage => {
            let head = &heard[..http::head_end(heard)?];
            String::from_utf8_lossy(head).lines().next().is_some_and(|line| line.contains(nonce)).then(|| heard.to_vec())
        }
    }
}
