//! Moves bytes one way through a connection, never more than the bound allows.
//!
//! Large buffers are spliced through a borrowed pipe, which holds bytes only while the destination can't take them; small
//! ones are copied, since a pipe and a 64 KiB segment are too coarse for them, and so is urgent data, which splice never
//! passes (it goes on as ordinary data). What the destination can't take stays in the
//! source's receive queue, so that the source is held by its advertised window. Whether an end of file is passed on, and
//! when, is the connection's business.

use crate::leg::Shares;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
};
use std::io;

/// How often a direction may move before others get their turn.
const ROUNDS: usize = 16;

/// A pipe for bytes between two sockets.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// What all connections of a worker share: empty pipes, and room for bytes on their way.
#[derive(Debug)]
pub(crate) struct Tools {
    pipes: Vec<Pipe>,
    scratch: Vec<u8>,
}

impl Tools {
    /// Pipes kept for the next who needs one; more are closed.
    const KEPT: usize = 16;

    pub(crate) fn new() -> Self {
        Tools { pipes: Vec::new(), scratch: vec![0; 64 * 1024] }
    }

    fn borrow_pipe(&mut self) -> io::Result<Pipe> {
        if let Some(pipe) = self.pipes.pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        Ok(Pipe { read, write })
    }

    fn give_back(&mut self, pipe: Pipe) {
        if self.pipes.len() < Self::KEPT {
            self.pipes.push(pipe);
        }
    }
}

/// Which socket an error came from.
#[derive(Debug)]
pub(crate) enum Fault {
    Source(io::Error),
    Destination(io::Error),
    /// The proxy itself had no pipe.
    Own,
}

/// What a pump came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// It waits for an event.
    Waits,
    /// It waits for room in the destination's send queue, which only a fresh look by epoll will announce.
    WaitsForRoom,
    /// There is more to do, but others have waited long enough.
    Again,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Direction {
    shares: Option<Shares>,
    /// The source has more to read, as far as is known.
    pub(crate) readable: bool,
    /// The destination takes more, as far as is known.
    pub(crate) writable: bool,
    /// The source has sent its last byte, and it has been read.
    pub(crate) ended: bool,
    /// The end of file has been passed on to the destination.
    pub(crate) passed: bool,
    /// Bytes given to the destination.
    pub(crate) moved: u64,
    pipe: Option<Pipe>,
    in_pipe: usize,
    /// What a destination did not take at once of what was copied.
    rest: Vec<u8>,
    /// The source has sent urgent data, at which splice stops for good.
    pub(crate) urgent: bool,
}

impl Direction {
    pub(crate) fn new(shares: Option<Shares>) -> Self {
        Direction {
            shares,
            readable: true,
            writable: true,
            ended: false,
            passed: false,
            moved: 0,
            pipe: None,
            in_pipe: 0,
            rest: Vec::new(),
            urgent: false,
        }
    }

    /// Bytes in the proxy's own hands.
    pub(crate) fn in_hand(&self) -> usize {
        self.in_pipe + self.rest.len()
    }

    /// Whether everything that will ever come has been given to the destination.
    pub(crate) fn finished(&self) -> bool {
        self.ended && self.in_hand() == 0
    }

    /// Moves what can be moved.
    pub(crate) fn pump(&mut self, source: BorrowedFd<'_>, destination: BorrowedFd<'_>, tools: &mut Tools) -> Result<Pumped, Fault> {
        match self.shares {
            Some(shares) if shares.pipe == 0 => self.copy(source, destination, tools, shares.unsent),
            // Until the receive queue is empty; then splice can go again.
            shares if (self.urgent || !self.rest.is_empty()) && self.in_pipe == 0 => {
                self.copy(source, destination, tools, shares.map_or(usize::MAX, |shares| shares.unsent))
            }
            shares => self.splice(source, destination, tools, shares.map_or(usize::MAX, |shares| shares.pipe)),
        }
    }

    fn splice(&mut self, source: BorrowedFd<'_>, destination: BorrowedFd<'_>, tools: &mut Tools, at_most: usize) -> Result<Pumped, Fault> {
        // Never SPLICE_F_MORE: the last bytes before a pause would wait for more that does not come.
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        for _ in 0..ROUNDS {
            if self.in_pipe == 0 {
                if self.ended || !self.readable || !self.writable {
                    break;
                }
                let pipe = match self.pipe.take() {
                    Some(pipe) => pipe,
                    None => tools.borrow_pipe().map_err(|_| Fault::Own)?,
                };
                // The pipe is empty here, so that EAGAIN can only mean an empty receive queue.
                let moved = splice(source, None, &pipe.write, None, at_most.min(1 << 20), flags);
                self.pipe = Some(pipe);
                match moved {
                    // Splice says so at an urgent mark too, once a FIN has come.
                    Ok(0) if has_more(source) => {
                        self.urgent = true;
                        break;
                    }
                    Ok(0) => self.ended = true,
                    Ok(count) => self.in_pipe = count,
                    Err(Errno::AGAIN) => self.readable = false,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(Fault::Source(errno.into())),
                }
            }
            if self.in_pipe > 0 {
                let Some(pipe) = &self.pipe else { break };
                match splice(&pipe.read, None, destination, None, self.in_pipe, flags) {
                    Ok(count) => {
                        self.in_pipe -= count;
                        self.moved += count as u64;
                    }
                    Err(Errno::AGAIN) => {
                        self.writable = false;
                        return Ok(Pumped::Waits);
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(Fault::Destination(errno.into())),
                }
            }
        }
        if self.in_pipe == 0
            && let Some(pipe) = self.pipe.take()
        {
            tools.give_back(pipe);
        }
        Ok(self.verdict())
    }

    fn copy(
        &mut self,
        source: BorrowedFd<'_>,
        destination: BorrowedFd<'_>,
        tools: &mut Tools,
        most_unsent: usize,
    ) -> Result<Pumped, Fault> {
        for _ in 0..ROUNDS {
            if !self.rest.is_empty() {
                if !self.writable {
                    break;
                }
                let sent = Self::send(&mut self.writable, destination, &self.rest)?;
                self.rest.drain(..sent);
                self.moved += sent as u64;
                continue;
            }
            if self.ended || !self.readable || !self.writable {
                break;
            }
            let unsent = crate::sys::unsent(destination).map_err(Fault::Destination)?;
            let room = most_unsent.saturating_sub(unsent).min(tools.scratch.len());
            if room == 0 {
                self.writable = false;
                return Ok(Pumped::WaitsForRoom);
            }
            match rustix::net::recv(source, &mut tools.scratch[..room], rustix::net::RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.ended = true,
                Ok((_, count)) => {
                    let sent = Self::send(&mut self.writable, destination, &tools.scratch[..count])?;
                    self.moved += sent as u64;
                    self.rest.extend_from_slice(&tools.scratch[sent..count]);
                }
                Err(Errno::AGAIN) => {
                    self.readable = false;
                    self.urgent = false;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Fault::Source(errno.into())),
            }
        }
        if self.rest.is_empty() {
            // An idle connection keeps no memory.
            self.rest = Vec::new();
        }
        Ok(self.verdict())
    }

    /// Sends what the destination takes, and notes when it takes no more.
    fn send(writable: &mut bool, destination: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Fault> {
        use rustix::net::SendFlags;
        match rustix::net::send(destination.as_fd(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(Errno::AGAIN) => {
                *writable = false;
                Ok(0)
            }
            Err(errno) => Err(Fault::Destination(errno.into())),
        }
    }

    fn verdict(&self) -> Pumped {
        let could_read = !self.ended && self.readable;
        if self.writable && (could_read || self.in_hand() > 0) { Pumped::Again } else { Pumped::Waits }
    }
}

/// Whether there is a byte to read, which a true end of file has not.
fn has_more(source: BorrowedFd<'_>) -> bool {
    use rustix::net::{RecvFlags, recv};
    matches!(recv(source, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 1..)))
}
