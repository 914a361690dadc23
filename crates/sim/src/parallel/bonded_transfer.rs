//! A transfer whose pieces a bond assigns: the ledgers of `bond`, as for a real transfer, over
//! simulated connections.
//!
//! Each piece is preceded by its header, as on the wire. The receiving end's reports are not sent
//! as frames: the TCP acknowledgements of the connections stand for them, and arrive when the
//! frames would.

use super::limits::MAX_CONNECTIONS;
use crate::{event_queue::NEVER, sender::TcpSender};
use bond::{FrameHeader, Outbound, PathId, PathSample, Resequencer};
use std::collections::VecDeque;
use units::Span;

/// Size of the header of a piece, bytes.
const PIECE_HEADER: u64 = FrameHeader::PIECE_LEN as u64;

/// The pieces of a transfer that a connection carries, with their headers, and a position in this
/// stream.
#[derive(Debug, Default)]
struct PieceStream {
    /// Pieces that the position has not passed: offset in the transfer, and length.
    pieces: VecDeque<(u64, u64)>,
    /// Where the header of the first of them begins on the connection.
    first_start: u64,
    /// The position on the connection.
    position: u64,
    /// Payload before the position, without headers.
    payload: u64,
}

impl PieceStream {
    /// Moves the position to `to`, and calls `part` with offset and length of each part of the
    /// transfer that it passes.
    fn advance(&mut self, to: u64, mut part: impl FnMut(u64, u64)) {
        while let Some(&(offset, len)) = self.pieces.front() {
            let payload_start = self.first_start + PIECE_HEADER;
            let (from, until) = (self.position.max(payload_start), to.min(payload_start + len));
            if from < until {
                part(offset + from - payload_start, until - from);
                self.payload += until - from;
            }
            if to < payload_start + len {
                break;
            }
            self.first_start = payload_start + len;
            self.pieces.pop_front();
        }
        self.position = to;
    }
}

/// A connection of a bonded transfer.
#[derive(Debug, Default)]
struct BondPath {
    id: Option<PathId>,
    /// Bytes written to it, with headers.
    written: u64,
    /// The stream up to what the receiver has.
    delivered: PieceStream,
    /// The stream up to what the sender knows to be acknowledged.
    acknowledged: PieceStream,
}

/// A write to a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketWrite {
    pub(super) connection: usize,
    /// All bytes written to the connection, including this write.
    pub(super) end: u64,
    /// Nothing will follow on any connection.
    pub(super) last: bool,
}

/// Both ends of a bonded transfer.
///
/// The caller reports [`connection_established`](Self::connection_established),
/// [`update_path`](Self::update_path) before it asks for writes and after each, and
/// [`on_delivered`](Self::on_delivered). It takes writes by [`next_write`](Self::next_write) until
/// there is none, and asks again at [`next_check`](Self::next_check).
#[derive(Debug)]
pub(super) struct BondedTransfer {
    settings: bond::BondSettings,
    outbound: Outbound,
    /// Nothing more will be offered.
    is_closed: bool,
    order: Resequencer,
    connections: [BondPath; MAX_CONNECTIONS],
    /// The receiver's buffer, bytes; `None`: unlimited.
    window: Option<u64>,
}

impl BondedTransfer {
    /// A transfer of `bytes`, to a receiver with a buffer of `window` bytes; `None`: unlimited. Its
    /// application reads at once what is in order.
    pub(super) fn new(bytes: u64, settings: bond::BondSettings, window: Option<u64>) -> Self {
        let mut bonded = BondedTransfer {
            settings,
            outbound: Outbound::new(settings, window.unwrap_or(u64::MAX)),
            is_closed: false,
            order: Resequencer::new(usize::MAX),
            connections: Default::default(),
            window,
        };
        bonded.feed(bytes, true);
        bonded
    }

    /// The same transfer before any of it is at the sending end; [`feed`](Self::feed) tells what is.
    pub(super) fn fed(self) -> Self {
        let outbound = Outbound::new(self.settings, self.window.unwrap_or(u64::MAX));
        BondedTransfer { outbound, is_closed: false, ..self }
    }

    /// The sending end has `bytes` more, the last ones if `is_all`.
    pub(super) fn feed(&mut self, bytes: u64, is_all: bool) {
        self.outbound.offer(bytes);
        if is_all {
            self.outbound.close();
            self.is_closed = true;
        }
    }

    /// Bytes that are to be assigned, for the first time or again.
    pub(super) fn unassigned(&self) -> u64 {
        self.outbound.unassigned()
    }

    /// A connection over network `network` is established.
    pub(super) fn connection_established(&mut self, now: u64, connection: usize, network: usize) {
        self.connections[connection].id = Some(self.outbound.add_path(Span(now), network as u8));
    }

    /// Updates what the bond knows of a connection.
    pub(super) fn update_path(&mut self, now: u64, connection: usize, path: PathSample) {
        let bonded = &mut self.connections[connection];
        let Some(id) = bonded.id else { return };
        bonded.acknowledged.advance(path.delivered, |_, _| ());
        let receipt = self.outbound.on_receipt(Span(now), id, bonded.acknowledged.payload);
        let acked = self.order.next_offset();
        let limit = self.window.map_or(u64::MAX, |window| acked.saturating_add(window));
        let reported = receipt.and(self.outbound.on_acked(acked, limit));
        debug_assert_eq!(reported, Ok(()), "both ends keep the protocol");
        self.outbound.update_path(Span(now), id, path);
    }

    /// The next write to a connection, if the bond assigns a piece now.
    pub(super) fn next_write(&mut self, now: u64) -> Option<SocketWrite> {
        self.outbound.handle_timeout(Span(now));
        let piece = self.outbound.next_piece(Span(now))?;
        let connection = self.connections.iter().position(|bonded| bonded.id == Some(piece.path))?;
        let bonded = &mut self.connections[connection];
        bonded.delivered.pieces.push_back((piece.offset, piece.len));
        bonded.acknowledged.pieces.push_back((piece.offset, piece.len));
        bonded.written += PIECE_HEADER + piece.len;
        Some(SocketWrite { connection, end: bonded.written, last: self.is_closed && self.outbound.unassigned() == 0 })
    }

    /// When to ask for writes again if nothing happens before, ns.
    pub(super) fn next_check(&self, now: u64) -> u64 {
        self.outbound.next_timeout(Span(now)).map_or(NEVER, |at| at.0.max(now + 1))
    }

    /// A connection has delivered its stream up to `end`; returns how many bytes of the transfer
    /// are new.
    pub(super) fn on_delivered(&mut self, connection: usize, end: u64) -> u64 {
        let (order, mut new) = (&mut self.order, 0);
        self.connections[connection].delivered.advance(end, |offset, len| new += order.insert(offset, len).unwrap_or(0));
        new
    }

    /// Bytes that can be read in order.
    pub(super) fn readable(&self) -> u64 {
        self.order.next_offset()
    }

    /// The most bytes that were held out of order.
    pub(super) fn max_held(&self) -> u64 {
        self.order.max_out_of_order_bytes()
    }
}

/// What a bond sees of a connection.
pub(super) fn path_state(sender: &TcpSender) -> PathSample {
    PathSample {
        delivered: sender.snd_una,
        unsent: sender.unsent(),
        window: sender.usable_window(),
        srtt: Span(u64::from(sender.rtt.srtt_us()) * 1000),
        rto: Span(sender.rtt.rto_us() * 1000),
        in_recovery: sender.is_retransmitting(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_precede_pieces_and_are_no_payload() {
        let mut stream = PieceStream { pieces: [(1000, 100), (50, 7), (1100, 100)].into(), ..PieceStream::default() };
        let mut parts = Vec::new();
        for to in [5, 13, 63, 113 + 20, 133 + 12, 300] {
            stream.advance(to, |offset, len| parts.push((offset, len)));
        }
        assert_eq!(parts, [(1000, 50), (1050, 50), (50, 7), (1100, 100)]);
        assert_eq!((stream.payload, stream.pieces.len()), (207, 0));
    }
}
