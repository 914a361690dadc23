//! Packets by when they are due: a wheel of slots, each of which stands for a short span of time and has hardly more than one. What a heap does in a dozen
//! steps that wait for each other, comparing, is two looks here.

/// Slots: 64 words of 64 bits say which of them have something, and a word says which of those words have.
const SLOTS: u64 = 64 * 64;
/// A slot's span at first: 2¹² ns. It doubles whenever something comes that is due beyond the wheel.
const FIRST_SHIFT: u32 = 12;
/// No place.
const NONE: u32 = u32::MAX;

/// When a packet is due, ns, and its number: of those that are due together the lower one is first.
pub(crate) type Key = (u64, u64);

/// What is due later. Nothing that comes may be due before what was taken last; if it is, it counts as due then.
#[derive(Debug)]
pub(crate) struct Wheel<P> {
    places: Vec<Place<P>>,
    free: u32,
    len: usize,
    /// The first of each slot's, by place; empty until something comes.
    heads: Vec<u32>,
    filled: [u64; 64],
    words: u64,
    /// A slot is 2^shift ns, and none before this one, counted from the beginning of time, has anything.
    shift: u32,
    begin: u64,
    next: Option<(Key, u32)>,
}

/// A packet's place.
#[derive(Debug)]
struct Place<P> {
    key: Key,
    /// The next in its slot, or the next that is free.
    next: u32,
    packet: Option<P>,
}

impl<P> Wheel<P> {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Wheel {
            places: Vec::new(),
            free: NONE,
            len: 0,
            heads: Vec::new(),
            filled: [0; 64],
            words: 0,
            shift: FIRST_SHIFT,
            begin: 0,
            next: None,
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The next one's key.
    #[inline]
    pub(crate) fn first(&self) -> Option<Key> {
        self.next.map(|(key, _)| key)
    }

    /// Puts one in.
    pub(crate) fn push(&mut self, key: Key, packet: P) {
        let place = match self.free {
            NONE => {
                self.places.push(Place { key, next: NONE, packet: Some(packet) });
                self.places.len() as u32 - 1
            }
            place => {
                self.free = self.places[place as usize].next;
                self.places[place as usize] = Place { key, next: NONE, packet: Some(packet) };
                place
            }
        };
        if self.len == 0 {
            self.begin = key.0 >> self.shift;
            self.heads.resize(SLOTS as usize, NONE);
        }
        self.len += 1;
        if (key.0 >> self.shift).saturating_sub(self.begin) >= SLOTS {
            self.widen(key.0);
        }
        self.link(place);
        if self.next.is_none_or(|(next, _)| key < next) {
            self.next = Some((key, place));
        }
    }

    /// Takes the next out.
    pub(crate) fn pop(&mut self) -> Option<(Key, P)> {
        let (key, place) = self.next?;
        self.unlink(place);
        let Place { next, packet, .. } = &mut self.places[place as usize];
        *next = self.free;
        self.free = place;
        let packet = packet.take();
        self.len -= 1;
        // The slots before its own are empty.
        self.begin = self.begin.max(key.0 >> self.shift);
        self.next = self.soonest();
        packet.map(|packet| (key, packet))
    }

    /// Where in the wheel a key's slot is: what is overdue is in the first one.
    #[inline]
    fn slot(&self, key: Key) -> usize {
        ((key.0 >> self.shift).max(self.begin) % SLOTS) as usize
    }

    fn link(&mut self, place: u32) {
        let slot = self.slot(self.places[place as usize].key);
        self.places[place as usize].next = self.heads[slot];
        self.heads[slot] = place;
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
    }

    fn unlink(&mut self, place: u32) {
        let Place { key, next, .. } = self.places[place as usize];
        let slot = self.slot(key);
        if self.heads[slot] == place {
            self.heads[slot] = next;
        } else {
            let mut before = self.heads[slot];
            while self.places[before as usize].next != place {
                before = self.places[before as usize].next;
            }
            self.places[before as usize].next = next;
        }
        if self.heads[slot] == NONE {
            self.filled[slot / 64] &= !(1 << (slot % 64));
            self.words &= !(u64::from(self.filled[slot / 64] == 0) << (slot / 64));
        }
    }

    /// Who is next: the least of the first slot that has something, around the wheel from `begin` on.
    fn soonest(&self) -> Option<(Key, u32)> {
        if self.words == 0 {
            return None;
        }
        let begin = (self.begin % SLOTS) as usize;
        let (word, bit) = (begin / 64, begin % 64);
        let rest = self.filled[word] >> bit << bit;
        let slot = if rest != 0 {
            word * 64 + rest.trailing_zeros() as usize
        } else {
            let beyond = self.words & (u64::MAX << word << 1);
            let word = if beyond != 0 { beyond } else { self.words }.trailing_zeros() as usize;
            word * 64 + self.filled[word].trailing_zeros() as usize
        };
        let mut place = self.heads[slot];
        let mut least = (self.places[place as usize].key, place);
        while self.places[place as usize].next != NONE {
            place = self.places[place as usize].next;
            least = least.min((self.places[place as usize].key, place));
        }
        Some(least)
    }

    /// Slots become longer until `due` is within the wheel.
    fn widen(&mut self, due: u64) {
        let mut all: Vec<u32> = Vec::with_capacity(self.len);
        for head in &mut self.heads {
            let mut place = std::mem::replace(head, NONE);
            while place != NONE {
                all.push(place);
                place = self.places[place as usize].next;
            }
        }
        (self.filled, self.words) = ([0; 64], 0);
        let begin = self.begin << self.shift;
        while (due >> self.shift) - (begin >> self.shift) >= SLOTS {
            self.shift += 1;
        }
        self.begin = begin >> self.shift;
        all.into_iter().for_each(|place| self.link(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{cmp::Reverse, collections::BinaryHeap};

    proptest! {
        /// It is a queue by time, and by number where times are equal; what is taken is given back once.
        #[test]
        fn it_is_what_a_binary_heap_is(steps in prop::collection::vec((0u32..45, any::<u64>(), 0u8..4), 1..400)) {
            let (mut wheel, mut heap, mut now) = (Wheel::new(), BinaryHeap::new(), 0u64);
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
    fn what_is_overdue_is_next() {
        let mut wheel = Wheel::new();
        wheel.push((1 << 40, 0), 'a');
        wheel.push((1 << 41, 1), 'b');
        assert_eq!(wheel.pop(), Some(((1 << 40, 0), 'a')));
        wheel.push((7, 2), 'c');
        assert_eq!((wheel.pop(), wheel.pop()), (Some(((7, 2), 'c')), Some(((1 << 41, 1), 'b'))));
    }
}
