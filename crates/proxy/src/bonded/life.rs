//! The life of a connection of which one leg is a bond: the far leg at the end that dials the bond (*connect*), the near leg at the end that
//! accepts it (*serve*). The other leg is plain.
//!
//! The rules are those of a connection of two plain legs (see `connection`): an end that has sent its own FIN and then reads end of file may
//! conclude that the other end's TCP has acknowledged every byte and that FIN. Here each end of the bond knows one plain leg, and is told of the
//! other by [`Done`](bond::Frame::Delivered): all that was sent was delivered, and acknowledged.
//!
//! | event | at the end of the bond that it comes to |
//! |---|---|
//! | the plain leg's FIN | told as the end of the stream |
//! | the stream's end | a FIN to the plain leg, when that has not finished, or the other end has said *done*; else then |
//! | the plain leg has acknowledged all, its FIN too | *done* is said |
//! | both have ended, neither was told | *connect* says *done* for the bytes alone; *serve* passes the FIN, says *done*; *connect* passes its FIN |
//! | *done* both ways, FINs acknowledged | ends `Finished` |
//! | RST of the plain leg, its timeout, its far end not reached | the stream is given up, with the reason; the other end resets its plain leg |
//! | a connection of the bond is lost or silent | what it had goes over the others; *connect* dials another |
//! | all are lost | the stream waits for as long as is set, then its plain legs are reset |

use super::{
    member::Lost,
    stream::{Stream, Taken, Turn},
};
use crate::{
    config::ProxyVersion,
    connection::{Events, refuse_socks},
    ending::Ending,
    greeting::{proxy_header, socks_reply},
    relay::Tools,
};
use bond::{Frame, NoMemory, OpenReply, OpenRequest, ResetReason, StreamError, Target};
use intercept::{
    ReceiveBound,
    leg::{self, LegProfile, Shares, Silence},
    sys,
};
use rustix::{fd::AsFd as _, io::Errno};
use socket2::Socket;
use std::{
    io, mem,
    net::{Shutdown, SocketAddr},
    time::{Duration, Instant},
};
use units::Span;

/// How much may be moved before others have their turn.
const TURN_BYTES: usize = 2 << 20;
/// What an end of the bond says to the other, before any stream, is no longer.
const LONGEST_CALL: u64 = 2048;
/// A direction that has moved so much has its plain socket tuned for a stream.
const TUNE_FROM: u64 = 32 * 1024;
/// How soon to look whether something was acknowledged, which raises no event: at first, and at last, while nothing is.
const TICK: Span = Span(2_000_000);
const LAST_TICK: Span = Span(250_000_000);

/// Which end of the bond this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It has dialled; whether its client waits for a SOCKS reply.
    Connect { socks: bool },
    /// It has accepted; what its servers are told of the client.
    Serve { send_proxy: Option<ProxyVersion> },
}

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// *Connect*: whether the server was reached is not known yet.
    Calling,
    /// *Serve*: where it wants to go is not known yet.
    Called,
    /// *Serve*: the server's name is looked up, or it is being dialled.
    Dialling,
    /// Bytes move both ways.
    Relaying,
}

/// What a connection wants after its turn.
#[derive(Debug, Default)]
pub(super) struct Wants {
    pub(super) turn: Turn,
    /// *Serve*: this is to be dialled.
    pub(super) dial: Option<Target>,
}

/// A connection of which one leg is a bond.
#[derive(Debug)]
pub(super) struct Bonded {
    pub(super) role: Role,
    life: Life,
    pub(super) plain: Option<Socket>,
    /// Where events of the plain leg find it.
    pub(super) entry: usize,
    pub(super) stream: Stream,
    pub(super) id: u128,
    /// Something was heard of the other end.
    pub(super) known: bool,
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    /// Where else it may go.
    pub(super) others: Vec<SocketAddr>,
    pub(super) born: Instant,
    /// When its far end was last asked for: the other end of the bond, or a server.
    pub(super) asked: Instant,
    /// What the plain leg gets before the stream's bytes.
    preface: Vec<u8>,
    readable: bool,
    writable: bool,
    hung_up: bool,
    /// It has sent urgent data, at which a read stops early.
    urgent: bool,
    /// The plain leg has sent its last byte, and it has been read.
    ended: bool,
    /// It has been sent a FIN.
    passed: bool,
    delivered: bool,
    /// Bytes read from the plain leg, and written to it, without what no stream carried.
    pub(super) taken: u64,
    pub(super) given: u64,
    tuned: bool,
    shares: Option<Shares>,
    /// Of the plain leg's receive queue.
    receive_bound: ReceiveBound,
    silence: Silence,
    moved: (Instant, u64),
    kept_alive: bool,
    /// Since when it has had no connection, and whether the last one was closed by the other end.
    pub(super) alone: Option<(Instant, bool)>,
    pub(super) in_again: bool,
    /// When its turn is due, as the clock has been told.
    pub(super) scheduled: Option<Span>,
    /// When to look at the plain leg again, from now on, and what it had not acknowledged when it was last looked at.
    tick: Option<Span>,
    pause: Span,
    unacknowledged: usize,
}

/// The reason that the other end is told.
pub(super) fn why(ending: Ending) -> ResetReason {
    use io::ErrorKind as Kind;
    match ending {
        Ending::FarNotReached(Kind::ConnectionRefused) => ResetReason::Refused,
        Ending::FarNotReached(Kind::NetworkUnreachable) => ResetReason::NetworkUnreachable,
        Ending::FarNotReached(Kind::HostUnreachable) => ResetReason::HostUnreachable,
        Ending::FarNotReached(Kind::TimedOut) => ResetReason::TimedOut,
        Ending::FarNotReached(Kind::NotFound) => ResetReason::NoSuchName,
        Ending::FarNotReached(Kind::PermissionDenied) => ResetReason::NotAllowed,
        Ending::NearFailed(Kind::TimedOut) | Ending::FarFailed(Kind::TimedOut) => ResetReason::TimedOut,
        Ending::NearFailed(_) | Ending::FarFailed(_) => ResetReason::Reset,
        Ending::NoRoom => ResetReason::NoRoom,
        Ending::Stopped => ResetReason::Stopped,
        Ending::Idle => ResetReason::Idle,
        Ending::Finished | Ending::NoGreeting | Ending::FarNotReached(_) => ResetReason::Other,
    }
}

/// What the other end's reason is to this one.
fn kind(why: ResetReason) -> io::ErrorKind {
    use io::ErrorKind as Kind;
    match why {
        ResetReason::Refused => Kind::ConnectionRefused,
        ResetReason::NetworkUnreachable => Kind::NetworkUnreachable,
        ResetReason::HostUnreachable => Kind::HostUnreachable,
        ResetReason::TimedOut | ResetReason::Idle => Kind::TimedOut,
        ResetReason::NoSuchName => Kind::NotFound,
        ResetReason::NotAllowed => Kind::PermissionDenied,
        ResetReason::NoRoom => Kind::QuotaExceeded,
        ResetReason::Reset | ResetReason::Stopped => Kind::ConnectionReset,
        ResetReason::Other => Kind::Other,
    }
}

impl Bonded {
    /// At the end that dials: a client has come, and wants to go there.
    pub(super) fn call(
        near: Socket,
        call: &OpenRequest,
        [preface, heard]: [&[u8]; 2],
        id: u128,
        stream: Stream,
        profile: &LegProfile,
        now: Instant,
    ) -> Result<Self, NoMemory> {
        let server = if let Target::Address(server) = call.target { server } else { super::UNKNOWN };
        let mut this = Self::new(Role::Connect { socks: false }, Life::Calling, id, stream, now);
        (this.client, this.server, this.plain, this.silence) = (call.client, server, Some(near), Silence::of(profile));
        this.stream.write(&call.encode())?;
        this.stream.write(preface)?;
        this.stream.write(heard)?;
        this.taken = heard.len() as u64;
        Ok(this)
    }

    /// At the end that accepts: the first connection of a stream has come.
    pub(super) fn called(send_proxy: Option<ProxyVersion>, id: u128, stream: Stream, now: Instant) -> Self {
        Self::new(Role::Serve { send_proxy }, Life::Called, id, stream, now)
    }

    fn new(role: Role, life: Life, id: u128, stream: Stream, now: Instant) -> Self {
        Bonded {
            role,
            life,
            plain: None,
            entry: usize::MAX,
            stream,
            id,
            known: false,
            client: super::UNKNOWN,
            server: super::UNKNOWN,
            others: Vec::new(),
            born: now,
            asked: now,
            preface: Vec::new(),
            readable: true,
            writable: true,
            hung_up: false,
            urgent: false,
            ended: false,
            passed: false,
            delivered: false,
            taken: 0,
            given: 0,
            tuned: false,
            shares: None,
            receive_bound: ReceiveBound::default(),
            silence: Silence::of(&LegProfile::default()),
            moved: (now, 0),
            kept_alive: false,
            alone: Some((now, false)),
            in_again: false,
            scheduled: None,
            tick: None,
            pause: TICK,
            unacknowledged: 0,
        }
    }

    /// What it holds of its own buffers, beyond the window.
    pub(super) fn with_shares(mut self, shares: Option<Shares>) -> Self {
        self.shares = shares;
        self.receive_bound = ReceiveBound::inherited(shares.map(|shares| shares.receive));
        self
    }

    /// Its client waits for a SOCKS reply.
    pub(super) fn with_socks(mut self, socks: bool) -> Self {
        if let Role::Connect { socks: waits } = &mut self.role {
            *waits = socks;
        }
        self
    }

    /// *Serve*: the server is being dialled.
    pub(super) fn dials(&mut self, far: Socket, server: SocketAddr, profile: &LegProfile, now: Instant) {
        let Role::Serve { send_proxy } = self.role else { return };
        self.preface = send_proxy.map_or(Vec::new(), |version| proxy_header(version, self.client, server));
        (self.plain, self.server, self.silence, self.life) = (Some(far), server, Silence::of(profile), Life::Dialling);
        // Nothing is known of this socket, whatever was of one that was refused.
        (self.readable, self.writable, self.hung_up, self.urgent) = (false, false, false, false);
        (self.kept_alive, self.asked) = (false, now);
    }

    /// Whether it is not known yet that the server was reached.
    pub(super) fn is_dialling(&self) -> bool {
        self.life != Life::Relaying
    }

    /// Whether it is still to hear where it goes.
    pub(super) fn is_called(&self) -> bool {
        self.life == Life::Called
    }

    /// What epoll said of the plain leg.
    pub(super) fn on_events(&mut self, events: Events) -> Result<(), Ending> {
        self.readable |= events.readable || events.failed;
        self.hung_up |= events.hung_up;
        self.urgent |= events.urgent;
        self.writable |= events.writable || events.failed;
        if events.failed
            && let Some(why) = self.plain.as_ref().and_then(|plain| plain.take_error().unwrap_or_else(Some))
        {
            return Err(self.failed(&why));
        }
        if self.life == Life::Dialling && events.writable && self.plain.is_some() {
            self.life = Life::Relaying;
            self.readable = true;
            self.stream.write(&OpenReply(self.server).encode()).map_err(|NoMemory| Ending::NoRoom)?;
            if let Some(plain) = self.plain.as_ref().filter(|_| self.preface.is_empty() && self.stream.inbound.readable_bytes() == 0) {
                leg::acknowledge(plain);
            }
        }
        Ok(())
    }

    /// The ending that an error of the plain leg makes, or a want of memory.
    pub(super) fn failed(&self, why: &io::Error) -> Ending {
        match self.role {
            _ if why.kind() == io::ErrorKind::OutOfMemory => Ending::NoRoom,
            Role::Connect { .. } => Ending::NearFailed(why.kind()),
            Role::Serve { .. } if self.life == Life::Dialling && why.kind() != io::ErrorKind::ConnectionReset => {
                Ending::FarNotReached(why.kind())
            }
            Role::Serve { .. } => Ending::FarFailed(why.kind()),
        }
    }

    /// The ending that the other end of the bond makes.
    pub(super) fn bond_failed(&self, why: io::ErrorKind) -> Ending {
        match self.role {
            Role::Connect { .. } if self.life == Life::Calling => Ending::FarNotReached(why),
            Role::Connect { .. } => Ending::FarFailed(why),
            Role::Serve { .. } => Ending::NearFailed(why),
        }
    }

    /// Moves what can be moved. An error is how it has ended; what it wants holds then, too.
    pub(super) fn proceed(&mut self, now: Span, tools: &mut Tools, wants: &mut Wants) -> Result<(), Ending> {
        let relays = self.life == Life::Relaying;
        let heard = tools.with_scratch(|scratch| self.stream.hear(now, relays, scratch, &mut wants.turn));
        heard.map_err(|why| {
            tracing::warn!("{why}");
            match why {
                StreamError::Violation(_) => self.bond_failed(io::ErrorKind::InvalidData),
                StreamError::NoMemory(_) => Ending::NoRoom,
            }
        })?;
        self.known |= self.stream.inbound.next_offset() > 0 || self.stream.outbound.acked() > 0;
        if let Some(why) = self.stream.reset {
            return Err(self.bond_failed(kind(why.into())));
        }
        match self.life {
            Life::Calling => self.hear_answer(now)?,
            Life::Called => wants.dial = self.hear_call(now)?,
            Life::Dialling | Life::Relaying => {}
        }
        let (took, gave) = (self.take()?, self.give(now)?);
        wants.turn.again |= took || gave;
        self.pass_end()?;
        self.stream.say(now, &mut wants.turn).map_err(|why| self.failed(&why.into()))?;
        // What was given out has made room for what the plain leg still has, and nothing else may tell of that before a round trip is over.
        wants.turn.again |= self.is_to_take();
        if self.is_over()? {
            return Err(Ending::Finished);
        }
        Ok(())
    }

    fn hear_answer(&mut self, now: Span) -> Result<(), Ending> {
        let answer = OpenReply::decode(&self.heard());
        let answer = answer.map_err(|_| self.bond_failed(io::ErrorKind::InvalidData))?;
        if let Some((OpenReply(server), len)) = answer {
            self.stream.inbound.consume(now, len as u64);
            (self.server, self.life) = (server, Life::Relaying);
            if let Role::Connect { socks: true } = self.role {
                self.preface = socks_reply(0);
            }
        }
        Ok(())
    }

    fn hear_call(&mut self, now: Span) -> Result<Option<Target>, Ending> {
        let call = OpenRequest::decode(&self.heard());
        let Some((OpenRequest { client, target: to }, len)) = call.map_err(|_| self.bond_failed(io::ErrorKind::InvalidData))? else {
            return Ok(None);
        };
        self.stream.inbound.consume(now, len as u64);
        (self.client, self.life) = (client, Life::Dialling);
        Ok(Some(to))
    }

    /// The beginning of what has come and was not read.
    fn heard(&self) -> Vec<u8> {
        self.stream.inbound.readable(LONGEST_CALL).flatten().copied().collect()
    }

    /// Whether the plain leg may have something that had better be taken now.
    fn is_to_take(&self) -> bool {
        self.plain.is_some() && self.life != Life::Dialling && self.readable && !self.ended && self.stream.wants()
    }

    /// Takes what the plain leg has sent; true: there is more.
    fn take(&mut self) -> Result<bool, Ending> {
        let Some(plain) = &self.plain else { return Ok(false) };
        if self.life == Life::Dialling || !self.stream.wants() {
            self.receive_bound.pause(plain.as_fd()).map_err(|why| self.failed(&why))?;
            return Ok(false);
        }
        self.receive_bound.resume(plain.as_fd()).map_err(|why| self.failed(&why))?;
        let mut taken = 0;
        while self.is_to_take() {
            if taken >= TURN_BYTES {
                self.taken += taken as u64;
                return Ok(true);
            }
            // What was told before this read, holds after it.
            let hung_up = self.hung_up;
            match self.stream.take(plain) {
                Ok(Taken::Ended) => self.ended = true,
                Ok(Taken::Bytes { count, more }) => {
                    taken += count;
                    self.readable = more || hung_up || self.urgent;
                }
                Err(Errno::AGAIN) => (self.readable, self.urgent) = (false, false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(&errno.into())),
            }
            if self.ended {
                self.stream.outbound.close();
            }
        }
        self.taken += taken as u64;
        self.tune()?;
        Ok(false)
    }

    /// Gives the plain leg what has come; true: there is more.
    fn give(&mut self, now: Span) -> Result<bool, Ending> {
        let Some(plain) = self.plain.as_ref().filter(|_| self.life == Life::Relaying) else { return Ok(false) };
        let mut given = 0;
        while self.writable {
            if self.preface.is_empty() && self.stream.inbound.readable_bytes() == 0 {
                break;
            }
            if given >= TURN_BYTES {
                self.given += given as u64;
                return Ok(true);
            }
            match self.stream.give(now, plain, &mut self.preface) {
                Ok(count) => given += count,
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(&errno.into())),
            }
        }
        self.given += given as u64;
        self.tune()?;
        Ok(false)
    }

    /// Bounds what the plain socket takes unsent, once it carries a stream.
    fn tune(&mut self) -> Result<(), Ending> {
        if self.tuned || self.taken.max(self.given) < TUNE_FROM {
            return Ok(());
        }
        self.tuned = true;
        if let (Some(shares), Some(plain)) = (self.shares, &self.plain) {
            let tuned = sys::set_notsent_lowat(plain, shares.unsent);
            tuned.map_err(|why| self.failed(&why))?;
        }
        Ok(())
    }

    /// Passes the stream's end on to the plain leg, and says so when all was delivered.
    fn pass_end(&mut self) -> Result<(), Ending> {
        self.tick = None;
        if !self.stream.inbound.is_fully_read() || !self.preface.is_empty() || self.life != Life::Relaying {
            return Ok(());
        }
        let Some(plain) = &self.plain else { return Ok(()) };
        if !self.passed {
            let hung_up = || sys::has_hung_up(plain).map_err(|why| self.failed(&why));
            let has_ended = self.ended || self.hung_up || hung_up()?;
            let waits = has_ended && !self.stream.outbound.is_delivered();
            if !waits {
                if let Err(why) = plain.shutdown(Shutdown::Write)
                    && why.kind() != io::ErrorKind::NotConnected
                {
                    return Err(self.failed(&why));
                }
                self.passed = true;
            } else if matches!(self.role, Role::Serve { .. }) {
                return Ok(());
            }
        }
        if !self.delivered {
            let unacknowledged = sys::unacknowledged(plain).map_err(|why| self.failed(&why))?;
            self.delivered = unacknowledged == 0;
            if self.delivered {
                self.stream.inbound.mark_delivered();
            } else {
                self.look_again(unacknowledged);
            }
        }
        Ok(())
    }

    /// Whether all is done: a last FIN that nobody waits for is the kernel's business.
    fn is_over(&mut self) -> Result<bool, Ending> {
        if !(self.passed && self.delivered && self.ended && self.stream.outbound.is_delivered()) {
            return Ok(false);
        }
        let Some(plain) = &self.plain else { return Ok(true) };
        let left = sys::unacknowledged(plain).map_err(|why| self.failed(&why))?;
        if left <= 1 {
            let _ = plain.set_linger(None);
        } else {
            self.look_again(left);
        }
        Ok(left <= 1)
    }

    /// The plain leg has not acknowledged so much: it is looked at again soon, and ever later where nothing changes. A client that does not read may keep it so
    /// for as long as it likes.
    fn look_again(&mut self, unacknowledged: usize) {
        let changed = mem::replace(&mut self.unacknowledged, unacknowledged) != unacknowledged;
        self.pause = if changed { TICK } else { (self.pause * 2).min(LAST_TICK) };
        self.tick = Some(self.pause);
    }

    /// When its turn is due, if nothing happens before.
    pub(super) fn wakes(&self, now: Span) -> Option<Span> {
        let tick = self.tick.map(|pause| now + pause);
        [tick, self.stream.wakes(now)].into_iter().flatten().min()
    }

    /// It has ended like this: its plain leg is told, and what its connections are still to carry is returned.
    pub(super) fn release(&mut self, ending: Ending) -> Vec<(super::member::Member, Vec<u8>)> {
        if let (Role::Connect { socks: true }, Life::Calling, Some(plain)) = (self.role, self.life, &self.plain) {
            refuse_socks(plain, ending);
        }
        let last = if ending == Ending::Finished { Frame::Delivered } else { Frame::Reset(why(ending) as u8) };
        self.stream.part(Some(&last))
    }

    /// A connection of it is gone.
    pub(super) fn note_loss(&mut self, why: Lost, now: Instant) {
        if self.stream.members().next().is_none() {
            self.alone = Some((now, why == Lost::Closed));
        }
    }

    /// Has the plain leg's peer asked now and then whether it is still there.
    pub(super) fn keep_alive(&mut self) {
        if let Some(plain) = self.plain.as_ref().filter(|_| !mem::replace(&mut self.kept_alive, true)) {
            let _ = plain.set_keepalive(true);
        }
    }

    /// How it has ended, if its plain leg's peer has been silent for too long.
    pub(super) fn ended_in_silence(&mut self, now: Instant) -> Option<Ending> {
        let is_too_long = self.plain.as_ref().is_some_and(|plain| self.silence.is_too_long(plain, now));
        is_too_long.then(|| self.failed(&io::ErrorKind::TimedOut.into()))
    }

    /// How long nothing has moved, as far as was looked.
    pub(super) fn idle(&mut self, now: Instant) -> Duration {
        let moved = self.taken + self.given;
        if moved != self.moved.1 {
            self.moved = (now, moved);
        }
        now - self.moved.0
    }

    /// Bytes in the plain leg's hands: of its receive queue, and not sent yet.
    pub(super) fn plain_queues(&self) -> (usize, usize) {
        self.plain.as_ref().map_or((0, 0), |plain| (sys::received(plain), sys::unsent(plain).unwrap_or(0)))
    }
}
