//! A run of bytes that one side appends to while others read it: small ones in memory, large ones in a file that has no name, so that
//! nothing is left of it when the process goes, however it goes.

use crate::{budget::Share, limits::PIECE};
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

/// What is written to a file at once.
const TAIL: usize = 64 * 1024;

/// What helps where a disk is full.
const CURE: &str = "let TMPDIR name a directory with more room, or give --disk less";

/// How a blob ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// All of it is there; a message's trailers.
    Whole(Option<HeaderMap>),
    /// There was no room for more: what is there is only the beginning.
    Full,
    /// Its source broke off.
    Cut,
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    /// Nothing more will come.
    End(End),
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    /// The file has its first `written` bytes, `tail` the rest.
    Disk {
        file: Arc<File>,
        written: u64,
        tail: Vec<u8>,
    },
}

#[derive(Debug)]
struct State {
    place: Place,
    length: u64,
    end: Option<End>,
    /// What it takes of the memory and of the disk.
    shares: (Share, Share),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Blob {
    state: Mutex<State>,
    changed: Notify,
    readers: AtomicUsize,
    unread: Notify,
    /// What it will have, where that was known from the beginning.
    expected: Option<u64>,
}

impl Blob {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn length(&self) -> u64 {
        self.state().length
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.state().end.clone()
    }

    /// What it has or will have, where that is known.
    pub(crate) fn known_length(&self) -> Option<u64> {
        let state = self.state();
        if matches!(state.end, Some(End::Whole(_))) { Some(state.length) } else { self.expected }
    }

    /// Whether nobody reads it.
    pub(crate) fn is_idle(&self) -> bool {
        self.readers.load(Ordering::Acquire) == 0
    }

    /// What it takes of the memory and of the disk.
    pub(crate) fn held(&self) -> (u64, u64) {
        let state = self.state();
        (state.shares.0.bytes(), state.shares.1.bytes())
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> End {
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

    /// Waits until nobody reads it.
    pub(crate) async fn forsaken(&self) {
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

    /// All of it, once it is whole.
    pub(crate) async fn all(self: &Arc<Self>) -> io::Result<Vec<u8>> {
        let mut reader = self.reader();
        let mut all = Vec::with_capacity(self.length() as usize);
        loop {
            match reader.next().await? {
                Piece::Bytes(bytes) => all.extend_from_slice(&bytes),
                Piece::End(End::Whole(_)) => return Ok(all),
                Piece::End(end) => return Err(io::Error::other(format!("it is not whole: {end:?}"))),
            }
        }
    }

    /// One that reads it from its beginning on.
    pub(crate) fn reader(self: &Arc<Self>) -> Reader {
        self.readers.fetch_add(1, Ordering::AcqRel);
        Reader { blob: self.clone(), at: 0 }
    }
}

/// Where somebody is in a blob.
#[derive(Debug)]
pub(crate) struct Reader {
    blob: Arc<Blob>,
    at: u64,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.blob.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.blob.unread.notify_waiters();
        }
    }
}

impl Reader {
    /// Goes on from there.
    pub(crate) fn seek(&mut self, at: u64) {
        self.at = at;
    }

    /// The next piece, as soon as there is one.
    pub(crate) async fn next(&mut self) -> io::Result<Piece> {
        let blob = self.blob.clone();
        loop {
            let changed = blob.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(piece) = self.look().await? {
                return Ok(piece);
            }
            changed.await;
        }
    }

    async fn look(&mut self) -> io::Result<Option<Piece>> {
        let from_file = {
            let state = self.blob.state();
            if self.at >= state.length {
                return Ok(state.end.clone().map(Piece::End));
            }
            let (bytes, begin) = match &state.place {
                Place::Memory(bytes) => (bytes, 0),
                Place::Disk { tail, written, .. } => (tail, *written),
            };
            match &state.place {
                Place::Disk { file, written, .. } if self.at < *written => (file.clone(), PIECE.min((*written - self.at) as usize)),
                _ => {
                    let rest = &bytes[(self.at - begin) as usize..];
                    let piece = Bytes::copy_from_slice(&rest[..rest.len().min(PIECE)]);
                    self.at += piece.len() as u64;
                    return Ok(Some(Piece::Bytes(piece)));
                }
            }
        };
        let ((file, length), at) = (from_file, self.at);
        let read = move || {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        };
        let bytes = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        self.at += bytes.len() as u64;
        Ok(Some(Piece::Bytes(bytes.into())))
    }
}

/// The room that blobs are given: it may make some by letting go of others.
pub(crate) trait Room: Send + Sync {
    /// Nothing taken yet, of the memory and of the disk.
    fn shares(&self) -> (Share, Share);
    /// Makes `share` this many bytes; on disk or in memory.
    fn take(&self, share: &mut Share, bytes: u64, on_disk: bool) -> bool;
    /// What a blob in memory may take at most; a larger one goes to disk.
    fn spill_from(&self) -> u64;
    /// What a blob may take at most.
    fn largest(&self) -> u64;
}

/// The one side that appends. A blob whose writer is dropped before its end is cut.
pub(crate) struct Writer {
    blob: Arc<Blob>,
    room: Arc<dyn Room>,
    ended: bool,
}

impl Writer {
    /// Of an empty blob, for which there will be room up to `expected` bytes, where that is known. None when there can't be.
    pub(crate) fn new(room: Arc<dyn Room>, expected: Option<u64>) -> Option<Self> {
        let mut shares = room.shares();
        let wanted = expected.unwrap_or(0);
        if wanted > room.largest() {
            return None;
        }
        let in_memory = wanted <= room.spill_from() && room.take(&mut shares.0, wanted, false);
        if !in_memory && !room.take(&mut shares.1, wanted, true) {
            return None;
        }
        let place = if in_memory { Place::Memory(Vec::with_capacity(wanted as usize)) } else { on_disk(Vec::new()).ok()? };
        let state = Mutex::new(State { place, length: 0, end: None, shares });
        let blob = Blob { state, changed: Notify::new(), readers: AtomicUsize::new(0), unread: Notify::new(), expected };
        Some(Writer { blob: Arc::new(blob), room, ended: false })
    }

    pub(crate) fn blob(&self) -> &Arc<Blob> {
        &self.blob
    }

    /// Appends, or returns false and ends the blob when there is no room. A disk that takes no more is no room, too.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> bool {
        if self.ended {
            return false;
        }
        let due = {
            let mut state = self.blob.state();
            let length = state.length + bytes.len() as u64;
            if length > self.room.largest() || !self.make_room(&mut state, length) {
                drop(state);
                self.end(End::Full);
                return false;
            }
            state.length = length;
            match &mut state.place {
                Place::Memory(held) => {
                    held.extend_from_slice(bytes);
                    false
                }
                Place::Disk { tail, .. } => {
                    tail.extend_from_slice(bytes);
                    tail.len() >= TAIL
                }
            }
        };
        self.blob.changed.notify_waiters();
        if due && let Err(why) = self.flush().await {
            tracing::warn!("{} takes no more ({why}): what comes goes on as it comes; {CURE}", std::env::temp_dir().display());
            // What was not written is read from where it waited.
            self.end(End::Full);
        }
        true
    }

    /// Puts the tail into the file.
    async fn flush(&self) -> io::Result<()> {
        let (file, at, bytes) = match &self.blob.state().place {
            Place::Disk { file, written, tail } if !tail.is_empty() => (file.clone(), *written, Bytes::copy_from_slice(tail)),
            _ => return Ok(()),
        };
        let length = bytes.len();
        let write = move || file.write_all_at(&bytes, at);
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
        // Nobody else writes: what was in the tail is what has been written.
        if let Place::Disk { written, tail, .. } = &mut self.blob.state().place {
            *written += length as u64;
            *tail = Vec::new();
        }
        Ok(())
    }

    /// Has the shares of `state` grow to hold `length` bytes, on disk when that is too much for memory.
    fn make_room(&self, state: &mut State, length: u64) -> bool {
        if let Place::Memory(held) = &mut state.place {
            if length <= state.shares.0.bytes() {
                return true;
            }
            // A vector doubles when it grows: that is what is taken.
            let wanted = length.next_power_of_two().max(4096).min(self.room.spill_from());
            if length <= self.room.spill_from() && self.room.take(&mut state.shares.0, wanted, false) {
                held.reserve_exact(wanted as usize - held.len());
                return true;
            }
            if !self.room.take(&mut state.shares.1, length, true) {
                return false;
            }
            let held = std::mem::take(held);
            match on_disk(held) {
                Ok(place) => state.place = place,
                Err(held) => {
                    state.place = Place::Memory(held);
                    state.shares.1.resize(0);
                    return false;
                }
            }
            state.shares.0.resize(0);
            return true;
        }
        length <= state.shares.1.bytes() || self.room.take(&mut state.shares.1, length, true)
    }

    /// All of it is there, or was: the error has the trailers, where there had been no room before.
    pub(crate) async fn finish(mut self, trailers: Option<HeaderMap>) -> Result<(), Option<HeaderMap>> {
        if self.ended {
            return Err(trailers);
        }
        // What the disk does not take of the last piece stays where it is.
        let _ = self.flush().await;
        {
            let mut state = self.blob.state();
            let length = state.length;
            if let Place::Memory(held) = &mut state.place {
                held.shrink_to_fit();
                state.shares.0.resize(length);
            } else {
                state.shares.1.resize(length);
            }
        }
        self.end(End::Whole(trailers));
        Ok(())
    }

    fn end(&mut self, end: End) {
        self.ended = true;
        self.blob.state().end.get_or_insert(end);
        self.blob.changed.notify_waiters();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.ended {
            self.end(End::Cut);
        }
    }
}

/// A file without a name, for what is in `tail` and what comes; gives it back where there can be none.
fn on_disk(tail: Vec<u8>) -> Result<Place, Vec<u8>> {
    match tempfile::tempfile() {
        Ok(file) => Ok(Place::Disk { file: Arc::new(file), written: 0, tail }),
        Err(why) => {
            tracing::warn!("cannot make a file in {} ({why}): what comes goes on as it comes; {CURE}", std::env::temp_dir().display());
            Err(tail)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::budget::Budget;
    use proptest::prelude::*;

    /// So much memory, so much disk, and nothing to let go of.
    pub(crate) struct Fixed(pub(crate) Arc<Budget>, pub(crate) Arc<Budget>);

    impl Room for Fixed {
        fn shares(&self) -> (Share, Share) {
            (self.0.share(), self.1.share())
        }
        fn take(&self, share: &mut Share, bytes: u64, _: bool) -> bool {
            share.resize(bytes)
        }
        fn spill_from(&self) -> u64 {
            self.0.limit() / 2
        }
        fn largest(&self) -> u64 {
            self.1.limit()
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// Readers that come at any time read the same, whether it went to disk or not; what does not fit is told, and all is given back.
        #[test]
        fn what_is_written_is_read(
            sizes in prop::collection::vec(0_usize..60_000, 0..14), expected in any::<bool>(), late in 0_usize..14, seek in 0_u64..100_000,
        ) {
            let room = Arc::new(Fixed(Budget::new(100_000), Budget::new(400_000)));
            let all: Vec<u8> = (0..sizes.iter().sum()).map(|at: usize| (at % 251) as u8).collect();
            let (room_of_it, sizes_of_it, all_of_it) = (room.clone(), sizes.clone(), all.clone());
            runtime().block_on(async move {
                let expected = expected.then_some(all_of_it.len() as u64);
                let fits = all_of_it.len() <= 400_000;
                let Some(mut writer) = Writer::new(room_of_it, expected) else {
                    assert!(!fits);
                    return;
                };
                let blob = writer.blob().clone();
                let mut readers = vec![tokio::spawn({ let blob = blob.clone(); async move { blob.all().await } })];
                let (mut at, mut cut) = (0, false);
                for (index, size) in sizes_of_it.iter().enumerate() {
                    if index == late {
                        let blob = blob.clone();
                        readers.push(tokio::spawn(async move { blob.all().await }));
                    }
                    if !writer.push(&all_of_it[at..at + size]).await {
                        cut = true;
                        break;
                    }
                    at += size;
                }
                assert_eq!(cut, !fits);
                if !cut {
                    writer.finish(None).await.unwrap();
                }
                for reader in readers {
                    let read = reader.await.unwrap();
                    if cut { assert!(read.is_err()) } else { assert!(read.unwrap() == all_of_it) }
                }
                let mut reader = blob.reader();
                reader.seek(seek.min(at as u64));
                match reader.next().await.unwrap() {
                    Piece::Bytes(bytes) => assert_eq!(bytes[0], all_of_it[seek as usize]),
                    Piece::End(end) => assert!(seek >= at as u64 && cut == matches!(end, End::Full), "{end:?}"),
                }
            });
            prop_assert_eq!((room.0.taken(), room.1.taken()), (0, 0));
        }
    }

    #[test]
    fn a_disk_that_is_full_is_no_room() {
        runtime().block_on(async {
            let room = Arc::new(Fixed(Budget::new(1000), Budget::new(1_000_000)));
            let mut writer = Writer::new(room, Some(500_000)).unwrap();
            let full = File::options().read(true).write(true).open("/dev/full").unwrap();
            writer.blob.state().place = Place::Disk { file: Arc::new(full), written: 0, tail: Vec::new() };
            let mut reader = writer.blob().reader();
            assert!(writer.push(&[1; 10_000]).await && writer.push(&[2; 100_000]).await, "what was taken is there");
            assert!(!writer.push(&[3; 10]).await, "and no more is");
            let mut read = Vec::new();
            let end = loop {
                match reader.next().await.unwrap() {
                    Piece::Bytes(bytes) => read.extend_from_slice(&bytes),
                    Piece::End(end) => break end,
                }
            };
            assert!(read == [vec![1; 10_000], vec![2; 100_000]].concat() && matches!(end, End::Full));
            assert!(writer.finish(None).await.is_err());
        });
    }

    #[test]
    fn a_writer_that_goes_cuts_it() {
        runtime().block_on(async {
            let room = Arc::new(Fixed(Budget::new(1000), Budget::new(1000)));
            let mut writer = Writer::new(room, None).unwrap();
            assert!(writer.push(b"half").await);
            let blob = writer.blob().clone();
            drop(writer);
            assert!(matches!(blob.ended().await, End::Cut));
            blob.forsaken().await;
        });
    }
}
