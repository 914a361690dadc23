//! Parts of a stream: disjoint ranges of offsets, in order, none touching the next.

use std::collections::VecDeque;

/// Ranges of offsets, from the first byte to behind the last. Nearly always there are few, and what changes is at an end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    list: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Ranges {
    /// Takes a range in, whatever of it is there already; how many bytes are new.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        // The ranges that it overlaps or touches become one.
        let first = self.list.partition_point(|range| range.1 < start);
        let behind = first + self.list.range(first..).take_while(|range| range.0 <= end).count();
        let (mut merged, mut had) = ((start, end), 0);
        for &(from, to) in self.list.range(first..behind) {
            merged = (merged.0.min(from), merged.1.max(to));
            had += to - from;
        }
        if first == behind {
            self.list.insert(first, merged);
        } else {
            self.list[first] = merged;
            self.list.drain(first + 1..behind);
        }
        let new = merged.1 - merged.0 - had;
        self.bytes += new;
        new
    }

    /// Lets go of all below an offset.
    pub(crate) fn trim(&mut self, below: u64) {
        while let Some(first) = self.list.front_mut() {
            let gone = below.min(first.1).saturating_sub(first.0);
            self.bytes -= gone;
            first.0 += gone;
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

    /// The first range that ends behind an offset.
    pub(crate) fn from(&self, offset: u64) -> Option<(u64, u64)> {
        self.list.get(self.list.partition_point(|range| range.1 <= offset)).copied()
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many ranges.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64, u64),
        Trim(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..200, 0u64..40).prop_map(|(start, len)| Step::Insert(start, start + len)),
            1 => (0u64..200).prop_map(Step::Trim),
        ]
    }

    proptest! {
        #[test]
        fn they_are_the_set_of_their_bytes(steps in prop::collection::vec(step(), 1..60)) {
            let (mut ranges, mut set) = (Ranges::default(), std::collections::BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(start, end) => {
                        let new = (start..end).filter(|byte| set.insert(*byte)).count();
                        prop_assert_eq!(ranges.insert(start, end), new as u64);
                    }
                    Step::Trim(below) => {
                        set.retain(|byte| *byte >= below);
                        ranges.trim(below);
                    }
                }
                prop_assert_eq!(ranges.bytes(), set.len() as u64);
                prop_assert_eq!(ranges.first().map(|range| range.0), set.first().copied());
                prop_assert!(ranges.list.iter().all(|range| range.0 < range.1 && (range.0..range.1).all(|byte| set.contains(&byte))));
                prop_assert!(ranges.list.iter().zip(ranges.list.iter().skip(1)).all(|(one, next)| one.1 < next.0));
                for offset in [0, 50, 100, 199] {
                    let right = ranges.list.iter().find(|range| range.1 > offset).copied();
                    prop_assert_eq!(ranges.from(offset), right);
                }
            }
        }
    }
}
