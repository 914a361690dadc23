//! Far legs, or near ones, that are a bond: one stream over several connections, each over its own network (room `bond` decides, here it is done).
//!
//! `settings` is what is wanted, `channel` (with `tls`) a connection, `entrance` how its two ends come to know each other, `networks` how connections are
//! kept ready by the end that dials, `member` a connection of a stream, `stream` a stream over its connections, `life` that and the plain leg
//! together. [`Bonds`] has all of them that a worker has: it shares the worker's epoll, and nothing else.

mod channel;
mod entrance;
mod farewell;
mod life;
mod member;
mod networks;
pub(crate) mod settings;
mod stream;
mod tls;
mod view;

pub(crate) use settings::bound_window;
pub use settings::{BondConfig, Network, NetworkSpec};
pub use view::{BondView, PathView};

use crate::{
    config::{Config, ProxyVersion, Way},
    connection::{Events, Start},
    ending::Ending,
    leg::{self, Call as Dial, Shares},
    meter::FlowRecord,
    relay::Tools,
    resolver::{Answer, Question},
    routes::Routes,
    sys,
};
use bond::{Call, Frame, Reader, Step as Said, Target};
use channel::Channel;
use entrance::{Entrance, Keeper, Step, Unfit};
use farewell::Farewell;
use life::{Bonded, Role};
use member::{Lost, Member};
use networks::Networks;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    fd::OwnedFd,
    io::Errno,
};
use scenario::Span;
use socket2::{Socket, TcpKeepalive};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    io::{self, IoSliceMut},
    mem,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};
use stream::Stream;

/// An address that is not known.
pub(crate) const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// Connections of others that have not shown that they have the key: of more the oldest goes.
const MOST_STRANGERS: usize = 1024;
/// Connections that have, and are of no stream yet.
const MOST_GUESTS: usize = 4096;
/// How long a stranger may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections of a stream: twice as many as there can be networks.
const MOST_MEMBERS: usize = 2 * BondConfig::MOST_NETWORKS;
/// Streams that are over are remembered: a connection that comes late for one must not begin another.
const REMEMBERED: usize = 8192;
/// How often connections are looked after.
const CARE: Duration = Duration::from_millis(250);
/// A stream whose last connection was closed by the other end waits so long for another: the other end is likely gone.
const CLOSED_GRACE: Duration = Duration::from_secs(5);
/// Questions of streams have this in their slot, those of others have not.
pub(crate) const QUESTION: usize = 1 << (usize::BITS - 1);

/// What an event may belong to.
#[derive(Debug)]
enum Entry {
    /// On its way in: dialled over this network, or accepted at a listener that has its servers told of clients so.
    Entrance(Box<Entrance>, Origin),
    /// Ready, over this network; *connect*.
    Spare(Channel, usize, u32),
    /// Ready, of no stream yet; *serve*. What it has said until now.
    Guest(Channel, u32, Option<ProxyVersion>, Vec<u8>),
    Member(usize),
    Plain(usize),
    /// Has something left to say.
    Farewell(Box<Farewell>),
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
enum Origin {
    Dialled(usize),
    Accepted(Option<ProxyVersion>),
}

/// All that a worker has of bonds.
#[derive(Debug)]
pub(crate) struct Bonds {
    config: Arc<Config>,
    keeper: Keeper,
    epoll: OwnedFd,
    /// Which bit marks its events.
    mark: u64,
    names: mpsc::Sender<Question>,
    worker: usize,
    routes: Option<Routes>,
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
    pub(crate) ended: Vec<FlowRecord>,
    /// Strangers that were turned away.
    pub(crate) refused: u64,
    epoch: Instant,
    now: Instant,
    next_care: Instant,
    draining: bool,
}

impl Bonds {
    /// Of a worker whose configuration has a bond.
    pub(crate) fn of(
        config: &Arc<Config>,
        epoll: OwnedFd,
        mark: u64,
        names: mpsc::Sender<Question>,
        worker: usize,
    ) -> Result<Option<Self>, String> {
        let Some(bond) = &config.bond else { return Ok(None) };
        let key = bond.key.clone().ok_or("the bond has no key")?;
        let encryption = if bond.tls { Some(tls::Encryption::new()?) } else { None };
        let keeper = Keeper { key, encryption, window: bond.window.0 as u32 };
        let now = Instant::now();
        Ok(Some(Bonds {
            networks: Networks::new(&config.policy.networks, bond, now),
            config: config.clone(),
            keeper,
            epoll,
            mark,
            names,
            worker,
            routes: Routes::open().ok(),
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
        }))
    }

    pub(crate) fn reload(&mut self, config: &Arc<Config>) {
        self.config = config.clone();
    }

    /// How many streams there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Takes nothing new, and keeps nothing ready.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        for index in 0..self.entries.len() {
            if matches!(self.entries[index], Some(Entry::Spare(..))) {
                self.drop_entry(index);
            }
        }
        self.networks.drain();
    }

    /// Whether nothing is left that must end by itself.
    pub(crate) fn is_over(&self) -> bool {
        self.len() == 0 && !self.entries.iter().flatten().any(|entry| matches!(entry, Entry::Farewell(_)))
    }

    fn bond(&self) -> &BondConfig {
        // Without one there are no bonds; a reload can't take it away.
        static DEFAULT: std::sync::LazyLock<BondConfig> = std::sync::LazyLock::new(BondConfig::default);
        self.config.bond.as_ref().unwrap_or(&DEFAULT)
    }

    fn time(&self) -> Span {
        Span((self.now - self.epoch).as_nanos() as u64)
    }

    fn shares(&self) -> Option<Shares> {
        self.config.buffer.map(|buffer| Shares::of(buffer.0 as usize))
    }

    fn stream_over(&self, theirs: u32) -> Stream {
        Stream::new(self.bond().settings, self.bond().window.0 as usize, theirs.into())
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
        let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(self.mark | index as u64), flags)
    }

    /// Has epoll look at a socket afresh.
    fn rearm(&self, index: usize, socket: &Socket) {
        let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(self.mark | index as u64), flags);
    }

    /// Begins a stream for a client that wants to go there. What can't be begun is returned as its ending.
    pub(crate) fn begin(&mut self, start: Start, to: Target) -> Result<(), (Ending, Option<Socket>)> {
        let Start { near, client, heard, socks, preface, .. } = start;
        let server = if let Target::Address(server) = to { server } else { UNKNOWN };
        let routes = self.routes.as_ref();
        let (profile, _) = self.config.policy.legs_of(client, server, |address| routes?.interface_to(address));
        if let Err(why) = leg::apply(&near, profile, || sys::dscp_of_syn(&near)) {
            return Err((Ending::NearFailed(why.kind()), None));
        }
        let Ok(id) = entrance::unguessable() else { return Err((Ending::NoRoom, None)) };
        // Until the other end says what its window is, it is taken for no larger than the least.
        let theirs = self.networks.window().unwrap_or(BondConfig::LEAST_WINDOW.0 as u32);
        let stream = self.stream_over(theirs);
        let call = Call { client, to };
        let bonded =
            Bonded::call(near, &call, [&preface, &heard], id, stream, profile, self.now).with_shares(self.shares()).with_socks(socks);
        let slot = self.settle(bonded);
        for network in 0..self.networks.len() {
            self.want(network, slot);
        }
        self.watch_plain(slot);
        self.proceed(slot, &mut None);
        Ok(())
    }

    /// A slot for a stream.
    fn settle(&mut self, bonded: Bonded) -> usize {
        let slot = self.free_streams.pop().unwrap_or_else(|| {
            self.streams.push(None);
            self.streams.len() - 1
        });
        self.by_id.insert(bonded.id, slot);
        self.streams[slot] = Some(Box::new(bonded));
        slot
    }

    /// Lets epoll watch a stream's plain leg.
    fn watch_plain(&mut self, slot: usize) {
        let entry = self.enter(Entry::Plain(slot));
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        bonded.entry = entry;
        let watched = bonded.plain.as_ref().map_or(Ok(()), |plain| {
            let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, plain, EventData::new_u64(self.mark | entry as u64), flags)
        });
        if watched.is_err() {
            self.end(slot, Ending::NoRoom);
        }
    }

    /// A stream is to have a connection over a network: one that is ready, or the next that will be.
    fn want(&mut self, network: usize, slot: usize) {
        match self.networks.take(network) {
            Some(index) => self.join(index, slot),
            None => {
                if let Some(bonded) = &self.streams[slot] {
                    self.networks.want(network, slot, bonded.id);
                }
            }
        }
    }

    /// A connection that is ready becomes one of a stream.
    fn join(&mut self, index: usize, slot: usize) {
        let Some(Entry::Spare(channel, network, window)) = self.entries[index].take() else { return };
        self.entries[index] = Some(Entry::Member(slot));
        let (tier, time, bound) = (self.networks.tier(network), self.time(), self.bond().connection_window);
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        let mut member = Member::new(channel, network as u8, index, bound);
        member.say(&Frame::Join { stream: bonded.id, known: bonded.known, network: network as u8, tier });
        // One that has been silent: this one takes its place.
        let old = bonded.stream.lose_over(network as u8);
        let _ = bonded.stream.outbound.acknowledge(0, window.into());
        bonded.stream.add(time, member, tier);
        bonded.alone = None;
        old.into_iter().for_each(|old| self.drop_entry(old.entry));
    }

    /// A connection has come to a listener for bonds.
    pub(crate) fn greet(&mut self, socket: Socket, send_proxy: Option<ProxyVersion>) {
        if self.draining {
            return;
        }
        while self.strangers.len() >= MOST_STRANGERS {
            if let Some(oldest) = self.strangers.pop_front()
                && self.is_stranger(oldest)
            {
                self.refused += 1;
                self.drop_entry(oldest);
            }
        }
        let _ = socket.set_linger(None);
        let entrance = Box::new(Entrance::accepted(socket, self.now));
        let index = self.enter(Entry::Entrance(entrance, Origin::Accepted(send_proxy)));
        self.strangers.push_back(index);
        if let Some(Some(Entry::Entrance(entrance, _))) = self.entries.get(index)
            && self.watch(index, entrance.socket()).is_err()
        {
            self.drop_entry(index);
        }
    }

    fn is_stranger(&self, index: usize) -> bool {
        matches!(&self.entries[index], Some(Entry::Entrance(entrance, Origin::Accepted(_))) if entrance.is_stranger())
    }

    /// What epoll said.
    pub(crate) fn on_event(&mut self, index: usize, events: Events, tools: &mut Tools) {
        self.now = tools.now;
        match self.entries.get_mut(index).and_then(Option::as_mut) {
            None => {}
            Some(Entry::Entrance(..)) => self.on_entrance(index, tools),
            Some(Entry::Spare(channel, ..)) => {
                // It is to say nothing: either it has ended, or it is none of ours. Encryption has words of its own.
                let said = channel.receive(&mut [IoSliceMut::new(&mut [0; 1])]);
                if (events.readable || events.failed) && said != Err(Errno::AGAIN) {
                    self.drop_entry(index);
                }
            }
            Some(Entry::Guest(..)) => self.on_guest(index, tools),
            Some(Entry::Member(slot)) => {
                let slot = *slot;
                if let Some(bonded) = self.streams[slot].as_mut() {
                    if let Some(member) = bonded.stream.member(index) {
                        member.readable |= events.readable || events.failed || events.hung_up;
                        member.hung_up |= events.hung_up || events.failed;
                    }
                    self.proceed(slot, &mut Some(tools));
                }
            }
            Some(Entry::Plain(slot)) => {
                let slot = *slot;
                if let Some(bonded) = self.streams[slot].as_mut() {
                    match bonded.on_events(events) {
                        Ok(()) => self.proceed(slot, &mut Some(tools)),
                        Err(ending) => self.end(slot, ending),
                    }
                }
            }
            Some(Entry::Farewell(farewell)) => {
                let is_over = farewell.go_on();
                if is_over {
                    self.drop_entry(index);
                }
            }
        }
    }

    fn on_entrance(&mut self, index: usize, tools: &mut Tools) {
        let Some(Entry::Entrance(entrance, origin)) = self.entries[index].take() else { return };
        match entrance.step(&self.keeper) {
            Ok(Step::Waits(entrance)) => self.entries[index] = Some(Entry::Entrance(entrance, origin)),
            Ok(Step::In(channel, window)) => match origin {
                Origin::Dialled(network) => {
                    self.entries[index] = Some(Entry::Spare(channel, network, window));
                    self.networks.ready(network, index, window, self.now);
                    self.hand_out(network, tools);
                }
                Origin::Accepted(send_proxy) if self.guests < MOST_GUESTS && !self.draining => {
                    self.guests += 1;
                    keep_alive(channel.socket(), Duration::from_secs(60));
                    self.tune(channel.socket());
                    self.entries[index] = Some(Entry::Guest(channel, window, send_proxy, Vec::new()));
                    self.on_guest(index, tools);
                }
                Origin::Accepted(_) => self.freed.push(index),
            },
            Err(why) => {
                self.freed.push(index);
                match origin {
                    Origin::Dialled(network) => {
                        self.networks.dialled(network);
                        self.networks.failed(network, &why, self.now);
                    }
                    Origin::Accepted(_) => {
                        self.refused += 1;
                        tracing::debug!("the bond's listener turned a connection away: {why}");
                    }
                }
            }
        }
    }

    /// Gives a connection that was accepted the profile of where it leads.
    fn tune(&self, socket: &Socket) {
        let Some(peer) = socket.peer_addr().ok().and_then(|peer| peer.as_socket()) else { return };
        let routes = self.routes.as_ref();
        let (profile, _) = self.config.policy.legs_of(peer, UNKNOWN, |address| routes?.interface_to(address));
        if let Err(why) = leg::apply(socket, profile, || sys::dscp_of_syn(socket)) {
            tracing::warn!("a connection of the bond is not tuned as its profile says: {why}");
        }
    }

    /// Gives a connection that has just become ready to a stream that waits for one.
    fn hand_out(&mut self, network: usize, tools: &mut Tools) {
        while let Some((slot, id)) = self.networks.next_wanting(network) {
            if self.streams.get(slot).and_then(Option::as_ref).is_some_and(|bonded| bonded.id == id)
                && let Some(index) = self.networks.take(network)
            {
                self.join(index, slot);
                self.proceed(slot, &mut Some(tools));
                return;
            }
        }
    }

    /// One that has the key says of which stream it is.
    fn on_guest(&mut self, index: usize, tools: &mut Tools) {
        let Some(Entry::Guest(mut channel, window, send_proxy, mut heard)) = self.entries[index].take() else { return };
        let joins = loop {
            let mut byte = [0; 20];
            let room = Frame::JOIN - heard.len();
            match channel.receive(&mut [IoSliceMut::new(&mut byte[..room])]) {
                Ok(0) => break None,
                Ok(count) => {
                    heard.extend_from_slice(&byte[..count]);
                    if heard.len() == Frame::JOIN {
                        break Reader::default().read(&heard).ok().map(|(_, said)| said);
                    }
                }
                Err(Errno::AGAIN) => {
                    self.entries[index] = Some(Entry::Guest(channel, window, send_proxy, heard));
                    return;
                }
                Err(_) => break None,
            }
        };
        self.guests -= 1;
        match joins {
            Some(Said::Said(Frame::Join { stream, known, network, tier })) => {
                self.entries[index] = Some(Entry::Member(usize::MAX));
                let member = Member::new(channel, network, index, self.bond().connection_window);
                self.admit(member, (stream, known, tier), window, send_proxy, tools);
            }
            _ => {
                // It has ended, or speaks of something else before a stream.
                self.freed.push(index);
            }
        }
    }

    /// A connection says of which stream it is: of one there is, or the first of one.
    fn admit(
        &mut self,
        member: Member,
        (id, known, tier): (u128, bool, u8),
        window: u32,
        send_proxy: Option<ProxyVersion>,
        tools: &mut Tools,
    ) {
        let (index, time) = (member.entry, self.time());
        let slot = match self.by_id.get(&id) {
            Some(slot) => *slot,
            None if known || self.draining || self.past.contains(&id) => {
                let why = if self.draining { bond::Why::Stopped } else { bond::Why::Reset };
                return self.say_farewell(member, Frame::Reset(why as u8).header().to_vec());
            }
            None if self.len() >= self.config.room_of_a_worker() => {
                return self.say_farewell(member, Frame::Reset(bond::Why::NoRoom as u8).header().to_vec());
            }
            None => {
                let bonded = Bonded::called(send_proxy, id, self.stream_over(window), self.now).with_shares(self.shares());
                self.settle(bonded)
            }
        };
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        let old = bonded.stream.lose_over(member.network);
        if bonded.stream.members().count() < MOST_MEMBERS {
            bonded.stream.add(time, member, tier);
            bonded.alone = None;
            self.entries[index] = Some(Entry::Member(slot));
        } else {
            self.freed.push(index);
            self.entries[index] = None;
        }
        old.into_iter().for_each(|old| self.drop_entry(old.entry));
        self.proceed(slot, &mut Some(tools));
    }

    /// Lets a stream move on, then does what it wants.
    fn proceed(&mut self, slot: usize, tools: &mut Option<&mut Tools>) {
        let now = self.time();
        let Some(tools) = tools else {
            // Its turn comes.
            return self.give_turn(slot);
        };
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        match bonded.proceed(now, tools) {
            Ok(wants) => {
                for (member, why) in wants.turn.lost {
                    self.on_lost(slot, member, why);
                }
                for index in wants.turn.rearm {
                    let stream = self.streams[slot].as_ref().map(|bonded| &bonded.stream);
                    if let Some((_, member)) = stream.and_then(|stream| stream.members().find(|(_, member)| member.entry == index)) {
                        self.rearm(index, member.channel.socket());
                    }
                }
                if let Some(target) = wants.dial {
                    self.dial(slot, target);
                }
                if wants.turn.again {
                    self.give_turn(slot);
                }
                self.schedule(slot);
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    fn give_turn(&mut self, slot: usize) {
        if let Some(bonded) = self.streams[slot].as_mut()
            && !mem::replace(&mut bonded.in_again, true)
        {
            self.again.push_back(slot);
        }
    }

    /// Sees to it that a stream has its turn when it is due.
    fn schedule(&mut self, slot: usize) {
        let now = self.time();
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        if let Some(at) = bonded.wakes(now).map(|at| at.max(now))
            && bonded.scheduled.is_none_or(|scheduled| at < scheduled)
        {
            bonded.scheduled = Some(at);
            self.timers.push(Reverse((at, slot)));
        }
    }

    /// A connection of a stream is gone.
    fn on_lost(&mut self, slot: usize, member: Member, why: Lost) {
        let network = usize::from(member.network);
        self.drop_entry(member.entry);
        drop(member);
        let now = self.now;
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        bonded.note_loss(why, now);
        if let (Role::Connect { .. }, false) = (bonded.role, self.draining && bonded.stream.outbound.is_done()) {
            tracing::debug!(network = self.networks.name(network), "a connection of a stream is lost: {why}");
            self.want(network, slot);
        }
    }

    /// *Serve*: a stream has said where it wants to go.
    fn dial(&mut self, slot: usize, target: Target) {
        match target {
            Target::Address(server) => self.dial_one_of(slot, vec![server]),
            Target::Name(name, port) => {
                let Some(bonded) = &self.streams[slot] else { return };
                let question = Question { name, port, worker: self.worker, slot: slot | QUESTION, serial: bonded.id as u64 };
                let _ = self.names.send(question);
            }
        }
    }

    /// *Serve*: a name has been looked up.
    pub(crate) fn on_resolved(&mut self, answer: &Answer) {
        let slot = answer.slot & !QUESTION;
        if self.streams.get(slot).and_then(Option::as_ref).is_none_or(|bonded| bonded.id as u64 != answer.serial) {
            return;
        }
        match &answer.addresses {
            Ok(addresses) if !addresses.is_empty() => self.dial_one_of(slot, addresses.clone()),
            _ => self.end(slot, Ending::FarNotReached(io::ErrorKind::NotFound)),
        }
    }

    /// *Serve*: dials the first of these that can be.
    fn dial_one_of(&mut self, slot: usize, mut servers: Vec<SocketAddr>) {
        let mut ending = Ending::FarNotReached(io::ErrorKind::NotFound);
        while !servers.is_empty() {
            let server = servers.remove(0);
            let Some(client) = self.streams[slot].as_ref().map(|bonded| bonded.client) else { return };
            let allowed = self.bond().allow.is_empty() || self.bond().allow.iter().any(|prefix| prefix.contains(server.ip()));
            if !allowed {
                ending = Ending::FarNotReached(io::ErrorKind::PermissionDenied);
                continue;
            }
            let routes = self.routes.as_ref();
            let (_, profile) = self.config.policy.legs_of(client, server, |address| routes?.interface_to(address));
            let call = Dial { profile, shares: self.shares(), from: None, to: server, fast_open: false };
            match call.dial(|| Ok(0)) {
                Ok(far) => {
                    let profile = profile.clone();
                    let Some(bonded) = self.streams[slot].as_mut() else { return };
                    bonded.dials(far, server, &profile);
                    bonded.others = servers;
                    return self.watch_plain(slot);
                }
                Err(why) => ending = crate::connection::undialled(&why),
            }
        }
        self.end(slot, ending);
    }

    /// A stream has ended.
    fn end(&mut self, slot: usize, ending: Ending) {
        if let Some(bonded) = self.streams[slot].as_mut()
            && matches!((bonded.role, ending), (Role::Serve { .. }, Ending::FarNotReached(_)))
            && !bonded.others.is_empty()
        {
            let (others, entry) = (mem::take(&mut bonded.others), bonded.entry);
            bonded.plain = None;
            self.drop_entry(entry);
            return self.dial_one_of(slot, others);
        }
        let Some(mut bonded) = self.streams[slot].take() else { return };
        self.free_streams.push(slot);
        self.by_id.remove(&bonded.id);
        self.past.push_back(bonded.id);
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        let record = FlowRecord { last: self.stats_of(&bonded, false), ending };
        if bonded.entry != usize::MAX {
            self.drop_entry(bonded.entry);
        }
        for (member, bytes) in bonded.release(ending) {
            self.say_farewell(member, bytes);
        }
        self.ended.push(record);
    }

    /// A connection goes when it has said this.
    fn say_farewell(&mut self, member: Member, bytes: Vec<u8>) {
        let index = member.entry;
        let mut farewell = Box::new(Farewell::new(member.channel, bytes, self.now));
        if farewell.go_on() {
            self.entries[index] = None;
            self.freed.push(index);
        } else {
            self.entries[index] = Some(Entry::Farewell(farewell));
        }
    }

    /// Ends all.
    pub(crate) fn stop(&mut self) {
        for slot in 0..self.streams.len() {
            self.end(slot, Ending::Stopped);
        }
    }

    /// Whether somebody has more to do now.
    pub(crate) fn is_busy(&self) -> bool {
        !self.again.is_empty()
    }

    /// How long until something is to be done.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        let timer = self.timers.peek().map(|Reverse((at, _))| (self.epoch + Duration::from_nanos(at.0)).saturating_duration_since(now));
        let cares = self.len() > 0 || self.networks.len() > 0 || !self.entries.iter().all(Option::is_none);
        let care = cares.then(|| self.next_care.saturating_duration_since(now));
        [timer, care].into_iter().flatten().min()
    }

    /// What is due now.
    pub(crate) fn turn(&mut self, tools: &mut Tools) {
        self.now = tools.now;
        for _ in 0..self.again.len() {
            let Some(slot) = self.again.pop_front() else { break };
            if let Some(bonded) = self.streams[slot].as_mut() {
                bonded.in_again = false;
                self.proceed(slot, &mut Some(tools));
            }
        }
        let time = self.time();
        while let Some(Reverse((at, slot))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= time) {
            self.timers.pop();
            let Some(bonded) = self.streams[slot].as_mut() else { continue };
            if bonded.scheduled == Some(at) {
                bonded.scheduled = None;
                self.proceed(slot, &mut Some(tools));
            }
        }
        if self.now >= self.next_care {
            self.next_care = self.now + CARE;
            self.take_care();
        }
        self.dial_networks();
        self.free.append(&mut self.freed);
    }

    /// Keeps connections ready over the networks.
    fn dial_networks(&mut self) {
        while let Some((network, socket)) = self.networks.dial(self.now) {
            match socket {
                Ok(socket) => {
                    let entrance = Box::new(Entrance::dialled(socket, self.now));
                    let index = self.enter(Entry::Entrance(entrance, Origin::Dialled(network)));
                    if let Some(Some(Entry::Entrance(entrance, _))) = self.entries.get(index)
                        && self.watch(index, entrance.socket()).is_err()
                    {
                        self.drop_entry(index);
                    }
                }
                Err(why) => {
                    let why = Errno::from_io_error(&why).unwrap_or(Errno::IO);
                    self.networks.failed(network, &Unfit::Failed(why), self.now);
                }
            }
        }
    }

    /// Now and then: who takes too long, who has gone silent.
    fn take_care(&mut self) {
        let now = self.now;
        while let Some(oldest) = self.strangers.front().copied() {
            let is_late = match &self.entries[oldest] {
                Some(Entry::Entrance(entrance, Origin::Accepted(_))) => now - entrance.since >= PATIENCE,
                _ => {
                    self.strangers.pop_front();
                    continue;
                }
            };
            if !is_late {
                break;
            }
            self.strangers.pop_front();
            self.refused += 1;
            self.drop_entry(oldest);
        }
        for index in 0..self.entries.len() {
            match &self.entries[index] {
                Some(Entry::Entrance(entrance, Origin::Dialled(network))) if now - entrance.since >= self.networks.patience(*network) => {
                    let network = *network;
                    self.drop_entry(index);
                    self.networks.failed(network, &Unfit::Failed(Errno::TIMEDOUT), now);
                }
                Some(Entry::Farewell(farewell)) if farewell.is_late(now) => self.drop_entry(index),
                _ => {}
            }
        }
        for slot in 0..self.streams.len() {
            self.care_for(slot);
        }
    }

    fn care_for(&mut self, slot: usize) {
        let (now, outage, idle, connect) = (self.now, self.bond().outage, self.config.idle_timeout, self.config.connect_timeout);
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        bonded.keep_alive();
        let ending = if let Some((since, closed)) = bonded.alone {
            let limit = match (bonded.known, closed) {
                (false, _) => connect,
                (true, true) => CLOSED_GRACE.min(outage),
                (true, false) => outage,
            };
            (now - since >= limit).then(|| bonded.bond_failed(io::ErrorKind::TimedOut))
        } else if bonded.is_called() && now - bonded.born >= connect {
            Some(bonded.bond_failed(io::ErrorKind::TimedOut))
        } else if bonded.is_dialling()
            && now - bonded.born >= connect + if matches!(bonded.role, Role::Serve { .. }) { Duration::ZERO } else { connect }
        {
            Some(Ending::FarNotReached(io::ErrorKind::TimedOut))
        } else if idle.is_some_and(|limit| bonded.idle(now) >= limit) {
            Some(Ending::Idle)
        } else {
            bonded.ended_in_silence(now)
        };
        if let Some(ending) = ending {
            return self.end(slot, ending);
        }
        let is_over = bonded.plain.is_none() && !bonded.is_dialling();
        if !is_over && bonded.stream.unacknowledged() == 0 && bonded.idle(now) > Duration::from_secs(10) {
            bonded.stream.forget();
        }
        // A connection that nothing comes back over is tried anew, from the end that can.
        if let Role::Connect { .. } = bonded.role {
            let silent: Vec<usize> = bonded
                .stream
                .members()
                .filter(|(_, member)| networks::is_silent(&sys::tcp_info(&member.channel).unwrap_or_default()))
                .map(|(_, member)| usize::from(member.network))
                .collect();
            let id = bonded.id;
            for network in silent {
                for stale in self.networks.suspect(network, slot, id, now) {
                    self.drop_entry(stale);
                }
            }
        }
    }
}

/// Has a connection's other end asked whether it is still there.
fn keep_alive(socket: &Socket, idle: Duration) {
    let probe = TcpKeepalive::new().with_time(idle).with_interval(Duration::from_secs(10)).with_retries(5);
    let _ = socket.set_tcp_keepalive(&probe);
}

/// Listeners of the other end of a bond are of the first worker alone: the connections of a stream have to meet.
pub(crate) fn is_listener_of(way: Way, worker: usize) -> bool {
    way != Way::Bond || worker == 0
}
