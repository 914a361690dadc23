//! A leg that is one TCP connection.

use crate::{ending::Ending, readiness::Readiness};
use intercept::{
    ReceiveBound,
    leg::{LegProfile, Silence},
    sys,
};
use rustix::fd::{AsFd, BorrowedFd};
use socket2::Socket;
use std::{
    io, mem,
    net::{Shutdown, SocketAddr},
    time::{Duration, Instant},
};

/// A leg that is one TCP connection: its socket, and its state as far as it is known.
///
/// `readable` and `writable` start as true. A system call that would block clears them, and events,
/// which the caller passes to [`take_in`](Self::take_in), set them again.
#[derive(Debug)]
pub struct PlainLeg {
    socket: Socket,
    /// The receive queue may have data.
    pub readable: bool,
    /// The send queue may have room.
    pub writable: bool,
    /// The peer's FIN has arrived: no data follows what is in the receive queue.
    pub hung_up: bool,
    /// The peer has sent urgent data, at which a splice or a read stops early.
    pub urgent: bool,
    receive_bound: ReceiveBound,
    silence: Silence,
    kept_alive: bool,
}

impl PlainLeg {
    /// A leg of a socket that was tuned by this profile. `receive` bounds its receive queue, bytes.
    pub fn new(socket: Socket, profile: &LegProfile, receive: Option<usize>) -> Self {
        PlainLeg {
            socket,
            readable: true,
            writable: true,
            hung_up: false,
            urgent: false,
            receive_bound: ReceiveBound::inherited(receive),
            silence: Silence::of(profile),
            kept_alive: false,
        }
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Applies an event of the socket; returns the socket's error, if it has one.
    pub fn take_in(&mut self, readiness: Readiness) -> Option<io::Error> {
        self.readable |= readiness.readable || readiness.failed;
        self.writable |= readiness.writable || readiness.failed;
        self.hung_up |= readiness.hung_up;
        self.urgent |= readiness.urgent;
        if readiness.failed { self.socket.take_error().unwrap_or_else(Some) } else { None }
    }

    /// Switches keepalive probes on (SO_KEEPALIVE), so that the kernel detects a peer that has
    /// vanished.
    pub fn keep_alive(&mut self) {
        if !mem::replace(&mut self.kept_alive, true) {
            // Fails only on a socket that has just failed, which an event reports.
            let _ = self.socket.set_keepalive(true);
        }
    }

    /// Interval at which to call [`is_silent`](Self::is_silent); none: its profile has no limit.
    pub fn silence_interval(&self) -> Option<Duration> {
        self.silence.interval()
    }

    /// Whether the peer has not acknowledged data for longer than the profile allows.
    pub fn is_silent(&mut self, now: Instant) -> bool {
        self.silence.is_too_long(&self.socket, now)
    }

    /// Lets the receive queue hold all data that its window has admitted. To be called when reading
    /// pauses.
    ///
    /// # Errors
    /// The socket's.
    pub fn pause_receive(&mut self) -> io::Result<()> {
        self.receive_bound.pause(self.socket.as_fd())
    }

    /// Restores the bound of the receive queue. To be called before the socket is read again.
    ///
    /// # Errors
    /// The socket's.
    pub fn resume_receive(&mut self) -> io::Result<()> {
        self.receive_bound.resume(self.socket.as_fd())
    }

    /// Bounds the receive queue to `bytes`.
    ///
    /// # Errors
    /// The socket's.
    pub fn bound_receive(&mut self, bytes: usize) -> io::Result<()> {
        self.receive_bound.set(self.socket.as_fd(), bytes)
    }

    /// Bytes that the peer has not acknowledged; a FIN counts as one. What a reset discarded never
    /// counts as acknowledged.
    ///
    /// # Errors
    /// The socket's.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        sys::unacknowledged(&self.socket)
    }

    /// Whether the peer's FIN has arrived, by the events so far or else by the socket's state.
    ///
    /// # Errors
    /// The socket's.
    pub fn has_hung_up(&self) -> io::Result<bool> {
        if self.hung_up { Ok(true) } else { sys::has_hung_up(&self.socket) }
    }

    /// Sends a FIN.
    ///
    /// # Errors
    /// The socket's, except that it is not connected.
    pub fn shut_down(&self) -> io::Result<()> {
        match self.socket.shutdown(Shutdown::Write) {
            Err(why) if why.kind() != io::ErrorKind::NotConnected => Err(why),
            _ => Ok(()),
        }
    }

    /// Makes dropping the socket close it in the background instead of resetting it.
    pub fn close_gracefully(&self) {
        let _ = self.socket.set_linger(None);
    }
}

impl AsFd for PlainLeg {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Calls `dial` for one server after the other until it succeeds; returns the address and the
/// result of `dial`. Removes the servers that it tried from the list.
///
/// # Errors
/// The last failure of `dial`.
pub fn dial_first<T>(
    servers: &mut Vec<SocketAddr>,
    mut dial: impl FnMut(SocketAddr) -> Result<T, Ending>,
) -> Result<(SocketAddr, T), Ending> {
    let mut ending = Ending::FarNotReached(io::ErrorKind::NotFound);
    while !servers.is_empty() {
        let server = servers.remove(0);
        match dial(server) {
            Ok(dialled) => return Ok((server, dialled)),
            Err(why) => ending = why,
        }
    }
    Err(ending)
}
