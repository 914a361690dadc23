//! B of the direction from a plain leg into the bond, which follows what the stream carries.
//!
//! The streams of a bond share its networks. How much each carries depends on how many there are. A
//! receive queue that is longer than its stream needs makes its application wait: the queue is
//! filled first, at the rate of the plain leg, and the application's kernel takes that rate for the
//! path's. It then enlarges the congestion window and with it the send buffer (to megabytes), and
//! wakes a blocked application only when a third of the send buffer has left at the rate of the
//! stream.

use crate::stream::Stream;
use intercept::{leg::Shares, sys};
use relay::{
    BufferControl, PlainLeg,
    buffer_law::{BufferLimits, START},
};
use std::{io, time::Instant};

/// After this many bytes a direction tunes its plain socket for bulk data.
const TUNE_FROM: u64 = 32 * 1024;
/// The fewest segments of its source that B holds: a window of fewer would stall on loopback, where
/// a segment has 64 KiB.
const LEAST_SEGMENTS: u64 = 8;

/// B of a plain leg's queues, once it carries bulk data.
///
/// In each turn the caller calls [`adapt`](Self::adapt), reads from the leg, and calls
/// [`end_turn`](Self::end_turn).
#[derive(Debug, Default)]
pub(crate) struct PlainBuffer {
    /// How the largest B is divided; none: there is no bound.
    most: Option<Shares>,
    /// Between which values B of the receive queue follows the stream; none: it is small and fixed.
    limits: Option<BufferLimits>,
    /// Measures the stream, once the leg has brought bulk data.
    control: Option<Box<BufferControl>>,
    is_tuned: bool,
}

impl PlainBuffer {
    /// With a largest B that is divided so (none: there is no bound). `is_near`: the leg leads to a
    /// client. B begins small there: many clients that begin to send at once fill theirs before the
    /// rate of any is known.
    pub(crate) fn new(most: Option<Shares>, is_near: bool) -> Self {
        let limits = most.map(|most| most.buffer() as u64).filter(|most| *most > START).map(BufferLimits::up_to);
        let limits = limits.map(|limits| if is_near { limits.starting_small() } else { limits });
        PlainBuffer { most, limits, ..PlainBuffer::default() }
    }

    /// Bounds the queues of the plain socket, once it has carried bulk data in a direction: `moved`
    /// bytes.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn tune(&mut self, plain: &mut PlainLeg, moved: u64) -> io::Result<()> {
        if self.is_tuned || moved < TUNE_FROM {
            return Ok(());
        }
        self.is_tuned = true;
        let Some(most) = self.most else { return Ok(()) };
        if self.limits.is_none() {
            plain.change_receive(most)?;
        }
        // What waits to be sent here has crossed the bond: less of it would not help anybody.
        plain.bound_unsent(most)
    }

    /// Measures the stream, if that is due, and has the bound of the receive queue follow it.
    /// `taken` bytes of the stream were read from the leg.
    ///
    /// # Errors
    /// A socket's.
    pub(crate) fn adapt(&mut self, plain: &mut PlainLeg, stream: &Stream, taken: u64, now: Instant) -> io::Result<()> {
        let Some(limits) = self.limits.filter(|_| taken >= TUNE_FROM && !plain.has_failed()) else { return Ok(()) };
        if let Some(control) = &mut self.control {
            control.begin_turn(now);
            if control.is_due(taken, now) {
                control.update(plain, stream.sending_side(), [taken, 0, u64::MAX], now)?;
            }
            return Ok(());
        }
        let segment = sys::tcp_info(&*plain)?.rcv_mss;
        let least = limits.least.max(LEAST_SEGMENTS * u64::from(segment)).min(limits.most);
        let limits = BufferLimits { least, start: limits.start.max(least), ..limits };
        let mut control = BufferControl::new(limits, plain, stream.sending_side(), [taken, u64::MAX], now)?;
        control.bound_source(plain)?;
        self.control = Some(Box::new(control));
        Ok(())
    }

    /// To be called after bytes were read.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn end_turn(&mut self, plain: &mut PlainLeg) -> io::Result<()> {
        let Some(control) = &mut self.control else { return Ok(()) };
        if plain.has_failed() {
            return Ok(());
        }
        if !plain.readable {
            control.wait_for_source();
        }
        control.end_turn(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Taken;
    use bond::{BondSettings, Scheduler};
    use intercept::leg::{self, LegProfile};
    use socket2::Socket;
    use std::{
        io::{ErrorKind, Write as _},
        net::{Ipv4Addr, TcpListener, TcpStream},
        time::Duration,
    };

    const MOST: usize = 4 << 20;

    /// A plain leg, and the other end of its connection, which sends.
    fn connect() -> (PlainLeg, TcpStream) {
        let first = Shares::of(START as usize).growing_to(MOST);
        let listener = Socket::from(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        leg::prepare(&listener, Some(first)).unwrap();
        let listener = TcpListener::from(listener);
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nonblocking(true).unwrap();
        let socket = Socket::from(listener.accept().unwrap().0);
        socket.set_nonblocking(true).unwrap();
        (PlainLeg::new(socket, &LegProfile::default(), Some(first)), peer)
    }

    /// Sends until nothing more is taken for a while; returns the bytes in the leg's queue.
    fn fill(plain: &PlainLeg, peer: &mut TcpStream) -> usize {
        let (mut last, mut received) = (Instant::now(), 0);
        while last.elapsed() < Duration::from_millis(100) {
            match peer.write(&[7; 16 * 1024]) {
                Ok(_) => last = Instant::now(),
                Err(why) if why.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
                Err(why) => panic!("{why}"),
            }
            if sys::received(plain) != received {
                (last, received) = (Instant::now(), sys::received(plain));
            }
        }
        received
    }

    /// What waits in the leg's queue if the stream carries nothing, after the leg has brought bulk
    /// data.
    fn queue_before_a_stalled_stream() -> usize {
        let (mut plain, mut peer) = connect();
        let mut stream = Stream::new(BondSettings::new(Scheduler::Score), 8 << 20, 8 << 20, None);
        let mut buffer = PlainBuffer::new(Some(Shares::of(MOST)), true);
        let begun = Instant::now();
        let mut taken = 0;
        while taken < TUNE_FROM {
            if let Ok(Taken::Bytes { count, .. }) = stream.take(&plain) {
                taken += count as u64;
            }
            let _ = peer.write(&[7; 1024]);
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        for _ in 0..2 {
            buffer.tune(&mut plain, taken).unwrap();
            buffer.adapt(&mut plain, &stream, taken, Instant::now()).unwrap();
            buffer.end_turn(&mut plain).unwrap();
        }
        plain.pause_receive().unwrap();
        fill(&plain, &mut peer)
    }

    #[test]
    fn a_queue_before_a_stream_that_carries_little_is_short() {
        // On the loopback B holds eight segments of 64 KiB.
        assert!(queue_before_a_stalled_stream() <= 512 * 1024);
        // A small B is what it is configured to be.
        let small = PlainBuffer::new(Some(Shares::of(START as usize)), true);
        assert!(small.limits.is_none() && PlainBuffer::new(None, true).limits.is_none());
    }
}
