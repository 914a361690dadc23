//! Bounds the payload in a socket's receive queue, and drops nothing that its window has admitted.
//!
//! The kernel charges each packet to the receive buffer with its overhead (`truesize`), and converts
//! free buffer to a window by the ratio of payload to truesize that it saw in the first full segment.
//! Packets that come later may have a worse ratio: 0.93 for 64 KiB merged by GRO, 0.63 for single
//! packets of 1500 bytes. The window already announced is then larger than what the buffer holds. TCP
//! never takes a window back, so that the kernel drops packets it had admitted, and drops their
//! retransmissions too for as long as nobody reads: the sender runs into its timeout.
//!
//! A buffer that is not locked (SO_BUF_LOCK, Linux 5.14) grows instead, by what was admitted, up to
//! the maximum of `net.ipv4.tcp_rmem`. But when such a socket is read, the kernel's receive autotuning
//! enlarges the window without regard to any bound. So a buffer is locked while its socket is read,
//! and unlocked while it is not.
//!
//! Packets out of order make newer kernels (Linux 6.16 and later, by their source) enlarge an unlocked
//! buffer too. The next call puts that right; what was announced meanwhile may come
//! (`docs/limitations.md`).

use crate::sys::{self, BufferLocks, ReceiveMemory};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;

/// Room, beyond what a queue holds, for what arrives between two system calls: some packets.
const SLACK: usize = 16 * 1024;

/// The bound of one socket. Call [`resume`](Self::resume) before reading from the socket, and
/// [`pause`](Self::pause) when what it has is left there.
#[derive(Debug, Default)]
pub struct ReceiveBound {
    /// Most payload in the queue; absent: the kernel's own limits hold.
    bytes: Option<usize>,
    /// The socket's locks, once they were needed.
    locks: Option<BufferLocks>,
    buffer: Buffer,
}

/// What a socket's receive buffer is at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Buffer {
    /// Locked at the bound.
    #[default]
    Bounded,
    /// Unlocked: it grows with what was admitted.
    Growing,
    /// Locked at more than the bound, until the queue fits it again.
    Raised,
}

impl ReceiveBound {
    /// Of a socket that has been given this bound already (by its listener, by its profile).
    pub fn inherited(bytes: Option<usize>) -> Self {
        ReceiveBound { bytes, ..Self::default() }
    }

    /// Sets the bound.
    pub fn set(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        (self.bytes, self.buffer) = (Some(bytes), Buffer::Bounded);
        bound_receive(socket, bytes)
    }

    /// Lets the queue hold all that was admitted, until the next [`resume`](Self::resume).
    pub fn pause(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        match self.buffer {
            Buffer::Bounded => {}
            Buffer::Raised => self.fit(socket, bytes)?,
            Buffer::Growing => {
                let ReceiveMemory { used, buffer, .. } = sys::receive_memory(socket)?;
                if buffer <= bytes.max(used) {
                    return Ok(());
                }
                // Packets out of order make the kernel (Linux 6.16 and later) tune an unlocked buffer.
                self.fit(socket, bytes)?;
            }
        }
        // Before Linux 5.14 there is no such option, and packets of a worse ratio are dropped.
        let locks = self.locks.map_or_else(|| BufferLocks::of(socket), Ok);
        if let Ok(locks) = locks
            && locks.with_receive(false).apply(socket).is_ok()
        {
            (self.locks, self.buffer) = (Some(locks.with_receive(true)), Buffer::Growing);
        }
        Ok(())
    }

    /// Brings the buffer back to its bound, as soon as the queue fits it.
    pub fn resume(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(bytes) = self.bytes.filter(|_| self.buffer != Buffer::Bounded) else { return Ok(()) };
        self.fit(socket, bytes)
    }

    /// Locks the buffer at the bound, or just above what the queue holds where that is more: the kernel must neither tune it,
    /// nor drop what is still in flight, nor announce the room that reading makes beyond the bound.
    fn fit(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        let ReceiveMemory { used, buffer, .. } = sys::receive_memory(socket)?;
        if used > bytes {
            self.buffer = Buffer::Raised;
            sys::force_receive_buffer(socket, (used + SLACK) / 2)?;
            return sys::clamp_window(socket, bytes.saturating_sub(sys::received(socket)).max(1));
        }
        let unchanged = self.buffer == Buffer::Growing && buffer <= bytes;
        self.buffer = Buffer::Bounded;
        match self.locks.filter(|_| unchanged) {
            Some(locks) => locks.apply(socket),
            None => bound_receive(socket, bytes),
        }
    }
}

/// Bounds payload in the receive queue to `bytes`, and so the window. The kernel counts a packet with
/// its overhead, of which there may be little or more than payload: only a buffer of that size with
/// the overhead in it is a bound on payload. TCP_WINDOW_CLAMP alone is none: it bounds the window,
/// not the queue, and the kernel resets it when a larger segment comes. But a connection has a clamp
/// from its handshake, derived from the buffer that it had then, and that has to grow with the buffer.
pub fn bound_receive(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    // The kernel doubles what it is given.
    sys::force_receive_buffer(&socket, bytes / 2)?;
    sys::clamp_window(&socket, bytes)
}
