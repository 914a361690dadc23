//! All streams and connections of the bond of one event loop.
//!
//! The event loop calls [`Bonds::on_event`] for each event of the bond's sockets, then
//! [`Bonds::turn`] once, then [`Bonds::take_ended`]. It waits no longer than [`Bonds::wait`] says,
//! and not at all while [`Bonds::is_busy`].

mod arrivals;
mod streams;
mod timeouts;
mod view;

use crate::{
    channel::Channel,
    handshake::{Credentials, Handshake},
    host::{BondHost, Preface},
    life::BondedConnection,
    linger::Linger,
    networks::BondNetworks,
    settings::BondNetwork,
    stream::Stream,
    zero_copy::PipePool,
};
use intercept::leg;
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
use units::Span;

/// How often timeouts are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// What a socket that epoll watches is used for.
#[derive(Debug)]
enum BondSocket {
    /// A connection in its handshake.
    Handshake(Box<Handshake>, HandshakeOrigin),
    /// A ready connection over this network, and the window of the other end; *connect*.
    Pooled(Channel, usize, u32),
    /// An authenticated connection that has joined no stream yet, the window of the other end, and
    /// what it has sent of its frame; *serve*.
    Pending(Channel, u32, Option<Preface>, Vec<u8>),
    /// A connection of the stream in this slot.
    Member(usize),
    /// The plain leg of the stream in this slot.
    Plain(usize),
    /// A connection whose stream is over, with bytes left to send.
    Linger(Box<Linger>),
}

/// Where a connection in its handshake comes from.
#[derive(Debug, Clone, Copy)]
enum HandshakeOrigin {
    /// Dialled over this network.
    Dialled(usize),
    /// Accepted at a listener with this preface for servers.
    Accepted(Option<Preface>),
}

/// The bond of one event loop: its streams, their connections, and the connections kept ready.
#[derive(Debug)]
pub struct Bonds {
    host: Box<dyn BondHost>,
    credentials: Credentials,
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
    /// Connections that were turned away without having shown that they have the key.
    refused: u64,
    epoch: Instant,
    now: Instant,
    next_check: Instant,
    draining: bool,
}

impl Bonds {
    /// Over these networks; `reactor` tells of the sockets' events by [`Token::Carrier`].
    ///
    /// # Errors
    /// When the bond has no key, or cannot encrypt.
    pub fn new(host: Box<dyn BondHost>, networks: &[BondNetwork], reactor: Rc<Reactor>) -> Result<Self, String> {
        let bond = host.bond();
        let credentials = Credentials::of(bond)?;
        let now = Instant::now();
        Ok(Bonds {
            networks: BondNetworks::new(networks, bond, now),
            host,
            credentials,
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
            refused: 0,
            epoch: now,
            now,
            next_check: now,
            draining: false,
        })
    }

    /// Takes another configuration, for streams that begin from now on.
    pub fn reload(&mut self, host: Box<dyn BondHost>) {
        self.host = host;
    }

    /// How many streams there are.
    pub fn stream_count(&self) -> usize {
        self.by_id.len()
    }

    /// Takes no new streams, and keeps no connections ready.
    pub fn drain(&mut self) {
        self.draining = true;
        for index in 0..self.entries.bound() {
            if matches!(self.entries.get(index), Some(BondSocket::Pooled(..))) {
                self.drop_entry(index);
            }
        }
        self.networks.drain();
    }

    /// Whether nothing is left that must end by itself.
    pub fn is_over(&self) -> bool {
        self.stream_count() == 0 && !self.entries.iter().any(|(_, entry)| matches!(entry, BondSocket::Linger(_)))
    }

    fn time(&self) -> Span {
        Span((self.now - self.epoch).as_nanos() as u64)
    }

    fn stream_over(&self, theirs: u32) -> Stream {
        let bond = self.host.bond();
        Stream::new(bond.settings, bond.window.0 as usize, theirs.into(), (!bond.tls).then(|| self.pipes.clone()))
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

    /// Has epoll report the socket's state again.
    fn rearm(&self, index: usize, socket: &Socket) -> Result<(), Errno> {
        self.reactor.rearm(socket, Token::Carrier(index), Readiness::INTEREST)
    }

    /// Takes in what epoll told of the socket with this index.
    pub fn on_event(&mut self, index: usize, events: Readiness, scratch: &mut Scratch) {
        self.now = scratch.now;
        match self.entries.get_mut(index) {
            None => {}
            Some(BondSocket::Handshake(..)) => self.on_handshake(index, scratch),
            Some(BondSocket::Pooled(channel, network, _)) => {
                let network = *network;
                // No data is due before it joins a stream: it has ended, or the peer is not one of
                // ours. TLS may have messages of its own.
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
                    match bonded.on_events(events) {
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

    /// Ends all streams.
    pub fn stop(&mut self) {
        for slot in 0..self.streams.bound() {
            self.end(slot, Ending::Stopped);
        }
    }

    /// The flows that have ended since this was last called.
    pub fn take_ended(&mut self) -> Vec<FlowRecord> {
        mem::take(&mut self.ended)
    }

    /// How many connections were turned away that had not shown that they have the key.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether a stream has more to do at once.
    pub fn is_busy(&self) -> bool {
        !self.again.is_empty()
    }

    /// How long until something is due; none: until the next event.
    pub fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let timer = self.timers.peek().map(|Reverse((at, _))| (self.epoch + Duration::from_nanos(at.0)).saturating_duration_since(now));
        let cares = self.stream_count() > 0 || self.networks.len() > 0 || !self.entries.is_empty();
        let care = cares.then(|| self.next_check.saturating_duration_since(now));
        [timer, care].into_iter().flatten().min()
    }

    /// Does what is due, and dials what the networks lack of connections.
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
                self.proceed(slot, scratch);
            }
        }
        if self.now >= self.next_check {
            self.next_check = self.now + CHECK_INTERVAL;
            self.check_timeouts();
        }
        self.dial_networks();
        self.entries.end_turn();
        self.streams.end_turn();
    }
}
