//! The state machine of a split connection.
//!
//! | event                    | `Dialling`                        | `Relaying`                                      | `Settling`            |
//! |--------------------------|-----------------------------------|-------------------------------------------------|-----------------------|
//! | near FIN                 | kept; passed once the far leg is established | passed after the last byte¹          | –                     |
//! | far FIN                  | –                                 | passed after the last byte¹                     | –                     |
//! | near RST, timeout        | far leg aborted⁵                  | far leg reset⁵                                  | ends `NearFailed`²    |
//! | far RST                  | near leg reset (refused)          | near leg reset⁵                                 | ends `FarFailed`²     |
//! | far unreachable, timeout | near leg reset                    | near leg reset⁵                                 | ends `FarFailed`²     |
//! | both FINs passed         | –                                 | → `Settling`                                    |                       |
//! | both legs acknowledged⁴  | –                                 | –                                               | ends `Finished`       |
//! | idle timeout³            | – (the connect times out)         | both legs reset                                 | both legs reset       |
//! | stuck, memory is short⁶  | –                                 | both legs reset                                 | both legs reset       |
//!
//! ¹ A clean close means delivered: an end that has sent its own FIN and then reads end of file may
//! conclude that the other end's TCP has acknowledged every byte and that FIN. So a FIN is passed
//! to an end that has finished sending only when the opposite leg has nothing left unacknowledged.
//! To an end that has not finished sending, a FIN is passed at once: half-close works as without a
//! proxy. When both ends have finished before either FIN was passed on, one must be passed first:
//! that is done when the opposite end has acknowledged all bytes; its own FIN follows.
//!
//! ² The other leg has ended cleanly by then, and stays so: the second FIN is passed only when the
//! receiver of the first has acknowledged everything, that FIN too.
//!
//! ³ If one is set. A peer that has vanished is detected by keepalive or by missing
//! acknowledgements: its leg then fails.
//!
//! ⁴ Except for the last FIN: its receiver has acknowledged every byte, the other end waits for
//! nothing more, and the kernel retransmits the FIN after the close.
//!
//! ⁵ What was received before a failure is passed on first, and a FIN that arrived before it, as
//! the peer of a direct connection would receive them. The other leg is reset when its peer has
//! acknowledged everything, fails too, or takes nothing more ([`LastDelivery`]). While dialling
//! this means that the far leg is aborted at once only if no bytes for it have been received.
//!
//! ⁶ Nothing has moved at either end for 30 s although bytes are held (`worker/memory.rs`);
//! `tests/memory.rs`.
//!
//! A SOCKS client whose server is not reached gets a SOCKS reply and a FIN instead of a reset. A
//! connection to a name with several addresses begins when one of them is connected
//! (`worker/reach.rs`).
//!
//! `tests/it/life.rs` has a test for each cell.

mod memory;
mod stats;

use crate::{
    brief::{FlowBrief, FlowId},
    config::ProxyConfig,
    greeting::{socks_code, socks_reply},
    measure::{FlowSamples, ProfileNumbers},
};
use intercept::{
    LastDelivery,
    leg::{self, DialOptions, LegProfile, Source},
    sys,
};
use relay::{Direction, Ending, LegSide, PlainLeg, ProfileId, Pumped, Readiness, RelayFault, Scratch};
use rustix::io::Errno;
use socket2::Socket;
use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    /// The near leg is established, the far leg is connecting.
    Dialling,
    /// Both legs are established; bytes are relayed.
    Relaying,
    /// Both FINs have been passed on; acknowledgements are missing.
    Settling,
}

/// The failure of one leg, while the other one still gets what was received before.
#[derive(Debug)]
struct LegFailure {
    side: LegSide,
    ending: Ending,
    /// Whether the peer had sent a FIN before.
    after_fin: bool,
    delivery: LastDelivery,
}

/// Why relaying stops.
enum Stop {
    /// The connection is over.
    Over(Ending),
    /// A leg has failed.
    Failed(LegSide, io::Error),
}

/// What the worker has to do for a connection after each of its calls.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FollowUp {
    /// Call [`Connection::proceed`] in the next turn of the event loop.
    pub(crate) again: bool,
    /// Watch the near socket from now on.
    pub(crate) watch_near: bool,
    /// Rearm the near socket in epoll.
    pub(crate) rearm_near: bool,
    /// Rearm the far socket in epoll.
    pub(crate) rearm_far: bool,
    /// Call [`Connection::tick`] after a tick: the connection waits for something that raises no
    /// event.
    pub(crate) tick: bool,
}

/// A connection to be split, and its destination.
#[derive(Debug)]
pub(crate) struct ConnectionStart {
    pub(crate) near: Socket,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The far leg, if it is connected already; none: it is dialled.
    pub(crate) far: Option<ConnectedLeg>,
    /// Whether the far leg has the client's address as its source.
    pub(crate) keep_source: bool,
    /// Bytes that the server gets before the client's.
    pub(crate) preface: Vec<u8>,
    /// Bytes for the server that were already read from the client.
    pub(crate) already_read: Vec<u8>,
    /// Whether the client waits for a SOCKS reply.
    pub(crate) socks: bool,
}

/// A far leg that was connected before its connection began: the server has several addresses.
#[derive(Debug)]
pub(crate) struct ConnectedLeg {
    pub(crate) socket: Socket,
    pub(crate) dialled_at: Instant,
}

/// A split connection: two legs and two directions.
///
/// The worker calls [`begin`](Self::begin) and has the far socket watched. It then calls
/// [`on_events`](Self::on_events) for each event of either socket, and acts on each returned
/// [`FollowUp`]. An error is the ending of the connection: the worker calls
/// [`release`](Self::release), [`last_stats`](Self::last_stats) and drops it. Dropping it resets
/// legs that are still open.
#[derive(Debug)]
pub(crate) struct Connection {
    near: PlainLeg,
    far: PlainLeg,
    client: SocketAddr,
    server: SocketAddr,
    socks: bool,
    state: ConnectionState,
    failure: Option<Box<LegFailure>>,
    born: Instant,
    /// When the far leg was dialled, and the time limit for connecting it.
    dialled_at: Instant,
    connect_timeout: Duration,
    /// Profiles of the legs, and how long their handshakes took, as far as it is known.
    profiles: [ProfileId; 2],
    handshakes: [Option<Duration>; 2],
    /// Samples of a flow that has lived long enough.
    samples: Option<Box<FlowSamples>>,
    /// TCP Fast Open: the far leg's SYN is delayed until there is data for it to carry.
    syn_waits: bool,
    /// TCP Fast Open: the far leg takes data, but its SYN was not answered as of the last check.
    syn_unanswered: bool,
    /// The last ACK of the far leg's handshake is delayed until there is data for it to carry.
    owes_ack: bool,
    /// Time of the last check that found progress, and the bytes carried by then.
    moved: (Instant, u64),
    /// What its sockets took when they were last asked.
    memory: memory::MemorySample,
    /// What was not acknowledged by the destinations when that was last asked, up and down, bytes.
    unacknowledged: [u32; 2],
    /// Whether epoll watches the near socket: once the far leg is established or takes long.
    pub(crate) watches_near: bool,
    /// Whether it is queued for another turn.
    pub(crate) in_again: bool,
    /// Whether it is queued for a tick.
    pub(crate) in_ticking: bool,
    /// From near to far.
    up: Direction,
    /// From far to near.
    down: Direction,
}

/// How long a dialled leg of this profile may take to connect.
pub(crate) fn connect_timeout(profile: &LegProfile, config: &ProxyConfig) -> Duration {
    profile.connect_timeout.map_or(config.connect_timeout, units::Span::duration)
}

impl Connection {
    /// Tunes the near leg of an accepted connection and begins to dial its far leg, unless that is
    /// connected already. `route` returns the interface through which an address is reached.
    ///
    /// # Errors
    /// The ending of the connection, and the near socket if its client waits for a SOCKS reply
    /// (otherwise it is reset).
    pub(crate) fn begin(
        config: &ProxyConfig,
        numbers: &ProfileNumbers,
        start: ConnectionStart,
        mut route: impl FnMut(IpAddr) -> Option<String>,
        now: Instant,
    ) -> Result<Self, (Ending, Option<Socket>)> {
        let ConnectionStart { near, client, server, far, keep_source, preface, already_read, socks } = start;
        // The round trip of the SYN-ACK; later ones may replace it.
        let near_handshake = sys::tcp_info(&near).ok().map(|info| Duration::from_micros(info.rtt_us.into()));
        let near_handshake = near_handshake.filter(|time| !time.is_zero());
        let reply = if socks { socks_reply(0) } else { Vec::new() };
        let shares = config.shares();
        let chosen = config.policy.chosen_legs(client, server, &mut route);
        let [near_profile, far_profile] = chosen.map(|index| config.policy.profile(index));
        let source = if keep_source { Source::of(&near, client, server, &mut route) } else { None };
        if let Err(why) = leg::apply(&near, near_profile, || sys::dscp_of_syn(&near)) {
            return Err((Ending::NearFailed(why.kind()), None));
        }
        // A SOCKS client sends no data before the reply, so that its SYN would have none to carry.
        let fast_open = far_profile.fast_open && !socks && far.is_none();
        let (far, dialled_at) = match far {
            Some(far) => (far.socket, far.dialled_at),
            None => {
                let call = DialOptions { profile: far_profile, shares, from: source, to: server, fast_open };
                match call.dial(|| sys::dscp_of_syn(&near)) {
                    Ok(far) => (far, now),
                    Err(why) => return Err((Ending::undialled(&why), socks.then_some(near))),
                }
            }
        };
        Ok(Connection {
            near: PlainLeg::new(near, near_profile, shares),
            far: PlainLeg::new(far, far_profile, shares),
            client,
            server,
            socks,
            state: ConnectionState::Dialling,
            failure: None,
            born: now,
            dialled_at,
            connect_timeout: connect_timeout(far_profile, config),
            profiles: chosen.map(|index| numbers.of(index)),
            handshakes: [near_handshake, None],
            samples: None,
            syn_waits: fast_open,
            syn_unanswered: fast_open,
            owes_ack: !fast_open,
            moved: (now, 0),
            memory: memory::MemorySample::new(now),
            unacknowledged: [0; 2],
            watches_near: false,
            in_again: false,
            in_ticking: false,
            up: Direction::new(shares, preface, already_read).adapting(config.buffer_limits()).rising_to(config.raised_buffer()),
            down: Direction::new(shares, reply, Vec::new()).adapting(config.buffer_limits()).rising_to(config.raised_buffer()),
        })
    }

    /// When the far leg was dialled.
    pub(crate) fn dialled_at(&self) -> Instant {
        self.dialled_at
    }

    /// Time limit for connecting the far leg.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Switches keepalive probes on for both legs, so that vanished peers are detected.
    pub(crate) fn keep_alive(&mut self) {
        self.near.keep_alive();
        self.far.keep_alive();
    }

    /// Interval at which to call [`silent_leg`](Self::silent_leg); none: no profile has a limit.
    pub(crate) fn silence_interval(&self) -> Option<Duration> {
        [&self.near, &self.far].into_iter().filter_map(PlainLeg::silence_interval).min()
    }

    /// The leg whose peer has been silent for too long. The caller passes it to
    /// [`end_silent`](Self::end_silent).
    pub(crate) fn silent_leg(&mut self, now: Instant) -> Option<LegSide> {
        let failed = self.failure.as_ref().map(|failure| failure.side);
        [(LegSide::Near, &mut self.near), (LegSide::Far, &mut self.far)]
            .into_iter()
            .find_map(|(side, leg)| (failed != Some(side) && leg.is_silent(now)).then_some(side))
    }

    /// Treats a silent leg as one that has failed.
    ///
    /// # Errors
    /// The ending of the connection.
    pub(crate) fn end_silent(&mut self, side: LegSide, scratch: &mut Scratch) -> Result<FollowUp, Ending> {
        self.fail(side, &io::ErrorKind::TimedOut.into(), scratch.now)?;
        self.proceed(scratch)
    }

    /// Time without progress. Precise to the interval between its calls.
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

    /// Whether the far leg is still connecting. With TCP Fast Open it may take data already.
    pub(crate) fn is_dialling(&self) -> bool {
        self.state == ConnectionState::Dialling || self.syn_unanswered
    }

    /// Applies an event of one leg, then relays.
    ///
    /// # Errors
    /// The ending of the connection.
    pub(crate) fn on_events(&mut self, side: LegSide, events: Readiness, scratch: &mut Scratch) -> Result<FollowUp, Ending> {
        let leg = match side {
            LegSide::Near => &mut self.near,
            LegSide::Far => &mut self.far,
        };
        if let Some(why) = leg.take_in(events) {
            self.fail(side, &why, scratch.now)?;
        }
        if self.state == ConnectionState::Dialling {
            if side == LegSide::Near || !events.writable || events.failed {
                return Ok(FollowUp::default());
            }
            self.state = ConnectionState::Relaying;
            // With Fast Open this is only the first attempt to send.
            self.handshakes[1] = (!self.syn_waits).then(|| scratch.now - self.dialled_at);
        }
        if !self.watches_near {
            // The first event of the near socket reports what has arrived meanwhile.
            return Ok(FollowUp { watch_near: true, tick: self.syn_waits, ..FollowUp::default() });
        }
        self.proceed(scratch)
    }

    /// Relays bytes in both directions, and passes FINs on. After the failure of a leg it passes on
    /// what was received before.
    ///
    /// # Errors
    /// The ending of the connection.
    pub(crate) fn proceed(&mut self, scratch: &mut Scratch) -> Result<FollowUp, Ending> {
        if self.state == ConnectionState::Dialling {
            return Ok(FollowUp::default());
        }
        if self.failure.is_none() {
            match self.relay(scratch) {
                Ok(follow_up) => return Ok(follow_up),
                Err(Stop::Over(ending)) => return Err(ending),
                Err(Stop::Failed(side, why)) => self.fail(side, &why, scratch.now)?,
            }
        }
        self.deliver_rest(scratch)
    }

    fn relay(&mut self, scratch: &mut Scratch) -> Result<FollowUp, Stop> {
        let mut follow_up = FollowUp::default();
        let up = self.up.pump(&mut self.near, &mut self.far, scratch).map_err(|fault| stop_of_fault(LegSide::Near, fault))?;
        let down = self.down.pump(&mut self.far, &mut self.near, scratch).map_err(|fault| stop_of_fault(LegSide::Far, fault))?;
        follow_up.again = up == Pumped::Again || down == Pumped::Again;
        follow_up.rearm_far = up == Pumped::WaitsForRoom;
        follow_up.rearm_near = down == Pumped::WaitsForRoom;
        follow_up.tick = self.syn_waits;
        self.syn_unanswered = self.syn_unanswered && sys::is_unanswered(&self.far);
        self.pass_fins(&mut follow_up)?;
        if mem::take(&mut self.owes_ack) && self.up.has_moved_nothing() {
            leg::acknowledge(self.far.socket());
        }
        if self.up.passed && self.down.passed {
            self.state = ConnectionState::Settling;
            if self.settled()? {
                return Err(Stop::Over(Ending::Finished));
            }
        }
        Ok(follow_up)
    }

    /// Notes the failure of a leg.
    ///
    /// # Errors
    /// The ending of the connection, if nothing is left to deliver to the other leg, or that has
    /// failed before.
    fn fail(&mut self, side: LegSide, why: &io::Error, now: Instant) -> Result<(), Ending> {
        let ending = self.ending_of_error(side, why);
        if let Some(first) = self.failure.as_ref().filter(|_| !matches!(ending, Ending::FarNotReached(_))) {
            return Err(first.ending);
        }
        let (leg, direction) = match side {
            LegSide::Near => (&mut self.near, &self.up),
            LegSide::Far => (&mut self.far, &self.down),
        };
        let has_rest = match (self.state, side) {
            (ConnectionState::Dialling, LegSide::Near) => direction.in_hand() > 0 || sys::received(&*leg) > 0,
            (ConnectionState::Dialling | ConnectionState::Relaying, _) => !matches!(ending, Ending::FarNotReached(_)),
            (ConnectionState::Settling, _) => false,
        };
        if !has_rest {
            return Err(ending);
        }
        if side == LegSide::Far {
            // It had been established.
            self.state = ConnectionState::Relaying;
        }
        leg.fail();
        // What was read of a near leg before its destination was known is not counted.
        let read = (side == LegSide::Far).then(|| direction.taken());
        let after_fin = direction.ended || leg.had_finished(why, read);
        // The turn that found the failure may have found the other leg full, and not rearmed it.
        match side {
            LegSide::Near => self.far.writable = true,
            LegSide::Far => self.near.writable = true,
        }
        self.failure = Some(Box::new(LegFailure { side, ending, after_fin, delivery: LastDelivery::new(now) }));
        Ok(())
    }

    /// After the failure of a leg: passes on what was received before.
    fn deliver_rest(&mut self, scratch: &mut Scratch) -> Result<FollowUp, Ending> {
        self.syn_unanswered = self.syn_unanswered && sys::is_unanswered(&self.far);
        let Some(failure) = &mut self.failure else { return Ok(FollowUp::default()) };
        let (direction, from, to) = match failure.side {
            LegSide::Near => (&mut self.up, &mut self.near, &mut self.far),
            LegSide::Far => (&mut self.down, &mut self.far, &mut self.near),
        };
        let pumped = direction.pump(from, to, scratch).map_err(|fault| match fault {
            RelayFault::Own => Ending::NoRoom,
            RelayFault::Source(_) | RelayFault::Destination(_) => failure.ending,
        })?;
        let mut follow_up = FollowUp { again: pumped == Pumped::Again, tick: true, ..FollowUp::default() };
        match failure.side {
            LegSide::Near => follow_up.rearm_far = pumped == Pumped::WaitsForRoom,
            LegSide::Far => follow_up.rearm_near = pumped == Pumped::WaitsForRoom,
        }
        if failure.side == LegSide::Near && self.syn_unanswered {
            // The connect timeout bounds this. A shutdown would abort the connect, and what the SYN
            // carries does not count as unacknowledged.
            return Ok(follow_up);
        }
        if !direction.finished() && !failure.delivery.is_due(scratch.now) {
            return Ok(follow_up);
        }
        if direction.finished() && failure.after_fin && !direction.passed {
            // An end that has finished sending would take this FIN for the delivery of its own
            // bytes.
            direction.passed = true;
            if !to.has_hung_up().map_err(|_| failure.ending)? {
                to.shut_down().map_err(|_| failure.ending)?;
            }
        }
        let unacknowledged = to.unacknowledged().map_err(|_| failure.ending)?;
        let acknowledged = (direction.carried() + u64::from(direction.passed)).saturating_sub(unacknowledged as u64);
        let is_delivered = direction.finished() && unacknowledged == 0;
        if is_delivered || !failure.delivery.goes_on(acknowledged, || sys::is_blocked(&*to), scratch.now) {
            return Err(failure.ending);
        }
        Ok(follow_up)
    }

    /// Whether both ends have acknowledged everything except the last FIN, which the kernel
    /// retransmits after the close.
    fn settled(&self) -> Result<bool, Stop> {
        let (near, far) = (self.unacknowledged(LegSide::Near)?, self.unacknowledged(LegSide::Far)?);
        if near + far == 1 {
            // The close must not reset the leg.
            self.leg(if near == 1 { LegSide::Near } else { LegSide::Far }).close_gracefully();
        }
        Ok(near + far <= 1)
    }

    /// Handles the end of a tick that [`FollowUp::tick`] requested.
    ///
    /// # Errors
    /// The ending of the connection.
    pub(crate) fn tick(&mut self, scratch: &mut Scratch) -> Result<FollowUp, Ending> {
        if mem::take(&mut self.syn_waits) && self.syn_unanswered {
            // No data arrived for the SYN to carry: send it without, or a server that sends first
            // would wait for ever.
            match rustix::net::send(&self.far, &[], rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::INPROGRESS) => {}
                // A refusal is reported only here.
                Err(errno) => self.fail(LegSide::Far, &errno.into(), scratch.now)?,
            }
        }
        if self.failure.as_ref().is_some_and(|failure| !failure.delivery.is_due(scratch.now)) {
            return Ok(FollowUp { tick: true, ..FollowUp::default() });
        }
        self.proceed(scratch)
    }

    /// Passes on each end of file that may be passed now (note ¹ above).
    fn pass_fins(&mut self, follow_up: &mut FollowUp) -> Result<(), Stop> {
        for (from, to) in [(LegSide::Near, LegSide::Far), (LegSide::Far, LegSide::Near)] {
            let (this, opposite) = match from {
                LegSide::Near => (&self.up, &self.down),
                LegSide::Far => (&self.down, &self.up),
            };
            if !this.finished() || this.passed {
                continue;
            }
            if to == LegSide::Far && self.syn_unanswered {
                // A shutdown would abort the connect and discard the data of its SYN. The answer to
                // the SYN raises an event.
                continue;
            }
            let to_has_ended = opposite.ended || self.leg(to).has_hung_up().map_err(|why| Stop::Failed(to, why))?;
            if to_has_ended && !self.delivered(from)? {
                // An acknowledgement raises no event.
                follow_up.tick |= !opposite.passed && opposite.finished();
                continue;
            }
            if opposite.passed && self.acknowledged(to)? {
                // Everything else has been acknowledged: the close sends the last FIN.
                self.leg(to).close_gracefully();
                return Err(Stop::Over(Ending::Finished));
            }
            self.leg(to).shut_down().map_err(|why| Stop::Failed(to, why))?;
            if from == LegSide::Near { self.up.passed = true } else { self.down.passed = true }
        }
        Ok(())
    }

    /// Whether the peer of `side` has acknowledged all bytes that it can be sent, and the FIN if
    /// that was passed on.
    fn delivered(&self, side: LegSide) -> Result<bool, Stop> {
        let direction = if side == LegSide::Near { &self.down } else { &self.up };
        Ok(direction.finished() && self.acknowledged(side)?)
    }

    /// Whether the peer of `side` has acknowledged everything it was sent, a FIN too. Data that a
    /// reset discarded never counts as acknowledged.
    fn acknowledged(&self, side: LegSide) -> Result<bool, Stop> {
        self.unacknowledged(side).map(|bytes| bytes == 0)
    }

    fn unacknowledged(&self, side: LegSide) -> Result<usize, Stop> {
        self.leg(side).unacknowledged().map_err(|why| Stop::Failed(side, why))
    }

    /// The ending for an error of the leg on `side`.
    fn ending_of_error(&self, side: LegSide, why: &io::Error) -> Ending {
        match side {
            LegSide::Near => Ending::NearFailed(why.kind()),
            // A refusal is another error. These mean that the far leg had been established, which
            // no event has reported yet.
            LegSide::Far if self.is_dialling() && !is_reset(why) => Ending::FarNotReached(why.kind()),
            LegSide::Far => Ending::FarFailed(why.kind()),
        }
    }

    /// Returns borrowed pipes, and sends a SOCKS client that still waits the reply that its server
    /// was not reached. To be called before it is dropped.
    pub(crate) fn release(&mut self, ending: Ending, scratch: &mut Scratch) {
        self.up.release(scratch);
        self.down.release(scratch);
        if self.socks && self.state == ConnectionState::Dialling {
            refuse_socks(self.near.socket(), ending);
        }
    }

    /// The flow in brief. `worker` and `slot` are where it is.
    pub(crate) fn brief(&self, worker: usize, slot: usize) -> FlowBrief {
        let id = FlowId::new(worker, false, slot, self.born);
        let [up, down] = self.carried();
        FlowBrief { id, client: self.client, server: self.server, up, down, acknowledged: self.acknowledged_bytes() }
    }

    /// The client's address.
    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }

    /// When it was accepted.
    pub(crate) fn born(&self) -> Instant {
        self.born
    }
}

/// Whether a connection that was established has been reset. The kernel reports a reset that
/// follows a FIN as EPIPE.
fn is_reset(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Why relaying stops after a fault of the direction that `from` is the source of.
fn stop_of_fault(from: LegSide, fault: RelayFault) -> Stop {
    match fault {
        RelayFault::Source(why) => Stop::Failed(from, why),
        RelayFault::Destination(why) => Stop::Failed(from.other(), why),
        RelayFault::Own => Stop::Over(Ending::NoRoom),
    }
}

/// Sends a SOCKS client the reply that its server was not reached. Its leg is then closed, not
/// reset.
pub(crate) fn refuse_socks(near: &Socket, ending: Ending) {
    let code = if let Ending::FarNotReached(why) = ending { socks_code(why) } else { 1 };
    let _ = rustix::net::send(near, &socks_reply(code), rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL);
    let _ = near.set_linger(None);
}
