//! The bond of one event loop: all its streams and connections.
//!
//! The event loop calls [`Bonds::on_event`] for each event of the bond's sockets, then
//! [`Bonds::turn`] once, then [`Bonds::take_ended`]. It waits at most for [`Bonds::wait`], and not
//! at all while [`Bonds::is_busy`].

mod arrivals;
mod memory;
mod reach;
mod streams;
mod timeouts;
mod view;

use crate::{
    channel::Channel,
    handshake::{Credentials, Handshake},
    host::{BondHost, Preface, StreamStart},
    life::BondedConnection,
    linger::Linger,
    networks::BondNetworks,
    own_routes::OwnRoutes,
    settings::BondNetwork,
    stream::Stream,
    tls,
    zero_copy::PipePool,
};
use bond::{Announcement, FrameHeader};
use intercept::{Carried, leg};
use relay::{Ending, FlowRecord, Reactor, Readiness, Scratch, Slab, Token};
use rustix::io::Errno;
use socket2::Socket;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    io::IoSliceMut,
    mem,
    rc::Rc,
    time::{Duration, Instant},
};
use units::{Bytes, Span};
pub use view::StreamBrief;

/// Interval of checking timeouts.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The use of a socket that the reactor watches. *connect* is the end that dials, *serve* the one
/// that accepts.
#[derive(Debug)]
enum BondSocket {
    /// A connection in its handshake.
    Handshake(Box<Handshake>, HandshakeOrigin),
    /// *Connect*: a ready connection over this network, and what the other end announces.
    Pooled(Channel, usize, Announcement),
    /// *Serve*: an authenticated connection that has not joined a stream yet, the window of the
    /// other end, the preface of its listener, and the received part of its first frame.
    Pending(Channel, u32, Option<Preface>, Vec<u8>),
    /// A connection of the stream in this slot.
    Member(usize),
    /// The plain leg of the stream in this slot, or an attempt to reach its server.
    Plain(usize),
    /// A connection whose stream has ended, with bytes left to send.
    Linger(Box<Linger>),
}

/// Origin of a connection in its handshake.
#[derive(Debug, Clone, Copy)]
enum HandshakeOrigin {
    /// Dialled over this network.
    Dialled(usize),
    /// Accepted by a listener with this preface for servers.
    Accepted(Option<Preface>),
}

/// The bond of one event loop: its streams, their connections, and the connections kept ready.
#[derive(Debug)]
pub struct Bonds {
    host: Box<dyn BondHost>,
    credentials: Credentials,
    own_routes: OwnRoutes,
    reactor: Rc<Reactor>,
    pipes: PipePool,
    entries: Slab<BondSocket>,
    streams: Slab<Box<BondedConnection>>,
    by_id: BTreeMap<u128, usize>,
    past: VecDeque<u128>,
    networks: BondNetworks,
    unauthenticated: VecDeque<usize>,
    pending: usize,
    timers: BinaryHeap<Reverse<(Span, usize)>>,
    again: VecDeque<usize>,
    ended: Vec<FlowRecord>,
    /// How many streams send in bulk, as of the last check; those that have begun since are among
    /// them.
    senders: usize,
    /// Connections that were begun and have to do without the bond.
    returned: Vec<StreamStart>,
    /// Whether the other end was reached when that was last looked at.
    was_reached: bool,
    /// Number of accepted connections that were closed because they failed to authenticate.
    refused: u64,
    epoch: Instant,
    now: Instant,
    next_check: Instant,
    progress: memory::ProgressOfStreams,
    draining: bool,
}

impl Bonds {
    /// A bond over these networks. Events of its sockets have the token [`Token::Carrier`] in
    /// `reactor`.
    ///
    /// # Errors
    /// When the bond has no key, or TLS cannot be set up.
    pub fn new(host: Box<dyn BondHost>, networks: &[BondNetwork], reactor: Rc<Reactor>) -> Result<Self, String> {
        let bond = host.bond();
        let credentials = Credentials::of(bond)?;
        let now = Instant::now();
        Ok(Bonds {
            networks: BondNetworks::new(networks, bond, now),
            host,
            credentials,
            own_routes: OwnRoutes::default(),
            reactor,
            pipes: PipePool::new(PipePool::most(leg::open_files())),
            entries: Slab::default(),
            streams: Slab::default(),
            by_id: BTreeMap::new(),
            past: VecDeque::new(),
            unauthenticated: VecDeque::new(),
            pending: 0,
            timers: BinaryHeap::new(),
            again: VecDeque::new(),
            ended: Vec::new(),
            senders: 0,
            returned: Vec::new(),
            was_reached: true,
            refused: 0,
            epoch: now,
            now,
            next_check: now,
            progress: memory::ProgressOfStreams::default(),
            draining: false,
        })
    }

    /// Applies another configuration to streams that begin from now on.
    pub fn reload(&mut self, host: Box<dyn BondHost>) {
        self.host = host;
    }

    /// Number of streams.
    pub fn stream_count(&self) -> usize {
        self.by_id.len()
    }

    /// Closes connections that have not joined a stream, and keeps none ready from now on. The
    /// other end would begin streams over those that it has made, and they would be refused. It
    /// dials new ones, which reach the process that has taken over or was started meanwhile.
    pub fn drain(&mut self) {
        self.draining = true;
        for index in 0..self.entries.bound() {
            let waits = match self.entries.get(index) {
                Some(BondSocket::Pooled(..) | BondSocket::Pending(..)) => true,
                Some(BondSocket::Handshake(_, origin)) => matches!(origin, HandshakeOrigin::Accepted(_)),
                _ => false,
            };
            if waits {
                self.drop_entry(index);
            }
        }
        self.networks.drain();
    }

    /// Whether nothing is left that must finish: no stream, and no bytes to send.
    pub fn is_over(&self) -> bool {
        self.stream_count() == 0 && !self.entries.iter().any(|(_, entry)| matches!(entry, BondSocket::Linger(_)))
    }

    fn time(&self) -> Span {
        Span((self.now - self.epoch).as_nanos() as u64)
    }

    fn stream_over(&self, theirs: u32) -> Stream {
        let bond = self.host.bond();
        let mut settings = bond.settings;
        if bond.tls {
            // A piece and its header fill one record.
            settings.piece = settings.piece.min(Bytes(tls::MOST_IN_RECORD - FrameHeader::PIECE_LEN as u64));
            settings.batch = tls::BATCH;
        }
        Stream::new(settings, bond.window.0 as usize, theirs.into(), (!bond.tls).then(|| self.pipes.clone()))
    }

    fn drop_entry(&mut self, index: usize) {
        if let Some(entry) = self.entries.remove(index) {
            match entry {
                BondSocket::Pending(..) => self.pending -= 1,
                BondSocket::Pooled(_, network, _) => self.networks.forget(network, index),
                BondSocket::Handshake(_, HandshakeOrigin::Dialled(network)) => self.networks.dialled(network),
                _ => {}
            }
        }
    }

    fn watch(&self, index: usize, socket: &Socket) -> Result<(), Errno> {
        self.reactor.watch(socket, Token::Carrier(index), Readiness::INTEREST)
    }

    /// Has the reactor report the socket's state again.
    fn rearm(&self, index: usize, socket: &Socket) -> Result<(), Errno> {
        self.reactor.rearm(socket, Token::Carrier(index), Readiness::INTEREST)
    }

    /// Handles an event of the socket with this index.
    pub fn on_event(&mut self, index: usize, events: Readiness, scratch: &mut Scratch) {
        self.now = scratch.now;
        match self.entries.get_mut(index) {
            None => {}
            Some(BondSocket::Handshake(..)) => self.on_handshake(index, scratch),
            Some(BondSocket::Pooled(channel, network, _)) => {
                let network = *network;
                // The peer sends no data before the connection joins a stream: it has closed it, or
                // violates the protocol. TLS may have messages of its own.
                let said = channel.receive(&mut [IoSliceMut::new(&mut [0; 1])]);
                if (events.readable || events.failed) && said != Err(Errno::AGAIN) {
                    self.networks.closed(network, index, self.now);
                    self.drop_entry(index);
                }
            }
            Some(BondSocket::Pending(..)) => self.on_pending(index, scratch),
            Some(BondSocket::Member(slot)) => {
                let slot = *slot;
                if let Some(bonded) = self.streams.get_mut(slot) {
                    if let Some(member) = bonded.stream.member(index) {
                        member.readable |= events.readable || events.failed || events.hung_up;
                        member.hung_up |= events.hung_up || events.failed;
                    }
                    self.proceed(slot, scratch);
                }
            }
            Some(BondSocket::Plain(slot)) => {
                let slot = *slot;
                if let Some(bonded) = self.streams.get_mut(slot) {
                    if bonded.race.is_some() {
                        return self.on_attempt(slot, index, events, scratch);
                    }
                    match bonded.on_events(events, self.now) {
                        Ok(()) => self.proceed(slot, scratch),
                        Err(ending) => self.end(slot, ending),
                    }
                }
            }
            Some(BondSocket::Linger(linger)) => {
                let step = linger.proceed();
                self.after_linger(index, step);
            }
        }
    }

    /// Resets all streams.
    pub fn stop(&mut self) {
        for slot in 0..self.streams.bound() {
            self.end(slot, Ending::Stopped);
        }
    }

    /// The flows that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<FlowRecord> {
        mem::take(&mut self.ended)
    }

    /// What the bond can carry at present. The caller begins no other connections.
    pub fn can_carry(&self) -> Carried {
        self.networks.carried()
    }

    /// The connections that the bond has given up since the last call, because its other end is not
    /// reached. Their servers have got nothing that must not be repeated: the caller connects them
    /// without the bond.
    pub fn take_returned(&mut self) -> Vec<StreamStart> {
        mem::take(&mut self.returned)
    }

    /// Number of accepted connections that failed to authenticate.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether a stream has more to do without waiting for an event.
    pub fn is_busy(&self) -> bool {
        !self.again.is_empty()
    }

    /// Time until the next timer expires; none: there is no timer.
    pub fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let timer = self.timers.peek().map(|Reverse((at, _))| (self.epoch + Duration::from_nanos(at.0)).saturating_duration_since(now));
        let cares = self.stream_count() > 0 || self.networks.len() > 0 || !self.entries.is_empty();
        let care = cares.then(|| self.next_check.saturating_duration_since(now));
        [timer, care].into_iter().flatten().min()
    }

    /// Does the work of a turn: streams that have more to do, expired timers, timeouts; and dials
    /// connections that the networks lack.
    pub fn turn(&mut self, scratch: &mut Scratch) {
        self.now = scratch.now;
        for _ in 0..self.again.len() {
            let Some(slot) = self.again.pop_front() else { break };
            if let Some(bonded) = self.streams.get_mut(slot) {
                bonded.in_again = false;
                self.proceed(slot, scratch);
            }
        }
        let time = self.time();
        while let Some(Reverse((at, slot))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= time) {
            self.timers.pop();
            let Some(bonded) = self.streams.get_mut(slot) else { continue };
            if bonded.scheduled == Some(at) {
                bonded.scheduled = None;
                if bonded.race.as_ref().is_some_and(|race| race.wakes() <= self.now) {
                    self.proceed_reaching(slot);
                }
                self.proceed(slot, scratch);
            }
        }
        if self.now >= self.next_check {
            self.next_check = self.now + CHECK_INTERVAL;
            self.check_timeouts();
        }
        self.dial_networks();
        self.look_whether_reached();
        self.entries.end_turn();
        self.streams.end_turn();
    }
}
