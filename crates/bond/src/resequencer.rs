//! Puts the bytes of a stream back in order, by offset alone.

use crate::{error::ProtocolViolation, ranges::Ranges};

/// Which bytes of a stream have been received. Ranges may arrive in any order and more than once.
///
/// It knows offsets only; the bytes are the caller's. `next_offset` never decreases.
#[derive(Debug, Clone)]
pub struct Resequencer {
    /// All bytes below have been received.
    next: u64,
    /// What has been received beyond the first gap.
    out_of_order: Ranges,
    max_out_of_order_bytes: u64,
    /// More ranges than this are not tracked.
    max_ranges: usize,
}

impl Resequencer {
    /// Nothing is received yet. At most `max_ranges` ranges may wait behind gaps.
    pub fn new(max_ranges: usize) -> Self {
        Resequencer { next: 0, out_of_order: Ranges::default(), max_out_of_order_bytes: 0, max_ranges }
    }

    /// Records `len` bytes at `offset` as received; returns how many of them are new.
    ///
    /// # Errors
    /// [`OffsetOverflow`](ProtocolViolation::OffsetOverflow) when the range ends beyond 64 bits,
    /// [`TooManyGaps`](ProtocolViolation::TooManyGaps) when more ranges wait than are tracked.
    pub fn insert(&mut self, offset: u64, len: u64) -> Result<u64, ProtocolViolation> {
        let end = offset.checked_add(len).ok_or(ProtocolViolation::OffsetOverflow { offset })?;
        let start = offset.max(self.next);
        if start >= end {
            return Ok(0);
        }
        if start > self.next {
            return self.insert_out_of_order(start, end);
        }
        if self.out_of_order.is_empty() {
            // Fast path: in order, and nothing waits.
            self.next = end;
            return Ok(end - start);
        }
        let new = self.out_of_order.insert(start, end);
        self.next = self.out_of_order.first().map_or(end, |first| first.1);
        self.out_of_order.remove_below(self.next);
        Ok(new)
    }

    fn insert_out_of_order(&mut self, start: u64, end: u64) -> Result<u64, ProtocolViolation> {
        let new = self.out_of_order.insert(start, end);
        self.max_out_of_order_bytes = self.max_out_of_order_bytes.max(self.out_of_order.bytes());
        if self.out_of_order.len() > self.max_ranges {
            return Err(ProtocolViolation::TooManyGaps { max: self.max_ranges });
        }
        Ok(new)
    }

    /// Splits off the uniform prefix of a range: how many of the `len` bytes from `offset` on are
    /// all new or all received already, and whether they are new. The count is 0 only if `len` is.
    pub fn uniform_prefix(&self, offset: u64, len: u64) -> (u64, bool) {
        if offset < self.next {
            return (len.min(self.next - offset), false);
        }
        match self.out_of_order.at_or_after(offset) {
            Some((start, end)) if start <= offset => (len.min(end - offset), false),
            Some((start, _)) => (len.min(start - offset), true),
            None => (len, true),
        }
    }

    /// Offset of the first byte that is missing: all bytes below have been received.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Offset behind the last byte received, in order or not.
    pub fn highest_offset(&self) -> u64 {
        self.out_of_order.last().map_or(self.next, |last| last.1)
    }

    /// Bytes that wait behind a gap.
    pub fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.bytes()
    }

    /// The most bytes that ever waited behind a gap.
    pub fn max_out_of_order_bytes(&self) -> u64 {
        self.max_out_of_order_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The next offset, the bytes that wait, and the most that ever waited.
    fn state(resequencer: &Resequencer) -> (u64, u64, u64) {
        (resequencer.next_offset(), resequencer.out_of_order_bytes(), resequencer.max_out_of_order_bytes())
    }

    #[test]
    fn out_of_order_ranges_wait_and_duplicates_count_once() {
        let mut resequencer = Resequencer::new(10);
        assert_eq!(resequencer.insert(1000, 500), Ok(500));
        assert_eq!(state(&resequencer), (0, 500, 500));
        assert_eq!(resequencer.uniform_prefix(900, 1000), (100, true));
        assert_eq!(resequencer.uniform_prefix(1000, 1000), (500, false));
        assert_eq!(resequencer.insert(0, 400), Ok(400));
        assert_eq!(resequencer.insert(300, 900), Ok(600));
        assert_eq!(state(&resequencer), (1500, 0, 500));
        assert_eq!(resequencer.insert(0, 1500), Ok(0));
        assert_eq!(resequencer.uniform_prefix(0, 2000), (1500, false));
        assert_eq!(resequencer.uniform_prefix(1500, 20), (20, true));
    }

    #[test]
    fn impossible_ranges_and_too_many_gaps_are_refused() {
        let mut resequencer = Resequencer::new(2);
        assert_eq!(resequencer.insert(u64::MAX - 1, 3), Err(ProtocolViolation::OffsetOverflow { offset: u64::MAX - 1 }));
        assert_eq!(resequencer.insert(10, 1).and(resequencer.insert(20, 1)), Ok(1));
        assert_eq!(resequencer.insert(30, 1), Err(ProtocolViolation::TooManyGaps { max: 2 }));
    }

    proptest! {
        #[test]
        fn it_behaves_as_a_set_of_bytes(ranges in prop::collection::vec((0u64..300, 0u64..60), 1..50)) {
            let (mut resequencer, mut received) = (Resequencer::new(usize::MAX), [false; 400]);
            for (offset, len) in ranges {
                let range = offset as usize..(offset + len) as usize;
                let (same, fresh) = resequencer.uniform_prefix(offset, len);
                prop_assert!(same <= len && (same > 0) == (len > 0));
                prop_assert!(received[range.clone()].iter().take(same as usize).all(|received| *received != fresh));
                if same < len {
                    prop_assert_eq!(received[(offset + same) as usize], fresh);
                }
                let new = received[range.clone()].iter().filter(|received| !**received).count();
                prop_assert_eq!(resequencer.insert(offset, len), Ok(new as u64));
                received[range].fill(true);
                let next = received.iter().position(|received| !received).unwrap();
                prop_assert_eq!(resequencer.next_offset(), next as u64);
                prop_assert_eq!(resequencer.highest_offset(), received.iter().rposition(|received| *received).map_or(0, |last| last as u64 + 1));
                prop_assert_eq!(resequencer.out_of_order_bytes(), received[next..].iter().filter(|received| **received).count() as u64);
            }
        }
    }
}
