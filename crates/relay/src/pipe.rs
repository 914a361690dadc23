//! A pipe, through which bytes go from one socket to another by reference: pages are passed on, not
//! copied.

use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    net::{RecvFlags, recv},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee},
};
use std::io;

/// Not SPLICE_F_MORE: the last bytes before a pause would wait for more that does not come.
const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// A pipe. No call blocks, where the sockets do not.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

/// What filling a pipe came to.
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
    /// Size of a pipe, bytes: the most that an unprivileged process may have. Each packet takes a
    /// slot whatever its size, so that such a pipe may hold far less.
    pub const ROOM: usize = 1 << 20;

    /// A pipe of [`ROOM`](Self::ROOM), or a smaller one, which is only slower, once the user's
    /// processes have used up their share of pipe pages (fs.pipe-user-pages-soft).
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let size = fcntl_setpipe_size(&write, Self::ROOM).unwrap_or(0);
        Ok(Pipe { read, write, size })
    }

    /// Whether it has [`ROOM`](Self::ROOM).
    pub fn is_large(&self) -> bool {
        self.size >= Self::ROOM
    }

    /// Takes what a socket has, `most` bytes at the most. If the pipe was empty, [`Errno::AGAIN`]
    /// means an empty receive queue.
    pub fn fill(&self, source: impl AsFd, most: usize) -> Result<Filled, Errno> {
        match splice(&source, None, &self.write, None, most, FLAGS)? {
            // Splice returns 0 at an urgent mark too, once a FIN has come.
            0 if has_ended(&source) => Ok(Filled::Ended),
            0 => Ok(Filled::AtUrgentMark),
            count => Ok(Filled::Bytes(count)),
        }
    }

    /// Moves some of its bytes, `most` at the most, to a socket, another pipe or a file.
    pub fn pour(&self, destination: impl AsFd, most: usize) -> Result<usize, Errno> {
        splice(&self.read, None, destination, None, most, FLAGS)
    }

    /// The same, to another pipe.
    pub fn pass(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        self.pour(&other.write, most)
    }

    /// Gives another pipe its first bytes by reference and keeps them; returns how many.
    pub fn share(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        tee(&self.read, &other.write, most, FLAGS)
    }

    /// Copies its first bytes out, as many as `room` has; it must have so many.
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

/// Whether the source has ended for certain. A read that fails proves nothing: to take it for an
/// end of file would close the other leg cleanly before its last byte.
fn has_ended(source: impl AsFd) -> bool {
    matches!(recv(source, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((_, 0)))
}
