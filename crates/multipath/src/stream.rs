//! A stream over its connections: unacknowledged bytes, bytes received out of order, and the frames
//! about them.

use crate::{
    member::{Lost, Member},
    zero_copy::{self, Incoming, Outgoing, PieceSource, PipePool},
};
use bond::{BondSettings, Frame, Inbound, NoMemory, Outbound, PathId, PathStats, Piece, Scheduler, StreamBuffer, StreamError};
use relay::SendingSide;
use rustix::{
    fd::AsFd,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg},
};
use std::{io::IoSlice, iter, time::Duration};
use units::Span;

/// The least that one read may take, bytes, if there is room for it and the stream is not so slow
/// that less suffices.
const LEAST_READ: u64 = 256 * 1024;
/// The rate of its connections counts only as far as what they have delivered would take this time.
/// In the slow starts of many streams at once the sum of their rates is far too high.
const PROVEN: Span = Span(15_000_000);
/// Most slices of a vectored send.
const PARTS: usize = 8;

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    /// Unacknowledged bytes, except those in chunks.
    buffer: StreamBuffer,
    written: u64,
    /// The most bytes that it reads ahead of what its connections take now, so that the scheduler
    /// can choose: its share of the window.
    read_ahead: u64,
    /// Chunks to send; none: TLS needs the bytes, or they go over every connection.
    outgoing: Option<Outgoing>,
    /// Received chunks; none: TLS needs the bytes.
    incoming: Option<Incoming>,
    members: Vec<Option<Member>>,
    /// The reason for which the other end has reset the stream.
    pub(crate) reset: Option<u8>,
    /// Since when data received out of order waits.
    waits_since: Option<Span>,
    /// Totals of lost connections, by network.
    past: Vec<(u8, Past)>,
}

/// Totals of the lost connections over a network.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Past {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) retransmits: u32,
    pub(crate) waited: Span,
}

/// Result of reading from the plain leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// This many bytes were read; `more`: there are more.
    Bytes { count: usize, more: bool },
    /// End of file: all bytes of the plain leg have been read.
    Ended,
}

/// Result of a turn: what the caller has to do.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Give the stream another turn.
    pub(crate) again: bool,
    /// Rearm these connections, so that they raise an event when they can take more.
    pub(crate) rearm: Vec<usize>,
    /// Connections that were lost.
    pub(crate) lost: Vec<(Member, Lost)>,
}

impl Stream {
    /// A stream with these windows at this end and the other. With `pipes` it uses the zero-copy
    /// path.
    pub(crate) fn new(settings: BondSettings, window: usize, theirs: u64, pipes: Option<PipePool>) -> Self {
        Stream {
            outbound: Outbound::new(settings, theirs),
            inbound: Inbound::new(window),
            buffer: StreamBuffer::new(window),
            written: 0,
            read_ahead: window as u64,
            outgoing: pipes.clone().filter(|_| settings.scheduler != Scheduler::Redundant).map(Outgoing::new),
            incoming: pipes.map(Incoming::new),
            members: Vec::new(),
            reset: None,
            waits_since: None,
            past: Vec::new(),
        }
    }

    /// Adds a connection, in which the frame that joins it to the stream is queued.
    pub(crate) fn add(&mut self, now: Span, mut member: Member, tier: u8) -> PathId {
        let conn = self.outbound.add_path(now, tier);
        self.inbound.add_path(conn);
        self.outbound.update_path(now, conn, member.look());
        if self.members.len() <= conn.0 {
            self.members.resize_with(conn.0 + 1, || None);
        }
        self.members[conn.0] = Some(member);
        conn
    }

    /// Removes a connection.
    pub(crate) fn lose(&mut self, conn: PathId) -> Option<Member> {
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

    /// Removes the connection over a network, if there is one.
    pub(crate) fn lose_over(&mut self, network: u8) -> Option<Member> {
        let conn = self.members().find(|(_, member)| member.network == network).map(|(conn, _)| conn)?;
        self.lose(conn)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (PathId, &Member)> {
        self.members.iter().enumerate().filter_map(|(index, member)| Some((PathId(index), member.as_ref()?)))
    }

    pub(crate) fn member(&mut self, entry: usize) -> Option<&mut Member> {
        self.members.iter_mut().flatten().find(|member| member.entry == entry)
    }

    /// Totals of the lost connections over each network.
    pub(crate) fn past(&self) -> &[(u8, Past)] {
        &self.past
    }

    pub(crate) fn seen(&self, conn: PathId) -> Option<PathStats> {
        self.outbound.path_stats(conn)
    }

    /// Bytes that its window has room for.
    pub(crate) fn room(&self) -> u64 {
        self.buffer.window() - (self.written - self.outbound.acked())
    }

    /// Shares the window out among this many streams that send: otherwise each would read a whole
    /// window from its application at once, and then nothing for as long as they take to send it.
    pub(crate) fn share_window(&mut self, streams: usize) {
        self.read_ahead = self.buffer.window() / streams.max(1) as u64;
    }

    /// What is measured of it as the destination of its plain leg. It has a gap while it wants more
    /// bytes than it has: the scheduler decides by how many there are.
    pub(crate) fn sending_side(&self) -> SendingSide {
        let has_room = self.wants();
        let unsent = if has_room { 0 } else { self.outbound.unassigned() };
        let rtt = self.members().map(|(_, member)| member.info.rtt_us).max().unwrap_or(0);
        let delivered = self.members().map(|(_, member)| member.info.bytes_acked).sum::<u64>();
        let rate = self.outbound.rate().min(delivered as f64 / PROVEN.secs()) as u64;
        SendingSide { unsent, rtt: Duration::from_micros(rtt.into()), rate, has_room }
    }

    /// Bytes that it may read ahead now.
    fn ahead(&self) -> u64 {
        self.room().min(self.read_ahead.saturating_sub(self.outbound.unassigned()))
    }

    /// Whether it wants more bytes now.
    pub(crate) fn wants(&self) -> bool {
        self.room() > 0 && self.outbound.wants_data(self.ahead())
    }

    /// Reads from the plain leg, as far as there is contiguous room.
    pub(crate) fn take(&mut self, plain: impl AsFd) -> Result<Taken, Errno> {
        let least = LEAST_READ.min(self.outbound.enough_unassigned());
        let room = self.room().min(self.ahead().max(least));
        // Slow streams have short pieces, which are copied: pipes are scarce.
        if self.outbound.max_piece() >= zero_copy::LEAST as u64
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

    /// Writes received bytes to the plain leg, after the rest of its preface; returns how many
    /// bytes of the stream it wrote.
    pub(crate) fn give(&mut self, now: Span, plain: impl AsFd, preface: &mut Vec<u8>) -> Result<usize, Errno> {
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

    /// Appends a few bytes, for which there must be room.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        self.buffer.put(self.written, bytes)?;
        self.wrote(bytes.len());
        Ok(())
    }

    /// Whether bytes were assigned to a connection, so that the other end may have got them.
    pub(crate) fn has_assigned(&self) -> bool {
        let present = self.members().filter_map(|(conn, _)| self.seen(conn)).any(|seen| seen.assigned > 0);
        present || self.past.iter().any(|(_, past)| past.sent > 0)
    }

    /// All bytes that were written, of which none is acknowledged.
    ///
    /// # Errors
    /// The stream has to end.
    pub(crate) fn recall(&mut self) -> Result<Vec<u8>, Errno> {
        self.leave_pipes()?;
        Ok(self.buffer.get(0, self.written).flatten().copied().collect())
    }

    /// Bytes that were written and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.written - self.outbound.acked()
    }

    /// Reads from all connections. Unless it `relays`, a call or an answer may be among the bytes,
    /// which must not be in chunks.
    pub(crate) fn hear(&mut self, now: Span, relays: bool, scratch: &mut [u8], turn: &mut Turn) -> Result<(), StreamError> {
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
                // Data of other connections waited for this one.
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

    /// Assigns unsent bytes to connections, and sends frames and pieces.
    ///
    /// # Errors
    /// The stream has to end.
    pub(crate) fn say(&mut self, now: Span, turn: &mut Turn) -> Result<(), Errno> {
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
                // TLS may hold bytes that were sent before.
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

    /// Queues a piece on a connection.
    fn carry(&mut self, piece: &Piece) -> Result<(), Errno> {
        let Some(member) = self.members.get_mut(piece.path.0).and_then(Option::as_mut) else { return Ok(()) };
        let (Some(outgoing), acked) = (&mut self.outgoing, self.outbound.acked()) else {
            member.carry(piece, PieceSource::Buffer(piece.len));
            return Ok(());
        };
        if piece.is_duplicate {
            outgoing.copy(piece.offset, piece.len, acked, &mut self.buffer)?;
            member.carry(piece, PieceSource::Buffer(piece.len));
            return Ok(());
        }
        let (mut at, end) = (piece.offset, piece.offset + piece.len);
        while at < end {
            let source = outgoing.give(at, end - at, acked, &mut self.buffer)?;
            let (from, len) = (at, source.len());
            at += len;
            if from == piece.offset { member.carry(piece, source) } else { member.carry_on(from, source) }
        }
        Ok(())
    }

    /// When its next timer expires.
    pub(crate) fn wakes(&self, now: Span) -> Option<Span> {
        [self.outbound.next_timeout(now), self.inbound.next_timeout()].into_iter().flatten().min()
    }

    /// Ends the stream: returns each connection with the bytes that it still has to send, the rest
    /// of a frame that was sent in part and then `last`.
    pub(crate) fn part(&mut self, last: Option<&Frame>) -> Vec<(Member, Vec<u8>)> {
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

    /// Copies the bytes of all chunks and returns their pipes.
    ///
    /// # Errors
    /// The stream has to end.
    pub(crate) fn leave_pipes(&mut self) -> Result<(), Errno> {
        let acked = self.outbound.acked();
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.copy_all(acked, &mut self.buffer)?;
        }
        self.incoming.as_mut().map_or(Ok(()), |incoming| incoming.copy(&mut self.inbound))
    }

    /// Frees unused memory of an idle stream.
    pub(crate) fn forget(&mut self) {
        if self.unacknowledged() == 0 {
            self.buffer.release_memory();
        }
        self.inbound.release_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bond::PathSample;

    #[test]
    fn streams_share_what_they_read_ahead() {
        const MIB: u64 = 1 << 20;
        let settings = BondSettings::new(Scheduler::Score);
        let mut stream = Stream::new(settings, 8 * MIB as usize, 8 * MIB, None);
        // The scheduler would use the distant path only if it knew of more data.
        for rtt in [20, 1000] {
            let (path, srtt) = (stream.outbound.add_path(Span::ZERO, 0), Span(rtt * 1_000_000));
            let window = (10.0 * MIB as f64 * srtt.secs()) as u64;
            let sample = PathSample { window, srtt, rto: srtt, unsent: MIB, ..PathSample::default() };
            stream.outbound.update_path(Span::ZERO, path, sample);
        }
        let mut read_ahead = |streams| {
            stream.share_window(streams);
            while stream.wants() {
                stream.wrote(64 * 1024);
            }
            stream.outbound.unassigned()
        };
        assert_eq!(read_ahead(16), MIB / 2);
        // Alone it reads ahead until the decision is clear.
        assert!((4 * MIB..6 * MIB).contains(&read_ahead(1)));
    }
}
