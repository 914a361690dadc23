//! A pipe for zero-copy relaying: `splice` passes the pages of one socket to another by reference.

use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::{RecvFlags, recv},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee},
};
use std::io;

/// Without SPLICE_F_MORE: it would hold the last bytes before a pause back.
const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// A pipe. No call blocks if the sockets are non-blocking.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

/// Result of [`Pipe::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// This many bytes were moved into the pipe.
    Bytes(usize),
    /// End of file: all bytes of the source have been read.
    Ended,
    /// Splice stopped before urgent data, which it never passes, or it is unknown whether the
    /// source has ended. The caller has to read instead.
    AtUrgentMark,
}

impl Pipe {
    /// Size of a pipe, bytes: the largest that an unprivileged process may have. Each packet takes
    /// a slot whatever its size, so that a pipe of small packets holds far less.
    pub const ROOM: usize = 1 << 20;

    /// Opens a pipe of [`ROOM`](Self::ROOM) bytes, or a smaller and slower one once the user's
    /// processes have used up their share of pipe pages (fs.pipe-user-pages-soft).
    ///
    /// # Errors
    /// When no descriptor or memory is left.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let size = fcntl_setpipe_size(&write, Self::ROOM).unwrap_or(0);
        Ok(Pipe { read, write, size })
    }

    /// Whether its size is [`ROOM`](Self::ROOM).
    pub fn is_large(&self) -> bool {
        self.size >= Self::ROOM
    }

    /// Moves at most `most` bytes from a socket into the pipe.
    ///
    /// # Errors
    /// The socket's. If the pipe was empty, [`Errno::AGAIN`] means that the receive queue is empty.
    pub fn fill(&self, source: impl AsFd, most: usize) -> Result<Filled, Errno> {
        match splice(&source, None, &self.write, None, most, FLAGS)? {
            // Splice also returns 0 at an urgent mark if a FIN has arrived.
            0 if has_ended(&source) => Ok(Filled::Ended),
            0 => Ok(Filled::AtUrgentMark),
            count => Ok(Filled::Bytes(count)),
        }
    }

    /// Moves at most `most` bytes to a socket, another pipe or a file; returns how many.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when the destination takes none now, else the destination's error.
    pub fn pour(&self, destination: impl AsFd, most: usize) -> Result<usize, Errno> {
        splice(&self.read, None, destination, None, most, FLAGS)
    }

    /// As [`pour`](Self::pour), to another pipe.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when the other pipe is full.
    pub fn pass(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        self.pour(&other.write, most)
    }

    /// Duplicates at most `most` bytes into another pipe by reference (`tee`) and keeps them;
    /// returns how many.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when the other pipe is full.
    pub fn share(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        tee(&self.read, &other.write, most, FLAGS)
    }

    /// Reads its first `room.len()` bytes into `room`. The pipe must hold that many.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when it holds fewer.
    pub fn read(&self, mut room: &mut [u8]) -> Result<(), Errno> {
        while !room.is_empty() {
            match rustix::io::read(&self.read, &mut *room)? {
                0 => return Err(Errno::PIPE),
                count => room = &mut room[count..],
            }
        }
        Ok(())
    }
}

/// Whether the source is certainly at its end of file. A failed read counts as no: to take it for
/// an end of file would close the other leg cleanly before its last byte.
fn has_ended(source: impl AsFd) -> bool {
    matches!(recv(source, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 0)))
}
