//! Delivery rate samples (net/ipv4/tcp_rate.c; draft-ietf-ccwg-bbr §4.1), for controllers that want
//! them. What they need of each segment is kept beside the scoreboard, so that other senders do not
//! pay for it.

use super::segment::SentSegment;
use control::Event;
use std::collections::VecDeque;

/// What was known when a segment was last sent (`tcp_skb_cb.tx`).
#[derive(Debug, Clone, Copy)]
struct SendRecord {
    /// Segments delivered by then.
    delivered: u64,
    /// When a segment had last been delivered, ns.
    delivered_ns: u64,
    /// When the segment was sent that was last delivered, ns.
    first_sent_ns: u64,
    /// There had been no data to send.
    pub(super) app_limited: bool,
    /// The segment was delivered, so it gives no further sample.
    is_counted: bool,
}

/// The segment that was sent last, of those that an acknowledgement reports as delivered
/// (`rate_sample`).
#[derive(Debug, Clone, Copy)]
struct NewestDelivered {
    record: SendRecord,
    sent_ns: u64,
    end: u64,
    len: u32,
}

/// The state of delivery rate sampling.
#[derive(Debug, Default)]
pub(super) struct RateSampler {
    /// One for each segment of the scoreboard.
    records: VecDeque<SendRecord>,
    /// When the segment was sent that was last delivered, or after idle time the next one, ns.
    first_sent_ns: u64,
    /// When a segment was last delivered, ns.
    delivered_ns: u64,
    /// The count of delivered segments beyond which no sample is limited by the application any
    /// more; 0: none is.
    pub(super) app_limited: u64,
    /// Of the acknowledgement that is being processed.
    newest: Option<NewestDelivered>,
    /// Segments in flight before it.
    pub(super) prior_in_flight: u32,
}

impl RateSampler {
    /// Segment `index` of the scoreboard is sent at `now` (tcp_rate_skb_sent). `delivered` segments
    /// have been delivered.
    pub(super) fn on_sent(&mut self, index: usize, now: u64, delivered: u64) {
        if self.records.is_empty() {
            self.first_sent_ns = now;
            self.delivered_ns = now;
        }
        let record = SendRecord {
            delivered,
            delivered_ns: self.delivered_ns,
            first_sent_ns: self.first_sent_ns,
            app_limited: self.app_limited > 0,
            is_counted: false,
        };
        match self.records.get_mut(index) {
            Some(former) => *former = record,
            None => self.records.push_back(record),
        }
    }

    /// A segment is delivered (tcp_rate_skb_delivered). The sample is of the segment that was sent
    /// last.
    fn on_delivered(&mut self, record: SendRecord, segment: &SentSegment) {
        if record.is_counted {
            return;
        }
        let is_newer = self.newest.is_none_or(|newest| {
            segment.sent_ns > self.first_sent_ns || (segment.sent_ns == self.first_sent_ns && segment.end() > newest.end)
        });
        if is_newer {
            self.newest = Some(NewestDelivered { record, sent_ns: segment.sent_ns, end: segment.end(), len: segment.len });
            self.first_sent_ns = segment.sent_ns;
        }
    }

    /// Segment `index` is selectively acknowledged.
    pub(super) fn on_sacked(&mut self, index: usize, segment: &SentSegment) {
        if let Some(record) = self.records.get(index).copied() {
            self.on_delivered(record, segment);
            self.records[index].is_counted = true;
        }
    }

    /// The first segment is acknowledged and leaves the scoreboard.
    pub(super) fn on_acked(&mut self, segment: &SentSegment) {
        if let Some(record) = self.records.pop_front() {
            self.on_delivered(record, segment);
        }
    }

    /// Whether samples are limited by the application.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited > 0
    }

    /// Whether there is a record for each of this number of segments.
    pub(super) fn is_consistent(&self, segments: usize) -> bool {
        self.records.len() == segments
    }

    /// Completes the sample of an acknowledgement, of which `event` has the segments that it
    /// delivered (tcp_rate_gen). `delivered` is their number so far; `mss` is that of a full
    /// segment.
    pub(super) fn complete(&mut self, event: &mut Event, delivered: u64, min_rtt_us: u32, mss: u32, now: u64) {
        if self.app_limited > 0 && delivered > self.app_limited {
            self.app_limited = 0;
        }
        if event.acked > 0 {
            self.delivered_ns = now;
        }
        event.prior_in_flight = self.prior_in_flight;
        let Some(newest) = self.newest.take() else { return };
        let record = newest.record;
        let between = |from: u64, to: u64| (to / 1000).saturating_sub(from / 1000);
        // The longer of the times in which the segments were sent and were acknowledged.
        let interval = between(record.first_sent_ns, newest.sent_ns).max(between(record.delivered_ns, now));
        event.sampled = (delivered - record.delivered) as u32;
        event.prior_delivered = record.delivered as u32;
        event.flags |= if record.app_limited { control::APP_LIMITED } else { 0 };
        if event.acked == 1 && event.sampled == 1 && newest.len < mss {
            event.flags |= control::LONE_RUNT;
        }
        // A segment that was retransmitted needlessly shows a time that is too short.
        if interval >= u64::from(min_rtt_us) {
            event.interval_us = interval.min(u32::MAX.into()) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;
    const MS: u64 = 1_000_000;

    fn segment(number: u64, sent_ns: u64) -> SentSegment {
        SentSegment { start: number * u64::from(MSS), sent_ns, len: MSS, flags: 0 }
    }

    /// Delivers segments at `now`; returns the event of the acknowledgement.
    fn acked(sampler: &mut RateSampler, segments: &[SentSegment], delivered: u64, now: u64) -> Event {
        for segment in segments {
            sampler.on_acked(segment);
        }
        let mut event = Event { acked: segments.len() as u32, ..Event::default() };
        sampler.complete(&mut event, delivered, 1, MSS, now);
        event
    }

    #[test]
    fn a_sample_takes_the_longer_of_sending_and_acknowledging() {
        let mut sampler = RateSampler::default();
        // Ten segments, one each millisecond, and their acknowledgements 50 ms later within 3 ms.
        let sent: Vec<SentSegment> = (0..10).map(|number| segment(number, number * MS)).collect();
        for (index, segment) in sent.iter().enumerate() {
            sampler.on_sent(index, segment.sent_ns, 0);
        }
        let first = acked(&mut sampler, &sent[..1], 1, 50 * MS);
        assert_eq!((first.sampled, first.interval_us, first.prior_delivered), (1, 50_000, 0));
        // Sent when nothing was delivered: the flight began at 0, as did the time of delivery.
        let rest = acked(&mut sampler, &sent[1..], 10, 53 * MS);
        assert_eq!((rest.sampled, rest.interval_us), (10, 53_000));
        // The next flight is sent over 20 ms, and acknowledged within 1 ms of the last one.
        sampler.on_sent(0, 60 * MS, 10);
        sampler.on_sent(1, 80 * MS, 10);
        let both = acked(&mut sampler, &[segment(10, 60 * MS), segment(11, 80 * MS)], 12, 81 * MS);
        assert_eq!((both.sampled, both.interval_us, both.prior_delivered), (2, 21_000, 10));
    }

    #[test]
    fn compressed_acknowledgements_show_the_rate_of_sending() {
        let mut sampler = RateSampler::default();
        sampler.on_sent(0, 0, 0);
        sampler.on_sent(1, 0, 0);
        acked(&mut sampler, &[segment(0, 0)], 1, 100 * MS);
        // Sent over 40 ms after that, and both acknowledged 1 ms after the last of them.
        sampler.on_sent(1, 100 * MS, 1);
        sampler.on_sent(2, 140 * MS, 1);
        acked(&mut sampler, &[segment(1, 0)], 2, 141 * MS);
        let event = acked(&mut sampler, &[segment(2, 100 * MS), segment(3, 140 * MS)], 4, 142 * MS);
        // From the segment that was delivered at 100 ms, which was sent at 0: 140 ms of sending.
        assert_eq!((event.sampled, event.interval_us), (3, 140_000));
    }

    #[test]
    fn a_sacked_segment_gives_one_sample() {
        let mut sampler = RateSampler::default();
        let sent = [segment(0, 0), segment(1, MS), segment(2, 2 * MS)];
        for (index, segment) in sent.iter().enumerate() {
            sampler.on_sent(index, segment.sent_ns, 0);
        }
        sampler.on_sacked(2, &sent[2]);
        let mut event = Event { acked: 1, ..Event::default() };
        sampler.complete(&mut event, 1, 1, MSS, 30 * MS);
        assert_eq!((event.sampled, event.interval_us), (1, 30_000));
        // The acknowledgement of all three has samples of the first two only.
        let all = acked(&mut sampler, &sent, 3, 40 * MS);
        assert_eq!((all.sampled, all.prior_delivered), (3, 0));
        assert_eq!(acked(&mut sampler, &[], 3, 41 * MS).sampled, 0);
    }

    #[test]
    fn an_interval_below_the_least_rtt_is_no_sample() {
        let mut sampler = RateSampler::default();
        sampler.on_sent(0, 0, 0);
        sampler.on_acked(&segment(0, 0));
        let mut event = Event { acked: 1, ..Event::default() };
        sampler.complete(&mut event, 1, 50_000, MSS, 20 * MS);
        assert_eq!((event.sampled, event.interval_us), (1, 0));
    }

    #[test]
    fn samples_are_limited_until_the_gap_has_been_acknowledged() {
        let mut sampler = RateSampler { app_limited: 2, ..RateSampler::default() };
        sampler.on_sent(0, 0, 0);
        sampler.on_sent(1, 0, 0);
        sampler.on_sent(2, 0, 0);
        let limited = |event: Event| event.flags & control::APP_LIMITED != 0;
        assert!(limited(acked(&mut sampler, &[segment(0, 0)], 1, 10 * MS)));
        sampler.on_sent(2, 10 * MS, 1);
        assert!(limited(acked(&mut sampler, &[segment(1, 0), segment(2, 0)], 3, 20 * MS)) && !sampler.is_app_limited());
        sampler.on_sent(1, 20 * MS, 3);
        assert!(limited(acked(&mut sampler, &[segment(3, 10 * MS)], 4, 30 * MS)));
        assert!(!limited(acked(&mut sampler, &[segment(4, 20 * MS)], 5, 40 * MS)));
    }
}
