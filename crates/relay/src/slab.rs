//! Values by index, for what events refer to.

/// Values by index. The index of a value that was removed is given to another only after
/// [`end_turn`](Self::end_turn): events that were fetched in the same turn may still carry it, and
/// then find nothing.
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

    /// All indices there can be are below this.
    pub fn bound(&self) -> usize {
        self.slots.len()
    }

    /// Takes a value in; returns its index.
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

    /// Takes a value out and keeps its index: [`put`](Self::put) or [`release`](Self::release) is
    /// to be called next. Until then the value counts as there.
    pub fn take(&mut self, index: usize) -> Option<T> {
        self.slots.get_mut(index)?.take()
    }

    /// Puts a value in the place of the one that has this index, or was taken out of it.
    pub fn put(&mut self, index: usize, value: T) {
        self.slots[index] = Some(value);
    }

    /// Frees the index of a value that was taken out.
    pub fn release(&mut self, index: usize) {
        debug_assert!(self.slots[index].is_none(), "the value is still there");
        self.freed.push(index);
    }

    /// The value with this index.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// All values with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| Some((index, slot.as_mut()?)))
    }

    /// All events of this turn have been handled: indices that were freed in it may be used again.
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
