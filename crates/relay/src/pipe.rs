//! A pipe for zero-copy relaying: `splice` passes the pages of one socket to another by reference.

use intercept::sys;
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

    /// Moves at most `most` bytes, of those that it holds, to a socket or a file; returns how many.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when the destination takes none now, else the destination's error.
    pub fn pour(&self, destination: impl AsFd, most: usize) -> Result<usize, Errno> {
        let count = splice(&self.read, None, &destination, None, most, FLAGS)?;
        // Splice sends in pieces. An error after the first piece is lost: splice returns the number
        // of bytes moved, and the socket reports an error only once. A reset would look like a FIN.
        if count < most && sys::is_closed(destination) { Err(Errno::CONNRESET) } else { Ok(count) }
    }

    /// Moves at most `most` bytes to another pipe; returns how many.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when the other pipe is full.
    pub fn pass(&self, other: &Pipe, most: usize) -> Result<usize, Errno> {
        splice(&self.read, None, &other.write, None, most, FLAGS)
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;
    use std::{
        io::Write,
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    /// Closes a socket without a packet. Only with CAP_NET_ADMIN: repair mode (TCP_REPAIR).
    #[allow(unsafe_code)]
    fn vanish(socket: TcpStream) -> io::Result<()> {
        let on: libc::c_int = 1;
        let length = size_of_val(&on) as libc::socklen_t;
        // SAFETY: the pointer and length describe `on`.
        let status = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, (&raw const on).cast(), length) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The reset answers the first piece that a splice sends.
    #[test]
    fn a_reset_between_the_pieces_of_a_splice_is_reported() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        if let Err(why) = vanish(listener.accept().unwrap().0) {
            return testing::skipped("a_reset_between_the_pieces_of_a_splice_is_reported", &why);
        }
        let pipe = Pipe::new().unwrap();
        let bytes = vec![0; pipe.size];
        std::fs::File::from(pipe.write.try_clone().unwrap()).write_all(&bytes).unwrap();
        assert_eq!(pipe.pour(&socket, bytes.len()), Err(Errno::CONNRESET));
    }
}
