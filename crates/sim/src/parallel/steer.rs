//! A transfer that a bond steers: the same ledgers as a real one's, over connections of the simulator.
//!
//! Each piece has its header before it, as on the wire. What the receiving end says is not sent back as frames: its TCP's acknowledgements stand for them,
//! which come when they would.

use super::World;
use crate::{
    sender::Sender,
    timers::{Key, NEVER, What},
};
use bond::{FrameHeader, Outbound, PathId, PathSample, Resequencer};
use scenario::Scenario;
use std::collections::VecDeque;
use units::Span;

/// The most networks of a bond.
const MOST: usize = Scenario::MOST_NETWORKS;

const HEADER: u64 = FrameHeader::PIECE_LEN as u64;

/// Pieces in the order in which a connection carries them, headers and all.
#[derive(Debug, Default)]
struct Carried {
    /// Where each begins in the transfer, and how long it is.
    pieces: VecDeque<(u64, u64)>,
    /// Where the first of them begins on the connection.
    at: u64,
    /// How far the connection has come, and payload among that.
    to: u64,
    payload: u64,
}

impl Carried {
    /// The connection has come up to `to` of what it carries; says which parts of the transfer that is.
    fn advance(&mut self, to: u64, mut part: impl FnMut(u64, u64)) {
        while let Some(&(offset, len)) = self.pieces.front() {
            let begins = self.at + HEADER;
            let (from, until) = (self.to.max(begins), to.min(begins + len));
            if from < until {
                part(offset + from - begins, until - from);
                self.payload += until - from;
            }
            if to < begins + len {
                break;
            }
            self.at = begins + len;
            self.pieces.pop_front();
        }
        self.to = to;
    }
}

/// A connection of it.
#[derive(Debug, Default)]
struct Lane {
    id: Option<PathId>,
    /// What was written to it, with headers.
    written: u64,
    /// What comes out of it, and what is acknowledged of it.
    coming: Carried,
    acknowledged: Carried,
}

/// What is to be written to a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writes {
    pub(super) connection: usize,
    /// All that was written to it then, and whether nothing will follow.
    pub(super) end: u64,
    pub(super) last: bool,
}

/// The two ends of a bond.
#[derive(Debug)]
pub(super) struct Steered {
    out: Outbound,
    order: Resequencer,
    lanes: [Lane; MOST],
}

impl Steered {
    /// So many bytes, to an end that has room for all of them.
    pub(super) fn new(bytes: u64, settings: bond::BondSettings) -> Self {
        let mut out = Outbound::new(settings, u64::MAX);
        out.offer(bytes);
        out.close();
        Steered { out, order: Resequencer::new(usize::MAX), lanes: Default::default() }
    }

    /// A connection is there.
    pub(super) fn up(&mut self, now: u64, connection: usize) {
        self.lanes[connection].id = Some(self.out.add_path(Span(now), connection as u8));
    }

    /// A connection looks like this now.
    pub(super) fn look(&mut self, now: u64, connection: usize, look: PathSample) {
        let lane = &mut self.lanes[connection];
        let Some(id) = lane.id else { return };
        lane.acknowledged.advance(look.delivered, |_, _| ());
        let said = self.out.on_receipt(Span(now), id, lane.acknowledged.payload).and(self.out.on_acked(self.order.next_offset(), u64::MAX));
        debug_assert_eq!(said, Ok(()), "both ends keep the rules");
        self.out.update_path(Span(now), id, look);
    }

    /// Who is to write what; none: nobody now.
    pub(super) fn give(&mut self, now: u64) -> Option<Writes> {
        self.out.handle_timeout(Span(now));
        let piece = self.out.next_piece(Span(now))?;
        let connection = self.lanes.iter().position(|lane| lane.id == Some(piece.path))?;
        let lane = &mut self.lanes[connection];
        lane.coming.pieces.push_back((piece.offset, piece.len));
        lane.acknowledged.pieces.push_back((piece.offset, piece.len));
        lane.written += HEADER + piece.len;
        Some(Writes { connection, end: lane.written, last: self.out.unassigned() == 0 })
    }

    /// When to ask again, if nothing happens before.
    pub(super) fn next_check(&self, now: u64) -> u64 {
        self.out.next_timeout(Span(now)).map_or(NEVER, |at| at.0.max(now + 1))
    }

    /// A connection has delivered all up to `came` of what it carries; how many bytes of the transfer that are new.
    pub(super) fn arrive(&mut self, connection: usize, came: u64) -> u64 {
        let (order, mut new) = (&mut self.order, 0);
        self.lanes[connection].coming.advance(came, |offset, len| new += order.insert(offset, len).unwrap_or(0));
        new
    }

    /// How much can be read.
    pub(super) fn read(&self) -> u64 {
        self.order.next_offset()
    }

    /// The most that waited for its turn.
    pub(super) fn most_held(&self) -> u64 {
        self.order.max_out_of_order_bytes()
    }
}

impl World<'_> {
    /// What a bond gives out now, if one steers the transfer.
    pub(super) fn steer(&mut self, number: u32) {
        let transfer = &mut self.transfers[number as usize];
        let (now, ends) = (self.net.now, transfer.coming.ends);
        let Some(steered) = transfer.stripe.steered().filter(|_| !transfer.ended) else {
            transfer.late.stop();
            return;
        };
        for (network, place) in transfer.conns.iter().enumerate().filter_map(|(network, place)| Some((network, (*place)? as usize))) {
            steered.look(now, network, look(&self.conns[place].sender));
        }
        while let Some(writes) = steered.give(now) {
            let Some(place) = transfer.conns[writes.connection] else { return };
            let sender = &mut self.conns[place as usize].sender;
            sender.write(writes.end, writes.last && ends);
            sender.push(&mut self.net);
            steered.look(now, writes.connection, look(sender));
        }
        let due = steered.next_check(now);
        self.net.timers.set(&mut transfer.late, Key { who: number, what: What::Steer }, due);
    }
}

/// What a bond sees of a connection.
fn look(sender: &Sender) -> bond::PathSample {
    bond::PathSample {
        delivered: sender.una,
        unsent: sender.unsent(),
        window: sender.window(),
        srtt: Span(u64::from(sender.rtt.smoothed()) * 1000),
        rto: Span(sender.rtt.rto() * 1000),
        in_recovery: sender.mends(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_before_their_pieces_and_are_no_payload() {
        let mut carried = Carried { pieces: [(1000, 100), (50, 7), (1100, 100)].into(), ..Carried::default() };
        let mut parts = Vec::new();
        for to in [5, 13, 63, 113 + 20, 133 + 12, 300] {
            carried.advance(to, |offset, len| parts.push((offset, len)));
        }
        assert_eq!(parts, [(1000, 50), (1050, 50), (50, 7), (1100, 100)]);
        assert_eq!((carried.payload, carried.pieces.len()), (207, 0));
    }
}
