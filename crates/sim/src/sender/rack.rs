//! The state of RACK loss detection (RFC 8985 §6).

use super::segment::SentSegment;
use std::collections::VecDeque;

/// The most recently sent segment among those delivered, and the reordering window.
#[derive(Debug, Clone, Default)]
pub(super) struct Rack {
    /// RACK.xmit_ts: when that segment was sent, ns.
    pub(super) sent_ns: u64,
    /// RACK.end_seq: where it ends.
    pub(super) end: u64,
    /// RACK.rtt: its RTT, µs.
    pub(super) rtt_us: u32,
    /// A segment has been delivered since losses were last looked for.
    pub(super) advanced: bool,
    /// First transmissions before this segment number have been checked for loss.
    pub(super) scanned: u64,
    /// Retransmissions in the order in which they were sent: segment number, and time in ns.
    pub(super) retransmissions: VecDeque<(u64, u64)>,
    /// Reordering was observed on this path.
    pub(super) reordering_seen: bool,
    /// RACK.reo_wnd_mult: the reordering window in quarters of the minimum RTT.
    pub(super) reo_wnd_steps: u32,
    /// A DSACK has arrived since the reordering window was last adapted.
    pub(super) dsack_seen: bool,
    /// The count of delivered segments at which the reordering window may grow again.
    pub(super) last_delivered: u64,
}

impl Rack {
    /// A DSACK has arrived: the reordering window was too small.
    pub(super) fn on_dsack(&mut self) {
        self.dsack_seen = true;
    }

    /// Makes the next loss detection check all segments again.
    pub(super) fn rescan(&mut self) {
        self.advanced = true;
        self.scanned = 0;
    }

    /// Whether the delivered segment was sent after `segment` (tcp_rack_sent_after).
    pub(super) fn sent_after(&self, segment: &SentSegment) -> bool {
        self.sent_ns > segment.sent_ns || (self.sent_ns == segment.sent_ns && self.end > segment.end())
    }
}
