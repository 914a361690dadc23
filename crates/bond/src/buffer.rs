//! The bytes of a stream by offset, within a window that moves forward.
//!
//! The window is stored in blocks. The block that was [released](StreamBuffer::trim) last is reused
//! first, because it is still in the processor's caches. A stream therefore touches about as much
//! memory as it holds bytes, however large its window is.

use memmap2::MmapMut;
use std::{collections::VecDeque, iter};

/// Largest block, bytes. All blocks are whole pages.
const MAX_BLOCK: usize = 2 << 20;
/// Smallest block, bytes.
const MIN_BLOCK: usize = 16 * 1024;
const PAGE: usize = 4096;
/// A window has about this many blocks. Larger blocks take fewer system calls to fill, and fewer
/// wakeups of the writer; but a window that starts and ends within a block needs one block more.
const BLOCKS_PER_WINDOW: usize = 4;
/// Position of offset 0 in its block, bytes. The kernel's copy of a stream often starts at the
/// beginning of a page. Some processors copy at a third of the speed when the destination lies a
/// few bytes further on in its page than the source (`rep movsb` on AMD Zen 3 and 4), and the
/// messages before the stream shift it by that. The margin makes up for it.
const MARGIN: u64 = 2048;
/// Read in place of blocks that were never written or were released.
static ZEROES: [u8; MIN_BLOCK] = [0; MIN_BLOCK];

/// The system has no memory for a part of a stream's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot map memory for the window of a stream: the system or the process has reached its limit; lower the window, or raise RLIMIT_AS or vm.max_map_count"
)]
pub struct NoMemory;

/// Bytes of a stream by offset.
///
/// The caller knows which offsets it has written. It writes with [`get_mut`](StreamBuffer::get_mut)
/// or [`put`](StreamBuffer::put) at offsets from the last [`trim`](StreamBuffer::trim) on, at most
/// a window ahead of it, and reads with [`get`](StreamBuffer::get).
#[derive(Debug)]
pub struct StreamBuffer {
    window: u64,
    /// Size of a block, bytes.
    block: usize,
    /// Consecutive blocks of the stream; `None` where nothing was written.
    blocks: VecDeque<Option<MmapMut>>,
    /// Index in the stream of the first of `blocks`.
    first: u64,
    /// Released blocks, the one used last at the end.
    free: Vec<MmapMut>,
}

/// Where an offset is stored.
struct Position {
    /// Index into `blocks`; `None` where bytes were released.
    index: Option<usize>,
    /// Offset within the block.
    start: usize,
    /// How many of the requested bytes the block holds.
    len: usize,
}

impl StreamBuffer {
    /// A buffer for a window of `window` bytes, at least 1. It maps memory when bytes are written.
    pub fn new(window: usize) -> Self {
        let window = window.max(1);
        let block = (window / BLOCKS_PER_WINDOW).clamp(MIN_BLOCK, MAX_BLOCK).next_multiple_of(PAGE);
        StreamBuffer { window: window as u64, block, blocks: VecDeque::new(), first: 0, free: Vec::new() }
    }

    /// Size of the window, bytes.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Releases the bytes below `offset`. Nothing may be written there afterwards.
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

    /// Unmaps all memory; the contents are lost.
    pub fn release_memory(&mut self) {
        self.blocks.clear();
        self.free.clear();
    }

    /// Where up to `len` bytes from `offset` on are stored.
    fn position(&self, offset: u64, len: u64) -> Position {
        let offset = offset + MARGIN;
        let block = offset / self.block as u64;
        let start = (offset % self.block as u64) as usize;
        let index = block.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        Position { index, start, len: len.min((self.block - start) as u64) as usize }
    }

    /// The `len` bytes from `offset` on, at most a window, as slices. Where nothing was written or
    /// bytes were released the contents are zeroes or stale.
    pub fn get(&self, offset: u64, len: u64) -> impl Iterator<Item = &[u8]> {
        let mut at = offset;
        let end = offset + len.min(self.window);
        iter::from_fn(move || {
            let Position { index, start, len } = self.position(at, end - at);
            let block = index.and_then(|index| self.blocks.get(index)?.as_deref());
            let part = block.map_or(&ZEROES[..len.min(ZEROES.len())], |block| &block[start..start + len]);
            at += part.len() as u64;
            (!part.is_empty()).then_some(part)
        })
    }

    /// The place for the bytes from `offset` on: as many of `len` as are contiguous.
    ///
    /// # Errors
    /// When the system maps no memory: beyond its limits, or those of the process (`RLIMIT_AS`,
    /// `vm.max_map_count`). Bytes written before are still there.
    ///
    /// # Panics
    /// When `offset` was released.
    pub fn get_mut(&mut self, offset: u64, len: u64) -> Result<&mut [u8], NoMemory> {
        let Position { index, start, len } = self.position(offset, len);
        if len == 0 {
            return Ok(&mut []);
        }
        let index = index.expect("nothing is written at released offsets");
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        let block = match &mut self.blocks[index] {
            Some(block) => block,
            // Mapped, not allocated: the kernel gives out pages when they are touched and takes all
            // of them back at once, whereas an allocator keeps large blocks after they are freed.
            none => none.insert(self.free.pop().map_or_else(|| MmapMut::map_anon(self.block), Ok).map_err(|_| NoMemory)?),
        };
        Ok(&mut block[start..start + len])
    }

    /// Writes `bytes` at `offset`, at most a window.
    ///
    /// # Errors
    /// As [`get_mut`](StreamBuffer::get_mut); some of the bytes may have been written then.
    ///
    /// # Panics
    /// When `offset` was released.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let place = self.get_mut(at, rest.len() as u64)?;
            let (part, remaining) = rest.split_at(place.len());
            place.copy_from_slice(part);
            at += part.len() as u64;
            rest = remaining;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(buffer: &StreamBuffer, offset: u64, len: u64) -> Vec<u8> {
        buffer.get(offset, len).collect::<Vec<_>>().concat()
    }

    #[test]
    fn released_memory_reads_as_zeroes() {
        let mut buffer = StreamBuffer::new(10);
        buffer.put(3, b"abc").unwrap();
        buffer.release_memory();
        assert_eq!((read(&buffer, 3, 3), buffer.window()), (vec![0; 3], 10));
    }

    #[test]
    fn trimmed_bytes_read_as_zeroes_and_their_block_is_reused_first() {
        let block = MIN_BLOCK as u64;
        let mut buffer = StreamBuffer::new(MIN_BLOCK);
        let begins = block - MARGIN;
        buffer.put(0, &[1; MIN_BLOCK]).unwrap();
        buffer.put(begins, &[2; MIN_BLOCK]).unwrap();
        let last = buffer.get_mut(begins, 1).unwrap().as_ptr();
        buffer.trim(begins + block - 1);
        assert_eq!((read(&buffer, begins - 1, 2), buffer.free.len()), (vec![0, 2], 1), "blocks are released whole");
        buffer.trim(begins + block);
        assert_eq!((read(&buffer, begins, 2), buffer.free.len()), (vec![0; 2], 2));
        assert_eq!(buffer.get_mut(begins + 7 * block, 1).unwrap().as_ptr(), last);
    }

    #[test]
    fn unwritten_bytes_read_as_zeroes() {
        let window = 3 * MAX_BLOCK * BLOCKS_PER_WINDOW;
        assert_eq!(read(&StreamBuffer::new(window), 5, window as u64), vec![0; window]);
    }

    #[test]
    #[should_panic(expected = "released")]
    fn writing_at_trimmed_offsets_panics() {
        let mut buffer = StreamBuffer::new(100);
        buffer.trim(MIN_BLOCK as u64);
        buffer.put(0, b"a").unwrap();
    }

    proptest! {
        /// A moving window returns what was written, and takes at most two blocks more than its
        /// size.
        #[test]
        fn written_bytes_are_read_back_wherever_the_window_is(
            window in 1usize..200_000, from in 0u64..1 << 40, steps in prop::collection::vec((1usize..90_000, 0usize..90_000), 1..40)
        ) {
            let mut buffer = StreamBuffer::new(window);
            buffer.trim(from);
            let byte = |at: u64| (at * 31 / 8) as u8;
            let (mut low, mut high) = (from, from);
            for (more, less) in steps {
                let more = more.min(window - (high - low) as usize);
                let bytes: Vec<u8> = (high..high + more as u64).map(byte).collect();
                buffer.put(high, &bytes).unwrap();
                high += more as u64;
                prop_assert!(read(&buffer, low, high - low).iter().copied().eq((low..high).map(byte)));
                low += (high - low).min(less as u64);
                buffer.trim(low);
                let taken = (buffer.free.len() + buffer.blocks.iter().flatten().count()) * buffer.block;
                prop_assert!(taken <= window + 2 * buffer.block, "{taken} bytes for {window}");
            }
        }
    }
}
