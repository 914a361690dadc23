//! Probe duplicates: an idle path gets a copy of a piece that another path carries, so that its
//! present state is measured.
//!
//! Without probes a path that was slow once would never be assigned anything again. When a probe
//! has arrived, the path's old throughput estimate is discarded.

use super::{Outbound, Piece};
use crate::{path::Path, scheduler::Scheduler};
use units::Span;

/// The first probe interval of an idle path, in its round-trip times. It doubles with every probe:
/// the round-trip time of the handshake may be unrepresentative.
const FIRST_INTERVAL_RTTS: u64 = 4;
/// Lower bound of the first probe interval, 20 ms.
const MIN_INTERVAL: Span = Span(20_000_000);
/// Upper bound of the probe interval, 1 s.
const MAX_INTERVAL: Span = Span(1_000_000_000);

impl Outbound {
    /// An idle path that is due for a duplicate of the piece that `chosen` was assigned.
    pub(super) fn path_to_probe(&self, now: Span, chosen: usize) -> Option<usize> {
        if !self.settings.probes {
            return None;
        }
        let max_tier = match self.settings.scheduler {
            Scheduler::Score => u8::MAX,
            // A dear path is not probed without need.
            Scheduler::Tiers => self.paths[chosen].tier,
            Scheduler::RoundRobin | Scheduler::Single | Scheduler::Redundant => return None,
        };
        (0..self.paths.len()).find(|index| {
            let path = &self.paths[*index];
            *index != chosen && path.is_usable() && (path.tier <= max_tier || path.is_suspected) && is_due(path, now)
        })
    }

    /// Assigns a probe to its path.
    pub(super) fn assign_probe(&mut self, now: Span, probe: Piece) -> Piece {
        let max_piece = self.max_piece();
        let path = &mut self.paths[probe.path.0];
        path.assign(now, (probe.offset, probe.offset + probe.len), max_piece, true);
        path.is_probing = true;
        path.probes += 1;
        probe
    }
}

/// Whether a path has been idle for a probe interval.
fn is_due(path: &Path, now: Span) -> bool {
    // A suspected path is probed soon after it is heard of again.
    let first = if path.is_suspected { MIN_INTERVAL.0 } else { (FIRST_INTERVAL_RTTS * path.sample.srtt.0).max(MIN_INTERVAL.0) };
    let interval = first.saturating_mul(1 << path.probes.min(20)).min(MAX_INTERVAL.0);
    path.outstanding() == 0 && path.sample.unsent == 0 && now.0.saturating_sub(path.last_progress.0) >= interval
}
