//! Which parts of a stream are there: all up to some offset, and what came before its turn.

use crate::{Breach, ranges::Ranges};

/// The ledger of the receiving end. Parts may come in any order, and more than once.
#[derive(Debug, Clone)]
pub struct Order {
    next: u64,
    held: Ranges,
    most_held: u64,
    /// More holes than this are not remembered.
    most_parts: usize,
}

impl Order {
    /// Of nothing yet; at most so many parts can wait for their turn.
    pub fn new(most_parts: usize) -> Self {
        Order { next: 0, held: Ranges::default(), most_held: 0, most_parts }
    }

    /// A part is there; how many bytes of it are new.
    pub fn insert(&mut self, offset: u64, len: u64) -> Result<u64, Breach> {
        let end = offset.checked_add(len).ok_or(Breach::BeyondAll { offset })?;
        let start = offset.max(self.next);
        if start >= end {
            return Ok(0);
        }
        if start > self.next {
            let new = self.held.insert(start, end);
            self.most_held = self.most_held.max(self.held.bytes());
            if self.held.len() > self.most_parts {
                return Err(Breach::TooManyParts { most: self.most_parts });
            }
            return Ok(new);
        }
        // In turn: with what waited for it, it can be read.
        let before = self.held.bytes();
        let new = match self.held.first() {
            None => {
                self.next = end;
                end - start
            }
            Some(_) => {
                let new = self.held.insert(start, end);
                self.next = self.held.first().map_or(end, |first| first.1);
                self.held.trim(self.next);
                new
            }
        };
        debug_assert!(self.held.bytes() <= before, "what comes in turn lets others go");
        Ok(new)
    }

    /// How many of the bytes from `offset` on, of `len`, are alike, and whether they are new.
    pub fn run(&self, offset: u64, len: u64) -> (u64, bool) {
        if offset < self.next {
            return (len.min(self.next - offset), false);
        }
        match self.held.from(offset) {
            Some((start, end)) if start <= offset => (len.min(end - offset), false),
            Some((start, _)) => (len.min(start - offset), true),
            None => (len, true),
        }
    }

    /// The first byte that is not there.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Behind the last byte that is there, in its turn or not.
    pub fn end(&self) -> u64 {
        self.held.last().map_or(self.next, |last| last.1)
    }

    /// Bytes that wait for their turn, and the most that ever did.
    pub fn held(&self) -> (u64, u64) {
        (self.held.bytes(), self.most_held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_overtakes_waits_and_what_comes_twice_counts_once() {
        let mut order = Order::new(10);
        assert_eq!(order.insert(1000, 500), Ok(500));
        assert_eq!((order.next(), order.held()), (0, (500, 500)));
        assert_eq!(order.run(900, 1000), (100, true));
        assert_eq!(order.run(1000, 1000), (500, false));
        assert_eq!(order.insert(0, 400), Ok(400));
        assert_eq!(order.insert(300, 900), Ok(600));
        assert_eq!((order.next(), order.held()), (1500, (0, 500)));
        assert_eq!(order.insert(0, 1500), Ok(0));
        assert_eq!(order.run(0, 2000), (1500, false));
        assert_eq!(order.run(1500, 20), (20, true));
    }

    #[test]
    fn what_nobody_could_send_is_refused() {
        let mut order = Order::new(2);
        assert_eq!(order.insert(u64::MAX - 1, 3), Err(Breach::BeyondAll { offset: u64::MAX - 1 }));
        assert_eq!(order.insert(10, 1).and(order.insert(20, 1)), Ok(1));
        assert_eq!(order.insert(30, 1), Err(Breach::TooManyParts { most: 2 }));
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_its_bytes(parts in prop::collection::vec((0u64..300, 0u64..60), 1..50)) {
            let (mut order, mut there) = (Order::new(usize::MAX), [false; 400]);
            for (offset, len) in parts {
                let of_it = offset as usize..(offset + len) as usize;
                let (same, fresh) = order.run(offset, len);
                prop_assert!(same <= len && (same > 0) == (len > 0));
                prop_assert!(there[of_it.clone()].iter().take(same as usize).all(|there| *there != fresh));
                if same < len {
                    prop_assert_eq!(there[(offset + same) as usize], fresh);
                }
                let new = there[of_it.clone()].iter().filter(|there| !**there).count();
                prop_assert_eq!(order.insert(offset, len), Ok(new as u64));
                there[of_it].fill(true);
                let next = there.iter().position(|there| !there).unwrap();
                prop_assert_eq!(order.next(), next as u64);
                prop_assert_eq!(order.end(), there.iter().rposition(|there| *there).map_or(0, |last| last as u64 + 1));
                prop_assert_eq!(order.held().0, there[next..].iter().filter(|there| **there).count() as u64);
            }
        }
    }
}
