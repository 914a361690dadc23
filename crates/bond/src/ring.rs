//! Bytes of a stream, by their offset, within a window that moves on. The memory is the window's and nothing more.

use memmap2::MmapMut;

/// A window's bytes. What is within it is the caller's to know.
#[derive(Debug)]
pub struct Ring {
    bytes: MmapMut,
    is_touched: bool,
}

impl Ring {
    /// A window of so many bytes, at least one. Right from the system, which gives out pages when they are touched and takes all of them back at once: an allocator
    /// keeps large pieces that were used before, and clears all of one for who may touch a page of it.
    ///
    /// # Panics
    /// When the system has no more memory, as any allocation does.
    pub fn new(bytes: usize) -> Self {
        let bytes = MmapMut::map_anon(bytes.max(1)).expect("the system has memory for the window of a stream");
        Ring { bytes, is_touched: false }
    }

    /// Gives the memory back; what was in it is gone.
    pub fn forget(&mut self) {
        if self.is_touched {
            *self = Ring::new(self.bytes.len());
        }
    }

    /// How large the window is.
    pub fn window(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn place(&self, offset: u64) -> usize {
        (offset % self.window()) as usize
    }

    /// The bytes from `offset` on, in two parts, the second behind the first; at most a window's.
    pub fn get(&self, offset: u64, len: u64) -> [&[u8]; 2] {
        let len = len.min(self.window()) as usize;
        let start = self.place(offset);
        let first = len.min(self.bytes.len() - start);
        [&self.bytes[start..start + first], &self.bytes[..len - first]]
    }

    /// Where the bytes from `offset` on are to be written: as many of `len` as lie in one part.
    pub fn get_mut(&mut self, offset: u64, len: u64) -> &mut [u8] {
        self.is_touched = true;
        let start = self.place(offset);
        let len = len.min(self.window()) as usize;
        let end = (start + len).min(self.bytes.len());
        &mut self.bytes[start..end]
    }

    /// Writes bytes from `offset` on, at most a window's.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.bytes.len())];
        let first = self.get_mut(offset, bytes.len() as u64);
        let (here, behind) = bytes.split_at(first.len());
        first.copy_from_slice(here);
        self.bytes[..behind.len()].copy_from_slice(behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_is_gone() {
        let mut ring = Ring::new(10);
        ring.put(3, b"abc");
        ring.forget();
        assert_eq!((ring.get(3, 3).concat(), ring.window()), (vec![0; 3], 10));
    }

    #[test]
    fn what_is_put_is_found_wherever_the_window_is() {
        let mut ring = Ring::new(10);
        for offset in [0, 7, 10, 13, 1_000_003] {
            let bytes: Vec<u8> = (0..10).map(|step| (offset + step) as u8).collect();
            ring.put(offset, &bytes);
            assert_eq!(ring.get(offset, 10).concat(), bytes);
            assert_eq!(ring.get(offset + 2, 5).concat(), bytes[2..7]);
            assert_eq!(ring.get_mut(offset, 10).len() as u64, 10 - offset % 10);
        }
        assert_eq!(ring.get(3, 99).concat().len(), 10);
        assert!(ring.get(3, 0).concat().is_empty());
    }
}
