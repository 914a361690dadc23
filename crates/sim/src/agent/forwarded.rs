//! What an agent knows of the segments of one connection that it has forwarded: which of them have
//! arrived, which are lost behind it, and which it holds copies of.
//!
//! The links behind an agent keep the order of packets. So a segment is lost as soon as one has
//! arrived that was sent after it. With selective acknowledgements this also finds a retransmission
//! that is lost.

use crate::{
    packet::{DSACK, SimPacket},
    rtt::RttEstimator,
};
use std::collections::VecDeque;

/// Number of retransmissions by the sender that are remembered.
const REMEMBERED_RESENDS: usize = 1024;

/// A forwarded segment that is not cumulatively acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardedSegment {
    /// Its first byte.
    start: u64,
    /// Payload, bytes.
    len: u32,
    /// The number of its last transmission behind the agent, counted over the connection.
    order: u64,
    /// When that was, ns.
    sent_ns: u64,
    /// A copy, while the agent is responsible for its repair.
    copy: Option<SimPacket>,
    /// The receiver has it (SACK).
    has_arrived: bool,
    /// It went out more than once.
    was_resent: bool,
    /// The queue behind the agent dropped it, so that it never was on the link.
    was_dropped: bool,
    /// The sender has sent it again, or has sent it after later data.
    is_late: bool,
}

impl ForwardedSegment {
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// Whether the agent is to repair it.
    fn is_held(&self) -> bool {
        self.copy.is_some() && !self.has_arrived
    }
}

/// What the gaps are in the data that has arrived, as acknowledgements tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gaps {
    /// No data is known to have arrived after a gap.
    None,
    /// The agent holds a copy of each missing segment.
    Held,
    /// A missing segment is the sender's to repair.
    Foreign,
}

/// The forwarded segments of a connection. The agent calls [`add`](Self::add) for each data
/// segment, then [`sent`](Self::sent) when it has put it on the link, and
/// [`acknowledge`](Self::acknowledge) for each acknowledgement.
#[derive(Debug, Default)]
pub(super) struct ForwardedSegments {
    /// Disjoint, sorted by their first byte.
    segments: VecDeque<ForwardedSegment>,
    /// The highest cumulative acknowledgement.
    una: u64,
    /// The end of the highest forwarded segment.
    highest: u64,
    /// The end of the highest segment that has arrived.
    highest_arrived: u64,
    /// Transmissions so far.
    transmissions: u64,
    /// The latest transmission that is known to have arrived.
    latest_arrived: u64,
    /// When news of an arrival came last, ns.
    pub(super) progress_ns: u64,
    /// Payload of the copies, bytes.
    held_bytes: u64,
    /// First bytes of segments that the sender has sent again.
    resends: VecDeque<u64>,
    /// RTT of the links behind the agent.
    pub(super) rtt: RttEstimator,
}

impl ForwardedSegments {
    /// Knows of no segment. `initial_rto_us` is the timeout before the first RTT sample, µs.
    pub(super) fn new(initial_rto_us: u64) -> Self {
        ForwardedSegments { rtt: RttEstimator::new(initial_rto_us), ..ForwardedSegments::default() }
    }

    /// The highest cumulative acknowledgement.
    pub(super) fn una(&self) -> u64 {
        self.una
    }

    /// Payload of the copies, bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Notes a data segment from the sender. It is kept if there is room for it in a cache of
    /// `cache` bytes, and if it is new: of what the sender sends again, the sender needs to know
    /// the losses. Returns its index; `None` if it is acknowledged already.
    pub(super) fn add(&mut self, packet: &SimPacket, cache: u64) -> Option<usize> {
        let len = packet.len_or_window;
        let end = packet.seq + u64::from(len);
        let is_late = packet.seq < self.highest;
        if is_late {
            self.resends.push_back(packet.seq);
            if self.resends.len() > REMEMBERED_RESENDS {
                self.resends.pop_front();
            }
        }
        if end <= self.una {
            return None;
        }
        let index = self.segments.partition_point(|segment| segment.start < packet.seq);
        if self.segments.get(index).is_some_and(|segment| segment.start == packet.seq) {
            self.drop_copy(index);
            let segment = &mut self.segments[index];
            (segment.is_late, segment.was_resent) = (true, true);
            return Some(index);
        }
        let has_room = self.held_bytes + u64::from(len) <= cache;
        let copy = Some(*packet).filter(|_| !is_late && has_room);
        self.held_bytes += copy.map_or(0, |_| u64::from(len));
        let segment = ForwardedSegment {
            start: packet.seq,
            len,
            order: 0,
            sent_ns: 0,
            copy,
            has_arrived: false,
            was_resent: false,
            was_dropped: false,
            is_late,
        };
        self.segments.insert(index, segment);
        self.highest = self.highest.max(end);
        Some(index)
    }

    /// A segment was put on the link at `now` ns, or the queue of the link dropped it. What was
    /// dropped there is lost by congestion, and the agent leaves its repair to the sender.
    pub(super) fn sent(&mut self, index: usize, accepted: bool, now: u64) {
        if !accepted {
            self.drop_copy(index);
        }
        self.transmissions += 1;
        let segment = &mut self.segments[index];
        segment.was_dropped = !accepted;
        segment.order = self.transmissions;
        segment.sent_ns = now;
    }

    /// The copy of a segment that the agent sends again; it calls [`sent`](Self::sent) after that.
    pub(super) fn take_again(&mut self, index: usize) -> Option<SimPacket> {
        let segment = &mut self.segments[index];
        segment.was_resent = true;
        segment.copy
    }

    fn drop_copy(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        if segment.copy.take().is_some() {
            self.held_bytes -= u64::from(segment.len);
        }
    }

    /// Takes in an acknowledgement that is not older than the last one.
    pub(super) fn acknowledge(&mut self, ack: &SimPacket, now: u64) {
        let mut sample = None;
        while let Some(&segment) = self.segments.front().filter(|segment| segment.end() <= ack.seq) {
            if !segment.has_arrived {
                self.on_arrival(0, now, &mut sample);
            }
            self.segments.pop_front();
        }
        self.una = self.una.max(ack.seq);
        self.highest_arrived = self.highest_arrived.max(self.una);
        let duplicate = usize::from(ack.has_flag(DSACK));
        for (start, end) in ack.sack_blocks().skip(duplicate) {
            let from = self.segments.partition_point(|segment| segment.start < start);
            for index in from..self.segments.len() {
                let segment = self.segments[index];
                if segment.end() > end {
                    break;
                }
                if !segment.has_arrived {
                    self.on_arrival(index, now, &mut sample);
                }
            }
        }
        if let Some(rtt_us) = sample {
            self.rtt.sample_min(rtt_us, now / 1000);
            self.rtt.sample(rtt_us, self.una, self.highest);
        }
    }

    /// A segment has arrived. An RTT sample is that of the last one that was sent once (Karn).
    fn on_arrival(&mut self, index: usize, now: u64, sample: &mut Option<u32>) {
        self.drop_copy(index);
        self.progress_ns = now;
        let segment = &mut self.segments[index];
        segment.has_arrived = true;
        let since_us = ((now - segment.sent_ns) / 1000).max(1) as u32;
        // A transmission that was too short ago has not arrived: an earlier one has.
        if !segment.was_resent || since_us >= self.rtt.min_us() {
            self.latest_arrived = self.latest_arrived.max(segment.order);
        }
        if !segment.was_resent {
            *sample = Some(since_us);
        }
        self.highest_arrived = self.highest_arrived.max(segment.end());
    }

    /// The first segment from index `from` on that is lost behind the agent and that it holds.
    pub(super) fn next_lost(&self, from: usize) -> Option<usize> {
        let is_lost = |segment: &ForwardedSegment| segment.is_held() && segment.order < self.latest_arrived;
        (from..self.segments.len()).find(|index| is_lost(&self.segments[*index]))
    }

    /// The first segment that the agent holds and that has not arrived.
    pub(super) fn first_held(&self) -> Option<usize> {
        self.segments.iter().position(ForwardedSegment::is_held)
    }

    /// When the longest ago of these was sent, ns.
    pub(super) fn oldest_held_ns(&self) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.is_held()).map(|segment| segment.sent_ns).min()
    }

    /// The segment that begins where the cumulative acknowledgement ends, if it has passed the
    /// agent: whether it was on the link, and whether the agent holds it.
    pub(super) fn head(&self) -> Option<(bool, bool)> {
        let head = self.segments.front().filter(|segment| segment.start <= self.una)?;
        Some((!head.was_dropped, head.is_held()))
    }

    /// Transmissions after the last one of the first segment.
    pub(super) fn sent_after_head(&self) -> u64 {
        let head = self.segments.front().map_or(0, |head| head.order);
        self.segments.iter().filter(|segment| segment.order > head && !segment.has_arrived).count() as u64
    }

    /// The gaps below the highest segment that has arrived.
    pub(super) fn gaps(&self) -> Gaps {
        let mut gaps = Gaps::None;
        let mut expected = self.una;
        for segment in &self.segments {
            if expected >= self.highest_arrived {
                break;
            }
            if segment.start > expected || !(segment.has_arrived || segment.is_held()) {
                return Gaps::Foreign;
            }
            if !segment.has_arrived {
                gaps = Gaps::Held;
            }
            expected = segment.end();
        }
        gaps
    }

    /// Whether a segment is known to be lost behind the agent.
    pub(super) fn any_lost(&self) -> bool {
        self.segments.iter().any(|segment| !segment.has_arrived && !segment.was_dropped && segment.order < self.latest_arrived)
    }

    /// The byte before which every segment has been on the link behind the agent.
    pub(super) fn passed_to(&self) -> u64 {
        let mut passed = self.una;
        for segment in &self.segments {
            if segment.start > passed || (segment.was_dropped && !segment.has_arrived) {
                break;
            }
            passed = segment.end();
        }
        passed
    }

    /// Whether the sender has sent the segment that begins at `start` more than once.
    pub(super) fn was_resent_by_sender(&self, start: u64) -> bool {
        self.resends.contains(&start)
    }
}
