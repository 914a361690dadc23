//! A stream over its connections: the bytes that were not acknowledged, those that came before their turn, and what is said about them.

use super::{
    haul::{self, Incoming, Load, Outgoing, Pipes},
    member::{Lost, Member},
};
use bond::{BondSettings, Frame, Inbound, NoMemory, Outbound, PathId, PathStats, Piece, Scheduler, StreamBuffer, StreamError};
use rustix::{
    fd::AsFd,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg},
};
use std::{io::IoSlice, iter};
use units::Span;

/// So many parts are sent at once.
const PARTS: usize = 8;

/// A stream, at one of its ends.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) outbound: Outbound,
    pub(super) inbound: Inbound,
    /// What the other end has not acknowledged, or was not sent, where it is not in parcels, and how far all of it goes.
    buffer: StreamBuffer,
    written: u64,
    /// Absent where bytes have to be looked at, or go over each connection.
    outgoing: Option<Outgoing>,
    /// Absent where bytes have to be looked at.
    incoming: Option<Incoming>,
    members: Vec<Option<Member>>,
    /// Why the other end has given it up.
    pub(super) reset: Option<u8>,
    /// Since when something that came waits for something that has not.
    waits_since: Option<Span>,
    /// What was waited for connections that are gone, and what they carried: by network.
    past: Vec<(u8, Past)>,
}

/// What the connections over a network came to that are gone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Past {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) retransmits: u32,
    pub(super) waited: Span,
}

/// What came of taking what the plain leg has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// So many bytes, and whether there were more.
    Bytes { count: usize, more: bool },
    /// The last one was taken before.
    Ended,
}

/// What a turn came to.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// There is more to do.
    pub(super) again: bool,
    /// These are to raise an event when they can take more.
    pub(super) rearm: Vec<usize>,
    /// These are gone.
    pub(super) lost: Vec<(Member, Lost)>,
}

impl Stream {
    /// Of a window at each end. Where what it carries need not be looked at it carries it in `pipes`.
    pub(super) fn new(settings: BondSettings, window: usize, theirs: u64, pipes: Option<Pipes>) -> Self {
        Stream {
            outbound: Outbound::new(settings, theirs),
            inbound: Inbound::new(window),
            buffer: StreamBuffer::new(window),
            written: 0,
            outgoing: pipes.clone().filter(|_| settings.scheduler != Scheduler::Redundant).map(Outgoing::new),
            incoming: pipes.map(Incoming::new),
            members: Vec::new(),
            reset: None,
            waits_since: None,
            past: Vec::new(),
        }
    }

    /// Takes a connection in; what it is to say first is said already.
    pub(super) fn add(&mut self, now: Span, mut member: Member, tier: u8) -> PathId {
        let conn = self.outbound.add_path(now, tier);
        self.inbound.add_path(conn);
        self.outbound.update_path(now, conn, member.look());
        if self.members.len() <= conn.0 {
            self.members.resize_with(conn.0 + 1, || None);
        }
        self.members[conn.0] = Some(member);
        conn
    }

    /// Gives a connection up.
    pub(super) fn lose(&mut self, conn: PathId) -> Option<Member> {
        let mut member = self.members.get_mut(conn.0).and_then(Option::take)?;
        member.look();
        let sent = self.outbound.path_stats(conn).map_or(0, |stats| stats.assigned);
        self.outbound.remove_path(conn);
        self.inbound.remove_path(conn);
        let place = match self.past.iter().position(|(network, _)| *network == member.network) {
            Some(place) => place,
            None => {
                self.past.push((member.network, Past::default()));
                self.past.len() - 1
            }
        };
        let past = &mut self.past[place].1;
        past.sent += sent;
        past.received += member.received;
        past.retransmits += member.info.total_retrans;
        past.waited += member.waited;
        Some(member)
    }

    /// Gives the connection over a network up, where there is one.
    pub(super) fn lose_over(&mut self, network: u8) -> Option<Member> {
        let conn = self.members().find(|(_, member)| member.network == network).map(|(conn, _)| conn)?;
        self.lose(conn)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (PathId, &Member)> {
        self.members.iter().enumerate().filter_map(|(index, member)| Some((PathId(index), member.as_ref()?)))
    }

    pub(super) fn member(&mut self, entry: usize) -> Option<&mut Member> {
        self.members.iter_mut().flatten().find(|member| member.entry == entry)
    }

    /// What the connections over each network came to that are gone.
    pub(super) fn past(&self) -> &[(u8, Past)] {
        &self.past
    }

    pub(super) fn seen(&self, conn: PathId) -> Option<PathStats> {
        self.outbound.path_stats(conn)
    }

    /// How many bytes it takes now.
    pub(super) fn room(&self) -> u64 {
        self.buffer.window() - (self.written - self.outbound.acked())
    }

    /// Whether it had better take more now.
    pub(super) fn wants(&self) -> bool {
        let room = self.room();
        room > 0 && self.outbound.wants_data(room)
    }

    /// Takes what the plain leg has sent, as far as there is room in one place.
    pub(super) fn take(&mut self, plain: impl AsFd) -> Result<Taken, Errno> {
        let room = self.room();
        // Slow streams have short pieces, and leave the pipes to others.
        if self.outbound.max_piece() >= haul::LEAST as u64
            && let Some(outgoing) = &mut self.outgoing
            && let Some(count) = outgoing.take(&plain, self.written, room, &mut self.buffer)?
        {
            self.wrote(count);
            return Ok(Taken::Bytes { count, more: true });
        }
        let space = self.buffer.get_mut(self.written, room).map_err(|NoMemory| Errno::NOMEM)?;
        let asked = space.len();
        match recv(plain, space, RecvFlags::DONTWAIT)? {
            (_, 0) => Ok(Taken::Ended),
            (_, count) => {
                self.wrote(count);
                Ok(Taken::Bytes { count, more: count == asked })
            }
        }
    }

    /// Gives the plain leg some of what has come, after what is left of its preface, and tells how much of the stream that was.
    pub(super) fn give(&mut self, now: Span, plain: impl AsFd, preface: &mut Vec<u8>) -> Result<usize, Errno> {
        let until = self.incoming.as_ref().and_then(Incoming::first);
        let here = until.map_or(u64::MAX, |until| until - self.inbound.read_offset());
        let given = match &mut self.incoming {
            Some(incoming) if here == 0 && preface.is_empty() => incoming.pour(plain)?,
            _ => {
                let more = if here < self.inbound.readable_bytes() { SendFlags::MORE } else { SendFlags::empty() };
                let mut parts = [IoSlice::new(&[]); PARTS];
                let said = iter::once(&**preface).chain(self.inbound.readable(here));
                let count = parts.iter_mut().zip(said).map(|(part, said)| *part = IoSlice::new(said)).count();
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
                let sent = sendmsg(plain, &parts[..count], &mut SendAncillaryBuffer::default(), flags)?;
                let first = sent.min(preface.len());
                preface.drain(..first);
                sent - first
            }
        };
        self.inbound.consume(now, given as u64);
        Ok(given)
    }

    fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
        self.outbound.offer(bytes as u64);
    }

    /// Takes a few bytes, for which there is room.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        self.buffer.put(self.written, bytes)?;
        self.wrote(bytes.len());
        Ok(())
    }

    /// What was written and not acknowledged.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.written - self.outbound.acked()
    }

    /// Hears what has come. Unless it `relays`, what the ends say to each other may be among it, and is looked at.
    pub(super) fn hear(&mut self, now: Span, relays: bool, scratch: &mut [u8], turn: &mut Turn) -> Result<(), StreamError> {
        for index in 0..self.members.len() {
            let Some(member) = self.members[index].as_mut().filter(|member| member.readable) else { continue };
            let (conn, outbound, reset) = (PathId(index), &mut self.outbound, &mut self.reset);
            let before = self.inbound.next_offset();
            let incoming = self.incoming.as_mut().filter(|_| relays);
            let heard = member.receive(now, conn, &mut self.inbound, incoming, scratch, |inbound, frame| {
                match frame {
                    Frame::End(end) => inbound.on_end(end)?,
                    Frame::Ack { path_received, acked, limit } => {
                        outbound.on_receipt(now, conn, path_received)?;
                        outbound.on_acked(acked, limit)?;
                    }
                    Frame::Delivered => outbound.on_delivered()?,
                    Frame::Reset(why) => *reset = Some(why),
                    Frame::Piece { .. } | Frame::Join { .. } => return Err(Lost::Failed(Errno::PROTO)),
                }
                Ok(())
            });
            let (next, waiting) = (self.inbound.next_offset(), self.inbound.out_of_order_bytes());
            if let Some(since) = self.waits_since.filter(|_| next > before) {
                // The others waited for this one.
                member.waited += now - since;
                self.waits_since = None;
            }
            self.waits_since = if waiting > 0 { self.waits_since.or(Some(now)) } else { None };
            match heard {
                Ok(done) => turn.again |= !done,
                Err(Lost::Violation(why)) => return Err(why.into()),
                Err(Lost::NoMemory(why)) => return Err(why.into()),
                Err(why) => turn.lost.extend(self.lose(conn).map(|member| (member, why))),
            }
        }
        self.buffer.trim(self.outbound.acked());
        self.outgoing.iter_mut().for_each(|outgoing| outgoing.trim(self.outbound.acked()));
        Ok(())
    }

    /// Shares out what there is to send, and says what there is to say.
    /// An error means that the stream must end.
    pub(super) fn say(&mut self, now: Span, turn: &mut Turn) -> Result<(), Errno> {
        if self.outbound.awaits_acks() {
            for (index, member) in self.members.iter_mut().enumerate() {
                if let Some(member) = member {
                    self.outbound.update_path(now, PathId(index), member.look());
                }
            }
            self.outbound.handle_timeout(now);
            while let Some(piece) = self.outbound.next_piece(now) {
                self.carry(&piece)?;
            }
        }
        for index in 0..self.members.len() {
            let Some(member) = &mut self.members[index] else { continue };
            let conn = PathId(index);
            if let Some(end) = self.outbound.end_to_announce(conn) {
                member.say(&Frame::End(end));
            }
            if let Some(frame) = self.inbound.next_frame(now, conn) {
                member.say(&frame);
            }
            if !member.has_something_to_say() {
                // Of an encrypted one something may be left that was said before.
                let _ = member.channel.flush();
            } else if let Err(why) = member.send(&self.buffer) {
                turn.lost.extend(self.lose(conn).map(|member| (member, why)));
            }
        }
        if self.outbound.unassigned() > 0 {
            for (index, member) in self.members.iter_mut().enumerate() {
                let Some(member) = member else { continue };
                let (conn, queue) = (PathId(index), self.outbound.queue_limit(PathId(index)));
                if self.outbound.path_stats(conn).is_some_and(|stats| stats.sample.unsent >= queue) {
                    member.wake_below(queue);
                    turn.rearm.push(member.entry);
                }
            }
        }
        Ok(())
    }

    /// Gives a connection a piece.
    fn carry(&mut self, piece: &Piece) -> Result<(), Errno> {
        let Some(member) = self.members.get_mut(piece.path.0).and_then(Option::as_mut) else { return Ok(()) };
        let (Some(outgoing), acked) = (&mut self.outgoing, self.outbound.acked()) else {
            member.carry(piece, Load::Buffer(piece.len));
            return Ok(());
        };
        if piece.is_duplicate {
            outgoing.copy(piece.offset, piece.len, acked, &mut self.buffer)?;
            member.carry(piece, Load::Buffer(piece.len));
            return Ok(());
        }
        let (mut at, end) = (piece.offset, piece.offset + piece.len);
        while at < end {
            let load = outgoing.give(at, end - at, acked, &mut self.buffer)?;
            let (from, len) = (at, load.len());
            at += len;
            if from == piece.offset { member.carry(piece, load) } else { member.carry_on(from, load) }
        }
        Ok(())
    }

    /// When something is to be done, if nothing happens before.
    pub(super) fn wakes(&self, now: Span) -> Option<Span> {
        [self.outbound.next_timeout(now), self.inbound.next_timeout()].into_iter().flatten().min()
    }

    /// It is over: each connection, and what must still go over it, `last` after what was begun.
    pub(super) fn part(&mut self, last: Option<&Frame>) -> Vec<(Member, Vec<u8>)> {
        let mut parted = Vec::new();
        for index in 0..self.members.len() {
            let Some(mut member) = self.lose(PathId(index)) else { continue };
            let bytes = member.begun(&self.buffer).map(|mut bytes| {
                last.iter().for_each(|frame| bytes.extend_from_slice(&frame.header()));
                bytes
            });
            parted.push((member, bytes.unwrap_or_default()));
        }
        parted
    }

    /// A stream that stands still leaves its pipes to others. An error means that the stream must end.
    pub(super) fn leave_pipes(&mut self) -> Result<(), Errno> {
        let acked = self.outbound.acked();
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.copy_all(acked, &mut self.buffer)?;
        }
        self.incoming.as_mut().map_or(Ok(()), |incoming| incoming.copy(&mut self.inbound))
    }

    /// An idle stream keeps no memory that it has no bytes in.
    pub(super) fn forget(&mut self) {
        if self.unacknowledged() == 0 {
            self.buffer.release_memory();
        }
        self.inbound.release_memory();
    }
}
