//! Values by index, for the objects that events refer to.

/// Values by index. The index of a removed value is reused only after [`end_turn`](Self::end_turn):
/// later events of the same turn may still carry it, and must not find another value.
///
/// ```
/// use relay::Slab;
///
/// let mut slab = Slab::default();
/// let first = slab.insert("first");
/// slab.remove(first);
/// assert_ne!(slab.insert("second"), first);
/// slab.end_turn();
/// assert_eq!(slab.insert("third"), first);
/// ```
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
    /// Free from the next turn on.
    freed: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new(), freed: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.freed.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All indices are below this.
    pub fn bound(&self) -> usize {
        self.slots.len()
    }

    /// Inserts a value; returns its index.
    pub fn insert(&mut self, value: T) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.slots[index] = Some(value);
                index
            }
            None => {
                self.slots.push(Some(value));
                self.slots.len() - 1
            }
        }
    }

    /// Removes a value.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let value = self.slots.get_mut(index)?.take()?;
        self.freed.push(index);
        Some(value)
    }

    /// Takes a value out and reserves its index. The caller calls [`put`](Self::put) or
    /// [`release`](Self::release) next; until then [`len`](Self::len) counts the value.
    pub fn take(&mut self, index: usize) -> Option<T> {
        self.slots.get_mut(index)?.take()
    }

    /// Stores a value at an index that is in use or reserved.
    pub fn put(&mut self, index: usize, value: T) {
        self.slots[index] = Some(value);
    }

    /// Frees an index that [`take`](Self::take) has reserved.
    pub fn release(&mut self, index: usize) {
        debug_assert!(self.slots[index].is_none(), "the value is still there");
        self.freed.push(index);
    }

    /// The value with this index.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.as_ref()
    }

    /// Mutable access to the same.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// All values with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// Mutable access to the same.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| Some((index, slot.as_mut()?)))
    }

    /// Makes the indices that were freed in this turn available. To be called after all events of a
    /// turn have been handled.
    pub fn end_turn(&mut self) {
        self.free.append(&mut self.freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_used_again_from_the_next_turn_on() {
        let mut slab = Slab::default();
        assert_eq!((slab.insert('a'), slab.insert('b'), slab.len()), (0, 1, 2));
        assert_eq!((slab.remove(0), slab.remove(0), slab.len()), (Some('a'), None, 1));
        assert_eq!((slab.insert('c'), slab.get(0)), (2, None));
        slab.end_turn();
        assert_eq!((slab.insert('d'), slab.get(0), slab.bound()), (0, Some(&'d'), 3));
        assert_eq!(slab.iter().map(|(index, value)| (index, *value)).collect::<Vec<_>>(), [(0, 'd'), (1, 'b'), (2, 'c')]);
        assert_eq!(slab.get(7), None);
    }
}
