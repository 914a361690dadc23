//! A set of stream offsets, as sorted disjoint ranges that do not touch.

use std::collections::VecDeque;

/// A set of offsets as half-open ranges `(start, end)`. There are usually few, and most changes are
/// at either end, hence the deque.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    list: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Ranges {
    /// Adds a range, which may overlap others; returns how many offsets are new.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        // Merge it with the ranges that it overlaps or touches.
        let first = self.list.partition_point(|range| range.1 < start);
        let last = first + self.list.range(first..).take_while(|range| range.0 <= end).count();
        let mut merged = (start, end);
        let mut present = 0;
        for &(from, to) in self.list.range(first..last) {
            merged = (merged.0.min(from), merged.1.max(to));
            present += to - from;
        }
        if first == last {
            self.list.insert(first, merged);
        } else {
            self.list[first] = merged;
            self.list.drain(first + 1..last);
        }
        let new = merged.1 - merged.0 - present;
        self.bytes += new;
        new
    }

    /// Removes all offsets below `below`.
    pub(crate) fn remove_below(&mut self, below: u64) {
        while let Some(first) = self.list.front_mut() {
            let removed = below.min(first.1).saturating_sub(first.0);
            self.bytes -= removed;
            first.0 += removed;
            if first.0 < first.1 {
                return;
            }
            self.list.pop_front();
        }
    }

    /// The first range.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.list.front().copied()
    }

    /// The last range.
    pub(crate) fn last(&self) -> Option<(u64, u64)> {
        self.list.back().copied()
    }

    /// The first range that ends behind `offset`: the one that holds it, or else the next one.
    pub(crate) fn at_or_after(&self, offset: u64) -> Option<(u64, u64)> {
        self.list.get(self.list.partition_point(|range| range.1 <= offset)).copied()
    }

    /// How many offsets, that is bytes, the set holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many ranges.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u64, u64),
        RemoveBelow(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u64..200, 0u64..40).prop_map(|(start, len)| Op::Insert(start, start + len)),
            1 => (0u64..200).prop_map(Op::RemoveBelow),
        ]
    }

    proptest! {
        #[test]
        fn ranges_behave_as_a_set_of_offsets(ops in prop::collection::vec(op(), 1..60)) {
            let (mut ranges, mut set) = (Ranges::default(), std::collections::BTreeSet::new());
            for op in ops {
                match op {
                    Op::Insert(start, end) => {
                        let new = (start..end).filter(|byte| set.insert(*byte)).count();
                        prop_assert_eq!(ranges.insert(start, end), new as u64);
                    }
                    Op::RemoveBelow(below) => {
                        set.retain(|byte| *byte >= below);
                        ranges.remove_below(below);
                    }
                }
                prop_assert_eq!(ranges.bytes(), set.len() as u64);
                prop_assert_eq!(ranges.first().map(|range| range.0), set.first().copied());
                prop_assert!(ranges.list.iter().all(|range| range.0 < range.1 && (range.0..range.1).all(|byte| set.contains(&byte))));
                prop_assert!(ranges.list.iter().zip(ranges.list.iter().skip(1)).all(|(one, next)| one.1 < next.0));
                for offset in [0, 50, 100, 199] {
                    let expected = ranges.list.iter().find(|range| range.1 > offset).copied();
                    prop_assert_eq!(ranges.at_or_after(offset), expected);
                }
            }
        }
    }
}
