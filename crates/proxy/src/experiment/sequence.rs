//! The bytes of one direction of a followed connection: which were seen passing, and which the
//! other end has acknowledged.

use std::collections::BTreeMap;

/// A packet whose sequence number is farther than this from what has passed belongs to no window
/// that TCP can have in practice. Its receiver drops it, and so does the experiment.
const WINDOW: i64 = 64 << 20;

/// What an acknowledgement covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    /// More payload than before: bytes.
    More(u64),
    /// Nothing that was not acknowledged before.
    Nothing,
    /// Something of which no packet has passed here.
    NeverSent,
}

/// The bytes of one direction, counted from 0 after the SYN.
#[derive(Debug, Clone)]
pub(super) struct SentBytes {
    /// The sequence number of byte 0.
    start: u32,
    /// All bytes before this one have passed.
    passed: u64,
    /// Bytes that have passed beyond a hole: end by beginning.
    beyond: BTreeMap<u64, u64>,
    /// The end of the payload, where the FIN is.
    fin: Option<u64>,
    acknowledged: u64,
    is_fin_acknowledged: bool,
}

impl SentBytes {
    /// After a SYN with this sequence number.
    pub(super) fn after_syn(seq: u32) -> Self {
        let start = seq.wrapping_add(1);
        SentBytes { start, passed: 0, beyond: BTreeMap::new(), fin: None, acknowledged: 0, is_fin_acknowledged: false }
    }

    /// Whether it began with this SYN.
    pub(super) fn is_after_syn(&self, seq: u32) -> bool {
        self.start == seq.wrapping_add(1)
    }

    /// The byte at this sequence number: the one that is the closest to what has passed.
    fn position(&self, seq: u32) -> i64 {
        let passed = self.start.wrapping_add(self.passed as u32);
        self.passed as i64 + i64::from(seq.wrapping_sub(passed) as i32)
    }

    /// Whether a receiver may take a packet with this sequence number.
    pub(super) fn is_plausible(&self, seq: u32) -> bool {
        (self.position(seq) - self.passed as i64).abs() <= WINDOW
    }

    /// Payload has passed. Returns whether some of it is beyond all that has passed before.
    pub(super) fn pass(&mut self, seq: u32, payload: u32) -> bool {
        let begin = self.position(seq);
        let end = begin + i64::from(payload);
        let most = self.beyond.last_key_value().map_or(self.passed, |(_, end)| *end);
        if payload == 0 || end <= self.passed as i64 {
            return false;
        }
        let (mut begin, mut end) = (begin.max(self.passed as i64) as u64, end as u64);
        let is_more = end > most;
        // Joined with those that it touches.
        while let Some((&other, &other_end)) = self.beyond.range(..=end).next_back().filter(|(_, other_end)| **other_end >= begin) {
            self.beyond.remove(&other);
            (begin, end) = (begin.min(other), end.max(other_end));
        }
        if begin <= self.passed {
            self.passed = end;
        } else {
            self.beyond.insert(begin, end);
        }
        is_more
    }

    /// The FIN has passed, after the payload of a packet.
    pub(super) fn pass_fin(&mut self, seq: u32, payload: u32) {
        self.fin = u64::try_from(self.position(seq.wrapping_add(payload))).ok();
    }

    /// Whether a FIN has passed.
    pub(super) fn has_fin(&self) -> bool {
        self.fin.is_some()
    }

    /// Takes an acknowledgement number of the other end.
    pub(super) fn acknowledge(&mut self, ack: u32) -> Acknowledgement {
        let Ok(ack) = u64::try_from(self.position(ack)) else { return Acknowledgement::NeverSent };
        // The FIN has a sequence number, but is no payload.
        let with_fin = self.fin.filter(|fin| *fin == self.passed).map_or(self.passed, |fin| fin + 1);
        if ack > with_fin {
            return Acknowledgement::NeverSent;
        }
        self.is_fin_acknowledged |= ack > self.passed;
        let payload = ack.min(self.passed);
        if payload <= self.acknowledged {
            return Acknowledgement::Nothing;
        }
        let more = payload - self.acknowledged;
        self.acknowledged = payload;
        Acknowledgement::More(more)
    }

    /// Payload that has passed and is acknowledged, bytes.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether the FIN is acknowledged.
    pub(super) fn is_fin_acknowledged(&self) -> bool {
        self.is_fin_acknowledged
    }

    /// The number of pieces beyond holes, which take memory.
    pub(super) fn pieces(&self) -> usize {
        self.beyond.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const ISN: u32 = u32::MAX - 20;

    fn seq(position: u32) -> u32 {
        ISN.wrapping_add(1).wrapping_add(position)
    }

    #[test]
    fn only_bytes_that_have_passed_can_be_acknowledged() {
        let mut sent = SentBytes::after_syn(ISN);
        assert!(sent.is_after_syn(ISN));
        assert_eq!(sent.acknowledge(seq(0)), Acknowledgement::Nothing);
        assert_eq!(sent.acknowledge(seq(1)), Acknowledgement::NeverSent);
        assert_eq!(sent.acknowledge(ISN), Acknowledgement::NeverSent, "before the SYN");
        assert!(sent.pass(seq(0), 100));
        assert!(!sent.pass(seq(0), 100), "a retransmission");
        assert!(sent.pass(seq(200), 100), "beyond a hole");
        assert!(!sent.pass(seq(250), 20));
        assert_eq!(sent.acknowledge(seq(60)), Acknowledgement::More(60));
        assert_eq!(sent.acknowledge(seq(150)), Acknowledgement::NeverSent, "the hole");
        assert!(!sent.pass(seq(100), 100));
        assert_eq!(sent.acknowledge(seq(300)), Acknowledgement::More(240));
        assert_eq!((sent.acknowledged(), sent.pieces()), (300, 0));
        sent.pass_fin(seq(300), 0);
        assert!(sent.has_fin() && !sent.is_fin_acknowledged());
        assert_eq!(sent.acknowledge(seq(302)), Acknowledgement::NeverSent);
        assert_eq!(sent.acknowledge(seq(301)), Acknowledgement::Nothing);
        assert!(sent.is_fin_acknowledged());
        assert_eq!(sent.acknowledged(), 300);
    }

    #[test]
    fn sequence_numbers_far_from_what_has_passed_are_not_plausible() {
        let mut sent = SentBytes::after_syn(ISN);
        assert!(sent.is_plausible(seq(0)) && sent.is_plausible(seq(0).wrapping_sub(1)), "a keep-alive");
        assert!(sent.is_plausible(seq(1 << 26)) && !sent.is_plausible(seq((1 << 26) + 1)));
        // More than 4 GiB are counted.
        for piece in 0..100u32 {
            sent.pass(seq(piece.wrapping_mul(60 << 20)), 60 << 20);
            sent.acknowledge(seq((piece + 1).wrapping_mul(60 << 20)));
        }
        assert_eq!(sent.acknowledged(), 100 * (60 << 20));
    }

    proptest! {
        /// Whatever packets pass in whatever order, what counts is what an acknowledgement covers
        /// without a hole.
        #[test]
        fn acknowledged_bytes_have_all_passed(packets in prop::collection::vec((0..200u32, 0..30u32, any::<bool>()), 0..60)) {
            let (mut sent, mut passed) = (SentBytes::after_syn(ISN), BTreeSet::new());
            for (at, length, is_acknowledgement) in packets {
                if is_acknowledgement {
                    let all = (0..at).all(|byte| passed.contains(&byte));
                    prop_assert_eq!(sent.acknowledge(seq(at)) == Acknowledgement::NeverSent, !all);
                } else {
                    let is_more = length > 0 && passed.last().is_none_or(|last| at + length > last + 1);
                    prop_assert_eq!(sent.pass(seq(at), length), is_more);
                    passed.extend(at..at + length);
                }
                prop_assert!((0..sent.acknowledged() as u32).all(|byte| passed.contains(&byte)));
            }
        }
    }
}
