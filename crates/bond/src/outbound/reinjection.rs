//! Reinjection: bytes that one path has are sent over another one too.
//!
//! - *After a loss or a stall.* What a closed or stalled path has outstanding is queued and goes
//!   out before new data. A stalled path's bytes may still arrive over it.
//! - *Early*, with foresight. When nothing unassigned is left, a range that is late, that is still
//!   unsent, or that is the last of the stream is duplicated over a path where it arrives sooner.
//!   So neither the end of a stream nor a full window waits for a slow path: no head-of-line
//!   blocking.

use super::{Outbound, Piece};
use crate::{
    frame::MAX_ACK_DELAY,
    path::{AssignedRange, Path, PathId},
    scheduler::Scheduler,
};
use units::Span;

/// A range that could be reinjected.
#[derive(Clone, Copy)]
struct ReinjectionCandidate {
    range: AssignedRange,
    /// In how many seconds it arrives if nothing is done.
    arrives_in: f64,
}

impl Outbound {
    /// Queues what stalled paths have for reinjection, if another path is usable. Otherwise it may
    /// still arrive, and need not be sent twice.
    pub(super) fn reassign_stalled(&mut self) {
        if self.settings.scheduler == Scheduler::Redundant || !self.paths.iter().any(Path::is_usable) {
            return;
        }
        for path in self.paths.iter_mut().filter(|path| path.is_open && path.is_stalled) {
            for range in path.drain_ranges() {
                self.reinject_queue.insert(range.start.max(self.acked), range.end);
            }
        }
    }

    /// Whether ranges are reinjected before their path stalls.
    pub(super) fn reinjects_early(&self) -> bool {
        self.settings.foresight && self.settings.scheduler.probes()
    }

    /// Reinjects one range over a path where it arrives sooner. Called when nothing unassigned may
    /// be sent: what is outstanding is then the end of the stream or of the offered data, or fills
    /// the peer's window.
    pub(super) fn reinject_early(&mut self, now: Span) -> Option<Piece> {
        if !self.reinjects_early() {
            return None;
        }
        for from in 0..self.paths.len() {
            if !self.paths[from].is_usable() {
                continue;
            }
            let candidates = self.reinjection_candidates(now, from);
            let sooner = |candidate: ReinjectionCandidate| Some((candidate.range, self.sooner_path(from, &candidate)?));
            let Some((range, to)) = candidates.into_iter().flatten().find_map(sooner) else { continue };
            self.paths[from].mark_duplicated(&range);
            let start = range.start.max(self.acked);
            self.paths[to].assign(now, (start, range.end), self.settings.piece.0, true);
            return Some(Piece { path: PathId(to), offset: start, len: range.end - start, is_duplicate: true });
        }
        None
    }

    /// What of a path could be reinjected, in order of preference: its first late range, its first
    /// unsent range, and its last range. The last one only at the end of the stream, or while TCP
    /// retransmits on the path: it is not known which range the loss has hit.
    fn reinjection_candidates(&mut self, now: Span, from: usize) -> [Option<ReinjectionCandidate>; 3] {
        let acked = self.acked;
        let is_closed = self.end.is_some();
        let path = &mut self.paths[from];
        let rtt = path.sample.srtt.secs();
        let queueing = path.score(0);
        let in_recovery = path.sample.in_recovery;
        // A late range is taken for lost: its retransmission takes a round trip.
        let late = path
            .first_exclusive(acked)
            .filter(|range| range.due <= now)
            .map(|range| ReinjectionCandidate { range: *range, arrives_in: rtt });
        let unsent = path.first_exclusive_unsent(acked).map(|range| ReinjectionCandidate { range: *range, arrives_in: queueing });
        let last = path.last_exclusive(acked).filter(|_| is_closed || in_recovery).map(|range| {
            let expected = range.due.saturating_sub(now + MAX_ACK_DELAY).secs() - rtt / 2.0;
            // A retransmission takes at least a round trip.
            ReinjectionCandidate { range: *range, arrives_in: if in_recovery { expected.max(rtt) } else { expected } }
        });
        [late, unsent, last]
    }

    /// The path, other than `from` and no dearer, over which a range arrives soonest, if sooner
    /// than it otherwise would.
    fn sooner_path(&self, from: usize, candidate: &ReinjectionCandidate) -> Option<usize> {
        let len = candidate.range.len();
        let tier = self.paths[from].tier;
        let is_sooner =
            |path: &Path| path.is_usable() && self.has_room(path) && path.score(len) < candidate.arrives_in && path.tier <= tier;
        let others = self.paths.iter().enumerate().filter(|(index, path)| *index != from && is_sooner(path));
        others.min_by(|one, other| one.1.score(len).total_cmp(&other.1.score(len))).map(|(index, _)| index)
    }
}
