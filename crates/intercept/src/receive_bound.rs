//! Bounds the payload in a socket's receive queue, without making the kernel drop data that the
//! announced window has admitted.
//!
//! The kernel charges each packet to the receive buffer with its overhead (`truesize`), and
//! converts free buffer to a window by the ratio of payload to truesize that it saw in the first
//! full segment. Later packets may have a worse ratio: 0.93 for 64 KiB merged by GRO, 0.63 for
//! single packets of 1500 bytes. The window already announced is then larger than what the buffer
//! holds. TCP never shrinks an announced window, so that the kernel drops packets that it had
//! admitted. While the socket is not read it drops their retransmissions too: the sender runs into
//! its retransmission timeout.
//!
//! A buffer that is not locked (SO_BUF_LOCK, Linux 5.14) grows instead, by what was admitted, up to
//! the maximum of `net.ipv4.tcp_rmem`. But when such a socket is read, the kernel's receive
//! autotuning enlarges the window regardless of any bound. So the buffer is locked while the socket
//! is read, and unlocked while it is not.
//!
//! Out-of-order packets make newer kernels (Linux 6.16 and later, by their source) enlarge an
//! unlocked buffer too. The next call corrects that, but data for the window announced meanwhile
//! may still arrive (`docs/limitations.md`).

use crate::sys::{self, BufferLocks, ReceiveMemory};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;

/// The bound of one socket.
///
/// Call [`resume`](Self::resume) immediately before each read, and only then: the window that it
/// allows relies on the room that the read makes. Call [`pause`](Self::pause) when data stays in
/// the queue until the destination accepts more.
#[derive(Debug, Default)]
pub struct ReceiveBound {
    /// Upper bound on payload in the queue, bytes. `None`: the kernel's own limits apply.
    bytes: Option<usize>,
    /// A lower bound that only the window has so far, bytes.
    lower: Option<usize>,
    /// The socket's locks, read when they were first needed.
    locks: Option<BufferLocks>,
    buffer: BufferState,
    /// The buffer stays at the bound, although the kernel may drop what its window has admitted.
    is_strict: bool,
}

/// The present state of a socket's receive buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum BufferState {
    /// Locked at the bound.
    #[default]
    Bounded,
    /// Unlocked: it grows from this size in bytes to hold what was admitted.
    Growing { from: usize },
    /// Locked at more than the bound, because the queue exceeds it.
    Raised,
}

impl ReceiveBound {
    /// For a socket that has this bound already, from its listener or its profile.
    pub fn inherited(bytes: Option<usize>) -> Self {
        ReceiveBound { bytes, ..Self::default() }
    }

    /// Sets the bound, in bytes of payload.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn set(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        self.bytes = Some(bytes);
        self.lower = None;
        self.buffer = BufferState::Bounded;
        self.is_strict = false;
        bound_receive(socket, bytes)
    }

    /// Holds the memory of the queue to this bound at once, until the bound is changed. What an
    /// earlier window has admitted and the bound has no room for is dropped, and has to be
    /// retransmitted: only for a host that is about to run out of memory.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn hold(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        self.bytes = Some(bytes);
        self.lower = None;
        self.buffer = BufferState::Bounded;
        self.is_strict = true;
        // The kernel doubles the value.
        sys::force_receive_buffer(socket, bytes / 2)?;
        clamp_to_fit(socket, bytes)
    }

    /// Removes the bound: the kernel tunes the buffer again. Before Linux 5.14, which cannot unlock
    /// a buffer, the bound becomes `otherwise`.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn lift(&mut self, socket: BorrowedFd<'_>, otherwise: usize) -> io::Result<()> {
        let unlocked = self.locks.map_or_else(|| BufferLocks::of(socket), Ok).and_then(|locks| locks.with_receive(false).apply(socket));
        if unlocked.is_err() {
            return self.set(socket, otherwise);
        }
        *self = ReceiveBound { locks: self.locks, ..Self::default() };
        sys::clamp_window(socket, otherwise)
    }

    /// Notes that the socket's send buffer has been locked, or unlocked: both locks are one option.
    pub fn note_send_lock(&mut self, locked: bool) {
        self.locks = self.locks.map(|locks| locks.with_send(locked));
    }

    /// Changes the bound of a connection in use, in bytes of payload. A higher one takes effect at
    /// once.
    ///
    /// A lower one bounds the window at first, not the buffer: what an earlier window has admitted
    /// may still arrive, for a round trip. TCP does not take an announced window back (RFC 9293
    /// §3.8.6.2.1), and neither does the kernel (`tcp_select_window`): the window closes as data
    /// arrives. Call [`settle`](Self::settle) until it is complete: the window alone bounds what
    /// arrives in a round trip, but not a queue that is not read.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn change(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        self.is_strict = false;
        if self.bytes.is_some_and(|present| bytes < present) {
            self.lower = Some(bytes);
            return clamp_to_fit(socket, bytes);
        }
        self.bytes = Some(bytes);
        self.lower = None;
        self.refit(socket, bytes)
    }

    /// Continues a [`change`](Self::change) to a lower bound; returns whether it is complete. If
    /// not, call it again after reads, before what they freed is announced, and before reads, when
    /// the window is closed.
    ///
    /// The buffer is lowered only so far that what is in the queue and what the last announced
    /// window has admitted still fit. The window then opens no further until reads make room.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn settle(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let (Some(lower), Some(present)) = (self.lower, self.bytes) else { return Ok(true) };
        let info = sys::tcp_info(socket)?;
        let (window, used, received) = (info.rcv_wnd as usize, sys::receive_memory(socket)?.used, sys::received(socket));
        // Assumes that packets in flight have the same ratio as those in the queue, if that has
        // some.
        let in_flight = if received > ENOUGH_FOR_RATIO { window * used / received } else { window * MOST_OVERHEAD };
        // A closed window admits nothing: the queue may exceed its buffer until it is read.
        let admitted = if window < info.rcv_mss as usize { 0 } else { used + in_flight.min(window * MOST_OVERHEAD) };
        let bytes = lower.max(admitted).min(present);
        self.bytes = Some(bytes);
        self.lower = self.lower.filter(|lower| *lower < bytes);
        self.refit(socket, bytes)?;
        Ok(self.lower.is_none())
    }

    /// Gives the buffer another bound, at once or, while it is not locked, with the next read.
    fn refit(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        if self.buffer != BufferState::Bounded {
            self.buffer = BufferState::Raised;
            return Ok(());
        }
        self.bound(socket, bytes)
    }

    /// Bounds the receive queue to `bytes`, and the window to a lower bound that is still to come.
    fn bound(&self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        bound_receive(socket, bytes)?;
        self.lower.map_or(Ok(()), |lower| clamp_to_fit(socket, lower))
    }

    /// Lets the queue hold everything that was admitted, until the next [`resume`](Self::resume).
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn pause(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(bytes) = self.bytes.filter(|_| !self.is_strict) else { return Ok(()) };
        match self.buffer {
            BufferState::Bounded => {}
            BufferState::Raised => self.fit(socket, bytes)?,
            BufferState::Growing { from } => {
                let ReceiveMemory { used, buffer, .. } = sys::receive_memory(socket)?;
                if buffer <= from.max(used) {
                    return Ok(());
                }
                // Out-of-order packets made the kernel (Linux 6.16 and later) enlarge the buffer.
                self.fit(socket, bytes)?;
            }
        }
        // Before Linux 5.14 the option does not exist, and packets of a worse ratio are dropped.
        let locks = self.locks.map_or_else(|| BufferLocks::of(socket), Ok);
        if let Ok(locks) = locks
            && locks.with_receive(false).apply(socket).is_ok()
        {
            let from = if self.buffer == BufferState::Bounded { bytes } else { sys::receive_memory(socket)?.buffer };
            self.locks = Some(locks.with_receive(true));
            self.buffer = BufferState::Growing { from };
        }
        Ok(())
    }

    /// Locks the buffer for a read: the kernel must neither tune it, nor drop what it has admitted.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn resume(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(bytes) = self.bytes.filter(|_| self.buffer != BufferState::Bounded) else { return Ok(()) };
        self.fit(socket, bytes)
    }

    /// Locks the buffer at the bound. If the queue exceeds the bound, locks it with room for
    /// everything that may still be in flight: queue and window together then hold at most the
    /// bound, or what the queue holds already.
    ///
    /// The window clamp stays. A lower clamp would lower the kernel's own limit of the window
    /// (`rcv_ssthresh`), which only arriving packets raise again. Once that limit is below one
    /// segment, no packets arrive.
    fn fit(&mut self, socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        let ReceiveMemory { used, buffer, .. } = sys::receive_memory(socket)?;
        // A buffer that has not grown holds everything that was admitted; the last packet may
        // exceed it.
        if used > bytes && buffer > bytes {
            let received = sys::received(socket);
            // Assumes that packets in flight have the same ratio as those in the queue.
            let room = bytes.saturating_sub(received).saturating_mul(used) / received.max(used / 2);
            self.buffer = BufferState::Raised;
            // The kernel doubles the value.
            return sys::force_receive_buffer(socket, (used + room) / 2);
        }
        let unchanged = matches!(self.buffer, BufferState::Growing { .. }) && buffer <= bytes;
        self.buffer = BufferState::Bounded;
        match self.locks.filter(|_| unchanged) {
            Some(locks) => locks.apply(socket),
            None => self.bound(socket, bytes),
        }
    }
}

/// Memory of received packets over their payload at the worst, rounded up (1.6: see above).
const MOST_OVERHEAD: usize = 2;
/// Payload in the queue from which its own ratio of memory to payload is telling, bytes.
const ENOUGH_FOR_RATIO: usize = 16 * 1024;

/// Bounds the window so that what it admits fits into a buffer of `bytes`, although the window
/// scale rounds it up.
fn clamp_to_fit(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    const MOST_ROUNDING: usize = 4096;
    let window = (bytes / MOST_OVERHEAD).saturating_sub(MOST_ROUNDING);
    sys::clamp_window(socket, window.max(bytes / (MOST_OVERHEAD + 1)))
}

/// Bounds the payload in the receive queue to `bytes`, and so the window.
///
/// The kernel charges packets to the buffer with their overhead, which may be small or exceed the
/// payload. So a buffer of `bytes`, overhead included, is an upper bound on payload.
/// TCP_WINDOW_CLAMP alone is not: it bounds the window, not the queue, and the kernel resets it
/// when a larger segment arrives. But a connection has a clamp from its handshake, derived from the
/// buffer that it had then, which has to grow with the buffer.
///
/// # Errors
/// The socket refuses an option.
pub fn bound_receive(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    // The kernel doubles the value.
    sys::force_receive_buffer(&socket, bytes / 2)?;
    sys::clamp_window(&socket, bytes)
}

/// As [`bound_receive`], for a socket before its handshake. Its bound may become up to `most`
/// later.
///
/// The window scale has to fit `most`, and the first window must not be larger than the bound: TCP
/// does not take a window back. The kernel derives the scale from the clamp only if the buffer is
/// not locked. So the kernel tunes the buffer until [`ReceiveBound::change`] locks it.
///
/// # Errors
/// The kernel refuses an option.
pub fn bound_receive_at_first(socket: impl AsFd, bytes: usize, most: usize) -> io::Result<()> {
    sys::force_receive_buffer(&socket, bytes / 2)?;
    sys::clamp_window(&socket, most)?;
    let unlocked = BufferLocks::of(&socket).and_then(|locks| locks.with_receive(false).apply(&socket));
    // Before Linux 5.14 buffers cannot be unlocked. The first window is then that of `most`.
    unlocked.or_else(|_| bound_receive(&socket, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{ErrorKind, Write as _},
        net::{TcpListener, TcpStream},
        thread,
        time::{Duration, Instant},
    };

    const BOUND: usize = 128 * 1024;
    /// By how much the last packet may exceed a buffer, bytes.
    const LAST_PACKET: usize = 4096;

    /// A nonblocking sender, and the accepted socket, whose receive buffer has the bound.
    fn connect() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        bound_receive(&listener, BOUND).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.set_nonblocking(true).unwrap();
        (sender, listener.accept().unwrap().0)
    }

    /// Sends until neither buffer accepts more for a while. Returns the bytes in the receive queue.
    fn fill(sender: &mut TcpStream, receiver: &TcpStream) -> usize {
        let mut last = (Instant::now(), 0);
        while last.0.elapsed() < Duration::from_millis(50) {
            match sender.write(&[0; 1000]) {
                Ok(_) => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
                Err(why) => panic!("{why}"),
            }
            let received = sys::received(receiver);
            if received != last.1 {
                last = (Instant::now(), received);
            }
        }
        last.1
    }

    #[test]
    fn a_queue_that_is_not_read_keeps_to_its_bound() {
        let (mut sender, receiver) = connect();
        // Single packets, whose overhead is considerable.
        sender.set_nodelay(true).unwrap();
        let mut bound = ReceiveBound::inherited(Some(BOUND));
        bound.pause(receiver.as_fd()).unwrap();
        let full = fill(&mut sender, &receiver);
        for _ in 0..20 {
            bound.resume(receiver.as_fd()).unwrap();
            fill(&mut sender, &receiver);
            bound.pause(receiver.as_fd()).unwrap();
            fill(&mut sender, &receiver);
        }
        let received = sys::received(&receiver);
        assert!(received <= full + LAST_PACKET, "{received} bytes in the queue, {full} at first");
    }

    #[test]
    fn a_queue_that_the_kernel_enlarged_opens_its_window_again() {
        let (mut sender, receiver) = connect();
        let mut bound = ReceiveBound::inherited(Some(BOUND));
        bound.pause(receiver.as_fd()).unwrap();
        // As the kernel does when packets arrive out of order.
        sys::force_receive_buffer(&receiver, 4 * BOUND).unwrap();
        sys::clamp_window(&receiver, 4 * BOUND).unwrap();
        let received = fill(&mut sender, &receiver);
        assert!(received > BOUND, "only {received} bytes in the queue");
        let window_limit = sys::tcp_info(&receiver).unwrap().rcv_ssthresh as usize;
        while sys::received(&receiver) > 0 {
            bound.resume(receiver.as_fd()).unwrap();
            rustix::io::read(&receiver, &mut [0; BOUND / 4]).unwrap();
            bound.pause(receiver.as_fd()).unwrap();
        }
        let after = sys::tcp_info(&receiver).unwrap().rcv_ssthresh as usize;
        assert!(after >= window_limit.min(BOUND / 2), "{after} of {window_limit} bytes");
    }

    /// Reads everything, as the relay does, and returns how many bytes there were.
    fn drain(bound: &mut ReceiveBound, receiver: &TcpStream) -> usize {
        let mut count = 0;
        while sys::received(receiver) > 0 {
            bound.resume(receiver.as_fd()).unwrap();
            count += rustix::io::read(receiver, &mut [0; BOUND / 4]).unwrap();
        }
        count
    }

    #[test]
    fn a_bound_is_lowered_and_raised_again_and_again() {
        let (mut sender, receiver) = connect();
        sender.set_nodelay(true).unwrap();
        let mut bound = ReceiveBound::inherited(Some(BOUND));
        // On loopback a segment has up to 64 KiB, and a smaller buffer has a window only when it is
        // empty.
        let (least, full) = (BOUND / 2, fill(&mut sender, &receiver));
        for _ in 0..10 {
            // The window of the larger bound is announced, and then used up.
            bound.change(receiver.as_fd(), BOUND).unwrap();
            fill(&mut sender, &receiver);
            drain(&mut bound, &receiver);
            bound.change(receiver.as_fd(), least).unwrap();
            bound.pause(receiver.as_fd()).unwrap();
            fill(&mut sender, &receiver);
            while !bound.settle(receiver.as_fd()).unwrap() {
                drain(&mut bound, &receiver);
            }
            drain(&mut bound, &receiver);
            bound.pause(receiver.as_fd()).unwrap();
            let lower = fill(&mut sender, &receiver);
            assert!(lower < full, "{lower} bytes in the queue, {full} before");
            drain(&mut bound, &receiver);
        }
    }

    #[test]
    fn a_bound_is_raised_while_the_queue_is_full() {
        let (mut sender, receiver) = connect();
        let mut bound = ReceiveBound::inherited(Some(BOUND));
        bound.pause(receiver.as_fd()).unwrap();
        let full = fill(&mut sender, &receiver);
        bound.change(receiver.as_fd(), 8 * BOUND).unwrap();
        let mut most = 0;
        // The kernel's own limit of the window follows as packets arrive.
        for _ in 0..10 {
            drain(&mut bound, &receiver);
            bound.pause(receiver.as_fd()).unwrap();
            most = most.max(fill(&mut sender, &receiver));
        }
        assert!(most > 3 * full, "{most} bytes in the queue, {full} before");
    }

    #[test]
    fn a_bound_grows_after_a_handshake_with_a_small_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        bound_receive_at_first(&listener, BOUND, 16 * BOUND).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.set_nonblocking(true).unwrap();
        let receiver = listener.accept().unwrap().0;
        let window = sys::tcp_info(&receiver).unwrap().rcv_wnd as usize;
        assert!(window <= BOUND, "a first window of {window} bytes");
        let mut bound = ReceiveBound::inherited(Some(BOUND));
        bound.change(receiver.as_fd(), BOUND).unwrap();
        bound.pause(receiver.as_fd()).unwrap();
        let full = fill(&mut sender, &receiver);
        assert!(full <= BOUND, "{full} bytes in the queue");
        bound.change(receiver.as_fd(), 16 * BOUND).unwrap();
        let mut most = 0;
        for _ in 0..10 {
            drain(&mut bound, &receiver);
            bound.pause(receiver.as_fd()).unwrap();
            most = most.max(fill(&mut sender, &receiver));
        }
        assert!(most > 6 * full, "{most} bytes in the queue, {full} before");
    }

    #[test]
    fn a_queue_that_is_read_has_its_bound_again() {
        let (mut sender, receiver) = connect();
        let mut bound = ReceiveBound::inherited(Some(BOUND));
        for _ in 0..20 {
            bound.pause(receiver.as_fd()).unwrap();
            fill(&mut sender, &receiver);
            bound.resume(receiver.as_fd()).unwrap();
            rustix::io::read(&receiver, &mut [0; BOUND / 2]).unwrap();
        }
        fill(&mut sender, &receiver);
        while sys::received(&receiver) > 0 {
            bound.resume(receiver.as_fd()).unwrap();
            rustix::io::read(&receiver, &mut [0; BOUND / 2]).unwrap();
        }
        bound.resume(receiver.as_fd()).unwrap();
        assert_eq!((bound.buffer, sys::receive_memory(&receiver).unwrap().buffer), (BufferState::Bounded, BOUND));
    }
}
