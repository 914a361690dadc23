//! The sending end of a bond's stream, with a peer that acknowledges anything.

use crate::recipe::Recipe;
use bond::{BondSettings, Outbound, PathId, PathSample, ProtocolViolation, Scheduler};
use units::{Bytes, Span};

const CONNECTIONS: usize = 4;
/// Maximum number of pieces assigned in one turn, since the queue of each connection is bounded.
const MOST_PIECES: usize = 20_000;
/// Maximum length of the stream, bytes.
const MOST_STREAM: u64 = 1 << 22;

/// A connection in the model.
#[derive(Debug, Clone, Copy)]
struct Conn {
    id: PathId,
    /// Bytes assigned to it.
    assigned: u64,
    /// Whether the end of the stream has been announced over it.
    end_announced: bool,
    sample: PathSample,
}

/// A model of a correct sender, beside the sender under test.
struct SenderModel {
    out: Outbound,
    window: u64,
    /// Bytes that the application has offered.
    offered: u64,
    closed: bool,
    /// Offset of the first byte that was never assigned.
    next: u64,
    /// Offset of the first byte that is not acknowledged.
    acked: u64,
    /// Offset of the first byte beyond the peer's window.
    limit: u64,
    conns: [Option<Conn>; CONNECTIONS],
    now: Span,
}

/// Plays a peer that acknowledges anything, over connections with arbitrary samples that are added
/// and removed.
///
/// # Panics
/// If a piece is assigned that was not offered, exceeds the peer's window, is acknowledged already,
/// or is out of order; if the sender tracks more ranges than are outstanding; if a peer that
/// follows the protocol does not get the whole stream.
pub fn outbound(data: &[u8]) {
    let mut recipe = Recipe(data);
    let schedulers = [Scheduler::Score, Scheduler::RoundRobin, Scheduler::Redundant, Scheduler::Tiers, Scheduler::Single];
    let settings = BondSettings {
        piece: Bytes([0, 1024, 16 * 1024][recipe.below(3)]),
        queue: Bytes([0, 4096, 32 * 1024][recipe.below(3)]),
        foresight: recipe.byte() & 1 == 0,
        ..BondSettings::new(schedulers[recipe.below(schedulers.len())])
    };
    let window = [1, 3000, 64 * 1024, 1 << 20][recipe.below(4)];
    let mut model = SenderModel {
        out: Outbound::new(settings, window),
        window,
        offered: 0,
        closed: false,
        next: 0,
        acked: 0,
        limit: window,
        conns: [None; CONNECTIONS],
        now: Span::ZERO,
    };
    while !recipe.is_over() {
        // The stream ends at the first protocol violation.
        if model.step(&mut recipe).is_err() {
            return;
        }
        model.check();
    }
    model.finish();
}

impl SenderModel {
    fn step(&mut self, recipe: &mut Recipe<'_>) -> Result<(), ProtocolViolation> {
        let which = recipe.below(CONNECTIONS);
        match recipe.below(10) {
            0 => self.join_or_leave(which, recipe.byte() % 4),
            1 => self.offer(recipe),
            2 => self.update_path(which, recipe),
            3 => self.receipt(which, recipe)?,
            4 => self.acknowledge(recipe)?,
            5 => self.assign(recipe.word().into()),
            6 => self.assign(MOST_PIECES),
            7 => self.out.handle_timeout(self.now),
            8 => self.announce_end(which),
            _ => {
                self.now.0 += recipe.number() >> 24;
                if recipe.byte() == 0 {
                    let all = self.closed && self.next == self.offered;
                    assert_eq!(self.out.on_delivered().is_ok(), all);
                    if !all {
                        return Err(ProtocolViolation::DeliveredTooEarly);
                    }
                    self.acked = self.next;
                }
            }
        }
        Ok(())
    }

    fn join_or_leave(&mut self, which: usize, tier: u8) {
        self.conns[which] = match self.conns[which] {
            Some(conn) => {
                self.out.remove_path(conn.id);
                None
            }
            None => {
                let id = self.out.add_path(self.now, tier);
                assert!(self.conns.iter().flatten().all(|conn| conn.id != id), "{id:?} exists twice");
                Some(Conn { id, assigned: 0, end_announced: false, sample: PathSample::default() })
            }
        };
    }

    /// Offers bytes as the proxy does: no more than its own buffer has room for.
    fn offer(&mut self, recipe: &mut Recipe<'_>) {
        let room = (self.acked + self.window).min(MOST_STREAM) - self.offered;
        let wanted = self.out.wants_data(room);
        let bytes = (u64::from(recipe.word()) * 16).min(room);
        if self.closed || bytes > 0 && !wanted && recipe.byte() & 1 == 0 {
            return;
        }
        self.offered += bytes;
        self.out.offer(bytes);
        if bytes == 0 && recipe.byte() < 64 {
            self.closed = true;
            self.out.close();
        }
    }

    fn update_path(&mut self, which: usize, recipe: &mut Recipe<'_>) {
        let Some(conn) = &mut self.conns[which] else { return };
        let unsent = conn.sample.unsent.saturating_sub(recipe.number());
        let microseconds = |recipe: &mut Recipe<'_>| Span(u64::from(recipe.number() as u32) * 1000);
        conn.sample = PathSample {
            delivered: conn.sample.delivered.saturating_add(recipe.number() >> 20),
            unsent,
            window: u64::from(recipe.number() as u32),
            srtt: microseconds(recipe),
            rto: microseconds(recipe),
            in_recovery: recipe.byte() & 1 == 0,
        };
        self.out.update_path(self.now, conn.id, conn.sample);
    }

    fn receipt(&mut self, which: usize, recipe: &mut Recipe<'_>) -> Result<(), ProtocolViolation> {
        let Some(conn) = self.conns[which] else { return Ok(()) };
        let had = self.out.path_stats(conn.id).map_or(0, |stats| stats.received);
        let got = match recipe.byte() {
            0..=7 => recipe.number(),
            8..=127 => conn.assigned,
            128..=160 => had + 1,
            _ => had + u64::from(recipe.word()),
        };
        let result = self.out.on_receipt(self.now, conn.id, got);
        assert_eq!(result.is_ok(), got <= conn.assigned, "{got} of {}", conn.assigned);
        result?;
        let seen = self.out.path_stats(conn.id).expect("the connection is there");
        assert_eq!((seen.assigned, seen.received), (conn.assigned, had.max(got)));
        Ok(())
    }

    fn acknowledge(&mut self, recipe: &mut Recipe<'_>) -> Result<(), ProtocolViolation> {
        let acked = match recipe.byte() {
            0..=7 => recipe.number(),
            8..=127 => self.next,
            _ => (self.acked + u64::from(recipe.word())).min(self.next),
        };
        // Most often the peer's window is as large as at the start.
        let limit = if recipe.byte() < 32 { recipe.number() >> 2 } else { acked.saturating_add(self.window) };
        let result = self.out.on_acked(acked, limit);
        assert_eq!(result.is_ok(), acked <= self.next, "{acked} of {}", self.next);
        result?;
        (self.acked, self.limit) = (self.acked.max(acked), self.limit.max(limit));
        assert_eq!(self.out.acked(), self.acked);
        Ok(())
    }

    /// Assigns up to `most` pieces, and checks each.
    fn assign(&mut self, most: usize) {
        for count in 0..most {
            assert!(count + 1 < MOST_PIECES, "the sender assigns pieces without end");
            let Some(piece) = self.out.next_piece(self.now) else { return };
            let end = piece.offset + piece.len;
            assert!(piece.len > 0 && end <= self.offered && end <= self.limit, "{piece:?} of {} and {}", self.offered, self.limit);
            assert!(piece.offset >= self.acked, "{piece:?}, which the caller may have discarded: acknowledged up to {}", self.acked);
            // No byte is skipped, and bytes that were assigned before are marked as duplicates.
            assert!(piece.offset <= self.next && (piece.is_duplicate || piece.offset == self.next), "{piece:?} when {} is next", self.next);
            self.next = self.next.max(end);
            let conn = self.conns.iter_mut().flatten().find(|conn| conn.id == piece.path);
            let conn = conn.unwrap_or_else(|| panic!("{piece:?} is assigned to no connection"));
            conn.assigned += piece.len;
            conn.sample.unsent += piece.len;
        }
    }

    fn announce_end(&mut self, which: usize) {
        let Some(conn) = &mut self.conns[which] else { return };
        if let Some(end) = self.out.end_to_announce(conn.id) {
            assert!(self.closed && end == self.offered && self.next == end && !conn.end_announced);
            conn.end_announced = true;
        }
    }

    /// Compares the sender with the model.
    fn check(&self) {
        assert_eq!(self.out.path_count(), self.conns.iter().flatten().count());
        assert!(self.out.unassigned() >= self.offered - self.next);
        assert!(!self.out.is_delivered() || self.acked == self.offered);
        let _ = (self.out.next_timeout(self.now), self.out.awaits_acks());
        // Memory is used only for bytes that the peer has not acknowledged.
        if self.acked == self.next {
            assert!(self.out.tracked_ranges() <= 1, "{} acknowledged ranges are tracked", self.out.tracked_ranges());
        }
    }

    /// Follows the protocol from now on: the whole stream must be delivered.
    fn finish(&mut self) {
        if self.conns.iter().all(Option::is_none) {
            self.join_or_leave(0, 0);
        }
        self.limit = self.limit.max(MOST_STREAM);
        assert_eq!(self.out.on_acked(self.acked, self.limit), Ok(()));
        if !self.closed {
            self.closed = true;
            self.out.close();
        }
        for _ in 0..10_000 {
            if self.next == self.offered {
                break;
            }
            self.now.0 += 200_000_000;
            for conn in self.conns.iter_mut().flatten() {
                let rtt = Span(10_000_000);
                conn.sample = PathSample { unsent: 0, window: 1 << 20, srtt: rtt, rto: rtt, delivered: conn.assigned, in_recovery: false };
                self.out.update_path(self.now, conn.id, conn.sample);
                assert_eq!(self.out.on_receipt(self.now, conn.id, conn.assigned), Ok(()));
            }
            self.out.handle_timeout(self.now);
            self.assign(MOST_PIECES);
            for which in 0..CONNECTIONS {
                self.announce_end(which);
            }
        }
        assert_eq!(self.next, self.offered, "the rest of the stream is never assigned");
        assert_eq!(self.out.on_delivered(), Ok(()));
        assert!(self.out.is_delivered());
        assert!(self.out.next_piece(self.now).is_none(), "a piece is assigned after everything was delivered");
    }
}
