//! A pipe, through which bytes go from one socket to another by reference: their pages are passed
//! on, never copied.

use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::{RecvFlags, recv},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee},
};
use std::io;

/// Never SPLICE_F_MORE: the last bytes before a pause would wait for more that does not come.
const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// A pipe. Nothing of it ever waits, where sockets do not.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

/// What came of filling a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// So many bytes came.
    Bytes(usize),
    /// The source has sent its last byte, and it has been read.
    Ended,
    /// Urgent data is next, which splice never passes, or it is not known whether the source has
    /// ended: a read tells.
    AtUrgentMark,
}

impl Pipe {
    /// Room in a pipe: as much as an unprivileged process may have. A packet takes a slot whatever
    /// its size, so that a pipe of this size may hold far less.
    pub const ROOM: usize = 1 << 20;

    /// As large as it gets: past its share of pipe pages (fs.pipe-user-pages-soft) a user gets
    /// small pipes, which are slower, no more.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let size = fcntl_setpipe_size(&write, Self::ROOM).unwrap_or(0);
        Ok(Pipe { read, write, size })
    }

    /// Whether it has [`ROOM`](Self::ROOM).
    pub fn is_large(&self) -> bool {
        self.size >= Self::ROOM
    }

    /// Takes what a socket has, `most` bytes at the most. Where the pipe was empty [`Errno::AGAIN`]
    /// can only mean an empty receive queue.
    pub fn fill(&self, source: impl AsFd, most: usize) -> Result<Filled, Errno> {
        match splice(&source, None, &self.write, None, most, FLAGS)? {
            // Splice says so at an urgent mark too, once a FIN has come.
            0 if has_ended(&source) => Ok(Filled::Ended),
            0 => Ok(Filled::AtUrgentMark),
            count => Ok(Filled::Bytes(count)),
        }
    }

    /// Gives some of its bytes away, `most` at the most: to a socket, another pipe, or whatever
    /// takes them.
    pub fn pour(&self, destination: impl AsFd, most: usize) -> Result<usize, Errno> {
        splice(&self.read, None, destination, None, most, FLAGS)
    }

    /// The same, to another pipe.
    pub fn pass(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        self.pour(&other.write, most)
    }

    /// Gives another pipe the first of its bytes, and keeps them; tells how many.
    pub fn share(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        tee(&self.read, &other.write, most, FLAGS)
    }

    /// Copies the first of its bytes out, as many as there is room for: it must have so many.
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

/// Whether there is surely nothing more to read. A look that fails proves nothing: to take it for
/// an end of file would end the other leg cleanly before its last byte.
fn has_ended(source: impl AsFd) -> bool {
    matches!(recv(source, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 0)))
}
