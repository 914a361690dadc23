//! The state machine of a connection with a bond as one leg: the far leg at the end that dials the
//! bond (*connect*), the near leg at the end that accepts it (*serve*). The other leg is plain.
//!
//! The rules are those of a connection of two plain legs (`connection` in the crate `proxy`): an
//! end that has sent its own FIN and then reads end of file may conclude that the other end's TCP
//! has acknowledged every byte and that FIN. Each end of the bond has one plain leg. It learns
//! about the other by [`Delivered`](bond::Frame::Delivered): everything that was sent has been
//! acknowledged there.
//!
//! | event | reaction of the end of the bond where it occurs |
//! |---|---|
//! | FIN of the plain leg | sends the end of the stream |
//! | end of the stream | sends a FIN to the plain leg: at once if that has not finished sending, else after *delivered* has arrived |
//! | the plain leg has acknowledged everything, the FIN too | sends *delivered* |
//! | both have ended, and no FIN was passed on | *connect* sends *delivered* for the bytes alone; *serve* passes the FIN and sends *delivered*; *connect* passes its FIN |
//! | *delivered* sent and received, FINs acknowledged | ends `Finished` |
//! | RST or timeout of the plain leg, server not reached | resets the stream, with the reason, once the other end has received what was read before; the other end resets its plain leg once its peer has acknowledged that |
//! | a connection of the bond is lost or silent | reinjects its data over the others; *connect* dials another |
//! | all connections are lost | waits for `outage`, then resets the plain leg |
//! | the other end is not reached, and has answered nothing | *connect* refuses the client, or connects it without the bond if its server may get twice what was sent |

use crate::{
    host::{ClientReply, Preface},
    member::{Lost, Member},
    plain_buffer::PlainBuffer,
    stream::{Stream, Taken, Turn},
};
use bond::{Frame, NoMemory, OpenReply, OpenRequest, ResetReason, StreamError, Target};
use intercept::{
    LastDelivery, canonical,
    leg::{self, Shares},
    sys,
};
use relay::{DialRace, Ending, PlainLeg, Readiness, Scratch, UNKNOWN_ADDRESS};
use rustix::io::Errno;
use socket2::Socket;
use std::{
    io, mem,
    net::SocketAddr,
    time::{Duration, Instant},
};
use units::Span;

/// The most bytes that are relayed in a turn, so that other streams are not delayed.
const TURN_BYTES: u64 = 2 << 20;
/// The longest call or answer, bytes.
const LONGEST_CALL: u64 = 2048;
/// First and longest interval of checking whether the plain leg's peer has acknowledged, which
/// raises no event.
const TICK: Span = Span(2_000_000);
const LAST_TICK: Span = Span(250_000_000);

/// Which end of the bond this is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    /// It has dialled. The replies, if its client waits for one.
    Connect { reply: Option<ClientReply> },
    /// It has accepted. Makes the bytes that servers get before those of a stream.
    Serve { preface: Option<Preface> },
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BondedState {
    /// *Connect*: waits for the answer whether the server was reached.
    Calling,
    /// *Serve*: waits for the call that names the server.
    Called,
    /// *Serve*: the server's name is being looked up, or the server is being dialled.
    Dialling,
    /// Bytes are relayed in both directions.
    Relaying,
}

/// The failure of the plain leg or of the stream, while the other one still gets what was received
/// before.
#[derive(Debug)]
struct Failure {
    of: Failed,
    ending: Ending,
    delivery: LastDelivery,
}

/// What has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// The plain leg; whether its peer had sent a FIN before.
    Plain { after_fin: bool },
    /// The stream: the other end has reset it.
    Stream,
}

/// What the caller has to do after a turn.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub(crate) turn: Turn,
    /// *Serve*: the server to dial.
    pub(crate) dial: Option<Target>,
}

/// A connection with a bond as one leg.
#[derive(Debug)]
pub(crate) struct BondedConnection {
    pub(crate) role: Role,
    state: BondedState,
    failure: Option<Box<Failure>>,
    pub(crate) plain: Option<PlainLeg>,
    /// Index of the plain leg among the bond's sockets.
    pub(crate) entry: usize,
    pub(crate) stream: Stream,
    pub(crate) id: u128,
    /// The other end has sent or acknowledged something.
    pub(crate) known: bool,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// *Serve*: the attempts to reach a server with several addresses, until one is connected.
    pub(crate) race: Option<Box<DialRace<Attempt>>>,
    /// The lengths of the call and of the preface at the begin of the stream, if the connection may
    /// do without the bond.
    returnable: Option<[usize; 2]>,
    /// *Serve*: the name of the server that is being looked up.
    pub(crate) name: Option<String>,
    pub(crate) born: Instant,
    /// Time at which its far end, the other end of the bond or a server, was last dialled.
    pub(crate) asked: Instant,
    /// Bytes that the plain leg gets before those of the stream.
    preface: Vec<u8>,
    /// End of file: all bytes of the plain leg have been read.
    ended: bool,
    /// A FIN has been passed on to the plain leg.
    passed: bool,
    delivered: bool,
    /// Bytes of the stream read from the plain leg, and written to it.
    pub(crate) taken: u64,
    pub(crate) given: u64,
    /// B of the plain leg's queues.
    buffer: PlainBuffer,
    moved: (Instant, u64),
    /// Since when it has had no connection, and whether the last one was closed by the other end.
    pub(crate) alone: Option<(Instant, bool)>,
    pub(crate) in_again: bool,
    /// The expiry of its entry in the timers.
    pub(crate) scheduled: Option<Span>,
    /// How long until the plain leg's acknowledgements are checked again, the current pause between
    /// checks, and the bytes that were unacknowledged at the last check.
    tick: Option<Span>,
    pause: Span,
    unacknowledged: usize,
}

/// An attempt to reach an address of a server: its leg, and the leg's index among the bond's
/// sockets.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) entry: usize,
    pub(crate) leg: PlainLeg,
}

/// The ending for an error of the plain leg or a lack of memory.
fn plain_failed(role: Role, state: BondedState, why: &io::Error) -> Ending {
    match role {
        _ if why.kind() == io::ErrorKind::OutOfMemory => Ending::NoRoom,
        Role::Connect { .. } => Ending::NearFailed(why.kind()),
        Role::Serve { .. } if state == BondedState::Dialling && !is_reset(why) => Ending::FarNotReached(why.kind()),
        Role::Serve { .. } => Ending::FarFailed(why.kind()),
    }
}

/// Whether an established connection was reset. The kernel reports a reset that follows a FIN as
/// EPIPE.
fn is_reset(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Whether a server may get these first bytes of a client twice: there are none, or they begin a
/// TLS handshake (RFC 8446 §5.1) without early data. The client then waits for the server's answer.
fn may_be_repeated(mut bytes: &[u8]) -> bool {
    const CHANGE_CIPHER_SPEC: u8 = 20;
    const HANDSHAKE: u8 = 22;
    let mut is_first = true;
    while let Some((kind, rest)) = bytes.split_first() {
        let fits = *kind == HANDSHAKE || *kind == CHANGE_CIPHER_SPEC && !is_first;
        let is_tls = rest.first().is_none_or(|major| *major == 3);
        if !fits || !is_tls {
            return false;
        }
        let Some((header, rest)) = rest.split_first_chunk::<4>() else { return true };
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        bytes = rest.get(length..).unwrap_or_default();
        is_first = false;
    }
    true
}

/// The reason for an ending that is sent to the other end.
pub(crate) fn why(ending: Ending) -> ResetReason {
    use io::ErrorKind;
    match ending {
        Ending::FarNotReached(ErrorKind::ConnectionRefused) => ResetReason::Refused,
        Ending::FarNotReached(ErrorKind::NetworkUnreachable) => ResetReason::NetworkUnreachable,
        Ending::FarNotReached(ErrorKind::HostUnreachable) => ResetReason::HostUnreachable,
        Ending::FarNotReached(ErrorKind::TimedOut) => ResetReason::TimedOut,
        Ending::FarNotReached(ErrorKind::NotFound) => ResetReason::NoSuchName,
        Ending::FarNotReached(ErrorKind::PermissionDenied) => ResetReason::NotAllowed,
        Ending::NearFailed(ErrorKind::TimedOut) | Ending::FarFailed(ErrorKind::TimedOut) => ResetReason::TimedOut,
        Ending::NearFailed(_) | Ending::FarFailed(_) => ResetReason::Reset,
        Ending::NoRoom => ResetReason::NoRoom,
        Ending::Stopped => ResetReason::Stopped,
        Ending::Idle | Ending::Stuck => ResetReason::Idle,
        Ending::Finished | Ending::NoGreeting | Ending::FarNotReached(_) => ResetReason::Other,
    }
}

/// The kind of error for a reason of the other end.
fn kind(why: ResetReason) -> io::ErrorKind {
    use io::ErrorKind;
    match why {
        ResetReason::Refused => ErrorKind::ConnectionRefused,
        ResetReason::NetworkUnreachable => ErrorKind::NetworkUnreachable,
        ResetReason::HostUnreachable => ErrorKind::HostUnreachable,
        ResetReason::TimedOut | ResetReason::Idle => ErrorKind::TimedOut,
        ResetReason::NoSuchName => ErrorKind::NotFound,
        ResetReason::NotAllowed => ErrorKind::PermissionDenied,
        ResetReason::NoRoom => ErrorKind::QuotaExceeded,
        ResetReason::Reset | ResetReason::Stopped => ErrorKind::ConnectionReset,
        ResetReason::Other => ErrorKind::Other,
    }
}

impl BondedConnection {
    /// At the end that dials: begins a stream for a client.
    pub(crate) fn call(
        near: PlainLeg,
        call: &OpenRequest,
        [preface, already_read]: [&[u8]; 2],
        id: u128,
        stream: Stream,
        now: Instant,
    ) -> Result<Self, NoMemory> {
        let server = if let Target::Address(server) = call.target { server } else { UNKNOWN_ADDRESS };
        let mut this = Self::new(Role::Connect { reply: None }, BondedState::Calling, id, stream, now);
        (this.client, this.server, this.plain) = (call.client, server, Some(near));
        this.stream.write(&call.encode())?;
        this.stream.write(preface)?;
        this.stream.write(already_read)?;
        this.taken = already_read.len() as u64;
        Ok(this)
    }

    /// At the end that accepts: begins a stream whose first connection has arrived.
    pub(crate) fn called(preface: Option<Preface>, id: u128, stream: Stream, now: Instant) -> Self {
        Self::new(Role::Serve { preface }, BondedState::Called, id, stream, now)
    }

    fn new(role: Role, state: BondedState, id: u128, stream: Stream, now: Instant) -> Self {
        BondedConnection {
            role,
            state,
            failure: None,
            plain: None,
            entry: usize::MAX,
            stream,
            id,
            known: false,
            client: UNKNOWN_ADDRESS,
            server: UNKNOWN_ADDRESS,
            race: None,
            returnable: None,
            name: None,
            born: now,
            asked: now,
            preface: Vec::new(),
            ended: false,
            passed: false,
            delivered: false,
            taken: 0,
            given: 0,
            buffer: PlainBuffer::default(),
            moved: (now, 0),
            alone: Some((now, false)),
            in_again: false,
            scheduled: None,
            tick: None,
            pause: TICK,
            unacknowledged: 0,
        }
    }

    /// Sets how the largest B of its plain leg is divided, once that carries bulk data; none: it
    /// has no bound.
    pub(crate) fn with_shares(mut self, most: Option<Shares>) -> Self {
        self.buffer = PlainBuffer::new(most, matches!(self.role, Role::Connect { .. }));
        self
    }

    /// Sets the replies that its client waits for.
    pub(crate) fn with_reply(mut self, reply: Option<ClientReply>) -> Self {
        if let Role::Connect { reply: awaited } = &mut self.role {
            *awaited = reply;
        }
        self
    }

    /// Lets the connection do without the bond if the other end is not reached. Its stream begins
    /// with a call and a preface of these lengths.
    pub(crate) fn returnable(mut self, lengths: [usize; 2]) -> Self {
        self.returnable = Some(lengths);
        self
    }

    /// *Connect*: whether nothing of the other end has arrived.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.state == BondedState::Calling && !self.known
    }

    /// Takes the plain leg of an [unanswered](Self::is_unanswered) connection back, with the bytes
    /// for its server: the preface, and what was read from the client. None: it must not do without
    /// the bond, or its server may have got bytes that must not be repeated.
    pub(crate) fn take_back(&mut self) -> Option<(Socket, [Vec<u8>; 2])> {
        // A reset is reported once: another relay would take it for an end of file.
        let [call, preface] = self.returnable.filter(|_| self.failure.is_none())?;
        let bytes = self.stream.recall().ok()?;
        let (preface, read) = bytes.get(call..)?.split_at_checked(preface)?;
        if self.stream.has_assigned() && !may_be_repeated(read) {
            return None;
        }
        let mut plain = self.plain.take()?;
        plain.resume_receive().ok()?;
        Some((plain.into_socket(), [preface.to_vec(), read.to_vec()]))
    }

    /// *Serve*: the server is being dialled.
    pub(crate) fn dials(&mut self, far: PlainLeg, server: SocketAddr, now: Instant) {
        let Role::Serve { preface } = self.role else { return };
        self.preface = preface.map_or(Vec::new(), |preface| preface(self.client, server));
        (self.plain, self.server, self.state, self.asked) = (Some(far), server, BondedState::Dialling, now);
    }

    /// Whether it is unknown whether the server was reached.
    pub(crate) fn is_dialling(&self) -> bool {
        self.state != BondedState::Relaying
    }

    /// Whether the call that names the server has not arrived yet.
    pub(crate) fn is_called(&self) -> bool {
        self.state == BondedState::Called
    }

    /// Applies an event of the plain leg.
    pub(crate) fn on_events(&mut self, events: Readiness, now: Instant) -> Result<(), Ending> {
        let Some(plain) = &mut self.plain else { return Ok(()) };
        let error = plain.take_in(events);
        let was_reached = error.as_ref().map_or(events.writable, is_reset);
        if self.state == BondedState::Dialling && was_reached {
            self.state = BondedState::Relaying;
            plain.readable = true;
            self.stream.write(&OpenReply(self.server).encode()).map_err(|NoMemory| Ending::NoRoom)?;
            if self.preface.is_empty() && self.stream.inbound.readable_bytes() == 0 {
                leg::acknowledge(plain.socket());
            }
        }
        match error {
            Some(why) => self.fail(self.failed(&why), &why, now),
            None => Ok(()),
        }
    }

    /// Notes the failure of the plain leg or of the stream, whichever this is the ending for.
    ///
    /// # Errors
    /// The ending of the connection, if nothing is left to deliver to the other one.
    pub(crate) fn fail(&mut self, ending: Ending, why: &io::Error, now: Instant) -> Result<(), Ending> {
        if let Some(first) = self.failure.as_ref().filter(|_| !matches!(ending, Ending::FarNotReached(_))) {
            return Err(first.ending);
        }
        let relays = self.state == BondedState::Relaying;
        // Before the answer the call and the client's first bytes are on their way.
        let has_taken = || self.taken > 0 || self.plain.as_ref().is_some_and(|plain| sys::received(plain) > 0);
        let of = match (self.role, ending) {
            (Role::Connect { .. }, Ending::NearFailed(_)) | (Role::Serve { .. }, Ending::FarFailed(_)) if relays || has_taken() => {
                // What was read of a near leg before its destination was known is not counted.
                let read = matches!(self.role, Role::Serve { .. }).then_some(self.taken);
                let had_finished = self.plain.as_ref().is_some_and(|plain| plain.had_finished(why, read));
                Failed::Plain { after_fin: self.ended || had_finished }
            }
            (Role::Connect { .. }, Ending::FarFailed(_)) if relays => Failed::Stream,
            (Role::Serve { .. }, Ending::NearFailed(_))
                if relays || (self.state == BondedState::Dialling && self.stream.inbound.readable_bytes() > 0) =>
            {
                Failed::Stream
            }
            _ => return Err(ending),
        };
        if let (Failed::Plain { .. }, Some(plain)) = (of, &mut self.plain) {
            plain.fail();
        }
        self.failure = Some(Box::new(Failure { of, ending, delivery: LastDelivery::new(now) }));
        Ok(())
    }

    /// The ending for what has failed, if something has.
    pub(crate) fn first_failure(&self) -> Option<Ending> {
        self.failure.as_ref().map(|failure| failure.ending)
    }

    /// Whether the other end has reset the stream.
    pub(crate) fn is_reset(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.of == Failed::Stream)
    }

    /// The ending for an error of the plain leg or a lack of memory.
    pub(crate) fn failed(&self, why: &io::Error) -> Ending {
        plain_failed(self.role, self.state, why)
    }

    /// The ending for a failure of the bond or of its other end.
    pub(crate) fn bond_failed(&self, why: io::ErrorKind) -> Ending {
        match self.role {
            Role::Connect { .. } if self.state == BondedState::Calling => Ending::FarNotReached(why),
            Role::Connect { .. } => Ending::FarFailed(why),
            Role::Serve { .. } => Ending::NearFailed(why),
        }
    }

    /// Relays in both directions. `wants` is valid after an error too.
    ///
    /// # Errors
    /// The ending of the connection.
    pub(crate) fn proceed(&mut self, now: Span, scratch: &mut Scratch, wants: &mut Wants) -> Result<(), Ending> {
        let relays = self.state == BondedState::Relaying;
        let heard = scratch.with_buffer(|scratch| self.stream.hear(now, relays, scratch, &mut wants.turn));
        heard.map_err(|why| {
            tracing::warn!("cannot go on with a stream of the bond: {why}; it is reset");
            match why {
                StreamError::Violation(_) => self.bond_failed(io::ErrorKind::InvalidData),
                StreamError::NoMemory(_) => Ending::NoRoom,
            }
        })?;
        self.known |= self.stream.inbound.next_offset() > 0 || self.stream.outbound.acked() > 0;
        match self.state {
            BondedState::Calling => self.hear_answer(now)?,
            BondedState::Called => wants.dial = self.hear_call(now)?,
            BondedState::Dialling | BondedState::Relaying => {}
        }
        if let Some(why) = self.stream.reset.filter(|_| !self.is_reset()) {
            let why = kind(why.into());
            self.fail(self.bond_failed(why), &why.into(), scratch.now)?;
        }
        if self.failure.is_none() {
            match self.relay(now, scratch.now, wants) {
                Err(ending @ (Ending::NearFailed(why) | Ending::FarFailed(why))) => self.fail(ending, &why.into(), scratch.now)?,
                relayed => return relayed,
            }
        }
        self.deliver_rest(now, scratch.now, wants)
    }

    fn relay(&mut self, now: Span, instant: Instant, wants: &mut Wants) -> Result<(), Ending> {
        self.adapt(instant)?;
        let (took, gave) = (self.take()?, self.give(now)?);
        self.end_turn()?;
        wants.turn.again |= took || gave;
        self.pass_end()?;
        self.stream.say(now, &mut wants.turn).map_err(|why| self.failed(&why.into()))?;
        // Sending has made room for bytes that the plain leg already has, and no event reports them
        // within a round trip.
        wants.turn.again |= self.is_to_take();
        if self.is_over()? {
            return Err(Ending::Finished);
        }
        Ok(())
    }

    /// After the failure of the plain leg or of the stream: passes on what was received before.
    fn deliver_rest(&mut self, now: Span, instant: Instant, wants: &mut Wants) -> Result<(), Ending> {
        let Some(Failure { of, ending, .. }) = self.failure.as_deref() else { return Ok(()) };
        let (of, ending) = (*of, *ending);
        wants.turn.again |= match of {
            Failed::Plain { .. } => self.take()?,
            Failed::Stream => self.give(now).map_err(|_| ending)?,
        };
        self.stream.say(now, &mut wants.turn).map_err(|why| self.failed(&why.into()))?;
        let (is_delivered, acknowledged, is_blocked) = match of {
            Failed::Plain { .. } => {
                wants.turn.again |= self.is_to_take();
                let is_delivered = self.ended && self.stream.unacknowledged() == 0;
                // The other end has no room for more, and this one cannot deliver what it has sent.
                let outbound = &self.stream.outbound;
                let has_no_room = outbound.unassigned() > 0 && self.stream.unacknowledged() <= outbound.unassigned();
                (is_delivered, outbound.acked(), has_no_room && self.stream.inbound.readable_bytes() > 0)
            }
            Failed::Stream => {
                let Some(plain) = self.plain.as_ref().filter(|_| self.state == BondedState::Relaying) else { return Ok(()) };
                let is_read = self.preface.is_empty() && self.stream.inbound.readable_bytes() == 0;
                if is_read && self.stream.inbound.is_fully_read() && !self.passed && !plain.has_hung_up().map_err(|_| ending)? {
                    plain.shut_down().map_err(|_| ending)?;
                    self.passed = true;
                }
                let unacknowledged = plain.unacknowledged().map_err(|_| ending)?;
                let acknowledged = (self.given + u64::from(self.passed)).saturating_sub(unacknowledged as u64);
                (is_read && unacknowledged == 0, acknowledged, sys::is_blocked(plain))
            }
        };
        let Some(failure) = &mut self.failure else { return Ok(()) };
        if is_delivered || !failure.delivery.goes_on(acknowledged, || is_blocked, instant) {
            return Err(ending);
        }
        self.tick = Some(Span(failure.delivery.check_at().saturating_duration_since(instant).as_nanos() as u64));
        Ok(())
    }

    fn hear_answer(&mut self, now: Span) -> Result<(), Ending> {
        let answer = OpenReply::decode(&self.heard());
        let answer = answer.map_err(|_| self.bond_failed(io::ErrorKind::InvalidData))?;
        if let Some((OpenReply(server), len)) = answer {
            self.stream.inbound.consume(now, len as u64);
            (self.server, self.state) = (server, BondedState::Relaying);
            if let Role::Connect { reply: Some(reply) } = self.role {
                self.preface = (reply.reached)();
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
        (self.client, self.state) = (canonical(client), BondedState::Dialling);
        Ok(Some(to))
    }

    /// The first bytes that have arrived and were not read.
    fn heard(&self) -> Vec<u8> {
        self.stream.inbound.readable(LONGEST_CALL).flatten().copied().collect()
    }

    /// Whether the plain leg may have bytes that the stream wants now.
    fn is_to_take(&self) -> bool {
        let readable = self.plain.as_ref().is_some_and(|plain| plain.readable);
        readable && self.state != BondedState::Dialling && !self.ended && self.stream.wants()
    }

    /// Reads from the plain leg; true: there is more.
    fn take(&mut self) -> Result<bool, Ending> {
        let (role, state) = (self.role, self.state);
        let failed = |why: &io::Error| plain_failed(role, state, why);
        let Some(plain) = &mut self.plain else { return Ok(false) };
        let ends = match self.failure.as_deref() {
            Some(Failure { of: Failed::Plain { after_fin }, .. }) => *after_fin,
            _ => true,
        };
        if state == BondedState::Dialling || !self.stream.wants() {
            plain.pause_receive().map_err(|why| failed(&why))?;
            return Ok(false);
        }
        let before = self.taken;
        while plain.readable && !self.ended && self.stream.wants() {
            if self.taken - before >= TURN_BYTES {
                return Ok(true);
            }
            // Only a FIN reported before this read is known to follow the bytes read.
            let hung_up = plain.hung_up;
            plain.resume_receive().map_err(|why| failed(&why))?;
            match self.stream.take(&*plain) {
                Ok(Taken::Ended) => self.ended = true,
                Ok(Taken::Bytes { count, more }) => {
                    self.taken += count as u64;
                    plain.readable = more || hung_up || plain.urgent || plain.has_failed();
                }
                Err(Errno::INTR) => {}
                Err(errno) if plain.has_failed() && errno != Errno::NOMEM => self.ended = true,
                Err(Errno::AGAIN) => (plain.readable, plain.urgent) = (false, false),
                Err(errno) => return Err(failed(&errno.into())),
            }
            if self.ended && ends {
                self.stream.outbound.close();
            }
        }
        self.tune()?;
        Ok(false)
    }

    /// Writes received bytes to the plain leg; true: there is more.
    fn give(&mut self, now: Span) -> Result<bool, Ending> {
        let (role, state) = (self.role, self.state);
        let Some(plain) = self.plain.as_mut().filter(|_| state == BondedState::Relaying) else { return Ok(false) };
        let before = self.given;
        while plain.writable {
            if self.preface.is_empty() && self.stream.inbound.readable_bytes() == 0 {
                break;
            }
            if self.given - before >= TURN_BYTES {
                return Ok(true);
            }
            match self.stream.give(now, &*plain, &mut self.preface) {
                Ok(count) => self.given += count as u64,
                Err(Errno::AGAIN) => plain.writable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(plain_failed(role, state, &errno.into())),
            }
        }
        self.tune()?;
        Ok(false)
    }

    /// Bounds the queues of the plain socket, once it carries bulk data.
    fn tune(&mut self) -> Result<(), Ending> {
        let Some(plain) = &mut self.plain else { return Ok(()) };
        let bounded = self.buffer.tune(plain, self.taken.max(self.given));
        bounded.map_err(|why| self.failed(&why))
    }

    /// Has B of the plain leg follow the stream.
    fn adapt(&mut self, now: Instant) -> Result<(), Ending> {
        let Some(plain) = self.plain.as_mut().filter(|_| self.state == BondedState::Relaying && !self.ended) else { return Ok(()) };
        let adapted = self.buffer.adapt(plain, &self.stream, self.taken, now);
        adapted.map_err(|why| self.failed(&why))
    }

    /// To be called after the plain leg was read.
    fn end_turn(&mut self) -> Result<(), Ending> {
        let Some(plain) = &mut self.plain else { return Ok(()) };
        let ended = self.buffer.end_turn(plain);
        ended.map_err(|why| self.failed(&why))
    }

    /// Passes the stream's end on to the plain leg, and sends *delivered* once all was
    /// acknowledged.
    fn pass_end(&mut self) -> Result<(), Ending> {
        self.tick = None;
        if !self.stream.inbound.is_fully_read() || !self.preface.is_empty() || self.state != BondedState::Relaying {
            return Ok(());
        }
        let Some(plain) = &self.plain else { return Ok(()) };
        if !self.passed {
            let has_ended = self.ended || plain.has_hung_up().map_err(|why| self.failed(&why))?;
            let waits = has_ended && !self.stream.outbound.is_delivered();
            if !waits {
                plain.shut_down().map_err(|why| self.failed(&why))?;
                self.passed = true;
            } else if matches!(self.role, Role::Serve { .. }) {
                return Ok(());
            }
        }
        if !self.delivered {
            let unacknowledged = plain.unacknowledged().map_err(|why| self.failed(&why))?;
            self.delivered = unacknowledged == 0;
            if self.delivered {
                self.stream.inbound.mark_delivered();
            } else {
                self.look_again(unacknowledged);
            }
        }
        Ok(())
    }

    /// Whether everything has finished. The kernel retransmits a last FIN that is not acknowledged
    /// yet.
    fn is_over(&mut self) -> Result<bool, Ending> {
        if !(self.passed && self.delivered && self.ended && self.stream.outbound.is_delivered()) {
            return Ok(false);
        }
        let Some(plain) = &self.plain else { return Ok(true) };
        let left = plain.unacknowledged().map_err(|why| self.failed(&why))?;
        if left <= 1 {
            plain.close_gracefully();
        } else {
            self.look_again(left);
        }
        Ok(left <= 1)
    }

    /// Schedules the next check of the plain leg's unacknowledged bytes. The pause doubles while
    /// nothing changes: a client that does not read can keep this up for long.
    fn look_again(&mut self, unacknowledged: usize) {
        let changed = mem::replace(&mut self.unacknowledged, unacknowledged) != unacknowledged;
        self.pause = if changed { TICK } else { (self.pause * 2).min(LAST_TICK) };
        self.tick = Some(self.pause);
    }

    /// When its next timer expires.
    pub(crate) fn wakes(&self, now: Span) -> Option<Span> {
        let tick = self.tick.map(|pause| now + pause);
        [tick, self.stream.wakes(now)].into_iter().flatten().min()
    }

    /// Ends it: replies to a waiting client, and returns its connections with the bytes that they
    /// still have to send.
    pub(crate) fn release(&mut self, ending: Ending) -> Vec<(Member, Vec<u8>)> {
        if let (Role::Connect { reply: Some(reply) }, BondedState::Calling, Some(plain)) = (self.role, self.state, &self.plain) {
            (reply.refuse)(plain.socket(), ending);
        }
        let last = if ending == Ending::Finished { Frame::Delivered } else { Frame::Reset(why(ending) as u8) };
        self.stream.part(Some(&last))
    }

    /// Notes that a connection was lost.
    pub(crate) fn note_loss(&mut self, why: Lost, now: Instant) {
        if self.stream.members().next().is_none() {
            self.alone = Some((now, why == Lost::Closed));
        }
    }

    /// Switches keepalive probes on for the plain leg.
    pub(crate) fn keep_alive(&mut self) {
        if let Some(plain) = &mut self.plain {
            plain.keep_alive();
        }
    }

    /// Whether the plain leg's peer has been silent for too long.
    pub(crate) fn has_silent_peer(&mut self, now: Instant) -> bool {
        self.plain.as_mut().is_some_and(|plain| !plain.has_failed() && plain.is_silent(now))
    }

    /// Time without progress. Precise to the interval between its calls.
    pub(crate) fn idle(&mut self, now: Instant) -> Duration {
        let moved = self.taken + self.given;
        if moved != self.moved.1 {
            self.moved = (now, moved);
        }
        now - self.moved.0
    }

    /// Bytes in the plain leg's receive queue, and unsent ones in its send queue.
    pub(crate) fn plain_queues(&self) -> (usize, usize) {
        self.plain.as_ref().map_or((0, 0), |plain| (sys::received(plain), sys::unsent(plain).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_begin_of_a_tls_handshake_may_be_repeated() {
        let record = |kind: u8, len: u8| [&[kind, 3, 1, 0, len][..], &vec![7; len.into()]].concat();
        let hello = record(22, 200);
        for length in 0..=hello.len() {
            assert!(may_be_repeated(&hello[..length]), "{length} bytes");
        }
        assert!(may_be_repeated(&[hello.clone(), record(20, 1)].concat()));
        assert!(may_be_repeated(&[hello.clone(), record(22, 9)].concat()));
        // Early data, requests, another protocol.
        assert!(!may_be_repeated(&[hello.clone(), record(20, 1), record(23, 50)].concat()));
        assert!(!may_be_repeated(&[&hello[..], b"\x17"].concat()));
        assert!(!may_be_repeated(b"POST /pay HTTP/1.1\r\n") && !may_be_repeated(b"\x16POST") && !may_be_repeated(&record(20, 1)));
    }
}
