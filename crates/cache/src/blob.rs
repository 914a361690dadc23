//! A sequence of bytes that one task appends to while others read it. Small blobs are in memory,
//! large ones in an unlinked temporary file: nothing is left of it, however the process ends.

use crate::{
    budget::{Budget, BudgetShare},
    limits::READ_BYTES,
};
use bytes::Bytes;
use hyper::HeaderMap;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

/// Bytes that are collected in memory before they are written to the file.
const FLUSH_BYTES: usize = 64 * 1024;

/// What an operator can do about a full disk.
const DISK_CURE: &str = "set TMPDIR to a directory with more space, or lower --disk";

/// How a blob ended.
#[derive(Debug, Clone)]
pub(crate) enum BlobEnd {
    /// It has all bytes; with the trailers of the message, if any.
    Complete(Option<HeaderMap>),
    /// There was no room for more: it has only the beginning.
    Full,
    /// Its source broke off.
    Aborted,
}

/// What a reader gets.
#[derive(Debug)]
pub(crate) enum BlobPiece {
    Data(Bytes),
    /// No more data will come.
    End(BlobEnd),
}

/// Where a blob's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Memory,
    Disk,
}

#[derive(Debug)]
enum Storage {
    Memory(Vec<u8>),
    /// The file has the first `written` bytes, `tail` the rest.
    Disk {
        file: Arc<File>,
        written: u64,
        tail: Vec<u8>,
    },
}

/// What a blob takes of the budgets for memory and for disk.
#[derive(Debug)]
pub(crate) struct StorageShares {
    pub(crate) memory: BudgetShare,
    pub(crate) disk: BudgetShare,
}

impl StorageShares {
    /// Empty shares of both budgets.
    pub(crate) fn empty(memory: &Arc<Budget>, disk: &Arc<Budget>) -> Self {
        StorageShares { memory: memory.share(), disk: disk.share() }
    }
}

#[derive(Debug)]
struct BlobState {
    storage: Storage,
    length: u64,
    end: Option<BlobEnd>,
    shares: StorageShares,
}

/// The bytes that readers share. It is appended to by its only [`BlobWriter`].
#[derive(Debug)]
pub(crate) struct Blob {
    state: Mutex<BlobState>,
    /// Notified when bytes have been appended, and at the end.
    changed: Notify,
    readers: AtomicUsize,
    /// Notified when the last reader has been dropped.
    unread: Notify,
    /// Its length at the end, where that was known from the beginning.
    expected: Option<u64>,
}

impl Blob {
    fn state(&self) -> MutexGuard<'_, BlobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that have been appended so far.
    pub(crate) fn length(&self) -> u64 {
        self.state().length
    }

    /// How it ended; none while more may be appended.
    pub(crate) fn end(&self) -> Option<BlobEnd> {
        self.state().end.clone()
    }

    /// Its length at the end, bytes, where that is known already.
    pub(crate) fn known_length(&self) -> Option<u64> {
        let state = self.state();
        if matches!(state.end, Some(BlobEnd::Complete(_))) { Some(state.length) } else { self.expected }
    }

    /// Whether it has no reader.
    pub(crate) fn is_idle(&self) -> bool {
        self.readers.load(Ordering::Acquire) == 0
    }

    /// Bytes that it takes of the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.state().shares.disk.bytes()
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> BlobEnd {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(end) = self.end() {
                return end;
            }
            changed.await;
        }
    }

    /// Waits until it has no reader.
    pub(crate) async fn until_idle(&self) {
        loop {
            let unread = self.unread.notified();
            tokio::pin!(unread);
            unread.as_mut().enable();
            if self.is_idle() {
                return;
            }
            unread.await;
        }
    }

    /// Waits until it is complete, and returns all of it.
    ///
    /// # Errors
    /// When its file cannot be read, or when it ends incomplete.
    pub(crate) async fn read_all(self: &Arc<Self>) -> io::Result<Vec<u8>> {
        let mut reader = self.reader();
        let mut all = Vec::with_capacity(self.length() as usize);
        loop {
            match reader.next().await? {
                BlobPiece::Data(bytes) => all.extend_from_slice(&bytes),
                BlobPiece::End(BlobEnd::Complete(_)) => return Ok(all),
                BlobPiece::End(end) => return Err(io::Error::other(format!("the stored body is incomplete: {end:?}"))),
            }
        }
    }

    /// A reader at its beginning.
    pub(crate) fn reader(self: &Arc<Self>) -> BlobReader {
        self.readers.fetch_add(1, Ordering::AcqRel);
        BlobReader { blob: self.clone(), position: 0 }
    }
}

/// A position in a blob. As long as a reader exists, the blob is not evicted.
#[derive(Debug)]
pub(crate) struct BlobReader {
    blob: Arc<Blob>,
    position: u64,
}

impl Drop for BlobReader {
    fn drop(&mut self) {
        if self.blob.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.blob.unread.notify_waiters();
        }
    }
}

impl BlobReader {
    /// Continues at this offset, bytes.
    pub(crate) fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Waits for the next piece, at most [`READ_BYTES`] long.
    ///
    /// # Errors
    /// When the blob's file cannot be read.
    pub(crate) async fn next(&mut self) -> io::Result<BlobPiece> {
        let blob = self.blob.clone();
        loop {
            let changed = blob.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(piece) = self.try_next().await? {
                return Ok(piece);
            }
            changed.await;
        }
    }

    /// The next piece, if there is one already.
    async fn try_next(&mut self) -> io::Result<Option<BlobPiece>> {
        let (file, length) = {
            let state = self.blob.state();
            if self.position >= state.length {
                return Ok(state.end.clone().map(BlobPiece::End));
            }
            let (bytes, begin) = match &state.storage {
                Storage::Memory(bytes) => (bytes, 0),
                Storage::Disk { tail, written, .. } => (tail, *written),
            };
            match &state.storage {
                Storage::Disk { file, written, .. } if self.position < *written => {
                    (file.clone(), READ_BYTES.min((*written - self.position) as usize))
                }
                _ => {
                    let rest = &bytes[(self.position - begin) as usize..];
                    let piece = Bytes::copy_from_slice(&rest[..rest.len().min(READ_BYTES)]);
                    self.position += piece.len() as u64;
                    return Ok(Some(BlobPiece::Data(piece)));
                }
            }
        };
        let position = self.position;
        let read = move || {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, position).map(|()| bytes)
        };
        let bytes = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        self.position += bytes.len() as u64;
        Ok(Some(BlobPiece::Data(bytes.into())))
    }
}

/// The storage that blobs are allocated from. It may evict stored responses to free some.
pub(crate) trait StorageQuota: Send + Sync {
    /// Shares of nothing, for a new blob.
    fn empty_shares(&self) -> StorageShares;
    /// Sets the size of a share of the memory or of the disk, bytes. Returns false, and changes
    /// nothing, when there is no room and none can be freed.
    fn try_resize(&self, share: &mut BudgetShare, bytes: u64, medium: Medium) -> bool;
    /// Size of a blob in memory at most, bytes. A larger one is moved to disk.
    fn spill_threshold(&self) -> u64;
    /// Size of any blob at most, bytes.
    fn max_blob_bytes(&self) -> u64;
}

/// The only appender of a blob. When it is dropped before [`BlobWriter::finish`], the blob is
/// aborted.
pub(crate) struct BlobWriter {
    blob: Arc<Blob>,
    quota: Arc<dyn StorageQuota>,
    ended: bool,
}

impl BlobWriter {
    /// Creates an empty blob. Where its length is known, `expected` (bytes) reserves the room for
    /// it. Returns none when there is no room.
    pub(crate) fn new(quota: Arc<dyn StorageQuota>, expected: Option<u64>) -> Option<Self> {
        let mut shares = quota.empty_shares();
        let wanted = expected.unwrap_or(0);
        if wanted > quota.max_blob_bytes() {
            return None;
        }
        let in_memory = wanted <= quota.spill_threshold() && quota.try_resize(&mut shares.memory, wanted, Medium::Memory);
        if !in_memory && !quota.try_resize(&mut shares.disk, wanted, Medium::Disk) {
            return None;
        }
        let storage = if in_memory { Storage::Memory(Vec::with_capacity(wanted as usize)) } else { on_disk(Vec::new()).ok()? };
        let blob = Blob {
            state: Mutex::new(BlobState { storage, length: 0, end: None, shares }),
            changed: Notify::new(),
            readers: AtomicUsize::new(0),
            unread: Notify::new(),
            expected,
        };
        Some(BlobWriter { blob: Arc::new(blob), quota, ended: false })
    }

    /// The blob that it appends to.
    pub(crate) fn blob(&self) -> &Arc<Blob> {
        &self.blob
    }

    /// Appends `bytes`. Returns false, ends the blob as [`BlobEnd::Full`] and appends nothing, when
    /// there is no room. A disk that refuses a write counts as full from the next call on: the
    /// bytes that could not be written stay readable in memory.
    pub(crate) async fn append(&mut self, bytes: &[u8]) -> bool {
        if self.ended {
            return false;
        }
        let Some(flush_due) = self.append_to_memory(bytes) else {
            self.end(BlobEnd::Full);
            return false;
        };
        self.blob.changed.notify_waiters();
        if flush_due && let Err(why) = self.flush().await {
            tracing::warn!(
                "cannot write to a temporary file in {} ({why}): the rest of this body is streamed instead of stored; {DISK_CURE}",
                std::env::temp_dir().display()
            );
            self.end(BlobEnd::Full);
        }
        true
    }

    /// Appends to the part that is in memory. Returns whether that is due to be written to the
    /// file, or none when there is no room.
    fn append_to_memory(&self, bytes: &[u8]) -> Option<bool> {
        let mut state = self.blob.state();
        let length = state.length + bytes.len() as u64;
        if length > self.quota.max_blob_bytes() || !self.reserve(&mut state, length) {
            return None;
        }
        state.length = length;
        match &mut state.storage {
            Storage::Memory(held) => {
                held.extend_from_slice(bytes);
                Some(false)
            }
            Storage::Disk { tail, .. } => {
                tail.extend_from_slice(bytes);
                Some(tail.len() >= FLUSH_BYTES)
            }
        }
    }

    /// Writes the tail to the file.
    async fn flush(&self) -> io::Result<()> {
        let (file, position, bytes) = match &self.blob.state().storage {
            Storage::Disk { file, written, tail } if !tail.is_empty() => (file.clone(), *written, Bytes::copy_from_slice(tail)),
            _ => return Ok(()),
        };
        let length = bytes.len();
        let write = move || file.write_all_at(&bytes, position);
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
        // This is the only writer, so that the tail has not grown meanwhile.
        if let Storage::Disk { written, tail, .. } = &mut self.blob.state().storage {
            *written += length as u64;
            *tail = Vec::new();
        }
        Ok(())
    }

    /// Grows the shares to hold `length` bytes, and moves the blob to disk when that is too much
    /// for memory. Returns false when there is no room.
    fn reserve(&self, state: &mut BlobState, length: u64) -> bool {
        let Storage::Memory(held) = &mut state.storage else {
            return length <= state.shares.disk.bytes() || self.quota.try_resize(&mut state.shares.disk, length, Medium::Disk);
        };
        if length <= state.shares.memory.bytes() {
            return true;
        }
        // The buffer doubles when it grows; the share is the size of the buffer.
        let capacity = length.next_power_of_two().max(4096).min(self.quota.spill_threshold());
        if length <= self.quota.spill_threshold() && self.quota.try_resize(&mut state.shares.memory, capacity, Medium::Memory) {
            held.reserve_exact(capacity as usize - held.len());
            return true;
        }
        self.spill(state, length)
    }

    /// Moves a blob from memory to disk, with room for `length` bytes there.
    fn spill(&self, state: &mut BlobState, length: u64) -> bool {
        let Storage::Memory(held) = &mut state.storage else { return true };
        if !self.quota.try_resize(&mut state.shares.disk, length, Medium::Disk) {
            return false;
        }
        match on_disk(std::mem::take(held)) {
            Ok(storage) => {
                state.storage = storage;
                state.shares.memory.try_resize(0);
                true
            }
            Err(held) => {
                state.storage = Storage::Memory(held);
                state.shares.disk.try_resize(0);
                false
            }
        }
    }

    /// Ends the blob as complete.
    ///
    /// # Errors
    /// Returns the trailers when the blob had ended as full before.
    pub(crate) async fn finish(mut self, trailers: Option<HeaderMap>) -> Result<(), Option<HeaderMap>> {
        if self.ended {
            return Err(trailers);
        }
        // A tail that the disk does not take stays in memory.
        let _ = self.flush().await;
        {
            let mut state = self.blob.state();
            let length = state.length;
            if let Storage::Memory(held) = &mut state.storage {
                held.shrink_to_fit();
                state.shares.memory.try_resize(length);
            } else {
                state.shares.disk.try_resize(length);
            }
        }
        self.end(BlobEnd::Complete(trailers));
        Ok(())
    }

    fn end(&mut self, end: BlobEnd) {
        self.ended = true;
        self.blob.state().end.get_or_insert(end);
        self.blob.changed.notify_waiters();
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        if !self.ended {
            self.end(BlobEnd::Aborted);
        }
    }
}

/// Storage in an unlinked file, with `tail` still to be written to it. Returns `tail` when the file
/// cannot be created.
fn on_disk(tail: Vec<u8>) -> Result<Storage, Vec<u8>> {
    match tempfile::tempfile() {
        Ok(file) => Ok(Storage::Disk { file: Arc::new(file), written: 0, tail }),
        Err(why) => {
            tracing::warn!(
                "cannot create a temporary file in {} ({why}): this body is streamed instead of stored; {DISK_CURE}",
                std::env::temp_dir().display()
            );
            Err(tail)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A quota of fixed budgets, memory and disk, that evicts nothing.
    pub(crate) struct FixedQuota {
        pub(crate) memory: Arc<Budget>,
        pub(crate) disk: Arc<Budget>,
    }

    impl FixedQuota {
        pub(crate) fn new(memory: u64, disk: u64) -> Arc<Self> {
            Arc::new(FixedQuota { memory: Budget::new(memory), disk: Budget::new(disk) })
        }
    }

    impl StorageQuota for FixedQuota {
        fn empty_shares(&self) -> StorageShares {
            StorageShares::empty(&self.memory, &self.disk)
        }
        fn try_resize(&self, share: &mut BudgetShare, bytes: u64, _: Medium) -> bool {
            share.try_resize(bytes)
        }
        fn spill_threshold(&self) -> u64 {
            self.memory.limit() / 2
        }
        fn max_blob_bytes(&self) -> u64 {
            self.disk.limit()
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }

    /// Appends chunks of these sizes, with readers that start before the first chunk and before the
    /// chunk `late`, and one that seeks to `seek`.
    async fn write_and_read(quota: Arc<FixedQuota>, sizes: &[usize], expected: bool, late: usize, seek: u64) {
        let all: Vec<u8> = (0..sizes.iter().sum()).map(|at: usize| (at % 251) as u8).collect();
        let expected = expected.then_some(all.len() as u64);
        let fits = all.len() <= 400_000;
        let Some(mut writer) = BlobWriter::new(quota, expected) else {
            assert!(!fits);
            return;
        };
        let blob = writer.blob().clone();
        let read_all = |blob: Arc<Blob>| tokio::spawn(async move { blob.read_all().await });
        let mut readers = vec![read_all(blob.clone())];
        let mut at = 0;
        let mut full = false;
        for (index, size) in sizes.iter().enumerate() {
            if index == late {
                readers.push(read_all(blob.clone()));
            }
            if !writer.append(&all[at..at + size]).await {
                full = true;
                break;
            }
            at += size;
        }
        assert_eq!(full, !fits);
        if !full {
            writer.finish(None).await.unwrap();
        }
        for reader in readers {
            let read = reader.await.unwrap();
            if full { assert!(read.is_err()) } else { assert!(read.unwrap() == all) }
        }
        let mut reader = blob.reader();
        reader.seek(seek.min(at as u64));
        match reader.next().await.unwrap() {
            BlobPiece::Data(bytes) => assert_eq!(bytes[0], all[seek as usize]),
            BlobPiece::End(end) => assert!(seek >= at as u64 && full == matches!(end, BlobEnd::Full), "{end:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// Readers that start at any time read the same bytes, in memory and on disk; a full blob
        /// is reported as such; all shares are returned.
        #[test]
        fn readers_read_what_was_written(
            sizes in prop::collection::vec(0_usize..60_000, 0..14), expected in any::<bool>(), late in 0_usize..14, seek in 0_u64..100_000,
        ) {
            let quota = FixedQuota::new(100_000, 400_000);
            runtime().block_on(write_and_read(quota.clone(), &sizes, expected, late, seek));
            prop_assert_eq!((quota.memory.used(), quota.disk.used()), (0, 0));
        }
    }

    #[test]
    fn a_full_disk_ends_the_blob_as_full() {
        runtime().block_on(async {
            let mut writer = BlobWriter::new(FixedQuota::new(1000, 1_000_000), Some(500_000)).unwrap();
            let full = File::options().read(true).write(true).open("/dev/full").unwrap();
            writer.blob.state().storage = Storage::Disk { file: Arc::new(full), written: 0, tail: Vec::new() };
            let mut reader = writer.blob().reader();
            assert!(writer.append(&[1; 10_000]).await && writer.append(&[2; 100_000]).await, "accepted bytes stay readable");
            assert!(!writer.append(&[3; 10]).await, "a full blob accepts no more");
            let mut read = Vec::new();
            let end = loop {
                match reader.next().await.unwrap() {
                    BlobPiece::Data(bytes) => read.extend_from_slice(&bytes),
                    BlobPiece::End(end) => break end,
                }
            };
            assert!(read == [vec![1; 10_000], vec![2; 100_000]].concat() && matches!(end, BlobEnd::Full));
            assert!(writer.finish(None).await.is_err());
        });
    }

    #[test]
    fn dropping_the_writer_aborts_the_blob() {
        runtime().block_on(async {
            let mut writer = BlobWriter::new(FixedQuota::new(1000, 1000), None).unwrap();
            assert!(writer.append(b"half").await);
            let blob = writer.blob().clone();
            drop(writer);
            assert!(matches!(blob.ended().await, BlobEnd::Aborted));
            blob.until_idle().await;
        });
    }
}
