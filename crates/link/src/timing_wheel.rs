//! A timing wheel: packets by due time, in slots that each stand for a short span of time and hold
//! rarely more than one packet. A binary heap needs about a dozen dependent comparisons for each
//! operation; the wheel needs two bitmap lookups.

/// Number of slots. A bitmap of 64 words of 64 bits marks the slots in use, and one word marks the
/// words in use.
const SLOTS: u64 = 64 * 64;
/// A slot spans 2¹² ns at first. The span doubles whenever a packet is due beyond the wheel.
const INITIAL_SHIFT: u32 = 12;
/// The end of a list of entries.
const NONE: u32 = u32::MAX;

/// Due time in ns, and a number: of two packets that are due at the same time, the one with the
/// lower number is first.
pub(crate) type DueKey = (u64, u64);

/// A priority queue of packets by [`DueKey`]. A packet that is due before the last one that was
/// removed counts as due at that time.
#[derive(Debug)]
pub(crate) struct TimingWheel<P> {
    /// The entries in use and the free ones; lists refer to them by index.
    entries: Vec<WheelEntry<P>>,
    /// Head of the list of free entries.
    free: u32,
    len: usize,
    /// Head of each slot's list. Empty until the first packet arrives.
    slots: Vec<u32>,
    /// The slots in use, 64 to a word.
    used_slots: [u64; 64],
    /// The words of `used_slots` that are not zero.
    used_words: u64,
    /// A slot spans 2^`shift` ns.
    shift: u32,
    /// Due time of the first slot that may be in use, in units of a slot's span.
    begin: u64,
    /// The entry that is due first.
    next: Option<(DueKey, u32)>,
}

#[derive(Debug)]
struct WheelEntry<P> {
    key: DueKey,
    /// The next entry in its slot, or the next free entry.
    next: u32,
    packet: Option<P>,
}

impl<P> TimingWheel<P> {
    /// An empty wheel.
    pub(crate) fn new() -> Self {
        TimingWheel {
            entries: Vec::new(),
            free: NONE,
            len: 0,
            slots: Vec::new(),
            used_slots: [0; 64],
            used_words: 0,
            shift: INITIAL_SHIFT,
            begin: 0,
            next: None,
        }
    }

    /// Number of packets.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no packet.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key of the packet that is due first.
    #[inline]
    pub(crate) fn first(&self) -> Option<DueKey> {
        self.next.map(|(key, _)| key)
    }

    /// Inserts a packet.
    pub(crate) fn push(&mut self, key: DueKey, packet: P) {
        let entry = WheelEntry { key, next: NONE, packet: Some(packet) };
        let index = match self.free {
            NONE => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            index => {
                self.free = self.entries[index as usize].next;
                self.entries[index as usize] = entry;
                index
            }
        };
        if self.len == 0 {
            self.begin = key.0 >> self.shift;
            self.slots.resize(SLOTS as usize, NONE);
        }
        self.len += 1;
        if (key.0 >> self.shift).saturating_sub(self.begin) >= SLOTS {
            self.widen(key.0);
        }
        self.link(index);
        if self.next.is_none_or(|(next, _)| key < next) {
            self.next = Some((key, index));
        }
    }

    /// Removes the packet that is due first.
    pub(crate) fn pop(&mut self) -> Option<(DueKey, P)> {
        let (key, index) = self.next?;
        self.unlink(index);
        let WheelEntry { next, packet, .. } = &mut self.entries[index as usize];
        *next = self.free;
        self.free = index;
        let packet = packet.take();
        self.len -= 1;
        // All slots before the one of this packet are empty.
        self.begin = self.begin.max(key.0 >> self.shift);
        self.next = self.find_next();
        packet.map(|packet| (key, packet))
    }

    /// The slot of a key. Overdue packets are in the first slot.
    #[inline]
    fn slot(&self, key: DueKey) -> usize {
        ((key.0 >> self.shift).max(self.begin) % SLOTS) as usize
    }

    fn link(&mut self, index: u32) {
        let slot = self.slot(self.entries[index as usize].key);
        self.entries[index as usize].next = self.slots[slot];
        self.slots[slot] = index;
        self.used_slots[slot / 64] |= 1 << (slot % 64);
        self.used_words |= 1 << (slot / 64);
    }

    fn unlink(&mut self, index: u32) {
        let WheelEntry { key, next, .. } = self.entries[index as usize];
        let slot = self.slot(key);
        if self.slots[slot] == index {
            self.slots[slot] = next;
        } else {
            let mut before = self.slots[slot];
            while self.entries[before as usize].next != index {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        if self.slots[slot] == NONE {
            self.used_slots[slot / 64] &= !(1 << (slot % 64));
            self.used_words &= !(u64::from(self.used_slots[slot / 64] == 0) << (slot / 64));
        }
    }

    /// The least entry of the first slot in use, around the wheel from `begin` on.
    fn find_next(&self) -> Option<(DueKey, u32)> {
        if self.used_words == 0 {
            return None;
        }
        let begin = (self.begin % SLOTS) as usize;
        let (word, bit) = (begin / 64, begin % 64);
        let rest_of_word = self.used_slots[word] >> bit << bit;
        let slot = if rest_of_word != 0 {
            word * 64 + rest_of_word.trailing_zeros() as usize
        } else {
            let beyond = self.used_words & (u64::MAX << word << 1);
            let word = if beyond != 0 { beyond } else { self.used_words }.trailing_zeros() as usize;
            word * 64 + self.used_slots[word].trailing_zeros() as usize
        };
        let mut index = self.slots[slot];
        let mut least = (self.entries[index as usize].key, index);
        while self.entries[index as usize].next != NONE {
            index = self.entries[index as usize].next;
            least = least.min((self.entries[index as usize].key, index));
        }
        Some(least)
    }

    /// Doubles the span of the slots until `due` is within the wheel.
    fn widen(&mut self, due: u64) {
        let mut all: Vec<u32> = Vec::with_capacity(self.len);
        for head in &mut self.slots {
            let mut index = std::mem::replace(head, NONE);
            while index != NONE {
                all.push(index);
                index = self.entries[index as usize].next;
            }
        }
        self.used_slots = [0; 64];
        self.used_words = 0;
        let begin = self.begin << self.shift;
        while (due >> self.shift) - (begin >> self.shift) >= SLOTS {
            self.shift += 1;
        }
        self.begin = begin >> self.shift;
        all.into_iter().for_each(|index| self.link(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{cmp::Reverse, collections::BinaryHeap};

    proptest! {
        /// The wheel is a priority queue by time, then by number, and returns each packet once.
        #[test]
        fn it_pops_in_the_order_of_a_binary_heap(steps in prop::collection::vec((0u32..45, any::<u64>(), 0u8..4), 1..400)) {
            let (mut wheel, mut heap, mut now) = (TimingWheel::new(), BinaryHeap::new(), 0u64);
            for (number, (bits, time, takes)) in (0..).zip(steps) {
                let key = (now + (time & ((1 << bits) - 1)), number);
                wheel.push(key, number);
                heap.push(Reverse(key));
                for _ in 0..takes.saturating_sub(1) {
                    let expected = heap.pop().map(|Reverse(key)| key);
                    prop_assert_eq!(wheel.pop(), expected.map(|key| (key, key.1)));
                    now = expected.map_or(now, |key| key.0);
                }
                prop_assert_eq!(wheel.first(), heap.peek().map(|Reverse(key)| *key));
                prop_assert_eq!(wheel.len(), heap.len());
            }
            while let Some(Reverse(key)) = heap.pop() {
                prop_assert_eq!(wheel.pop(), Some((key, key.1)));
            }
            prop_assert!(wheel.is_empty() && wheel.pop().is_none());
        }
    }

    #[test]
    fn an_overdue_packet_is_next() {
        let mut wheel = TimingWheel::new();
        wheel.push((1 << 40, 0), 'a');
        wheel.push((1 << 41, 1), 'b');
        assert_eq!(wheel.pop(), Some(((1 << 40, 0), 'a')));
        wheel.push((7, 2), 'c');
        assert_eq!((wheel.pop(), wheel.pop()), (Some(((7, 2), 'c')), Some(((1 << 41, 1), 'b'))));
    }
}
