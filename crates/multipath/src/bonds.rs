//! All streams and connections of the bond of one event loop.
//!
//! `arrivals` has connections until they belong to a stream, `streams` has what becomes of streams,
//! `timeouts` ends what takes too long or has gone silent, `view` shows what there is.

mod arrivals;
mod streams;
mod timeouts;
mod view;

use crate::{
    channel::Channel,
    handshake::{Entrance, Keeper},
    host::{Host, Preface},
    life::Bonded,
    linger::Farewell,
    networks::Networks,
    settings::Network,
    stream::Stream,
    zero_copy::Pipes,
};
use intercept::leg;
use relay::{Ending, FlowRecord, Readiness, Scratch};
use rustix::{
    event::epoll::{self, EventData},
    fd::OwnedFd,
    io::Errno,
};
use socket2::Socket;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    io::IoSliceMut,
    mem,
    time::{Duration, Instant},
};
use units::Span;

/// How often connections are looked after.
const CARE: Duration = Duration::from_millis(250);

/// What an event may belong to.
#[derive(Debug)]
enum Entry {
    /// On its way in: dialled over this network, or accepted at a listener that has its servers told of clients so.
    Entrance(Box<Entrance>, Origin),
    /// Ready, over this network; *connect*.
    Spare(Channel, usize, u32),
    /// Ready, of no stream yet; *serve*. What it has said until now.
    Guest(Channel, u32, Option<Preface>, Vec<u8>),
    Member(usize),
    Plain(usize),
    /// Has something left to say.
    Farewell(Box<Farewell>),
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
enum Origin {
    Dialled(usize),
    Accepted(Option<Preface>),
}

/// All that a worker has of bonds.
#[derive(Debug)]
pub struct Bonds {
    host: Box<dyn Host>,
    keeper: Keeper,
    epoll: OwnedFd,
    /// Which bit marks its events.
    mark: u64,
    pipes: Pipes,
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Free from the next round on: events already fetched may still name them.
    freed: Vec<usize>,
    streams: Vec<Option<Box<Bonded>>>,
    free_streams: Vec<usize>,
    by_id: BTreeMap<u128, usize>,
    past: VecDeque<u128>,
    networks: Networks,
    strangers: VecDeque<usize>,
    guests: usize,
    timers: BinaryHeap<Reverse<(Span, usize)>>,
    again: VecDeque<usize>,
    ended: Vec<FlowRecord>,
    /// Strangers that were turned away.
    refused: u64,
    epoch: Instant,
    now: Instant,
    next_care: Instant,
    draining: bool,
}

impl Bonds {
    /// Over these networks, for an event loop whose epoll marks their events with `mark`.
    ///
    /// # Errors
    /// When the bond has no key, or cannot encrypt.
    pub fn new(host: Box<dyn Host>, networks: &[Network], epoll: OwnedFd, mark: u64) -> Result<Self, String> {
        let bond = host.bond();
        let keeper = Keeper::of(bond)?;
        let now = Instant::now();
        Ok(Bonds {
            networks: Networks::new(networks, bond, now),
            host,
            keeper,
            epoll,
            mark,
            pipes: Pipes::new(Pipes::most(leg::open_files())),
            entries: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            streams: Vec::new(),
            free_streams: Vec::new(),
            by_id: BTreeMap::new(),
            past: VecDeque::new(),
            strangers: VecDeque::new(),
            guests: 0,
            timers: BinaryHeap::new(),
            again: VecDeque::new(),
            ended: Vec::new(),
            refused: 0,
            epoch: now,
            now,
            next_care: now,
            draining: false,
        })
    }

    /// Takes another configuration, for streams that begin from now on.
    pub fn reload(&mut self, host: Box<dyn Host>) {
        self.host = host;
    }

    /// How many streams there are.
    pub fn stream_count(&self) -> usize {
        self.by_id.len()
    }

    /// Takes nothing new, and keeps nothing ready.
    pub fn drain(&mut self) {
        self.draining = true;
        for index in 0..self.entries.len() {
            if matches!(self.entries[index], Some(Entry::Spare(..))) {
                self.drop_entry(index);
            }
        }
        self.networks.drain();
    }

    /// Whether nothing is left that must end by itself.
    pub fn is_over(&self) -> bool {
        self.stream_count() == 0 && !self.entries.iter().flatten().any(|entry| matches!(entry, Entry::Farewell(_)))
    }

    fn time(&self) -> Span {
        Span((self.now - self.epoch).as_nanos() as u64)
    }

    fn stream_over(&self, theirs: u32) -> Stream {
        let bond = self.host.bond();
        Stream::new(bond.settings, bond.window.0 as usize, theirs.into(), (!bond.tls).then(|| self.pipes.clone()))
    }

    fn enter(&mut self, entry: Entry) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.entries[index] = Some(entry);
                index
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() - 1
            }
        }
    }

    fn drop_entry(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
            match entry {
                Entry::Guest(..) => self.guests -= 1,
                Entry::Spare(_, network, _) => self.networks.forget(network, index),
                Entry::Entrance(_, Origin::Dialled(network)) => self.networks.dialled(network),
                _ => {}
            }
            self.freed.push(index);
        }
    }

    fn watch(&self, index: usize, socket: &Socket) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(self.mark | index as u64), Readiness::INTEREST)
    }

    /// Has epoll look at a socket afresh.
    fn rearm(&self, index: usize, socket: &Socket) -> Result<(), Errno> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(self.mark | index as u64), Readiness::INTEREST)
    }

    /// What epoll said.
    pub fn on_event(&mut self, index: usize, events: Readiness, scratch: &mut Scratch) {
        self.now = scratch.now;
        match self.entries.get_mut(index).and_then(Option::as_mut) {
            None => {}
            Some(Entry::Entrance(..)) => self.on_entrance(index, scratch),
            Some(Entry::Spare(channel, network, _)) => {
                let network = *network;
                // It is to say nothing: either it has ended, or it is none of ours. Encryption has words of its own.
                let said = channel.receive(&mut [IoSliceMut::new(&mut [0; 1])]);
                if (events.readable || events.failed) && said != Err(Errno::AGAIN) {
                    self.networks.closed(network, index, self.now);
                    self.drop_entry(index);
                }
            }
            Some(Entry::Guest(..)) => self.on_guest(index, scratch),
            Some(Entry::Member(slot)) => {
                let slot = *slot;
                if let Some(bonded) = self.streams[slot].as_mut() {
                    if let Some(member) = bonded.stream.member(index) {
                        member.readable |= events.readable || events.failed || events.hung_up;
                        member.hung_up |= events.hung_up || events.failed;
                    }
                    self.proceed(slot, scratch);
                }
            }
            Some(Entry::Plain(slot)) => {
                let slot = *slot;
                if let Some(bonded) = self.streams[slot].as_mut() {
                    match bonded.on_events(events) {
                        Ok(()) => self.proceed(slot, scratch),
                        Err(ending) => self.end(slot, ending),
                    }
                }
            }
            Some(Entry::Farewell(farewell)) => {
                let parting = farewell.go_on();
                self.part(index, parting);
            }
        }
    }

    /// Ends all.
    pub fn stop(&mut self) {
        for slot in 0..self.streams.len() {
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

    /// Whether somebody has more to do now.
    pub fn is_busy(&self) -> bool {
        !self.again.is_empty()
    }

    /// How long until something is to be done.
    pub fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let timer = self.timers.peek().map(|Reverse((at, _))| (self.epoch + Duration::from_nanos(at.0)).saturating_duration_since(now));
        let cares = self.stream_count() > 0 || self.networks.len() > 0 || !self.entries.iter().all(Option::is_none);
        let care = cares.then(|| self.next_care.saturating_duration_since(now));
        [timer, care].into_iter().flatten().min()
    }

    /// What is due now.
    pub fn turn(&mut self, scratch: &mut Scratch) {
        self.now = scratch.now;
        for _ in 0..self.again.len() {
            let Some(slot) = self.again.pop_front() else { break };
            if let Some(bonded) = self.streams[slot].as_mut() {
                bonded.in_again = false;
                self.proceed(slot, scratch);
            }
        }
        let time = self.time();
        while let Some(Reverse((at, slot))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= time) {
            self.timers.pop();
            let Some(bonded) = self.streams[slot].as_mut() else { continue };
            if bonded.scheduled == Some(at) {
                bonded.scheduled = None;
                self.proceed(slot, scratch);
            }
        }
        if self.now >= self.next_care {
            self.next_care = self.now + CARE;
            self.take_care();
        }
        self.dial_networks();
        self.free.append(&mut self.freed);
    }
}
