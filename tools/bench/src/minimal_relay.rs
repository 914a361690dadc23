//! The minimum that a relay must do: a lower bound for the cost of any program that terminates
//! connections on this machine. One thread, as few system calls per connection as possible, large
//! splices for streams. It has no bound on buffered data, no counters and no timeouts, and passes
//! no reset on, so it is of no other use.

use anyhow::{Context as _, Result};
use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, SocketFlags, acceptfrom_with, recv, send, shutdown},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io, mem,
    net::{SocketAddr, SocketAddrV4},
};

/// Runs a relay that does nothing but relay, on the middle host of a measurement
#[derive(Debug, clap::Args)]
pub(crate) struct MinimalRelay {
    /// Where intercepted connections arrive
    listen: SocketAddrV4,
}

/// A read that returns this many bytes is part of a stream.
const MESSAGE: usize = 16 * 1024;
const PIPE: usize = 1 << 20;
/// Event token of the listener.
const LISTENER: u64 = u64::MAX;

impl MinimalRelay {
    pub(crate) fn run(&self) -> Result<()> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        listener.set_reuse_address(true)?;
        listener.set_ip_transparent_v4(true).context("cannot listen transparently")?;
        listener.set_tcp_nodelay(true)?;
        listener.bind(&SocketAddr::V4(self.listen).into()).with_context(|| format!("cannot listen on {}", self.listen))?;
        listener.listen(4096)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let mut connections: Vec<Option<RelayedConnection>> = Vec::new();
        let mut free = Vec::new();
        let mut scratch = vec![0; MESSAGE];
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
            let mut ended = Vec::new();
            for event in &events {
                if event.data.u64() == LISTENER {
                    while let Ok((near, Some(client))) = acceptfrom_with(&listener, SocketFlags::NONBLOCK) {
                        let slot = free.pop().unwrap_or_else(|| {
                            connections.push(None);
                            connections.len() - 1
                        });
                        // Close a client's connection that cannot be served.
                        connections[slot] =
                            client.try_into().ok().and_then(|client| RelayedConnection::begin(near.into(), client, &epoll, slot).ok());
                        free.extend(connections[slot].is_none().then_some(slot));
                    }
                    continue;
                }
                let (slot, from_far) = (event.data.u64() as usize >> 1, event.data.u64() & 1 == 1);
                if let Some(connection) = connections.get_mut(slot).and_then(Option::as_mut)
                    && connection.go_on(&epoll, slot, from_far, event.flags, &mut scratch).is_none()
                {
                    connections[slot] = None;
                    ended.push(slot);
                }
            }
            // Events that were already fetched may still name a slot that has just been freed.
            free.append(&mut ended);
        }
    }
}

/// One direction of a connection.
#[derive(Default)]
struct RelayDirection {
    /// Present once the direction has become a stream.
    pipe: Option<(OwnedFd, OwnedFd)>,
    in_pipe: usize,
    readable: bool,
    /// The source has closed.
    closed: bool,
    /// End of file has been passed on.
    over: bool,
}

struct RelayedConnection {
    near: Socket,
    far: Socket,
    connected: bool,
    up: RelayDirection,
    down: RelayDirection,
}

impl RelayedConnection {
    fn begin(near: Socket, client: SocketAddr, epoll: &OwnedFd, slot: usize) -> io::Result<Self> {
        let server = near.local_addr()?;
        // The client's port may still belong to a connection to this server that has just ended.
        let far = dial(client, &server).or_else(|_| dial(SocketAddr::new(client.ip(), 0), &server))?;
        watch(epoll, &far, slot, true)?;
        Ok(RelayedConnection { near, far, connected: false, up: RelayDirection::default(), down: RelayDirection::default() })
    }

    /// Moves all available data. Returns `None` when both directions have ended or a leg has
    /// failed.
    fn go_on(&mut self, epoll: &OwnedFd, slot: usize, from_far: bool, flags: EventFlags, scratch: &mut [u8]) -> Option<()> {
        if flags.contains(EventFlags::ERR) {
            return None;
        }
        // The first event of the far leg: it is connected.
        if from_far && !mem::replace(&mut self.connected, true) {
            watch(epoll, &self.near, slot, false).ok()?;
        }
        let source_of = if from_far { &mut self.down } else { &mut self.up };
        source_of.readable |= flags.contains(EventFlags::IN);
        source_of.closed |= flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
        self.up.go_on(self.near.as_fd(), self.far.as_fd(), scratch).ok()?;
        self.down.go_on(self.far.as_fd(), self.near.as_fd(), scratch).ok()?;
        (!self.up.over || !self.down.over).then_some(())
    }
}

fn dial(from: SocketAddr, server: &SockAddr) -> io::Result<Socket> {
    let far = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    far.set_ip_transparent_v4(true)?;
    far.set_reuse_address(true)?;
    far.bind(&from.into())?;
    match far.connect(server) {
        Err(why) if why.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(why),
        _ => Ok(far),
    }
}

fn watch(epoll: &OwnedFd, leg: &Socket, slot: usize, far: bool) -> io::Result<()> {
    let token = EventData::new_u64((slot as u64) << 1 | u64::from(far));
    Ok(epoll::add(epoll, leg, token, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET)?)
}

impl RelayDirection {
    fn go_on(&mut self, source: BorrowedFd<'_>, destination: BorrowedFd<'_>, scratch: &mut [u8]) -> Result<(), Errno> {
        while self.in_pipe > 0 || self.readable {
            let moved = if self.pipe.is_some() { self.splice(source, destination) } else { self.copy(source, destination, scratch) };
            match moved {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(why) => return Err(why),
            }
        }
        if self.closed && !self.readable && self.in_pipe == 0 && !mem::replace(&mut self.over, true) {
            shutdown(destination, Shutdown::Write)?;
        }
        Ok(())
    }

    /// Copies a message, or the start of a stream. If the destination's empty queue does not take
    /// all of it, the connection fails.
    fn copy(&mut self, source: BorrowedFd<'_>, destination: BorrowedFd<'_>, scratch: &mut [u8]) -> Result<(), Errno> {
        let (_, count) = recv(source, &mut *scratch, RecvFlags::empty()).inspect_err(|_| self.readable = false)?;
        self.readable = count == scratch.len();
        self.closed |= count == 0;
        if self.readable {
            let (read, write) = pipe_with(PipeFlags::NONBLOCK)?;
            let _ = fcntl_setpipe_size(&write, PIPE);
            self.pipe = Some((read, write));
        }
        let sent = send(destination, &scratch[..count], SendFlags::NOSIGNAL)?;
        if sent < count { Err(Errno::NOBUFS) } else { Ok(()) }
    }

    fn splice(&mut self, source: BorrowedFd<'_>, destination: BorrowedFd<'_>) -> Result<(), Errno> {
        let Some((read, write)) = &self.pipe else { return Ok(()) };
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        if self.in_pipe == 0 {
            self.in_pipe = splice(source, None, write, None, PIPE, flags).inspect_err(|_| self.readable = false)?;
            if self.in_pipe == 0 {
                (self.readable, self.closed) = (false, true);
                return Ok(());
            }
        }
        while self.in_pipe > 0 {
            self.in_pipe -= splice(read, None, destination, None, self.in_pipe, flags)?;
        }
        Ok(())
    }
}
