//! The life of a split connection.
//!
//! | event                    | `Dialling`                        | `Relaying`                                      | `Settling`            |
//! |--------------------------|-----------------------------------|-------------------------------------------------|-----------------------|
//! | near FIN                 | kept; passed once the far leg is up | passed after the last byte¹                   | –                     |
//! | far FIN                  | –                                 | passed after the last byte¹                     | –                     |
//! | near RST, timeout        | far leg given up                  | far leg reset                                   | ends `NearFailed`²    |
//! | far RST                  | near leg reset (refused)          | near leg reset                                  | ends `FarFailed`²     |
//! | far unreachable, timeout | near leg reset                    | near leg reset                                  | ends `FarFailed`²     |
//! | both FINs passed         | –                                 | → `Settling`                                    |                       |
//! | both legs acknowledged⁴  | –                                 | –                                               | ends `Finished`       |
//! | idle for too long³       | – (the connect times out)         | both legs reset                                 | both legs reset       |
//!
//! ¹ A clean close means delivered: an end that has sent its own FIN and then reads end of file may conclude that the other
//! end's TCP has acknowledged every byte and that FIN. So a FIN is passed on to an end that has finished sending only when
//! the opposite leg has nothing left unacknowledged. To an end that has not finished sending it passes at once: half-close
//! works as ever. When both ends finish before either has been told of the other, one must be told first: it is told when the
//! other has acknowledged all its bytes, its FIN then follows.
//!
//! ² The other leg is over by then, and its clean end stands: the second FIN is passed only when the end that was told first has
//! acknowledged everything, the first FIN too.
//!
//! ³ Where a limit is set. An end that has gone without a word is found out by keepalive, or by what it does not acknowledge: its
//! leg has then failed.
//!
//! ⁴ But for the last FIN: the end that is to have it has acknowledged every byte, the other needs to know no more, and the kernel
//! sees to it that it arrives.
//!
//! A SOCKS client whose far end is not reached gets the protocol's answer and an end of file instead of a reset.
//!
//! `tests/it/life.rs` has a test for each cell.

use crate::{
    config::Config,
    ending::Ending,
    greeting::{socks_code, socks_reply},
    meter::{DirectionStats, FlowStats},
    relay::{Direction, Fault, Limits, Pumped, Tools},
};
use intercept::{
    leg::{self, Call, LegProfile, Shares, Silence, Source},
    sys,
};
use rustix::{
    event::epoll::EventFlags,
    fd::{AsFd, BorrowedFd},
    io::Errno,
};
use socket2::Socket;
use std::{
    io, mem,
    net::{IpAddr, Shutdown, SocketAddr},
    time::{Duration, Instant},
};
use units::Bytes;

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// The near leg is open, the far leg is connecting.
    Dialling,
    /// Bytes move.
    Relaying,
    /// Both FINs have been passed on; the last acknowledgements are awaited.
    Settling,
}

/// One of the two legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Near,
    Far,
}

/// What epoll said of a socket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Events {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer's FIN has come.
    pub(crate) hung_up: bool,
    pub(crate) failed: bool,
    pub(crate) urgent: bool,
}

impl Events {
    pub(crate) fn of(flags: EventFlags) -> Self {
        Events {
            readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP),
            writable: flags.contains(EventFlags::OUT),
            hung_up: flags.contains(EventFlags::RDHUP),
            failed: flags.contains(EventFlags::ERR),
            urgent: flags.contains(EventFlags::PRI),
        }
    }
}

/// What a connection wants after an event.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Wants {
    /// Another turn, after the others.
    pub(crate) again: bool,
    /// The near socket watched from now on.
    pub(crate) watch_near: bool,
    /// A fresh look by epoll at the near or the far socket.
    pub(crate) look_near: bool,
    pub(crate) look_far: bool,
    /// Another turn in a moment: it waits for something that raises no event.
    pub(crate) tick: bool,
}

/// A connection to be split, and where it goes.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) near: Socket,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// Where else it may go when the server can't be reached.
    pub(crate) others: Vec<SocketAddr>,
    /// Whether the far leg is to come from the client's own address.
    pub(crate) keep_source: bool,
    /// What the server gets before the client's bytes.
    pub(crate) preface: Vec<u8>,
    /// What the client has said already that is for the server.
    pub(crate) heard: Vec<u8>,
    /// Whether the client waits for a SOCKS reply.
    pub(crate) socks: bool,
}

/// A split connection: two legs, two directions. Dropping it resets whatever of it is still open.
#[derive(Debug)]
pub(crate) struct Connection {
    near: Socket,
    far: Socket,
    client: SocketAddr,
    server: SocketAddr,
    others: Vec<SocketAddr>,
    source: Option<Source>,
    socks: bool,
    life: Life,
    born: Instant,
    connect_timeout: Duration,
    /// The far leg's SYN waits for data to carry (TCP Fast Open).
    syn_waits: bool,
    /// The far leg takes data though its SYN has not been answered, as far as was looked (TCP Fast Open).
    syn_unanswered: bool,
    /// The far leg's handshake has not been acknowledged yet.
    owes_ack: bool,
    /// When it was last seen to have moved something, and how much it had moved by then.
    moved: (Instant, u64),
    kept_alive: bool,
    near_silence: Silence,
    far_silence: Silence,
    /// Whether epoll watches the near socket: not before the far leg is up, if that is soon.
    pub(crate) watches_near: bool,
    /// Whether it is among those that want a turn, or a tick.
    pub(crate) in_again: bool,
    pub(crate) in_ticking: bool,
    /// From near to far.
    up: Direction,
    /// From far to near.
    down: Direction,
}

/// How a far leg that could not be dialled ends its connection.
pub(crate) fn undialled(why: &io::Error) -> Ending {
    let out_of_descriptors = matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if out_of_descriptors { Ending::NoRoom } else { Ending::FarNotReached(why.kind()) }
}

/// What a direction from a leg of profile `source` to one of profile `destination` keeps to besides B.
fn limits(source: &LegProfile, destination: &LegProfile) -> Limits {
    let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0 as usize);
    Limits { receive: bytes(source.receive_buffer), unsent: bytes(destination.not_sent) }
}

impl Connection {
    /// Begins to dial the far leg of a connection that came in. `route` tells the interface that leads to an address. A failure
    /// resets the near leg, or refuses it as SOCKS does.
    pub(crate) fn begin(
        config: &Config,
        start: Start,
        mut route: impl FnMut(IpAddr) -> Option<String>,
        now: Instant,
    ) -> Result<Self, (Ending, Option<Socket>)> {
        let Start { near, client, mut server, mut others, keep_source, preface, heard, socks } = start;
        let answer = if socks { socks_reply(0) } else { Vec::new() };
        let shares = config.buffer.map(|buffer| Shares::of(buffer.0 as usize));
        let (near_profile, far_profile) = config.policy.legs_of(client, server, &mut route);
        let source = if keep_source { Source::of(&near, client, server, &mut route) } else { None };
        if let Err(why) = leg::apply(&near, near_profile, || sys::dscp_of_syn(&near)) {
            return Err((Ending::NearFailed(why.kind()), None));
        }
        // A SOCKS client speaks when it has heard that its server was reached: there is nothing to send before that.
        let fast_open = far_profile.fast_open && !socks;
        let far = loop {
            let call = Call { profile: far_profile, shares, from: source, to: server, fast_open };
            match call.dial(|| sys::dscp_of_syn(&near)) {
                Ok(far) => break far,
                Err(_) if !others.is_empty() => server = others.remove(0),
                Err(why) => {
                    let ending = undialled(&why);
                    return Err((ending, socks.then_some(near)));
                }
            }
        };
        Ok(Connection {
            near,
            far,
            client,
            server,
            others,
            source,
            socks,
            life: Life::Dialling,
            born: now,
            connect_timeout: far_profile.connect_timeout.map_or(config.connect_timeout, units::Span::duration),
            syn_waits: fast_open,
            syn_unanswered: fast_open,
            owes_ack: !fast_open,
            moved: (now, 0),
            kept_alive: false,
            near_silence: Silence::of(near_profile),
            far_silence: Silence::of(far_profile),
            watches_near: false,
            in_again: false,
            in_ticking: false,
            up: Direction::new(shares, limits(near_profile, far_profile), preface, heard),
            down: Direction::new(shares, limits(far_profile, near_profile), answer, Vec::new()),
        })
    }

    /// Dials the next address that the server's name has, where there is one.
    pub(crate) fn dial_another(&mut self, config: &Config, mut route: impl FnMut(IpAddr) -> Option<String>) -> bool {
        while self.life == Life::Dialling && !self.others.is_empty() {
            let next = self.others.remove(0);
            let (_, profile) = config.policy.legs_of(self.client, next, &mut route);
            let shares = config.buffer.map(|buffer| Shares::of(buffer.0 as usize));
            let call = Call { profile, shares, from: self.source, to: next, fast_open: self.syn_waits };
            if let Ok(far) = call.dial(|| sys::dscp_of_syn(&self.near)) {
                (self.far, self.server, self.far_silence) = (far, next, Silence::of(profile));
                // Nothing is known of this socket: that the last one was refused reads like an end.
                (self.down.readable, self.down.hung_up, self.down.urgent, self.up.writable) = (true, false, false, true);
                return true;
            }
        }
        false
    }

    /// How long its far leg may take to connect.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Has both peers asked now and then whether they are still there: one that is gone without a word is found out some day.
    pub(crate) fn keep_alive(&mut self) {
        if !mem::replace(&mut self.kept_alive, true) {
            for leg in [&self.near, &self.far] {
                // A leg that has just ended will say so by itself.
                let _ = leg.set_keepalive(true);
            }
        }
    }

    /// How often to look whether a peer has gone silent, where that is asked for.
    pub(crate) fn silence_interval(&self) -> Option<Duration> {
        [&self.near_silence, &self.far_silence].into_iter().filter_map(Silence::interval).min()
    }

    /// How it has ended, if a peer has been silent for too long.
    pub(crate) fn ended_in_silence(&mut self, now: Instant) -> Option<Ending> {
        if self.near_silence.is_too_long(&self.near, now) {
            return Some(Ending::NearFailed(io::ErrorKind::TimedOut));
        }
        self.far_silence.is_too_long(&self.far, now).then_some(Ending::FarFailed(io::ErrorKind::TimedOut))
    }

    /// How long nothing has moved, as far as was looked.
    pub(crate) fn idle(&mut self, now: Instant) -> Duration {
        let moved = self.up.carried() + self.down.carried();
        if moved != self.moved.1 {
            self.moved = (now, moved);
        }
        now - self.moved.0
    }

    pub(crate) fn socket(&self, side: Side) -> &Socket {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// Whether the far leg is still connecting, though it may take data already.
    pub(crate) fn is_dialling(&self) -> bool {
        self.life == Life::Dialling || self.syn_unanswered
    }

    /// When the connection came in.
    pub(crate) fn born(&self) -> Instant {
        self.born
    }

    /// Takes in what epoll said of one leg, then moves what can be moved. An error is how the connection ended.
    pub(crate) fn on_events(&mut self, side: Side, events: Events, tools: &mut Tools) -> Result<Wants, Ending> {
        let (source_of, destination_of) = match side {
            Side::Near => (&mut self.up, &mut self.down),
            Side::Far => (&mut self.down, &mut self.up),
        };
        source_of.readable |= events.readable || events.failed;
        source_of.hung_up |= events.hung_up;
        source_of.urgent |= events.urgent;
        destination_of.writable |= events.writable || events.failed;
        if events.failed
            && let Some(why) = self.take_error(side)
        {
            return Err(self.failed(side, &why));
        }
        if self.life == Life::Dialling {
            if side == Side::Near || !events.writable || events.failed {
                return Ok(Wants::default());
            }
            self.life = Life::Relaying;
            if !self.watches_near {
                // Its first event tells what it has brought meanwhile.
                return Ok(Wants { watch_near: true, tick: self.syn_waits, ..Wants::default() });
            }
        }
        self.proceed(tools)
    }

    /// Moves what can be moved, passes on what has ended.
    pub(crate) fn proceed(&mut self, tools: &mut Tools) -> Result<Wants, Ending> {
        let mut wants = Wants::default();
        if self.life == Life::Dialling {
            return Ok(wants);
        }
        let up = self.up.pump(self.near.as_fd(), self.far.as_fd(), tools).map_err(|fault| self.faulted(Side::Near, fault))?;
        let down = self.down.pump(self.far.as_fd(), self.near.as_fd(), tools).map_err(|fault| self.faulted(Side::Far, fault))?;
        wants.again = up == Pumped::Again || down == Pumped::Again;
        wants.look_far = up == Pumped::WaitsForRoom;
        wants.look_near = down == Pumped::WaitsForRoom;
        wants.tick = self.syn_waits;
        self.syn_unanswered = self.syn_unanswered && sys::is_unanswered(&self.far);
        self.pass_fins(&mut wants)?;
        if mem::take(&mut self.owes_ack) && self.up.has_moved_nothing() {
            leg::acknowledge(&self.far);
        }
        if self.up.passed && self.down.passed {
            self.life = Life::Settling;
            if self.settled()? {
                return Err(Ending::Finished);
            }
        }
        Ok(wants)
    }

    /// Whether both ends have acknowledged everything, but for a last FIN that nobody waits for: of that the kernel takes care.
    fn settled(&self) -> Result<bool, Ending> {
        let (near, far) = (self.unacknowledged(Side::Near)?, self.unacknowledged(Side::Far)?);
        if near + far == 1 {
            // To be closed in peace, not reset.
            let _ = self.socket(if near == 1 { Side::Near } else { Side::Far }).set_linger(None);
        }
        Ok(near + far <= 1)
    }

    /// A moment has passed without an event that it may have waited for.
    pub(crate) fn tick(&mut self, tools: &mut Tools) -> Result<Wants, Ending> {
        if mem::take(&mut self.syn_waits) && self.syn_unanswered {
            // Nothing came that it could have carried: it must go without, or a server that speaks first never would.
            match rustix::net::send(&self.far, &[], rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::INPROGRESS) => {}
                // A refusal that is told here is told nowhere else.
                Err(errno) => return Err(self.failed(Side::Far, &errno.into())),
            }
        }
        self.proceed(tools)
    }

    /// Passes on each end of file whose time has come.
    fn pass_fins(&mut self, wants: &mut Wants) -> Result<(), Ending> {
        for (from, to) in [(Side::Near, Side::Far), (Side::Far, Side::Near)] {
            let (this, opposite) = match from {
                Side::Near => (&self.up, &self.down),
                Side::Far => (&self.down, &self.up),
            };
            if !this.finished() || this.passed {
                continue;
            }
            if to == Side::Far && self.syn_unanswered {
                // Shutting down now would give up the connect, and what its SYN carries. The answer raises an event.
                continue;
            }
            let hung_up = |side| sys::has_hung_up(self.socket(side)).map_err(|why| self.failed(side, &why));
            let to_has_ended = opposite.ended || opposite.hung_up || hung_up(to)?;
            if to_has_ended && !self.delivered(from)? {
                // An acknowledgement of data alone raises no event.
                wants.tick |= !opposite.passed && opposite.finished();
                continue;
            }
            if opposite.passed && self.acknowledged(to)? {
                // Nothing is left to wait for: the close itself is the last FIN.
                let _ = self.socket(to).set_linger(None);
                return Err(Ending::Finished);
            }
            if let Err(why) = self.socket(to).shutdown(Shutdown::Write)
                && why.kind() != io::ErrorKind::NotConnected
            {
                return Err(self.failed(to, &why));
            }
            if from == Side::Near { self.up.passed = true } else { self.down.passed = true }
        }
        Ok(())
    }

    /// Whether `side`, which has finished sending, has acknowledged everything it can have been sent: all bytes, and the FIN
    /// where that has been passed on already.
    fn delivered(&self, side: Side) -> Result<bool, Ending> {
        let direction = if side == Side::Near { &self.down } else { &self.up };
        Ok(direction.finished() && self.acknowledged(side)?)
    }

    /// Whether `side` has acknowledged all it was given, a FIN too. What a reset threw away never counts as acknowledged.
    fn acknowledged(&self, side: Side) -> Result<bool, Ending> {
        self.unacknowledged(side).map(|bytes| bytes == 0)
    }

    fn unacknowledged(&self, side: Side) -> Result<usize, Ending> {
        sys::unacknowledged(self.socket(side)).map_err(|why| self.failed(side, &why))
    }

    fn take_error(&self, side: Side) -> Option<io::Error> {
        self.socket(side).take_error().unwrap_or_else(Some)
    }

    /// The ending that an error on `side` makes.
    fn failed(&self, side: Side, why: &io::Error) -> Ending {
        match side {
            Side::Near => Ending::NearFailed(why.kind()),
            // A far end that refuses says so by another error: this one was reached, before we heard of it.
            Side::Far if self.is_dialling() && why.kind() != io::ErrorKind::ConnectionReset => Ending::FarNotReached(why.kind()),
            Side::Far => Ending::FarFailed(why.kind()),
        }
    }

    /// The ending that a fault makes in the direction that comes from `from`.
    fn faulted(&self, from: Side, fault: Fault) -> Ending {
        let other = if from == Side::Near { Side::Far } else { Side::Near };
        match fault {
            Fault::Source(why) => self.failed(from, &why),
            Fault::Destination(why) => self.failed(other, &why),
            Fault::Own => Ending::NoRoom,
        }
    }

    /// Gives back what it borrowed, and tells a client that waits for an answer how it ended.
    pub(crate) fn release(&mut self, ending: Ending, tools: &mut Tools) {
        self.up.release(tools);
        self.down.release(tools);
        if self.socks && self.life == Life::Dialling {
            refuse_socks(&self.near, ending);
        }
    }

    /// The flow as it is now, without what takes a look at its queues.
    pub(crate) fn last_stats(&self, now: Instant) -> FlowStats {
        let direction = |direction: &Direction| DirectionStats {
            moved: direction.carried(),
            in_hand: direction.in_hand(),
            ..DirectionStats::default()
        };
        FlowStats {
            client: self.client,
            server: self.server,
            age: now - self.born,
            near: sys::tcp_info(&self.near).unwrap_or_default(),
            far: sys::tcp_info(&self.far).unwrap_or_default(),
            up: direction(&self.up),
            down: direction(&self.down),
            control: Default::default(),
            drops: [0; 2],
            bond: None,
        }
    }

    /// The flow as it is now.
    pub(crate) fn stats(&self, now: Instant) -> FlowStats {
        let queues = |stats: &mut DirectionStats, source: BorrowedFd<'_>, destination: BorrowedFd<'_>| {
            let memory = sys::receive_memory(source).unwrap_or_default();
            stats.received = sys::received(source);
            // What is in order can be read. Only packets beyond a hole take memory and cannot.
            stats.has_hole = stats.received == 0 && memory.used > 0;
            stats.unsent = sys::unsent(destination).unwrap_or(0);
            memory.drops
        };
        let mut stats = self.last_stats(now);
        stats.control = [&self.near, &self.far].map(leg::controller_of);
        stats.drops =
            [queues(&mut stats.up, self.near.as_fd(), self.far.as_fd()), queues(&mut stats.down, self.far.as_fd(), self.near.as_fd())];
        stats
    }

    /// Bytes carried so far, up and down.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.up.carried(), self.down.carried())
    }
}

/// Tells a SOCKS client that its far end was not reached, and lets its leg end in peace.
pub(crate) fn refuse_socks(near: &Socket, ending: Ending) {
    let code = if let Ending::FarNotReached(why) = ending { socks_code(why) } else { 1 };
    let _ = rustix::net::send(near, &socks_reply(code), rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL);
    let _ = near.set_linger(None);
}
