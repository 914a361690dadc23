//! What becomes of streams: how they begin at either end, get their connections, move on, and end.

use super::{
    BondConfig, Bonds, Entry, QUESTION, UNKNOWN, entrance,
    farewell::{Farewell, Parting},
    life::{Bonded, Role, Wants},
    member::{Lost, Member},
};
use crate::{
    connection::Start,
    ending::Ending,
    meter::FlowRecord,
    relay::Tools,
    resolver::{Answer, Question},
    worker::Worker,
};
use bond::{Frame, NoMemory, OpenRequest, Target};
use intercept::{
    canonical,
    leg::{self, Call as Dial},
    sys,
};
use rustix::event::epoll::{self, EventData};
use socket2::Socket;
use std::{cmp::Reverse, io, mem, net::SocketAddr};
use units::Span;

/// Streams that are over are remembered: a connection that comes late for one must not begin another.
const REMEMBERED: usize = 8192;

impl Bonds {
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
        let call = OpenRequest { client, target: to };
        let bonded =
            Bonded::call(near, &call, [&preface, &heard], id, stream, profile, self.now).map_err(|NoMemory| (Ending::NoRoom, None))?;
        let bonded = bonded.with_shares(self.shares()).with_socks(socks);
        let slot = self.settle(bonded);
        for network in 0..self.networks.len() {
            self.want(network, slot);
        }
        self.watch_plain(slot);
        self.give_turn(slot);
        Ok(())
    }

    /// A slot for a stream.
    pub(super) fn settle(&mut self, bonded: Bonded) -> usize {
        let slot = self.free_streams.pop().unwrap_or_else(|| {
            self.streams.push(None);
            self.streams.len() - 1
        });
        self.by_id.insert(bonded.id, slot);
        self.streams[slot] = Some(Box::new(bonded));
        slot
    }

    /// Lets epoll watch a stream's plain leg.
    pub(super) fn watch_plain(&mut self, slot: usize) {
        let entry = self.enter(Entry::Plain(slot));
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        bonded.entry = entry;
        let watched = bonded
            .plain
            .as_ref()
            .map_or(Ok(()), |plain| epoll::add(&self.epoll, plain, EventData::new_u64(self.mark | entry as u64), Worker::interest()));
        if watched.is_err() {
            self.end(slot, Ending::NoRoom);
        }
    }

    /// A stream is to have a connection over a network: one that is ready, or the next that will be.
    pub(super) fn want(&mut self, network: usize, slot: usize) {
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
    pub(super) fn join(&mut self, index: usize, slot: usize) {
        let Some(Entry::Spare(channel, network, window)) = self.entries[index].take() else { return };
        self.entries[index] = Some(Entry::Member(slot));
        let (tier, time, bound) = (self.networks.tier(network), self.time(), self.bond().connection_window);
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        let mut member = Member::new(channel, network as u8, index, bound);
        member.say(&Frame::Join { stream: bonded.id, known: bonded.known, network: network as u8, tier });
        // One that has been silent: this one takes its place.
        let old = bonded.stream.lose_over(network as u8);
        let _ = bonded.stream.outbound.on_acked(0, window.into());
        bonded.stream.add(time, member, tier);
        bonded.alone = None;
        old.into_iter().for_each(|old| self.drop_entry(old.entry));
    }

    /// Lets a stream move on, then does what it wants.
    pub(super) fn proceed(&mut self, slot: usize, tools: &mut Tools) {
        let now = self.time();
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        let mut wants = Wants::default();
        match bonded.proceed(now, tools, &mut wants) {
            Ok(()) => {
                for (member, why) in wants.turn.lost {
                    self.on_lost(slot, member, why);
                }
                for index in wants.turn.rearm {
                    let stream = self.streams[slot].as_ref().map(|bonded| &bonded.stream);
                    if let Some((_, member)) = stream.and_then(|stream| stream.members().find(|(_, member)| member.entry == index)) {
                        // Without its event the stream would stand still.
                        if let Err(errno) = self.rearm(index, member.channel.socket()) {
                            tracing::error!("cannot watch a connection of the bond: {errno}");
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
                // A connection may have said the last word, and closed.
                let now = self.now;
                for (member, why) in wants.turn.lost {
                    self.drop_entry(member.entry);
                    self.streams[slot].iter_mut().for_each(|bonded| bonded.note_loss(why, now));
                }
                self.end(slot, ending);
            }
        }
    }

    pub(super) fn give_turn(&mut self, slot: usize) {
        if let Some(bonded) = self.streams[slot].as_mut()
            && !mem::replace(&mut bonded.in_again, true)
        {
            self.again.push_back(slot);
        }
    }

    /// Sees to it that a stream has its turn when it is due.
    pub(super) fn schedule(&mut self, slot: usize) {
        let now = self.time();
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        // After now: who always wanted its turn at once would leave the others none.
        if let Some(at) = bonded.wakes(now).map(|at| at.max(now + Span(1)))
            && bonded.scheduled.is_none_or(|scheduled| at < scheduled)
        {
            bonded.scheduled = Some(at);
            self.timers.push(Reverse((at, slot)));
        }
    }

    /// A connection of a stream is gone.
    pub(super) fn on_lost(&mut self, slot: usize, member: Member, why: Lost) {
        let network = usize::from(member.network);
        self.drop_entry(member.entry);
        drop(member);
        let now = self.now;
        let Some(bonded) = self.streams[slot].as_mut() else { return };
        bonded.note_loss(why, now);
        if let (Role::Connect { .. }, false) = (bonded.role, self.draining && bonded.stream.outbound.is_delivered()) {
            tracing::debug!(network = self.networks.name(network), "a connection of a stream is lost: {why}");
            self.want(network, slot);
        }
        // What takes its place has something to say, and the others may have to carry what it had.
        self.give_turn(slot);
    }

    /// *Serve*: a stream has said where it wants to go.
    pub(super) fn dial(&mut self, slot: usize, target: Target) {
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
    pub(super) fn dial_one_of(&mut self, slot: usize, mut servers: Vec<SocketAddr>) {
        let mut ending = Ending::FarNotReached(io::ErrorKind::NotFound);
        while !servers.is_empty() {
            let server = canonical(servers.remove(0));
            let Some(client) = self.streams[slot].as_ref().map(|bonded| bonded.client) else { return };
            if let Err(why) = self.bond().destinations.check(server) {
                tracing::info!(%client, "a stream of the bond is refused: {why}");
                ending = crate::connection::undialled(&why);
                continue;
            }
            let routes = self.routes.as_ref();
            if self.config.policy.is_refused(client, server, |address| routes?.interface_to(address)) {
                tracing::info!(%client, %server, "a stream of the bond is refused by a rule");
                ending = Ending::FarNotReached(io::ErrorKind::PermissionDenied);
                continue;
            }
            let (_, profile) = self.config.policy.legs_of(client, server, |address| routes?.interface_to(address));
            let call = Dial { profile, shares: self.shares(), from: None, to: server, fast_open: false };
            match call.dial(|| Ok(0)) {
                Ok(far) => {
                    let profile = profile.clone();
                    let Some(bonded) = self.streams[slot].as_mut() else { return };
                    bonded.dials(far, server, &profile, self.now);
                    bonded.others = servers;
                    return self.watch_plain(slot);
                }
                Err(why) => ending = crate::connection::undialled(&why),
            }
        }
        self.end(slot, ending);
    }

    /// A stream has ended.
    pub(super) fn end(&mut self, slot: usize, ending: Ending) {
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
        self.networks.unwant(slot, bonded.id);
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
    pub(super) fn say_farewell(&mut self, member: Member, bytes: Vec<u8>) {
        let index = member.entry;
        let mut farewell = Box::new(Farewell::new(member.channel, bytes, self.now));
        let parting = farewell.go_on();
        self.entries[index] = Some(Entry::Farewell(farewell));
        self.part(index, parting);
    }

    /// What becomes of a connection that has said its last, after a turn.
    pub(super) fn part(&mut self, index: usize, parting: Parting) {
        match parting {
            Parting::Over => self.drop_entry(index),
            Parting::Again => {
                if let Some(Some(Entry::Farewell(farewell))) = self.entries.get(index)
                    && self.rearm(index, farewell.socket()).is_err()
                {
                    self.drop_entry(index);
                }
            }
            Parting::Waits => {}
        }
    }
}
