//! The streams of a bond: begins them at either end, assigns connections, relays and ends them.

use super::{BondSocket, Bonds};
use crate::{
    handshake,
    host::StreamStart,
    life::{BondedConnection, Role, Wants},
    linger::{Linger, LingerStep},
    member::{Lost, Member},
    settings::BondConfig,
};
use bond::{Frame, NoMemory, OpenRequest, Target};
use intercept::{
    canonical,
    leg::{self, DialOptions},
    sys,
};
use relay::{Ending, FlowRecord, PlainLeg, Readiness, Scratch, Token, UNKNOWN_ADDRESS};
use std::{cmp::Reverse, io, mem, net::SocketAddr, time::Duration};
use units::Span;

/// Number of ended streams that are remembered: a connection that arrives late for one of them must
/// not begin a new stream.
const REMEMBERED: usize = 8192;
/// A connection that the other end closes within this time, without any payload, was not wanted. It
/// is not replaced while its stream has others: the next one would be closed too.
const REJECTED: Duration = Duration::from_secs(5);

impl Bonds {
    /// Begins a stream for a client.
    ///
    /// # Errors
    /// The ending of the connection, when no stream can be begun for it.
    pub fn begin(&mut self, start: StreamStart) -> Result<(), Ending> {
        let StreamStart { near, client, to, preface, already_read, reply, may_return } = start;
        let server = if let Target::Address(server) = to { server } else { UNKNOWN_ADDRESS };
        let (profile, _) = self.host.leg_profiles(client, server);
        if let Err(why) = leg::apply(&near, profile, || sys::dscp_of_syn(&near)) {
            return Err(Ending::NearFailed(why.kind()));
        }
        let Ok(id) = handshake::unguessable() else { return Err(Ending::NoRoom) };
        // Until the other end has announced its window, assume the smallest.
        let theirs = self.networks.window().unwrap_or(BondConfig::LEAST_WINDOW.0 as u32);
        let stream = self.stream_over(theirs);
        let call = OpenRequest { client, target: to };
        let near = PlainLeg::new(near, profile, self.host.shares());
        let bonded = BondedConnection::call(near, &call, [&preface, &already_read], id, stream, self.now);
        let bonded = bonded.map_err(|NoMemory| Ending::NoRoom)?.with_shares(self.host.bulk_shares()).with_reply(reply);
        let bonded = if may_return { bonded.returnable([call.encode().len(), preface.len()]) } else { bonded };
        let slot = self.settle(bonded);
        for network in 0..self.networks.len() {
            self.want(network, slot);
        }
        self.watch_plain(slot);
        self.give_turn(slot);
        Ok(())
    }

    /// A slot for a stream.
    pub(crate) fn settle(&mut self, bonded: BondedConnection) -> usize {
        let id = bonded.id;
        let slot = self.streams.insert(Box::new(bonded));
        self.by_id.insert(id, slot);
        self.senders += 1;
        slot
    }

    /// Has the reactor watch a stream's plain leg.
    pub(crate) fn watch_plain(&mut self, slot: usize) {
        let entry = self.entries.insert(BondSocket::Plain(slot));
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        bonded.entry = entry;
        let watch = |plain: &PlainLeg| self.reactor.watch(plain, Token::Carrier(entry), Readiness::INTEREST);
        let watched = bonded.plain.as_ref().map_or(Ok(()), watch);
        if watched.is_err() {
            self.end(slot, Ending::NoRoom);
        }
    }

    /// Assigns a stream a connection over a network: a ready one, or the next that becomes ready.
    pub(crate) fn want(&mut self, network: usize, slot: usize) {
        match self.networks.take(network) {
            Some(index) => self.join(index, slot),
            None => {
                if let Some(bonded) = self.streams.get(slot) {
                    self.networks.want(network, slot, bonded.id);
                }
            }
        }
    }

    /// Adds a ready connection to a stream.
    pub(crate) fn join(&mut self, index: usize, slot: usize) {
        let Some(BondSocket::Pooled(channel, network, theirs)) = self.entries.take(index) else { return };
        self.entries.put(index, BondSocket::Member(slot));
        let (tier, time, bound) = (self.networks.tier(network), self.time(), self.host.bond().connection_window);
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        let mut member = Member::new(channel, network as u8, index, bound);
        member.joined = Some(self.now);
        member.say(&Frame::Join { stream: bonded.id, known: bonded.known, network: network as u8, tier });
        // The new connection replaces a silent one over the same network.
        let old = bonded.stream.lose_over(network as u8);
        let _ = bonded.stream.outbound.on_acked(0, theirs.window.into());
        bonded.stream.add(time, member, tier);
        bonded.alone = None;
        old.into_iter().for_each(|old| self.drop_entry(old.entry));
    }

    /// Relays for a stream, then acts on the result.
    pub(crate) fn proceed(&mut self, slot: usize, scratch: &mut Scratch) {
        let now = self.time();
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        bonded.stream.share_window(self.senders);
        let mut wants = Wants::default();
        match bonded.proceed(now, scratch, &mut wants) {
            Ok(()) => {
                for (member, why) in wants.turn.lost {
                    self.on_lost(slot, member, why);
                }
                for index in wants.turn.rearm {
                    let stream = self.streams.get(slot).map(|bonded| &bonded.stream);
                    if let Some((_, member)) = stream.and_then(|stream| stream.members().find(|(_, member)| member.entry == index)) {
                        // The stream would stall without this event.
                        if let Err(errno) = self.rearm(index, member.channel.socket()) {
                            tracing::error!("cannot have epoll watch a connection of the bond: {errno}; its stream is reset");
                            return self.end(slot, Ending::NoRoom);
                        }
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
            Err(ending) => {
                // The other end may have sent its last frame over a connection, and closed it.
                let now = self.now;
                for (member, why) in wants.turn.lost {
                    self.drop_entry(member.entry);
                    if let Some(bonded) = self.streams.get_mut(slot) {
                        bonded.note_loss(why, now);
                    }
                }
                self.end(slot, ending);
            }
        }
    }

    pub(crate) fn give_turn(&mut self, slot: usize) {
        if let Some(bonded) = self.streams.get_mut(slot)
            && !mem::replace(&mut bonded.in_again, true)
        {
            self.again.push_back(slot);
        }
    }

    /// Sets a stream's timer.
    pub(crate) fn schedule(&mut self, slot: usize) {
        let now = self.time();
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        // Later than now: a stream whose timer always expires at once would starve the others.
        let race = bonded.race.as_ref().map(|race| Span(race.wakes().saturating_duration_since(self.epoch).as_nanos() as u64));
        if let Some(at) = bonded.wakes(now).into_iter().chain(race).min().map(|at| at.max(now + Span(1)))
            && bonded.scheduled.is_none_or(|scheduled| at < scheduled)
        {
            bonded.scheduled = Some(at);
            self.timers.push(Reverse((at, slot)));
        }
    }

    /// Handles the loss of a connection of a stream.
    pub(crate) fn on_lost(&mut self, slot: usize, member: Member, why: Lost) {
        let (network, now) = (usize::from(member.network), self.now);
        // A process that took over from another one does not know the streams of that one, and
        // closes connections that join them.
        let rejected = why == Lost::Closed && member.received == 0 && member.joined.is_some_and(|at| now - at < REJECTED);
        self.drop_entry(member.entry);
        drop(member);
        let Some(bonded) = self.streams.get_mut(slot) else { return };
        bonded.note_loss(why, now);
        let has_others = bonded.alone.is_none();
        if let (Role::Connect { .. }, false) = (bonded.role, self.draining && bonded.stream.outbound.is_delivered())
            && !(rejected && has_others)
            && !bonded.is_reset()
        {
            tracing::debug!(network = self.networks.name(network), "a connection of a stream is lost: {why}");
            self.want(network, slot);
        }
        // The replacement has frames to send, and the other connections may have to reinject its
        // data.
        self.give_turn(slot);
    }

    /// *Serve*: handles the destination that a stream has named.
    pub(crate) fn dial(&mut self, slot: usize, target: Target) {
        match target {
            Target::Address(server) => self.dial_one_of(slot, vec![server]),
            Target::Name(name, port) => {
                let Some(bonded) = self.streams.get_mut(slot) else { return };
                bonded.name = Some(name.clone());
                self.host.look_up(name, port, slot, bonded.id as u64);
            }
        }
    }

    /// *Serve*: takes the result of a name lookup that was requested by
    /// [`BondHost::look_up`](crate::BondHost::look_up).
    pub fn on_resolved(&mut self, slot: usize, serial: u64, addresses: io::Result<Vec<SocketAddr>>) {
        let Some(bonded) = self.streams.get_mut(slot).filter(|bonded| bonded.id as u64 == serial) else { return };
        let why = match addresses {
            Ok(addresses) if !addresses.is_empty() => return self.dial_one_of(slot, addresses),
            Ok(_) => "it has no address".to_owned(),
            Err(why) => why.to_string(),
        };
        // As a literal: the client has chosen the name, and the log is read in terminals.
        let name = bonded.name.take().unwrap_or_default();
        tracing::info!(client = %bonded.client, "cannot look up {name:?} for a stream of the bond: {why}");
        self.end(slot, Ending::FarNotReached(io::ErrorKind::NotFound));
    }

    /// *Connect*: takes the result of a name lookup that was requested by
    /// [`BondHost::look_up_far_end`](crate::BondHost::look_up_far_end).
    pub fn on_far_end_resolved(&mut self, network: usize, addresses: io::Result<Vec<SocketAddr>>) {
        self.networks.resolved(network, addresses, self.now);
    }

    /// *Serve*: dials one of these addresses of a server.
    pub(crate) fn dial_one_of(&mut self, slot: usize, servers: Vec<SocketAddr>) {
        let [server] = servers.as_slice() else { return self.reach(slot, servers) };
        let (server, client) = (canonical(*server), self.streams.get(slot).map(|bonded| bonded.client));
        let Some(client) = client else { return };
        match self.dial_plain(client, server) {
            Ok(far) => {
                let Some(bonded) = self.streams.get_mut(slot) else { return };
                bonded.dials(far, server, self.now);
                self.watch_plain(slot);
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    /// *Serve*: dials a server for a client, if the destination is permitted.
    pub(crate) fn dial_plain(&self, client: SocketAddr, server: SocketAddr) -> Result<PlainLeg, Ending> {
        if let Err(why) = self.host.bond().destinations.check(server) {
            tracing::info!(%client, "a stream of the bond is refused: {why}");
            return Err(Ending::undialled(&why));
        }
        if self.host.is_refused(client, server) {
            tracing::info!(%client, %server, "a stream of the bond is refused by a rule");
            return Err(Ending::FarNotReached(io::ErrorKind::PermissionDenied));
        }
        let (_, profile) = self.host.leg_profiles(client, server);
        let call = DialOptions { profile, shares: self.host.shares(), from: None, to: server, fast_open: false };
        let far = call.dial(|| Ok(0)).map_err(|why| Ending::undialled(&why))?;
        Ok(PlainLeg::new(far, profile, self.host.shares()))
    }

    /// Ends a stream.
    pub(crate) fn end(&mut self, slot: usize, ending: Ending) {
        let record = self.remove(slot, ending);
        self.ended.extend(record);
    }

    /// Removes a stream, and returns its record.
    fn remove(&mut self, slot: usize, ending: Ending) -> Option<FlowRecord> {
        let mut bonded = self.streams.remove(slot)?;
        self.by_id.remove(&bonded.id);
        self.networks.unwant(slot, bonded.id);
        self.past.push_back(bonded.id);
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        let record = FlowRecord { last: self.stats_of(&bonded, false), ending };
        if bonded.entry != usize::MAX {
            self.drop_entry(bonded.entry);
        }
        if let Some(race) = bonded.race.take() {
            self.close_attempts(race.open());
        }
        for (member, bytes) in bonded.release(ending) {
            self.linger(member, bytes);
        }
        Some(record)
    }

    /// *Connect*: when the other end has become unreachable, gives up the connections that it has
    /// not answered yet. The caller connects those without the bond of which the server has got
    /// nothing that must not be repeated; the others are refused, since their clients would wait.
    pub(crate) fn look_whether_reached(&mut self) {
        let is_reached = self.networks.carried().reached;
        if mem::replace(&mut self.was_reached, is_reached) == is_reached || is_reached {
            return;
        }
        for slot in 0..self.streams.bound() {
            let Some(bonded) = self.streams.get_mut(slot).filter(|bonded| bonded.is_unanswered()) else { continue };
            match bonded.take_back() {
                Some((near, [preface, already_read])) => {
                    let (client, to) = (bonded.client, Target::Address(bonded.server));
                    let _ = self.reactor.unwatch(&near);
                    self.remove(slot, Ending::Stopped);
                    self.returned.push(StreamStart { near, client, to, preface, already_read, reply: None, may_return: true });
                }
                None => {
                    let ending = bonded.first_failure().unwrap_or(Ending::FarNotReached(io::ErrorKind::NetworkUnreachable));
                    self.end(slot, ending);
                }
            }
        }
    }

    /// Closes a connection once these bytes have been sent over it.
    pub(crate) fn linger(&mut self, member: Member, bytes: Vec<u8>) {
        let index = member.entry;
        let mut linger = Box::new(Linger::new(member.channel, bytes, self.now));
        let step = linger.proceed();
        self.entries.put(index, BondSocket::Linger(linger));
        self.after_linger(index, step);
    }

    /// Acts on the result of a lingering connection's turn.
    pub(crate) fn after_linger(&mut self, index: usize, step: LingerStep) {
        match step {
            LingerStep::Over => self.drop_entry(index),
            LingerStep::Again => {
                if let Some(BondSocket::Linger(linger)) = self.entries.get(index)
                    && self.rearm(index, linger.socket()).is_err()
                {
                    self.drop_entry(index);
                }
            }
            LingerStep::Waits => {}
        }
    }
}
