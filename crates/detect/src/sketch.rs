//! Bottom-k sketches (Broder 1997): of all items of a stream, the k smallest hashes. Two sketches
//! of the same items are equal, and the overlap of two sketches estimates the overlap of the items.

use std::collections::BTreeMap;

/// Number of hashes kept (k).
const KEPT: usize = 32;

/// The smallest hashes, each with an attribute: a position in the stream, or a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sketch {
    /// Sorted by hash, without duplicates.
    kept: Vec<(u64, i64)>,
}

/// How many of the items compared are equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Overlap {
    pub(crate) same: usize,
    pub(crate) of: usize,
}

impl Overlap {
    pub(crate) fn share(self) -> f64 {
        self.same as f64 / self.of.max(1) as f64
    }
}

impl Sketch {
    /// Hashes from this value on are not kept.
    fn bound(&self) -> u64 {
        if self.kept.len() < KEPT { u64::MAX } else { self.kept[KEPT - 1].0 }
    }

    pub(crate) fn note(&mut self, hash: u64, with: i64) {
        if hash >= self.bound() {
            return;
        }
        // A repeated item keeps its first attribute.
        if let Err(place) = self.find(hash) {
            if self.kept.len() == KEPT {
                self.kept.pop();
            }
            self.kept.insert(place, (hash, with));
        }
    }

    fn find(&self, hash: u64) -> Result<usize, usize> {
        self.kept.binary_search_by_key(&hash, |(kept, _)| *kept)
    }

    pub(crate) fn hashes(&self) -> impl Iterator<Item = (u64, i64)> + '_ {
        self.kept.iter().copied()
    }

    /// How many items of `self` are also in `whole`, as far as both sketches can tell.
    pub(crate) fn within(&self, whole: &Sketch) -> Overlap {
        // A full sketch says nothing about hashes above its largest one.
        let bound = whole.bound();
        let told = self.kept.iter().filter(|(hash, _)| *hash <= bound);
        let (mut same, mut of) = (0, 0);
        for (hash, _) in told {
            of += 1;
            same += usize::from(whole.find(*hash).is_ok());
        }
        Overlap { same, of }
    }

    /// How many of the shared items have the same attribute, where both attributes are set.
    pub(crate) fn agreed(&self, other: &Sketch) -> Overlap {
        let with = |(hash, here): &(u64, i64)| other.find(*hash).ok().map(|place| (*here, other.kept[place].1));
        let both = self.kept.iter().filter_map(with).filter(|(here, there)| *here != 0 && *there != 0);
        both.fold(Overlap { same: 0, of: 0 }, |sum, (here, there)| Overlap { same: sum.same + usize::from(here == there), of: sum.of + 1 })
    }

    /// The difference between the positions of shared items that most of them agree on, and how
    /// many do: position in `other` + difference = position in `self`.
    pub(crate) fn shift(&self, other: &Sketch) -> Option<(i64, usize)> {
        let mut votes: BTreeMap<i64, usize> = BTreeMap::new();
        for (hash, place) in &self.kept {
            if let Ok(there) = other.find(*hash) {
                *votes.entry(place.wrapping_sub(other.kept[there].1)).or_default() += 1;
            }
        }
        votes.into_iter().max_by_key(|(shift, count)| (*count, std::cmp::Reverse(shift.unsigned_abs())))
    }
}

/// Hashes a number to 64 bits (the finaliser of SplitMix64).
pub(crate) fn spread(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A random number for each byte value.
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        // The sequence of SplitMix64, as in `spread`.
        let mut x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[index] = x ^ (x >> 31);
        index += 1;
    }
    table
};

/// Width of the rolling gear hash, bytes.
const WINDOW: usize = 64;

/// Adds every window of 64 bytes in `payload`, which begins at position `place`, to the sketch.
/// Equal content gives equal hashes, however it is segmented. Linear, about 1 ns per byte.
pub(crate) fn note_content(sketch: &mut Sketch, payload: &[u8], place: i64) {
    let mut hash = 0u64;
    let mut bound = sketch.bound();
    let head = payload.len().min(WINDOW - 1);
    for byte in &payload[..head] {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
    }
    for (index, byte) in payload[head..].iter().enumerate() {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if hash < bound {
            sketch.note(hash, place.saturating_add((index + head) as i64));
            bound = sketch.bound();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(seed: u64, length: usize) -> Vec<u8> {
        (0..length as u64).map(|index| spread(seed ^ (index << 8)) as u8).collect()
    }

    fn cut(content: &[u8], size: usize, from: i64) -> Sketch {
        let mut sketch = Sketch::default();
        for (index, piece) in content.chunks(size).enumerate() {
            note_content(&mut sketch, piece, from + (index * size) as i64);
        }
        sketch
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn equal_content_is_found_however_it_is_segmented(seed: u64, size in 500usize..3000, from in -5000i64..5000) {
            let content = bytes(seed, 100_000);
            let (whole, pieces) = (cut(&content, 64_000, 0), cut(&content, size, from));
            prop_assert!(pieces.within(&whole).share() > 0.6, "{:?}", pieces.within(&whole));
            let (shift, votes) = whole.shift(&pieces).unwrap();
            prop_assert_eq!(shift, -from);
            prop_assert!(votes > 12);
        }

        #[test]
        fn different_content_does_not_overlap(seed: u64) {
            let (one, two) = (cut(&bytes(seed, 50_000), 1448, 0), cut(&bytes(seed ^ 1, 50_000), 1448, 0));
            prop_assert_eq!(one.within(&two).same, 0);
        }
    }

    #[test]
    fn a_part_is_within_the_whole_and_not_the_other_way_round() {
        let (mut whole, mut part) = (Sketch::default(), Sketch::default());
        for thing in 0..1000 {
            whole.note(spread(thing), 0);
            if thing % 2 == 0 {
                part.note(spread(thing), 0);
            }
        }
        assert_eq!(part.within(&whole).share(), 1.0);
        assert!((0.2..0.8).contains(&whole.within(&part).share()));
    }
}
