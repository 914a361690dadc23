//! Recognises a packet that a capture has more than once because it passed several places of
//! capture: on a tunnel's interface and, encapsulated, on the interface below it; or on both
//! interfaces of a router. Such a copy is no retransmission.

use crate::packet::TcpSegment;

/// Number of segments that are remembered for each direction. Copies follow within a batch of the
/// receiving interface (Linux: 64 packets) or of what the stack merges.
const REMEMBERED: usize = 128;

/// What identifies a segment.
#[derive(Debug, Clone, Copy)]
struct SegmentIdentity {
    point: u64,
    seq: u32,
    ack: u32,
    length: u32,
    /// TSval and TSecr.
    stamps: Option<(u32, u32)>,
    ip_id: u16,
    window: u16,
    flags: u8,
}

impl SegmentIdentity {
    fn of(segment: &TcpSegment<'_>, stamps: Option<(u32, u32)>) -> Self {
        let TcpSegment { point, seq, ack, length, window, flags, .. } = *segment;
        SegmentIdentity { point, seq, ack, length, stamps, ip_id: segment.ip_id.unwrap_or(0), window, flags }
    }

    /// Whether `later` is this segment, captured at another place.
    fn is_copied_by(&self, later: &SegmentIdentity) -> bool {
        if self.point == later.point || self.stamps.map(|stamps| stamps.0) != later.stamps.map(|stamps| stamps.0) {
            return false;
        }
        if self.length == later.length {
            return (self.seq, self.ack, self.stamps, self.ip_id, self.window, self.flags)
                == (later.seq, later.ack, later.stamps, later.ip_id, later.window, later.flags);
        }
        // One place has segments that the host's stack merged (GRO) or did not divide yet (TSO).
        let (ahead, behind) = (later.seq.wrapping_sub(self.seq), self.seq.wrapping_sub(later.seq));
        self.length > 0 && later.length > 0 && (ahead < self.length || behind < later.length)
    }
}

/// The latest segments of one direction.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentSegments {
    last: Option<SegmentIdentity>,
    /// Kept once two places of capture are known.
    ring: Option<Box<RecentRing>>,
}

#[derive(Debug, Clone)]
struct RecentRing {
    kept: Vec<SegmentIdentity>,
    next: usize,
}

impl RecentSegments {
    /// Whether the segment is a copy of one that was noted at another place. Otherwise notes it.
    pub(crate) fn is_copy(&mut self, segment: &TcpSegment<'_>, stamps: Option<(u32, u32)>) -> bool {
        let now = SegmentIdentity::of(segment, stamps);
        // Fast path: all of this direction was captured at one place.
        let elsewhere = self.last.filter(|last| last.point != now.point);
        if elsewhere.is_none() && self.ring.is_none() {
            self.last = Some(now);
            return false;
        }
        let before = self.last;
        let ring = self.ring.get_or_insert_with(|| Box::new(RecentRing { kept: before.into_iter().collect(), next: 0 }));
        if ring.kept.iter().any(|kept| kept.is_copied_by(&now)) {
            return true;
        }
        self.last = Some(now);
        ring.note(now);
        false
    }
}

impl RecentRing {
    fn note(&mut self, segment: SegmentIdentity) {
        if self.kept.len() < REMEMBERED {
            self.kept.push(segment);
        } else {
            self.kept[self.next] = segment;
            self.next = (self.next + 1) % REMEMBERED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(seq: u32, length: u32, ip_id: u16, point: u64) -> TcpSegment<'static> {
        let (from, to) = (([10, 0, 0, 1], 1000).into(), ([10, 0, 0, 2], 80).into());
        let (ttl, ack, flags, window) = (64, 1, 16, 500);
        TcpSegment { from, to, ttl, ip_id: Some(ip_id), seq, ack, flags, window, options: &[], length, payload: &[], network: 0, point }
    }

    #[test]
    fn a_copy_comes_from_another_place() {
        let mut recent = RecentSegments::default();
        let mut is_copy = |seq, length, id, point| recent.is_copy(&segment(seq, length, id, point), Some((7, 8)));
        assert!(!is_copy(1, 100, 1, 0) && !is_copy(101, 100, 2, 0), "the first place");
        assert!(is_copy(101, 100, 2, 9) && !is_copy(101, 100, 2, 0), "the same place twice is a retransmission");
        assert!(!is_copy(101, 100, 3, 9), "another IP ID: sent again");
        assert!(!is_copy(201, 0, 4, 0) && is_copy(201, 0, 4, 9), "a pure ACK");
    }

    #[test]
    fn merged_segments_are_copies_too() {
        let mut recent = RecentSegments::default();
        let mut is_copy = |seq, length, id, point| recent.is_copy(&segment(seq, length, id, point), None);
        assert!(!is_copy(u32::MAX - 49, 100, 1, 0));
        assert!(is_copy(u32::MAX - 49, 50, 1, 9) && is_copy(0, 50, 2, 9));
        assert!(!is_copy(50, 100, 3, 9) && !is_copy(150, 100, 4, 9) && is_copy(50, 200, 3, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = RecentSegments::default();
        for number in 0..1000 {
            assert!(!recent.is_copy(&segment(number * 100, 100, number as u16, u64::from(number % 2)), None));
        }
        assert_eq!(recent.ring.unwrap().kept.len(), REMEMBERED);
    }
}
