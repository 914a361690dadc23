//! A leg that is one TCP connection.

use crate::readiness::Readiness;
use intercept::{
    ReceiveBound,
    leg::{LegProfile, Shares, SilenceTimeout},
    sys::{self, BufferLocks, TcpInfo},
};
use rustix::fd::{AsFd, BorrowedFd};
use socket2::Socket;
use std::{
    io, mem,
    net::Shutdown,
    time::{Duration, Instant},
};

/// A buffer without a bound that had one for a while, where the kernel cannot tune it again (before
/// Linux 5.14), and the largest window then, bytes.
const MOST_UNBOUND: usize = 4 << 20;
/// A send buffer is not enlarged for less in flight, and does not grow beyond the most, bytes: up
/// to 200 Mbit/s over 600 ms.
const LEAST_SEND: usize = 64 << 10;
const MOST_SEND: usize = 64 << 20;
/// What a segment takes of a send buffer besides its payload at most, bytes.
const SEGMENT_OVERHEAD: usize = 1024;

/// A leg that is one TCP connection: its socket, and its state as far as it is known.
///
/// `readable` and `writable` start as true. A system call that would block clears them, and events,
/// which the caller passes to [`take_in`](Self::take_in), set them again.
#[derive(Debug)]
pub struct PlainLeg {
    socket: Socket,
    /// The receive queue may have data.
    pub readable: bool,
    /// The send queue may have room.
    pub writable: bool,
    /// The peer's FIN has arrived: no data follows what is in the receive queue.
    pub hung_up: bool,
    /// The peer has sent urgent data, at which a splice or a read stops early.
    pub urgent: bool,
    receive_bound: ReceiveBound,
    /// Limits of the leg's profile, bytes: of the receive queue, of the unsent part of the send
    /// queue.
    receive_limit: Option<usize>,
    unsent_limit: Option<usize>,
    /// Size of the send buffer that the profile has set, bytes.
    send_buffer: Option<usize>,
    /// The send buffer may grow: its size is not set, memory is not short, and the kernel permits it.
    may_enlarge_send: bool,
    silence: SilenceTimeout,
    kept_alive: bool,
    has_failed: bool,
}

impl PlainLeg {
    /// A socket to which this profile has been applied, and which was prepared for these shares of
    /// B (none: B is unlimited).
    pub fn new(socket: Socket, profile: &LegProfile, shares: Option<Shares>) -> Self {
        let [receive_limit, unsent_limit] = [profile.receive_buffer, profile.not_sent].map(|limit| limit.map(|bytes| bytes.0 as usize));
        let receive = shares.map(|shares| shares.receive).into_iter().chain(receive_limit).min();
        PlainLeg {
            socket,
            readable: true,
            writable: true,
            hung_up: false,
            urgent: false,
            receive_bound: ReceiveBound::inherited(receive),
            receive_limit,
            unsent_limit,
            send_buffer: profile.send_buffer.map(|bytes| bytes.0 as usize),
            may_enlarge_send: profile.send_buffer.is_none(),
            silence: SilenceTimeout::of(profile),
            kept_alive: false,
            has_failed: false,
        }
    }

    /// Its socket, for another use.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Its socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Applies an event of the socket; returns the socket's error, if it has one that no earlier
    /// call has returned.
    pub fn take_in(&mut self, readiness: Readiness) -> Option<io::Error> {
        self.readable |= readiness.readable || readiness.failed;
        self.writable |= (readiness.writable || readiness.failed) && !self.has_failed;
        // A reset is reported as a hang-up too, with its error.
        self.hung_up |= readiness.hung_up && !readiness.failed;
        self.urgent |= readiness.urgent;
        let error = if readiness.failed && !self.has_failed { self.socket.take_error().unwrap_or_else(Some) } else { None };
        // The kernel's error of a reset that follows a FIN.
        self.hung_up |= error.as_ref().is_some_and(|why| why.kind() == io::ErrorKind::BrokenPipe);
        error
    }

    /// Whether the peer had sent a FIN before the reset that made a write fail with this error.
    /// EPIPE alone does not show it: a write also fails with EPIPE if an earlier call has already
    /// returned the error of the reset. `read` is the number of bytes read from the leg in all;
    /// none: it is not known.
    pub fn had_finished(&self, why: &io::Error, read: Option<u64>) -> bool {
        let has_fin = |read| {
            // The kernel counts a FIN as a byte.
            sys::tcp_info(&self.socket).is_ok_and(|info| info.bytes_received > read + sys::received(&self.socket) as u64)
        };
        self.hung_up || (why.kind() == io::ErrorKind::BrokenPipe && read.is_some_and(has_fin))
    }

    /// Notes that the connection is over: it was reset, or its peer fell silent. It takes no more
    /// bytes. Those in its receive queue can still be read. Their end is an end of file or an empty
    /// queue.
    pub fn fail(&mut self) {
        (self.has_failed, self.readable, self.writable) = (true, true, false);
    }

    /// Whether [`fail`](Self::fail) was called.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Switches keepalive probes on (SO_KEEPALIVE), so that the kernel detects a peer that has
    /// vanished.
    pub fn keep_alive(&mut self) {
        if !mem::replace(&mut self.kept_alive, true) {
            // Fails only on a socket that has just failed, which an event reports.
            let _ = self.socket.set_keepalive(true);
        }
    }

    /// Interval at which to call [`is_silent`](Self::is_silent); none: its profile has no limit.
    pub fn silence_interval(&self) -> Option<Duration> {
        self.silence.interval()
    }

    /// Whether the peer has not acknowledged data for longer than the profile allows.
    pub fn is_silent(&mut self, now: Instant) -> bool {
        self.silence.is_too_long(&self.socket, now)
    }

    /// Lets the receive queue hold all data that its window has admitted. To be called when reading
    /// pauses.
    ///
    /// # Errors
    /// The socket's.
    pub fn pause_receive(&mut self) -> io::Result<()> {
        if self.has_failed { Ok(()) } else { self.receive_bound.pause(self.socket.as_fd()) }
    }

    /// Restores the bound of the receive queue. To be called before the socket is read again.
    ///
    /// # Errors
    /// The socket's.
    pub fn resume_receive(&mut self) -> io::Result<()> {
        if self.has_failed { Ok(()) } else { self.receive_bound.resume(self.socket.as_fd()) }
    }

    /// Holds the receive queue to its share of B, where the profile has set it larger.
    ///
    /// # Errors
    /// The socket's.
    pub fn bound_receive(&mut self, shares: Shares) -> io::Result<()> {
        match self.receive_limit {
            Some(limit) if limit > shares.receive => self.receive_bound.set(self.socket.as_fd(), shares.receive),
            _ => Ok(()),
        }
    }

    /// Changes the bound of the receive queue of a leg in use to its share of another B. If it is
    /// lower, [`settle_receive`](Self::settle_receive) has to follow.
    ///
    /// # Errors
    /// The socket's.
    pub fn change_receive(&mut self, shares: Shares) -> io::Result<()> {
        let bytes = self.receive_limit.map_or(shares.receive, |limit| limit.min(shares.receive));
        self.receive_bound.change(self.socket.as_fd(), bytes)
    }

    /// Continues a change to a lower bound; returns whether it is complete.
    ///
    /// # Errors
    /// The socket's.
    pub fn settle_receive(&mut self) -> io::Result<bool> {
        self.receive_bound.settle(self.socket.as_fd())
    }

    /// Holds the unsent part of the send queue to its share of B (TCP_NOTSENT_LOWAT), unless the
    /// profile has set a lower limit.
    ///
    /// # Errors
    /// The socket's.
    pub fn bound_unsent(&self, shares: Shares) -> io::Result<()> {
        match self.unsent_limit {
            Some(limit) if limit <= shares.unsent => Ok(()),
            _ => sys::set_notsent_lowat(&self.socket, shares.unsent),
        }
    }

    /// Has the send buffer follow the congestion window where it limits the leg. The kernel's own
    /// tuning ends at `net.ipv4.tcp_wmem`, 4 MiB by default with the overhead of packets, while
    /// 50 Mbit/s over 600 ms have 3.75 MB of payload in flight.
    ///
    /// `has_room`: the windows would let more be sent.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn enlarge_send(&mut self, info: &TcpInfo, has_room: bool) -> io::Result<()> {
        let segment = info.snd_mss as usize + SEGMENT_OVERHEAD;
        let is_long = segment.saturating_mul(info.unacked as usize) >= LEAST_SEND;
        if !self.may_enlarge_send || !has_room || !is_long {
            return Ok(());
        }
        let (queued, bound) = sys::send_memory(&self.socket)?;
        // As the kernel does (tcp_sndbuf_expand): a window in flight, and one that follows.
        let wanted = (2 * segment).saturating_mul(info.snd_cwnd as usize).min(MOST_SEND);
        // The kernel reports room in the queue when a third of it is free.
        if queued < bound / 2 || wanted <= bound {
            return Ok(());
        }
        // The kernel doubles the value.
        self.may_enlarge_send = sys::exceed_send_buffer(&self.socket, wanted / 2).is_ok();
        if self.may_enlarge_send {
            self.receive_bound.note_send_lock(true);
        }
        Ok(())
    }

    /// Has the receive queue follow its share of a lower B: as far as nothing that was admitted is
    /// dropped, or, if it `is_strict`, at once. Returns whether that is complete.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn squeeze_receive(&mut self, shares: Shares, is_strict: bool) -> io::Result<bool> {
        if is_strict {
            let bytes = self.receive_limit.map_or(shares.receive, |limit| limit.min(shares.receive));
            return self.receive_bound.hold(self.socket.as_fd(), bytes).map(|()| true);
        }
        self.change_receive(shares)?;
        self.settle_receive()
    }

    /// Gives the receive queue its share of its own B again; none: it has no bound.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn release_receive(&mut self, own: Option<Shares>) -> io::Result<()> {
        match (own, self.receive_limit) {
            (Some(shares), _) => self.change_receive(shares),
            (None, Some(limit)) => self.receive_bound.change(self.socket.as_fd(), limit),
            (None, None) => self.receive_bound.lift(self.socket.as_fd(), MOST_UNBOUND),
        }
    }

    /// Bounds the memory of the send queue, sent and unsent, by a lower B. What it holds already
    /// stays until it is acknowledged.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn squeeze_send(&mut self, shares: Shares) -> io::Result<()> {
        self.bound_unsent(shares)?;
        let bytes = self.send_buffer.map_or(shares.buffer(), |set| set.min(shares.buffer()));
        self.may_enlarge_send = false;
        self.receive_bound.note_send_lock(true);
        // The kernel doubles the value.
        sys::force_send_buffer(&self.socket, bytes / 2)
    }

    /// Gives the send queue its own bounds again.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn release_send(&mut self, own: Option<Shares>) -> io::Result<()> {
        match own {
            Some(shares) => self.bound_unsent(shares)?,
            // 0: the default of the host.
            None => sys::set_notsent_lowat(&self.socket, self.unsent_limit.unwrap_or(0))?,
        }
        if let Some(bytes) = self.send_buffer {
            return sys::force_send_buffer(&self.socket, bytes / 2);
        }
        self.may_enlarge_send = true;
        let unlocked = BufferLocks::of(&self.socket).and_then(|locks| locks.with_send(false).apply(&self.socket));
        self.receive_bound.note_send_lock(unlocked.is_err());
        // Before Linux 5.14 buffers cannot be unlocked.
        unlocked.or_else(|_| sys::force_send_buffer(&self.socket, MOST_UNBOUND / 2))
    }

    /// Kernel memory of its packets, bytes.
    ///
    /// # Errors
    /// The socket's.
    pub fn memory(&self) -> io::Result<u64> {
        sys::socket_memory(&self.socket)
    }

    /// A number that changes whenever the peer sends or acknowledges bytes.
    ///
    /// # Errors
    /// The socket's.
    pub fn progress(&self) -> io::Result<u64> {
        let info = sys::tcp_info(&self.socket)?;
        Ok(info.bytes_acked.wrapping_add(info.bytes_received))
    }

    /// Bytes that the peer has not acknowledged; a FIN counts as one. What a reset discarded never
    /// counts as acknowledged.
    ///
    /// # Errors
    /// The socket's.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        sys::unacknowledged(&self.socket)
    }

    /// Whether the peer's FIN has arrived, by the events so far or else by the socket's state.
    ///
    /// # Errors
    /// The socket's.
    pub fn has_hung_up(&self) -> io::Result<bool> {
        if self.hung_up { Ok(true) } else { sys::has_hung_up(&self.socket) }
    }

    /// Sends a FIN.
    ///
    /// # Errors
    /// The socket's, except that it is not connected.
    pub fn shut_down(&self) -> io::Result<()> {
        match self.socket.shutdown(Shutdown::Write) {
            Err(why) if why.kind() != io::ErrorKind::NotConnected => Err(why),
            _ => Ok(()),
        }
    }

    /// Makes dropping the socket close it in the background instead of resetting it.
    pub fn close_gracefully(&self) {
        let _ = self.socket.set_linger(None);
    }
}

impl AsFd for PlainLeg {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::leg;
    use std::{
        io::Write as _,
        net::{Ipv4Addr, TcpListener, TcpStream},
        thread,
    };
    use units::Bytes;

    /// A leg of this profile, for B of 4 MiB, its shares, and its peer.
    fn leg_of(profile: &LegProfile) -> (PlainLeg, Shares, TcpStream) {
        leg_with(profile, Shares::of(4 << 20))
    }

    fn leg_with(profile: &LegProfile, shares: Shares) -> (PlainLeg, Shares, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        leg::prepare(&socket, Some(shares)).unwrap();
        leg::apply(&socket, profile, || Ok(0)).unwrap();
        (PlainLeg::new(socket, profile, Some(shares)), shares, listener.accept().unwrap().0)
    }

    fn bounds_of(profile: &LegProfile) -> (usize, usize, Shares) {
        let (mut leg, shares, _peer) = leg_of(profile);
        leg.bound_receive(shares).unwrap();
        leg.bound_unsent(shares).unwrap();
        (leg.socket.recv_buffer_size().unwrap(), leg.socket.tcp_notsent_lowat().unwrap() as usize, shares)
    }

    #[test]
    fn the_lower_of_share_and_profile_bounds_a_leg() {
        let (by_share, unsent, shares) = bounds_of(&LegProfile::default());
        assert_eq!(unsent, shares.unsent);
        let lower = LegProfile { receive_buffer: Some(Bytes(64 << 10)), not_sent: Some(Bytes(4 << 10)), ..LegProfile::default() };
        let (receive, unsent, _) = bounds_of(&lower);
        assert!(receive < by_share / 4, "{receive} of {by_share}");
        assert_eq!(unsent, 4 << 10);
        let higher = LegProfile { receive_buffer: Some(Bytes(16 << 20)), not_sent: Some(Bytes(16 << 20)), ..LegProfile::default() };
        assert_eq!(bounds_of(&higher), (by_share, shares.unsent, shares));
    }

    #[test]
    fn a_profile_does_not_raise_the_unsent_share_of_a_small_buffer() {
        let small = Shares::of(128 << 10);
        for (limit, expected) in [(256 << 10, small.unsent), (4 << 10, 4 << 10)] {
            let profile = LegProfile { not_sent: Some(Bytes(limit)), ..LegProfile::default() };
            let (leg, ..) = leg_with(&profile, small);
            assert_eq!(leg.socket.tcp_notsent_lowat().unwrap() as usize, expected);
        }
    }

    #[test]
    fn a_broken_pipe_follows_a_fin_only_if_one_has_arrived() {
        const CLOSE_WAIT: u8 = 8;
        let (leg, _, mut peer) = leg_of(&LegProfile::default());
        let (broken, reset) = (io::ErrorKind::BrokenPipe.into(), io::ErrorKind::ConnectionReset.into());
        peer.write_all(b"abc").unwrap();
        while sys::received(&leg) < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!leg.had_finished(&broken, Some(0)) && !leg.had_finished(&broken, None));
        peer.shutdown(Shutdown::Write).unwrap();
        while sys::tcp_info(&leg).unwrap().state != CLOSE_WAIT {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(leg.had_finished(&broken, Some(0)) && !leg.had_finished(&reset, Some(0)));
        assert!(!leg.had_finished(&broken, None), "what was read is not known, and no event has told of the FIN");
    }
}
