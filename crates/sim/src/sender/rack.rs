//! What RACK (RFC 8985 §6) knows.

use super::segment::Segment;
use std::collections::VecDeque;

/// What is known of the segment that was sent last of those that arrived.
#[derive(Debug, Clone, Default)]
pub(super) struct Rack {
    /// When it was sent, ns, and where it ends.
    pub(super) sent: u64,
    pub(super) end: u64,
    pub(super) rtt_us: u32,
    pub(super) advanced: bool,
    /// First transmissions before this number have been judged.
    pub(super) judged: u64,
    /// Retransmissions in the order of their sending: number, and when.
    pub(super) again: VecDeque<(u64, u64)>,
    pub(super) reordering_seen: bool,
    pub(super) window_steps: u32,
    pub(super) duplicate_seen: bool,
    pub(super) last_delivered: u64,
}

impl Rack {
    /// Something came twice: the window for reordering was too small.
    pub(super) fn note_duplicate(&mut self) {
        self.duplicate_seen = true;
    }

    /// What was judged is to be judged again.
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
        self.judged = 0;
    }

    /// Whether the segment was sent before the one known (tcp_rack_sent_after).
    pub(super) fn is_after(&self, segment: &Segment) -> bool {
        self.sent > segment.sent || (self.sent == segment.sent && self.end > segment.end())
    }
}
