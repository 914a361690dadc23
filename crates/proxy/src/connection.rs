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
//! ¹ A clean close means delivered: an end that has sent its own FIN and then reads end of file may
//! conclude that the other end's TCP has acknowledged every byte and that FIN. So a FIN is passed
//! on to an end that has finished sending only when the opposite leg has nothing left
//! unacknowledged. To an end that has not finished sending it passes at once: half-close works as
//! ever. When both ends finish before either has been told of the other, one must be told first: it
//! is told when the other has acknowledged all its bytes, its FIN then follows.
//!
//! ² The other leg is over by then, and its clean end stands: the second FIN is passed only when
//! the end that was told first has acknowledged everything, the first FIN too.
//!
//! ³ Where a limit is set. An end that has gone without a word is found out by keepalive, or by
//! what it does not acknowledge: its leg has then failed.
//!
//! ⁴ But for the last FIN: the end that is to have it has acknowledged every byte, the other needs
//! to know no more, and the kernel sees to it that it arrives.
//!
//! A SOCKS client whose far end is not reached gets the protocol's answer and an end of file
//! instead of a reset.
//!
//! `tests/it/life.rs` has a test for each cell.

use crate::{
    config::Config,
    greeting::{socks_code, socks_reply},
};
use intercept::{
    leg::{self, DialOptions, LegProfile, Shares, Source},
    sys,
};
use relay::{
    Direction, DirectionLimits, DirectionStats, Ending, Fault, FlowStats, LegSide, PlainLeg, Pumped, Readiness, Scratch, dial_first,
};
use rustix::{
    fd::{AsFd, BorrowedFd},
    io::Errno,
};
use socket2::Socket;
use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

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

/// What a connection wants after an event.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Wants {
    /// Another turn, after the others.
    pub(crate) again: bool,
    /// The near socket watched from now on.
    pub(crate) watch_near: bool,
    /// The near or the far socket reported again by epoll (rearmed).
    pub(crate) look_near: bool,
    pub(crate) look_far: bool,
    /// Another turn after a tick: it waits for something that raises no event.
    pub(crate) tick: bool,
}

/// A connection to be split, and where it goes.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) near: Socket,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// Further addresses of the server, to be tried when this one can't be reached.
    pub(crate) others: Vec<SocketAddr>,
    /// Whether the far leg is to come from the client's own address.
    pub(crate) keep_source: bool,
    /// What the server gets before the client's bytes.
    pub(crate) preface: Vec<u8>,
    /// What the client has sent already that is for the server.
    pub(crate) heard: Vec<u8>,
    /// Whether the client waits for a SOCKS reply.
    pub(crate) socks: bool,
}

/// A split connection: two legs, two directions. Dropping it resets whatever of it is still open.
#[derive(Debug)]
pub(crate) struct Connection {
    near: PlainLeg,
    far: PlainLeg,
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
    /// The far leg takes data although its SYN was not answered yet, as of the last check (TCP Fast
    /// Open).
    syn_unanswered: bool,
    /// The far leg's handshake has not been acknowledged yet.
    owes_ack: bool,
    /// When it was last seen to have moved something, and how much it had moved by then.
    moved: (Instant, u64),
    /// Whether epoll watches the near socket. That begins when the far leg is up, or takes long.
    pub(crate) watches_near: bool,
    /// Whether it is queued for another turn, or for a tick.
    pub(crate) in_again: bool,
    pub(crate) in_ticking: bool,
    /// From near to far.
    up: Direction,
    /// From far to near.
    down: Direction,
}

/// The limits, besides B, of a direction between legs of these profiles.
fn limits(source: &LegProfile, destination: &LegProfile) -> DirectionLimits {
    DirectionLimits { receive: receive_buffer(source), unsent: destination.not_sent.map(|bytes| bytes.0 as usize) }
}

fn receive_buffer(profile: &LegProfile) -> Option<usize> {
    profile.receive_buffer.map(|bytes| bytes.0 as usize)
}

/// A leg of this profile, whose socket has been tuned by it.
fn leg_of(socket: Socket, profile: &LegProfile, shares: Option<Shares>) -> PlainLeg {
    let share = shares.map(|shares| shares.receive);
    PlainLeg::new(socket, profile, receive_buffer(profile).into_iter().chain(share).min())
}

impl Connection {
    /// Begins to dial the far leg of a connection that came in. `route` tells the interface that
    /// leads to an address. A failure resets the near leg, or refuses it as SOCKS does.
    pub(crate) fn begin(
        config: &Config,
        start: Start,
        mut route: impl FnMut(IpAddr) -> Option<String>,
        now: Instant,
    ) -> Result<Self, (Ending, Option<Socket>)> {
        let Start { near, client, server, mut others, keep_source, preface, heard, socks } = start;
        let answer = if socks { socks_reply(0) } else { Vec::new() };
        let shares = config.buffer.map(|buffer| Shares::of(buffer.0 as usize));
        let (near_profile, far_profile) = config.policy.legs_of(client, server, &mut route);
        let source = if keep_source { Source::of(&near, client, server, &mut route) } else { None };
        if let Err(why) = leg::apply(&near, near_profile, || sys::dscp_of_syn(&near)) {
            return Err((Ending::NearFailed(why.kind()), None));
        }
        // A SOCKS client sends data only after the reply that its server was reached.
        let fast_open = far_profile.fast_open && !socks;
        let dial = |to| {
            let call = DialOptions { profile: far_profile, shares, from: source, to, fast_open };
            call.dial(|| sys::dscp_of_syn(&near)).map_err(|why| Ending::undialled(&why))
        };
        let dialled = match dial(server) {
            Err(_) if !others.is_empty() => dial_first(&mut others, dial),
            first => first.map(|far| (server, far)),
        };
        let (server, far) = match dialled {
            Ok(dialled) => dialled,
            Err(ending) => return Err((ending, socks.then_some(near))),
        };
        Ok(Connection {
            near: leg_of(near, near_profile, shares),
            far: leg_of(far, far_profile, shares),
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
            watches_near: false,
            in_again: false,
            in_ticking: false,
            up: Direction::new(shares, limits(near_profile, far_profile), preface, heard),
            down: Direction::new(shares, limits(far_profile, near_profile), answer, Vec::new()),
        })
    }

    /// Dials the next address that the server's name has, where there is one.
    pub(crate) fn dial_another(&mut self, config: &Config, mut route: impl FnMut(IpAddr) -> Option<String>) -> bool {
        if self.life != Life::Dialling {
            return false;
        }
        let shares = config.buffer.map(|buffer| Shares::of(buffer.0 as usize));
        let dialled = dial_first(&mut self.others, |to| {
            let (_, profile) = config.policy.legs_of(self.client, to, &mut route);
            let call = DialOptions { profile, shares, from: self.source, to, fast_open: self.syn_waits };
            let far = call.dial(|| sys::dscp_of_syn(&self.near)).map_err(|why| Ending::undialled(&why))?;
            Ok(leg_of(far, profile, shares))
        });
        let Ok((server, far)) = dialled else { return false };
        // A new leg: the refusal of the last one reads like an end of file, which must not be kept.
        (self.server, self.far) = (server, far);
        true
    }

    /// How long its far leg may take to connect.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Has both peers asked now and then whether they are still there: one that has vanished is
    /// found out some day.
    pub(crate) fn keep_alive(&mut self) {
        self.near.keep_alive();
        self.far.keep_alive();
    }

    /// How often to look whether a peer has gone silent, where that is asked for.
    pub(crate) fn silence_interval(&self) -> Option<Duration> {
        [&self.near, &self.far].into_iter().filter_map(PlainLeg::silence_interval).min()
    }

    /// How it has ended, if a peer has been silent for too long.
    pub(crate) fn ended_in_silence(&mut self, now: Instant) -> Option<Ending> {
        if self.near.is_silent(now) {
            return Some(Ending::NearFailed(io::ErrorKind::TimedOut));
        }
        self.far.is_silent(now).then_some(Ending::FarFailed(io::ErrorKind::TimedOut))
    }

    /// How long nothing has moved, as of the checks.
    pub(crate) fn idle(&mut self, now: Instant) -> Duration {
        let moved = self.up.carried() + self.down.carried();
        if moved != self.moved.1 {
            self.moved = (now, moved);
        }
        now - self.moved.0
    }

    pub(crate) fn socket(&self, side: LegSide) -> &Socket {
        self.leg(side).socket()
    }

    fn leg(&self, side: LegSide) -> &PlainLeg {
        match side {
            LegSide::Near => &self.near,
            LegSide::Far => &self.far,
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

    /// Takes in what epoll told of one leg, then moves what can be moved. An error is how the
    /// connection has ended.
    pub(crate) fn on_events(&mut self, side: LegSide, events: Readiness, scratch: &mut Scratch) -> Result<Wants, Ending> {
        let leg = match side {
            LegSide::Near => &mut self.near,
            LegSide::Far => &mut self.far,
        };
        if let Some(why) = leg.take_in(events) {
            return Err(self.failed(side, &why));
        }
        if self.life == Life::Dialling {
            if side == LegSide::Near || !events.writable || events.failed {
                return Ok(Wants::default());
            }
            self.life = Life::Relaying;
            if !self.watches_near {
                // Its first event tells what has arrived meanwhile.
                return Ok(Wants { watch_near: true, tick: self.syn_waits, ..Wants::default() });
            }
        }
        self.proceed(scratch)
    }

    /// Moves what can be moved, passes on what has ended.
    pub(crate) fn proceed(&mut self, scratch: &mut Scratch) -> Result<Wants, Ending> {
        let mut wants = Wants::default();
        if self.life == Life::Dialling {
            return Ok(wants);
        }
        let up = self.up.pump(&mut self.near, &mut self.far, scratch).map_err(|fault| self.faulted(LegSide::Near, fault))?;
        let down = self.down.pump(&mut self.far, &mut self.near, scratch).map_err(|fault| self.faulted(LegSide::Far, fault))?;
        wants.again = up == Pumped::Again || down == Pumped::Again;
        wants.look_far = up == Pumped::WaitsForRoom;
        wants.look_near = down == Pumped::WaitsForRoom;
        wants.tick = self.syn_waits;
        self.syn_unanswered = self.syn_unanswered && sys::is_unanswered(&self.far);
        self.pass_fins(&mut wants)?;
        if mem::take(&mut self.owes_ack) && self.up.has_moved_nothing() {
            leg::acknowledge(self.far.socket());
        }
        if self.up.passed && self.down.passed {
            self.life = Life::Settling;
            if self.settled()? {
                return Err(Ending::Finished);
            }
        }
        Ok(wants)
    }

    /// Whether both ends have acknowledged everything, except one last FIN: the kernel retransmits
    /// that after the close.
    fn settled(&self) -> Result<bool, Ending> {
        let (near, far) = (self.unacknowledged(LegSide::Near)?, self.unacknowledged(LegSide::Far)?);
        if near + far == 1 {
            // Closed in the background, not reset.
            self.leg(if near == 1 { LegSide::Near } else { LegSide::Far }).close_gracefully();
        }
        Ok(near + far <= 1)
    }

    /// To be called a tick after it was wanted.
    pub(crate) fn tick(&mut self, scratch: &mut Scratch) -> Result<Wants, Ending> {
        if mem::take(&mut self.syn_waits) && self.syn_unanswered {
            // No data came that the SYN could carry. It is sent without, or a server that sends
            // first never would.
            match rustix::net::send(&self.far, &[], rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::INPROGRESS) => {}
                // A refusal reported here is reported nowhere else.
                Err(errno) => return Err(self.failed(LegSide::Far, &errno.into())),
            }
        }
        self.proceed(scratch)
    }

    /// Passes on each end of file whose time has come.
    fn pass_fins(&mut self, wants: &mut Wants) -> Result<(), Ending> {
        for (from, to) in [(LegSide::Near, LegSide::Far), (LegSide::Far, LegSide::Near)] {
            let (this, opposite) = match from {
                LegSide::Near => (&self.up, &self.down),
                LegSide::Far => (&self.down, &self.up),
            };
            if !this.finished() || this.passed {
                continue;
            }
            if to == LegSide::Far && self.syn_unanswered {
                // Shutting down now would give up the connect, and what its SYN carries. The answer
                // raises an event.
                continue;
            }
            let to_has_ended = opposite.ended || self.leg(to).has_hung_up().map_err(|why| self.failed(to, &why))?;
            if to_has_ended && !self.delivered(from)? {
                // An acknowledgement alone raises no event.
                wants.tick |= !opposite.passed && opposite.finished();
                continue;
            }
            if opposite.passed && self.acknowledged(to)? {
                // Nothing is left to wait for: closing sends the last FIN.
                self.leg(to).close_gracefully();
                return Err(Ending::Finished);
            }
            self.leg(to).shut_down().map_err(|why| self.failed(to, &why))?;
            if from == LegSide::Near { self.up.passed = true } else { self.down.passed = true }
        }
        Ok(())
    }

    /// Whether `side`, which has finished sending, has acknowledged everything it can have been
    /// sent: all bytes, and the FIN where that has been passed on already.
    fn delivered(&self, side: LegSide) -> Result<bool, Ending> {
        let direction = if side == LegSide::Near { &self.down } else { &self.up };
        Ok(direction.finished() && self.acknowledged(side)?)
    }

    /// Whether `side` has acknowledged all it was given, a FIN too. What a reset threw away never
    /// counts as acknowledged.
    fn acknowledged(&self, side: LegSide) -> Result<bool, Ending> {
        self.unacknowledged(side).map(|bytes| bytes == 0)
    }

    fn unacknowledged(&self, side: LegSide) -> Result<usize, Ending> {
        self.leg(side).unacknowledged().map_err(|why| self.failed(side, &why))
    }

    /// The ending that an error on `side` makes.
    fn failed(&self, side: LegSide, why: &io::Error) -> Ending {
        match side {
            LegSide::Near => Ending::NearFailed(why.kind()),
            // A far end that refuses causes another error. After this one it had been reached,
            // though no event told so yet.
            LegSide::Far if self.is_dialling() && why.kind() != io::ErrorKind::ConnectionReset => Ending::FarNotReached(why.kind()),
            LegSide::Far => Ending::FarFailed(why.kind()),
        }
    }

    /// The ending that a fault makes in the direction that comes from `from`.
    fn faulted(&self, from: LegSide, fault: Fault) -> Ending {
        match fault {
            Fault::Source(why) => self.failed(from, &why),
            Fault::Destination(why) => self.failed(from.other(), &why),
            Fault::Own => Ending::NoRoom,
        }
    }

    /// Gives borrowed pipes back, and answers a SOCKS client that still waits.
    pub(crate) fn release(&mut self, ending: Ending, scratch: &mut Scratch) {
        self.up.release(scratch);
        self.down.release(scratch);
        if self.socks && self.life == Life::Dialling {
            refuse_socks(self.near.socket(), ending);
        }
    }

    /// The flow as it is now, without the lengths of its queues.
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
            multipath: None,
        }
    }

    /// The flow as it is now.
    pub(crate) fn stats(&self, now: Instant) -> FlowStats {
        let queues = |stats: &mut DirectionStats, source: BorrowedFd<'_>, destination: BorrowedFd<'_>| {
            let memory = sys::receive_memory(source).unwrap_or_default();
            stats.received = sys::received(source);
            // Data in order can be read. Only packets beyond a hole take memory and cannot.
            stats.has_hole = stats.received == 0 && memory.used > 0;
            stats.unsent = sys::unsent(destination).unwrap_or(0);
            memory.drops
        };
        let mut stats = self.last_stats(now);
        stats.control = [&self.near, &self.far].map(|leg| leg::controller_of(leg.socket()));
        stats.drops =
            [queues(&mut stats.up, self.near.as_fd(), self.far.as_fd()), queues(&mut stats.down, self.far.as_fd(), self.near.as_fd())];
        stats
    }

    /// Bytes carried so far, up and down.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.up.carried(), self.down.carried())
    }
}

/// Tells a SOCKS client that its far end was not reached; its leg is closed, not reset.
pub(crate) fn refuse_socks(near: &Socket, ending: Ending) {
    let code = if let Ending::FarNotReached(why) = ending { socks_code(why) } else { 1 };
    let _ = rustix::net::send(near, &socks_reply(code), rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL);
    let _ = near.set_linger(None);
}
