//! A connection of a bond: a socket, and TLS over it if configured.

use crate::{tls::Tls, zero_copy::PipeChunk};
use rustix::{
    fd::{AsFd, BorrowedFd},
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};
use socket2::Socket;
use std::io::{IoSlice, IoSliceMut};

/// A connection, in the clear or encrypted. No call blocks.
#[derive(Debug)]
pub(crate) enum Channel {
    Clear(Socket),
    Encrypted(Box<Tls>),
}

impl Channel {
    pub(crate) fn socket(&self) -> &Socket {
        match self {
            Channel::Clear(socket) => socket,
            Channel::Encrypted(tls) => tls.socket(),
        }
    }

    /// Sends bytes of `parts`; returns how many. [`Errno::AGAIN`]: none now. `more`: further bytes
    /// follow at once, and the last segment may wait for them.
    pub(crate) fn send(&mut self, parts: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
        match self {
            Channel::Clear(socket) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
                loop {
                    match sendmsg(&*socket, parts, &mut SendAncillaryBuffer::default(), flags) {
                        Err(Errno::INTR) => {}
                        done => return done,
                    }
                }
            }
            Channel::Encrypted(tls) => tls.send(parts),
        }
    }

    /// Sends bytes of a chunk; only possible without TLS.
    pub(crate) fn pour(&mut self, chunk: &mut PipeChunk) -> Result<usize, Errno> {
        match self {
            Channel::Clear(socket) => chunk.pour(socket),
            Channel::Encrypted(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Receives into `parts`; returns how many bytes. 0: the other end has closed it.
    /// [`Errno::AGAIN`]: none now.
    pub(crate) fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match self {
            Channel::Clear(socket) => loop {
                match rustix::io::readv(&*socket, parts) {
                    Err(Errno::INTR) => {}
                    done => return done,
                }
            },
            Channel::Encrypted(tls) => tls.receive(parts),
        }
    }

    /// Notes how many bytes of a piece are still to come. With TLS, the socket becomes readable
    /// when all of them have arrived (SO_RCVLOWAT).
    pub(crate) fn expect(&mut self, bytes: u64) {
        if let Channel::Encrypted(tls) = self {
            tls.expect(bytes);
        }
    }

    /// Sends the bytes that TLS holds. [`Errno::AGAIN`]: not all now.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Channel::Clear(_) => Ok(()),
            Channel::Encrypted(tls) => tls.flush(),
        }
    }

    /// Bytes that TLS has taken and not sent.
    pub(crate) fn pending(&self) -> usize {
        if let Channel::Encrypted(tls) = self { tls.pending() } else { 0 }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
