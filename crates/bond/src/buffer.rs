//! Bytes of a stream, by their offset, within a window that moves on.
//!
//! They lie in blocks, and the block that was [let go](Buffer::trim) last is the next to be written to: it is still in the processor's caches. So a stream
//! touches about as much memory as it holds bytes, however large its window is.

use memmap2::MmapMut;
use std::{collections::VecDeque, iter};

/// However large the window is, no block is larger, and however small, none is smaller. All are whole pages.
const MOST_BLOCK: usize = 2 << 20;
const LEAST_BLOCK: usize = 16 * 1024;
const PAGE: usize = 4096;
/// So many blocks, or a few more, are a window. The larger they are the fewer calls fill them, and whoever sends is woken less often; a window
/// that begins and ends within one takes a block more than its bytes.
const BLOCKS: usize = 4;
/// Where the stream begins in its first block. A kernel's own copy of a stream often begins with a page, and what ends up a few bytes further on in its page
/// than it was is copied at a third of the speed by some processors (`rep movsb` on AMD's Zen 3 and 4): what our ends say before a stream is so long.
const MARGIN: u64 = 2048;
/// What was never put, or was let go.
static NOTHING: [u8; LEAST_BLOCK] = [0; LEAST_BLOCK];

/// The system has no memory for a part of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system has no memory for the window of a stream")]
pub struct NoMemory;

/// A window's bytes. What is within it is the caller's to know.
#[derive(Debug)]
pub struct Buffer {
    window: u64,
    block: usize,
    /// Blocks by their place in the stream, the first of them, and those that are free; the last one was in use last.
    blocks: VecDeque<Option<MmapMut>>,
    first: u64,
    free: Vec<MmapMut>,
}

impl Buffer {
    /// A window of so many bytes, at least one. It takes memory when bytes are put.
    pub fn new(window: usize) -> Self {
        let window = window.max(1);
        let block = (window / BLOCKS).clamp(LEAST_BLOCK, MOST_BLOCK).next_multiple_of(PAGE);
        Buffer { window: window as u64, block, blocks: VecDeque::new(), first: 0, free: Vec::new() }
    }

    /// How large the window is.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The bytes below `offset` are wanted no longer; nothing will be put there.
    pub fn trim(&mut self, offset: u64) {
        let first = (offset + MARGIN) / self.block as u64;
        while self.first < first {
            match self.blocks.pop_front() {
                Some(block) => self.free.extend(block),
                None => self.first = first - 1,
            }
            self.first += 1;
        }
    }

    /// Gives all memory back; what was in it is gone.
    pub fn forget(&mut self) {
        self.blocks.clear();
        self.free.clear();
    }

    /// Which block the byte at `offset` lies in, counted from the first, where in it, and how many of `len` bytes lie there with it.
    fn place(&self, offset: u64, len: u64) -> (Option<usize>, usize, usize) {
        let offset = offset + MARGIN;
        let (block, start) = (offset / self.block as u64, (offset % self.block as u64) as usize);
        let index = block.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        (index, start, len.min((self.block - start) as u64) as usize)
    }

    /// The bytes from `offset` on, in parts; at most a window's. Where nothing was put, or was let go, they are zeros, or what was there before.
    pub fn get(&self, offset: u64, len: u64) -> impl Iterator<Item = &[u8]> {
        let (mut at, end) = (offset, offset + len.min(self.window));
        iter::from_fn(move || {
            let (index, start, here) = self.place(at, end - at);
            let block = index.and_then(|index| self.blocks.get(index)?.as_deref());
            let part = block.map_or(&NOTHING[..here.min(NOTHING.len())], |block| &block[start..start + here]);
            at += part.len() as u64;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Where the bytes from `offset` on are to be written: as many of `len` as lie in one part.
    ///
    /// # Errors
    /// When the system gives no memory for them: beyond its limits, or those of the process
    /// (RLIMIT_AS, `vm.max_map_count`). The bytes that were put before are still there.
    ///
    /// # Panics
    /// Where bytes were let go.
    pub fn get_mut(&mut self, offset: u64, len: u64) -> Result<&mut [u8], NoMemory> {
        let (index, start, here) = self.place(offset, len);
        if here == 0 {
            return Ok(&mut []);
        }
        let index = index.expect("nothing is put where bytes were let go");
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        let block = match &mut self.blocks[index] {
            Some(block) => block,
            // Right from the system, which gives out pages when they are touched and takes all of them back at once: an allocator keeps large pieces
            // that were used before.
            none => none.insert(self.free.pop().map_or_else(|| MmapMut::map_anon(self.block), Ok).map_err(|_| NoMemory)?),
        };
        Ok(&mut block[start..start + here])
    }

    /// Writes bytes from `offset` on, at most a window's.
    ///
    /// # Errors
    /// As [`get_mut`](Buffer::get_mut); some of the bytes may have been written then.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let place = self.get_mut(at, rest.len() as u64)?;
            let (here, behind) = rest.split_at(place.len());
            place.copy_from_slice(here);
            (at, rest) = (at + here.len() as u64, behind);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(buffer: &Buffer, offset: u64, len: u64) -> Vec<u8> {
        buffer.get(offset, len).collect::<Vec<_>>().concat()
    }

    #[test]
    fn what_was_forgotten_is_gone() {
        let mut buffer = Buffer::new(10);
        buffer.put(3, b"abc").unwrap();
        buffer.forget();
        assert_eq!((all(&buffer, 3, 3), buffer.window()), (vec![0; 3], 10));
    }

    #[test]
    fn what_was_let_go_is_zeros_and_its_block_is_the_next() {
        let block = LEAST_BLOCK as u64;
        let mut buffer = Buffer::new(LEAST_BLOCK);
        let begins = block - MARGIN;
        buffer.put(0, &[1; LEAST_BLOCK]).unwrap();
        buffer.put(begins, &[2; LEAST_BLOCK]).unwrap();
        let last = buffer.get_mut(begins, 1).unwrap().as_ptr();
        buffer.trim(begins + block - 1);
        assert_eq!((all(&buffer, begins - 1, 2), buffer.free.len()), (vec![0, 2], 1), "a block is let go whole");
        buffer.trim(begins + block);
        assert_eq!((all(&buffer, begins, 2), buffer.free.len()), (vec![0; 2], 2));
        assert_eq!(buffer.get_mut(begins + 7 * block, 1).unwrap().as_ptr(), last);
    }

    #[test]
    fn what_was_never_put_is_zeros_however_much_it_is() {
        let window = 3 * MOST_BLOCK * BLOCKS;
        assert_eq!(all(&Buffer::new(window), 5, window as u64), vec![0; window]);
    }

    #[test]
    #[should_panic(expected = "let go")]
    fn nothing_is_put_where_bytes_were_let_go() {
        let mut buffer = Buffer::new(100);
        buffer.trim(LEAST_BLOCK as u64);
        buffer.put(0, b"a").unwrap();
    }

    proptest! {
        /// A window that moves on, written in any pieces, has in it what was put, and no more memory than itself and two blocks.
        #[test]
        fn what_is_put_is_found_wherever_the_window_is(
            window in 1usize..200_000, from in 0u64..1 << 40, steps in prop::collection::vec((1usize..90_000, 0usize..90_000), 1..40)
        ) {
            let mut buffer = Buffer::new(window);
            buffer.trim(from);
            let byte = |at: u64| (at * 31 / 8) as u8;
            let (mut low, mut high) = (from, from);
            for (more, less) in steps {
                let more = more.min(window - (high - low) as usize);
                let bytes: Vec<u8> = (high..high + more as u64).map(byte).collect();
                buffer.put(high, &bytes).unwrap();
                high += more as u64;
                prop_assert!(all(&buffer, low, high - low).iter().copied().eq((low..high).map(byte)));
                low += (high - low).min(less as u64);
                buffer.trim(low);
                let taken = (buffer.free.len() + buffer.blocks.iter().flatten().count()) * buffer.block;
                prop_assert!(taken <= window + 2 * buffer.block, "{taken} bytes for {window}");
            }
        }
    }
}
