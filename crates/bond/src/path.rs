//! A path, as the sending end knows it: its measurements and the ranges that are assigned to it.

use crate::{
    frame::{FrameHeader, MAX_ACK_DELAY},
    score::{Smoothing, ThroughputEstimator, score},
};
use std::collections::{VecDeque, vec_deque::Drain};
use units::Span;

/// Upper bound of a queue limit that grows with the rate, bytes. A longer queue is not needed to
/// keep a path busy until the next piece is scheduled.
const MAX_QUEUE: u64 = 1 << 20;
/// The longest piece for the sake of fewer wake-ups, bytes. With its header it fills three TLS
/// records (RFC 8446 §5.1).
pub(crate) const MAX_BATCH: u64 = 3 * 16 * 1024 - FrameHeader::PIECE_LEN as u64;

/// Identifies a path of a stream: its slot in the ledger. The slot of a removed path is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathId(pub usize);

/// What the caller measures of a path: at its socket (Linux: `TCP_INFO`, `SIOCOUTQNSD`), and what
/// it queues for the socket itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathSample {
    /// Bytes that the peer's TCP has acknowledged in all. The throughput is measured by them.
    pub delivered: u64,
    /// Q of Hoekstra (7): bytes that wait to be sent for the first time.
    pub unsent: u64,
    /// Bytes that may be in flight: the lesser of the congestion window and the peer's window.
    pub window: u64,
    /// Smoothed round-trip time; before the first sample, the duration of the handshake.
    pub srtt: Span,
    /// Retransmission timeout, without backoff.
    pub rto: Span,
    /// Whether TCP is in loss recovery: it retransmits on this path, and some of what is in flight
    /// takes at least a round trip longer than `srtt` suggests.
    pub in_recovery: bool,
}

/// A range of the stream that is assigned to a path, and for which the path's receipts do not
/// account yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AssignedRange {
    /// Offset of its first byte.
    pub(crate) start: u64,
    /// Offset behind its last byte.
    pub(crate) end: u64,
    /// When the receipt for it should have arrived. After that the range is late.
    pub(crate) due: Span,
    /// Whether another path has the range too, or had it. Such a range is not reinjected again.
    pub(crate) is_duplicated: bool,
}

impl AssignedRange {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// State of a path at the sending end.
///
/// A path is *usable* while it is open and not stalled. It *stalls* when it has something
/// outstanding and makes no progress for its [`stall_timeout`](Path::stall_timeout); a receipt ends
/// the stall. With a scheduler that probes, a path that has stalled stays *suspected* until a probe
/// duplicate arrives in time: until then it is assigned new ranges only if no other path is
/// trusted.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// The connection exists. The slot of a closed path is reused.
    pub(crate) is_open: bool,
    /// It has outstanding data, and none of it has been acknowledged for too long.
    pub(crate) is_stalled: bool,
    /// Cost class; cheap ones have low numbers.
    pub(crate) tier: u8,
    /// The latest sample, with what was assigned since added to `unsent`.
    pub(crate) sample: PathSample,
    throughput: ThroughputEstimator,
    /// What it carries, in the order of assignment.
    pub(crate) ranges: VecDeque<AssignedRange>,
    /// Payload assigned to it so far, bytes.
    pub(crate) assigned: u64,
    /// Payload that the peer has received over it by its last receipt, bytes.
    pub(crate) received: u64,
    /// Outstanding bytes that come before `ranges` and are known by number only: they were
    /// reassigned to other paths when this one stalled, or the peer has them, whichever path
    /// carried them.
    untracked: u64,
    /// Redundant scheduling: offset up to which the stream was assigned to this path.
    pub(crate) cursor: u64,
    /// When it last made progress: a receipt arrived, or it was assigned something while nothing
    /// was outstanding.
    pub(crate) last_progress: Span,
    /// The end of the stream was announced on it.
    pub(crate) end_announced: bool,
    /// It has stalled, and no probe has arrived in time since.
    pub(crate) is_suspected: bool,
    /// A probe duplicate is outstanding.
    pub(crate) is_probing: bool,
    /// Probes since it last was assigned something that was no duplicate.
    pub(crate) probes: u32,
}

impl Path {
    /// A new path. `cursor` is where redundant scheduling begins.
    pub(crate) fn new(now: Span, tier: u8, cursor: u64) -> Self {
        Path {
            is_open: true,
            is_stalled: false,
            tier,
            sample: PathSample::default(),
            throughput: ThroughputEstimator::new(now),
            ranges: VecDeque::new(),
            assigned: 0,
            received: 0,
            untracked: 0,
            cursor,
            last_progress: now,
            end_announced: false,
            is_suspected: false,
            is_probing: false,
            probes: 0,
        }
    }

    /// Whether it may be assigned anything.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_open && !self.is_stalled
    }

    /// Whether it may be assigned what no other path has.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_usable() && !self.is_suspected
    }

    /// Bytes for which receipts are outstanding.
    pub(crate) fn outstanding(&self) -> u64 {
        self.assigned - self.received
    }

    /// Whether a receipt is awaited.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_usable() && self.outstanding() > 0
    }

    /// Takes a sample.
    pub(crate) fn update(&mut self, now: Span, sample: PathSample, smoothing: &Smoothing) {
        self.throughput.update(now, sample.delivered, sample.unsent, sample.srtt, smoothing);
        self.sample = sample;
    }

    /// Marks the path as stalled, and as suspected where the scheduler probes.
    pub(crate) fn stall(&mut self, scheduler_probes: bool) {
        self.is_stalled = true;
        self.is_suspected = scheduler_probes;
        self.is_probing = false;
    }

    /// Assigns it a range. Consecutive ranges are merged up to `max_range` bytes.
    pub(crate) fn assign(&mut self, now: Span, (start, end): (u64, u64), max_range: u64, is_duplicated: bool) {
        if self.outstanding() == 0 {
            self.last_progress = now;
        }
        if !is_duplicated {
            self.probes = 0;
        }
        let receipt_after = self.arrival_time(end - start) + self.sample.srtt.secs() / 2.0;
        let due = now.saturating_add(MAX_ACK_DELAY).saturating_add(Span::from_secs_f64(receipt_after));
        match self.ranges.back_mut() {
            Some(last) if last.end == start && end - last.start <= max_range && last.is_duplicated == is_duplicated => {
                last.end = end;
                last.due = due;
            }
            _ => self.ranges.push_back(AssignedRange { start, end, due, is_duplicated }),
        }
        self.assigned += end - start;
        self.sample.unsent += end - start;
        self.throughput.on_assigned(now);
    }

    /// The peer has received `received` bytes over this path in all. If the path was stalled, or a
    /// probe has arrived in time, its throughput estimate is discarded: it describes the time
    /// before.
    pub(crate) fn on_receipt(&mut self, now: Span, received: u64) {
        let mut newly_received = received - self.received;
        let untracked = newly_received.min(self.untracked);
        self.untracked -= untracked;
        newly_received -= untracked;
        self.received = received;
        self.last_progress = now;
        let probe_succeeded = self.is_probing && !self.is_stalled && self.outstanding() == 0;
        if self.is_stalled || probe_succeeded {
            self.throughput.reset(now, self.sample.delivered);
            self.is_suspected &= !probe_succeeded;
            self.is_stalled = false;
            self.is_probing = false;
        }
        while let Some(first) = self.ranges.front_mut() {
            let done = newly_received.min(first.len());
            first.start += done;
            newly_received -= done;
            if first.start < first.end {
                return;
            }
            self.ranges.pop_front();
        }
    }

    /// The peer has all bytes below `acked`. Leading ranges below that are kept as a number only,
    /// which bounds the memory even if the peer never sends the receipts for them.
    pub(crate) fn on_stream_acked(&mut self, acked: u64) {
        while let Some(range) = self.ranges.front().filter(|range| range.end <= acked) {
            self.untracked += range.len();
            self.ranges.pop_front();
        }
    }

    /// The first range above `acked` that no other path has.
    pub(crate) fn first_exclusive(&self, acked: u64) -> Option<&AssignedRange> {
        self.ranges.iter().find(|range| !range.is_duplicated && range.end > acked)
    }

    /// The last range above `acked` that no other path has.
    pub(crate) fn last_exclusive(&self, acked: u64) -> Option<&AssignedRange> {
        self.ranges.iter().rev().find(|range| !range.is_duplicated && range.end > acked)
    }

    /// The first unsent range above `acked` that no other path has. A range that is partly sent is
    /// split in two.
    pub(crate) fn first_exclusive_unsent(&mut self, acked: u64) -> Option<&AssignedRange> {
        let mut sent = self.ranges.iter().map(AssignedRange::len).sum::<u64>().saturating_sub(self.sample.unsent);
        let mut index = 0;
        while let Some(range) = self.ranges.get_mut(index) {
            let len = range.len();
            if !range.is_duplicated && range.end > acked && sent < len {
                if sent > 0 {
                    let sent_part = AssignedRange { end: range.start + sent, ..*range };
                    range.start += sent;
                    self.ranges.insert(index, sent_part);
                    index += 1;
                }
                return self.ranges.get(index);
            }
            sent = sent.saturating_sub(len);
            index += 1;
        }
        None
    }

    /// Marks all its copies of a range as duplicated.
    pub(crate) fn mark_duplicated(&mut self, range: &AssignedRange) {
        // A path can hold the same range twice; one duplicate on another path covers both.
        for same in self.ranges.iter_mut().filter(|other| (other.start, other.end) == (range.start, range.end)) {
            same.is_duplicated = true;
        }
    }

    /// Queue limit in bytes: `min` or, if that is more, what it sends in twice `lookahead`, up to
    /// [`MAX_QUEUE`], or a [batch](Path::batch).
    pub(crate) fn queue_limit(&self, min: u64, lookahead: Span, batch: Span) -> u64 {
        min.max(MAX_QUEUE.min((self.rate() * 2.0 * lookahead.secs()) as u64)).max(self.batch(batch))
    }

    /// What it sends in this time, up to [`MAX_BATCH`], bytes.
    pub(crate) fn batch(&self, time: Span) -> u64 {
        ((self.rate() * time.secs()) as u64).min(MAX_BATCH)
    }

    /// When a piece of `piece` bytes would have arrived, in seconds from now. Not before Hoekstra
    /// (7), nor before all that is outstanding could have arrived: some of what is in flight may
    /// stand in a queue that the round-trip time does not show yet.
    pub(crate) fn arrival_time(&self, piece: u64) -> f64 {
        let transfer_time = (self.outstanding() + piece) as f64 / self.rate().max(self.window_rate()).max(1.0);
        self.score(piece).max(transfer_time)
    }

    /// Gives up its ranges for reassignment to other paths. They may still arrive over this one.
    pub(crate) fn drain_ranges(&mut self) -> Drain<'_, AssignedRange> {
        self.untracked = self.outstanding();
        self.ranges.drain(..)
    }

    /// Window divided by round-trip time, bytes/s.
    fn window_rate(&self) -> f64 {
        self.sample.window as f64 / self.sample.srtt.secs().max(1e-6)
    }

    /// G of Hoekstra (7), bytes/s. Before the first sample: window divided by round-trip time.
    pub(crate) fn rate(&self) -> f64 {
        self.throughput.rate().unwrap_or_else(|| self.window_rate())
    }

    /// When the peer would have all that is queued here and `left` bytes more, in seconds from now.
    /// The greater of both rates is used, as the measured throughput lags behind a growing window.
    pub(crate) fn completion_time(&self, left: u64) -> f64 {
        score(self.sample.unsent + left, self.rate().max(self.window_rate()), self.sample.srtt)
    }

    /// G in bytes/s, if it was measured.
    pub(crate) fn measured_rate(&self) -> Option<f64> {
        self.throughput.rate()
    }

    /// Hoekstra (7) in seconds, with `more` bytes queued besides what is.
    pub(crate) fn score(&self, more: u64) -> f64 {
        score(self.sample.unsent + more, self.rate(), self.sample.srtt)
    }

    /// Time without progress after which the path counts as stalled: two retransmission timeouts
    /// and the longest delay of a receipt.
    pub(crate) fn stall_timeout(&self) -> Span {
        self.sample.rto * 2 + MAX_ACK_DELAY
    }
}
