//! A leg that is one TCP connection.

use crate::{ending::Ending, readiness::Readiness};
use intercept::{
    ReceiveBound,
    leg::{LegProfile, SilenceTimeout},
    sys,
};
use rustix::fd::{AsFd, BorrowedFd};
use socket2::Socket;
use std::{
    io, mem,
    net::{Shutdown, SocketAddr},
    time::{Duration, Instant},
};

/// A leg that is one TCP connection: its socket, and what is known of its state.
///
/// What is known starts with "ready for everything" and is corrected by calls that find otherwise;
/// events, told to [`take_in`](Self::take_in), set it again.
#[derive(Debug)]
pub struct PlainLeg {
    socket: Socket,
    /// There is something to read, as far as is known.
    pub readable: bool,
    /// The send queue has room, as far as is known.
    pub writable: bool,
    /// The peer's FIN has come: what is in the receive queue is all there will be.
    pub hung_up: bool,
    /// The peer has sent urgent data, at which a splice or a read stops early.
    pub urgent: bool,
    receive_bound: ReceiveBound,
    silence: SilenceTimeout,
    kept_alive: bool,
}

impl PlainLeg {
    /// A socket that was tuned by this profile; its receive queue is held to `receive` bytes.
    pub fn new(socket: Socket, profile: &LegProfile, receive: Option<usize>) -> Self {
        PlainLeg {
            socket,
            readable: true,
            writable: true,
            hung_up: false,
            urgent: false,
            receive_bound: ReceiveBound::inherited(receive),
            silence: SilenceTimeout::of(profile),
            kept_alive: false,
        }
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Takes in what epoll told of the socket; returns the socket's error, if it has one.
    pub fn take_in(&mut self, readiness: Readiness) -> Option<io::Error> {
        self.readable |= readiness.readable || readiness.failed;
        self.writable |= readiness.writable || readiness.failed;
        self.hung_up |= readiness.hung_up;
        self.urgent |= readiness.urgent;
        if readiness.failed { self.socket.take_error().unwrap_or_else(Some) } else { None }
    }

    /// Has the kernel ask the peer now and then whether it is still there (SO_KEEPALIVE), so that a
    /// peer that vanished is found out some day.
    pub fn keep_alive(&mut self) {
        if !mem::replace(&mut self.kept_alive, true) {
            // A leg that has just ended will say so by itself.
            let _ = self.socket.set_keepalive(true);
        }
    }

    /// How often [`is_silent`](Self::is_silent) is to be called; none: its profile has no limit.
    pub fn silence_interval(&self) -> Option<Duration> {
        self.silence.interval()
    }

    /// Whether the peer has left what it was sent unanswered for longer than the profile allows.
    pub fn is_silent(&mut self, now: Instant) -> bool {
        self.silence.is_too_long(&self.socket, now)
    }

    /// Lets the receive queue hold all that its window admitted, while it is not read.
    ///
    /// # Errors
    /// The socket's.
    pub fn pause_receive(&mut self) -> io::Result<()> {
        self.receive_bound.pause(self.socket.as_fd())
    }

    /// Brings the receive queue back to its bound. To be called before the socket is read.
    ///
    /// # Errors
    /// The socket's.
    pub fn resume_receive(&mut self) -> io::Result<()> {
        self.receive_bound.resume(self.socket.as_fd())
    }

    /// Holds the receive queue to so many bytes.
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

    /// Whether the peer's FIN has come, by an event or by a look at the socket.
    ///
    /// # Errors
    /// The socket's.
    pub fn has_hung_up(&self) -> io::Result<bool> {
        if self.hung_up { Ok(true) } else { sys::has_hung_up(&self.socket) }
    }

    /// Sends a FIN.
    ///
    /// # Errors
    /// The socket's, unless it is that it is not connected.
    pub fn shut_down(&self) -> io::Result<()> {
        match self.socket.shutdown(Shutdown::Write) {
            Err(why) if why.kind() != io::ErrorKind::NotConnected => Err(why),
            _ => Ok(()),
        }
    }

    /// Has the socket closed in the background when it is dropped, instead of reset.
    pub fn close_gracefully(&self) {
        let _ = self.socket.set_linger(None);
    }
}

impl AsFd for PlainLeg {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Dials the first of these servers that can be dialled, and returns its address and what `dial`
/// made. It and the servers before it are taken off the list.
///
/// # Errors
/// Why the last one could not be dialled.
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
