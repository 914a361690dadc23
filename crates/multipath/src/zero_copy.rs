//! The zero-copy path of a stream: pages go from the plain leg to the connections, and back, by
//! reference, through pipes. A second reference to sent bytes is kept until the other end has
//! acknowledged them; bytes that are retransmitted or reinjected are copied.
//!
//! A [`PipeChunk`] is a pipe with bytes in it. All chunks of an event loop share its [`PipePool`];
//! when the pool has no pipe left, bytes are copied.

use bond::{Inbound, NoMemory, StreamBuffer};
use intercept::sys;
use relay::{Filled, Pipe};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags, open},
    io::Errno,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// The most bytes of a chunk: those of the longest piece, so that a piece is one chunk.
const MOST_TAKEN: usize = 512 * 1024;
/// The most chunks that wait to be sent, and that wait for the plain leg. More would be small, or
/// the receiver is slow and other streams need the pipes.
const MOST_FRESH: usize = 4;
const MOST_INCOMING: usize = 16;
/// The fewest bytes of a chunk. Fewer are cheaper to copy, and a pipe of small parts of pages takes
/// much more memory than it has bytes.
pub(crate) const LEAST: usize = 64 * 1024;

/// The pipes of an event loop, empty and in use.
#[derive(Debug, Clone)]
pub(crate) struct PipePool(Rc<RefCell<Pool>>);

#[derive(Debug)]
struct Pool {
    free: Vec<Pipe>,
    lent: usize,
    most: usize,
    /// Pipes are emptied into this file.
    sink: Option<OwnedFd>,
}

impl PipePool {
    /// Idle, empty pipes kept for reuse; more are closed.
    const FREE: usize = 16;
    /// The most pipes in use; each takes two descriptors.
    const MOST: usize = 128;

    /// The most pipes in use by an event loop with this limit of open files.
    pub(crate) fn most(open_files: u64) -> usize {
        Self::MOST.min(open_files as usize / 32)
    }

    pub(crate) fn new(most: usize) -> Self {
        let sink = open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        PipePool(Rc::new(RefCell::new(Pool { free: Vec::new(), lent: 0, most, sink })))
    }

    /// An empty chunk; none: all pipes are in use.
    fn lend(&self) -> Option<PipeChunk> {
        let mut pool = self.0.borrow_mut();
        if pool.lent >= pool.most {
            return None;
        }
        let pipe = pool.free.pop().or_else(|| Pipe::new().ok().filter(Pipe::is_large))?;
        pool.lent += 1;
        Some(PipeChunk { pipe: Some(pipe), len: 0, pipes: self.clone() })
    }

    /// Closes the empty pipes while none is in use: all processes of a user share the limit of pipe
    /// pages.
    pub(crate) fn rest(&self) {
        let mut pool = self.0.borrow_mut();
        if pool.lent == 0 {
            pool.free.clear();
        }
    }

    fn take_back(&self, pipe: Pipe, len: usize) {
        let mut pool = self.0.borrow_mut();
        pool.lent -= 1;
        if pool.free.len() < Self::FREE && pool.empty(&pipe, len) {
            pool.free.push(pipe);
        }
    }
}

impl Pool {
    /// Empties a pipe; returns whether it is empty.
    fn empty(&self, pipe: &Pipe, mut len: usize) -> bool {
        while len > 0 {
            match self.sink.as_ref().map(|sink| pipe.pour(sink, len)) {
                Some(Ok(count @ 1..)) => len -= count,
                _ => return false,
            }
        }
        true
    }
}

/// Bytes in a pipe. Dropping it returns the pipe to its pool.
#[derive(Debug)]
pub(crate) struct PipeChunk {
    pipe: Option<Pipe>,
    len: usize,
    pipes: PipePool,
}

impl PipeChunk {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn pipe(&self) -> &Pipe {
        self.pipe.as_ref().expect("a chunk has its pipe for as long as it lives")
    }

    /// Moves at most `most` bytes of a socket into an empty chunk. False: none were moved; a read
    /// returns the reason.
    fn fill(&mut self, source: impl AsFd, most: u64) -> Result<bool, Errno> {
        match self.pipe().fill(source, MOST_TAKEN.min(most as usize)) {
            Ok(Filled::Bytes(count)) => {
                self.len = count;
                Ok(true)
            }
            Ok(Filled::Ended | Filled::AtUrgentMark) | Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Moves as many bytes to a socket as it takes; returns how many. [`Errno::AGAIN`]: none now.
    pub(crate) fn pour(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        loop {
            match self.pipe().pour(&socket, self.len) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::PIPE),
                Ok(count) => {
                    self.len -= count;
                    return Ok(count);
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// Copies its bytes out.
    pub(crate) fn read(mut self) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; self.len];
        self.pipe().read(&mut bytes)?;
        self.len = 0;
        Ok(bytes)
    }

    /// Duplicates all bytes into an empty chunk by reference; returns whether all fitted.
    fn share(&self, twin: &mut PipeChunk) -> bool {
        twin.len = self.pipe().share(twin.pipe(), self.len).unwrap_or(0);
        twin.len == self.len
    }

    /// Splits off its first bytes, at most `most`, into a chunk of their own.
    fn split(&mut self, most: usize) -> Option<PipeChunk> {
        let mut first = self.pipes.lend()?;
        first.len = self.pipe().pass(first.pipe(), most).unwrap_or(0);
        self.len -= first.len;
        (first.len > 0).then_some(first)
    }
}

impl Drop for PipeChunk {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pipes.take_back(pipe, self.len);
        }
    }
}

/// Where the next bytes of a piece are.
#[derive(Debug)]
pub(crate) enum PieceSource {
    /// In this chunk.
    Chunk(PipeChunk),
    /// This many of them in the stream's buffer.
    Buffer(u64),
}

impl PieceSource {
    pub(crate) fn len(&self) -> u64 {
        match self {
            PieceSource::Chunk(chunk) => chunk.len as u64,
            PieceSource::Buffer(len) => *len,
        }
    }
}

/// A chunk's place in the stream.
#[derive(Debug)]
struct Placed {
    start: u64,
    chunk: PipeChunk,
}

impl Placed {
    fn end(&self) -> u64 {
        self.start + self.chunk.len as u64
    }
}

/// Whether a socket has enough bytes for the zero-copy path. `most` is how many are wanted.
fn has_much(source: impl AsFd, most: u64) -> bool {
    most >= LEAST as u64 && sys::received(source) >= LEAST
}

/// The outgoing chunks of a stream: `fresh` ones that are not assigned to a connection yet, and
/// `kept` ones that are sent and not acknowledged. Other bytes, and those to be retransmitted or
/// reinjected, are in the stream's buffer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pipes: PipePool,
    fresh: VecDeque<Placed>,
    kept: VecDeque<Placed>,
}

impl Outgoing {
    pub(crate) fn new(pipes: PipePool) -> Self {
        Outgoing { pipes, fresh: VecDeque::new(), kept: VecDeque::new() }
    }

    /// Moves at most `most` bytes of a socket to `offset` of the stream; returns how many. None:
    /// the caller should copy.
    pub(crate) fn take(&mut self, source: impl AsFd, offset: u64, most: u64, buffer: &mut StreamBuffer) -> Result<Option<usize>, Errno> {
        if self.fresh.len() >= MOST_FRESH || !has_much(&source, most) {
            return Ok(None);
        }
        let (Some(mut chunk), Some(mut twin)) = (self.pipes.lend(), self.pipes.lend()) else { return Ok(None) };
        if !chunk.fill(source, most)? {
            return Ok(None);
        }
        let count = chunk.len;
        if count >= LEAST && chunk.share(&mut twin) {
            self.fresh.push_back(Placed { start: offset, chunk });
            self.kept.push_back(Placed { start: offset, chunk: twin });
        } else {
            buffer.put(offset, &chunk.read()?).map_err(|NoMemory| Errno::NOMEM)?;
        }
        Ok(Some(count))
    }

    /// Assigns bytes from `offset`, which were not assigned before: as many of `len` as are in one
    /// place.
    pub(crate) fn give(&mut self, offset: u64, len: u64, acked: u64, buffer: &mut StreamBuffer) -> Result<PieceSource, Errno> {
        let Some(first) = self.fresh.front_mut() else { return Ok(PieceSource::Buffer(len)) };
        if first.start > offset {
            return Ok(PieceSource::Buffer(len.min(first.start - offset)));
        }
        debug_assert_eq!(first.start, offset, "chunks are assigned in order");
        if len < first.chunk.len as u64 {
            if let Some(part) = first.chunk.split(len as usize) {
                first.start += part.len as u64;
                return Ok(PieceSource::Chunk(part));
            }
            let end = first.end();
            self.fresh.pop_front();
            self.copy(offset, end - offset, acked, buffer)?;
            return Ok(PieceSource::Buffer(len));
        }
        Ok(self.fresh.pop_front().map_or(PieceSource::Buffer(len), |first| PieceSource::Chunk(first.chunk)))
    }

    /// Copies these bytes into the buffer, except those that the other end has acknowledged. After
    /// an error some of them are lost, and the stream has to end.
    pub(crate) fn copy(&mut self, offset: u64, len: u64, acked: u64, buffer: &mut StreamBuffer) -> Result<(), Errno> {
        let is_of_it = |placed: &Placed| placed.start < offset + len && offset < placed.end();
        while let Some(index) = self.kept.iter().position(is_of_it) {
            let Some(Placed { start, chunk }) = self.kept.remove(index) else { break };
            let bytes = chunk.read()?;
            let old = (acked.saturating_sub(start) as usize).min(bytes.len());
            buffer.put(start + old as u64, &bytes[old..]).map_err(|NoMemory| Errno::NOMEM)?;
        }
        Ok(())
    }

    /// As [`copy`](Self::copy), for all bytes, assigned or not.
    pub(crate) fn copy_all(&mut self, acked: u64, buffer: &mut StreamBuffer) -> Result<(), Errno> {
        self.copy(acked, u64::MAX - acked, acked, buffer)?;
        self.fresh.clear();
        Ok(())
    }

    /// Drops the bytes below `acked`.
    pub(crate) fn trim(&mut self, acked: u64) {
        while self.kept.front().is_some_and(|placed| placed.end() <= acked) {
            self.kept.pop_front();
        }
    }
}

/// The received chunks of a stream, by their offset. Other bytes are in the buffer of [`Inbound`].
#[derive(Debug)]
pub(crate) struct Incoming {
    pipes: PipePool,
    chunks: BTreeMap<u64, PipeChunk>,
}

impl Incoming {
    pub(crate) fn new(pipes: PipePool) -> Self {
        Incoming { pipes, chunks: BTreeMap::new() }
    }

    /// Moves bytes of a piece from a socket to `offset` of the stream; `left` bytes of the piece
    /// are missing. Returns how many. None: the caller should copy.
    pub(crate) fn take(&mut self, source: impl AsFd, offset: u64, left: u64, inbound: &mut Inbound) -> Result<Option<usize>, Errno> {
        let most = inbound.new_prefix(offset, left);
        if self.chunks.len() >= MOST_INCOMING || !has_much(&source, most) {
            return Ok(None);
        }
        let Some(mut chunk) = self.pipes.lend() else { return Ok(None) };
        if !chunk.fill(source, most)? {
            return Ok(None);
        }
        let count = chunk.len;
        if count >= LEAST {
            self.chunks.insert(offset, chunk);
        } else {
            inbound.put(offset, &chunk.read()?).map_err(|NoMemory| Errno::NOMEM)?;
        }
        Ok(Some(count))
    }

    /// Offset of the first chunk.
    pub(crate) fn first(&self) -> Option<u64> {
        self.chunks.first_key_value().map(|(start, _)| *start)
    }

    /// Moves bytes of the first chunk to a socket; returns how many. [`Errno::AGAIN`]: none now.
    pub(crate) fn pour(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        let Some((start, mut chunk)) = self.chunks.pop_first() else { return Ok(0) };
        let poured = chunk.pour(socket);
        if chunk.len > 0 {
            self.chunks.insert(start + poured.unwrap_or(0) as u64, chunk);
        }
        poured
    }

    /// Copies all bytes into the buffer of [`Inbound`]. After an error some of them are lost, and
    /// the stream has to end.
    pub(crate) fn copy(&mut self, inbound: &mut Inbound) -> Result<(), Errno> {
        while let Some((start, chunk)) = self.chunks.pop_first() {
            inbound.put(start, &chunk.read()?).map_err(|NoMemory| Errno::NOMEM)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, TcpListener, TcpStream},
        thread,
        time::{Duration, Instant},
    };

    const WINDOW: usize = 8 << 20;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // The tests wait until all bytes have arrived before they read.
        sys::force_receive_buffer(&listener, 2 << 20).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn bytes(from: u64, len: usize) -> Vec<u8> {
        (from..from + len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    /// Sends bytes, and waits until they have arrived.
    fn send(to: &mut TcpStream, there: &TcpStream, bytes: &[u8]) {
        to.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        to.write_all(bytes).unwrap();
        let begun = Instant::now();
        while sys::received(there) < bytes.len() {
            assert!(begun.elapsed() < Duration::from_secs(60), "they do not come");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The bytes of a source.
    fn look(source: PieceSource, at: u64, buffer: &StreamBuffer) -> Vec<u8> {
        match source {
            PieceSource::Buffer(len) => buffer.get(at, len).collect::<Vec<_>>().concat(),
            PieceSource::Chunk(mut chunk) => {
                let (one, mut other) = pair();
                let len = chunk.len();
                while chunk.len() > 0 {
                    chunk.pour(&one).unwrap();
                }
                let mut bytes = vec![0; len];
                other.read_exact(&mut bytes).unwrap();
                bytes
            }
        }
    }

    #[test]
    fn few_bytes_or_a_lack_of_pipes_are_copied() {
        let (mut one, other) = pair();
        let mut buffer = StreamBuffer::new(WINDOW);
        let mut outgoing = Outgoing::new(PipePool::new(4));
        send(&mut one, &other, &bytes(0, LEAST - 1));
        assert_eq!(outgoing.take(&other, 0, 1 << 20, &mut buffer), Ok(None));
        send(&mut one, &other, &bytes(LEAST as u64 - 1, 4 * LEAST));
        assert_eq!(outgoing.take(&other, 0, LEAST as u64 - 1, &mut buffer), Ok(None));
        let mut at = 0;
        for _ in 0..2 {
            at += outgoing.take(&other, at, LEAST as u64, &mut buffer).unwrap().unwrap() as u64;
        }
        assert_eq!(outgoing.take(&other, at, LEAST as u64, &mut buffer), Ok(None), "each takes two");
        let taken = look(outgoing.give(0, LEAST as u64, 0, &mut buffer).unwrap(), 0, &buffer);
        assert_eq!(taken, bytes(0, LEAST));
        assert_eq!(outgoing.take(&other, at, LEAST as u64, &mut buffer), Ok(None), "one is left");
        outgoing.trim(LEAST as u64);
        assert_eq!(outgoing.take(&other, at, LEAST as u64, &mut buffer), Ok(Some(LEAST)));
        // A stalled stream has all bytes in its buffer.
        outgoing.copy_all(LEAST as u64, &mut buffer).unwrap();
        assert_eq!((outgoing.kept.len(), outgoing.fresh.len(), outgoing.pipes.0.borrow().lent), (0, 0, 0));
        let rest = outgoing.give(LEAST as u64, 2 * LEAST as u64, LEAST as u64, &mut buffer).unwrap();
        assert!(look(rest, LEAST as u64, &buffer) == bytes(LEAST as u64, 2 * LEAST));
    }

    #[test]
    fn chunks_received_out_of_order_wait() {
        let (mut one, other) = pair();
        let (near, mut far) = pair();
        let (mut incoming, mut inbound) = (Incoming::new(PipePool::new(8)), Inbound::new(WINDOW));
        let (first, second) = (bytes(0, LEAST), bytes(LEAST as u64, LEAST));
        for (at, part) in [(LEAST, &second), (0, &first)] {
            send(&mut one, &other, part);
            assert_eq!(incoming.take(&other, at as u64, LEAST as u64, &mut inbound), Ok(Some(LEAST)));
            assert_eq!(incoming.first(), Some(at as u64));
        }
        let mut heard = vec![0; 2 * LEAST];
        let mut poured = 0;
        while let Some(first) = incoming.first() {
            assert_eq!(first, poured as u64);
            poured += incoming.pour(&near).unwrap();
        }
        far.read_exact(&mut heard).unwrap();
        assert!(heard == [first, second].concat());
        assert_eq!(incoming.pipes.0.borrow().lent, 0);
    }

    #[test]
    fn a_pipe_is_emptied_before_reuse() {
        let (mut one, other) = pair();
        let pipes = PipePool::new(1);
        for round in 0..3 {
            let sent = bytes(round, LEAST);
            send(&mut one, &other, &sent);
            let mut chunk = pipes.lend().unwrap();
            assert_eq!((chunk.fill(&other, LEAST as u64), chunk.len), (Ok(true), LEAST));
            assert!(pipes.lend().is_none());
            if round != 1 {
                assert!(chunk.read().unwrap() == sent);
            }
        }
        assert_eq!(pipes.0.borrow().free.len(), 1);
        pipes.rest();
        assert_eq!(pipes.0.borrow().free.len(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Bytes arrive, and are moved in chunks or copied.
        Come(usize, bool),
        Give(usize),
        /// A part of the assigned bytes is retransmitted: its place, as a fraction, and its length.
        Again(f64, usize),
        /// The other end acknowledges a part of the assigned bytes.
        Acknowledge(f64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1usize..150_000, prop::bool::weighted(0.8)).prop_map(|(len, hauled)| Step::Come(len, hauled)),
            4 => (1usize..200_000).prop_map(Step::Give),
            1 => (0.0..1.0, 1usize..200_000).prop_map(|(at, len)| Step::Again(at, len)),
            1 => (0.0f64..1.0).prop_map(Step::Acknowledge),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        /// Bytes are unchanged, however they were moved, and whether they are sent or
        /// retransmitted.
        #[test]
        fn what_is_given_is_what_came(pipes in 1usize..12, steps in prop::collection::vec(step(), 1..40)) {
            let (mut one, mut other) = pair();
            let (mut outgoing, mut buffer) = (Outgoing::new(PipePool::new(pipes)), StreamBuffer::new(WINDOW));
            let (mut acked, mut given, mut written) = (0u64, 0u64, 0u64);
            for step in steps {
                match step {
                    Step::Come(len, hauled) => {
                        let len = len.min(WINDOW - (written - acked) as usize);
                        send(&mut one, &other, &bytes(written, len));
                        let end = written + len as u64;
                        while written < end {
                            let taken = if hauled { outgoing.take(&other, written, end - written, &mut buffer).unwrap() } else { None };
                            written += match taken {
                                Some(count) => count as u64,
                                None => {
                                    let room = buffer.get_mut(written, end - written).unwrap();
                                    other.read(room).unwrap() as u64
                                }
                            };
                        }
                    }
                    Step::Give(len) => {
                        let end = (given + len as u64).min(written);
                        while given < end {
                            let source = outgoing.give(given, end - given, acked, &mut buffer).unwrap();
                            let len = source.len();
                            prop_assert!(len > 0 && len <= end - given);
                            prop_assert!(look(source, given, &buffer) == bytes(given, len as usize));
                            given += len;
                        }
                    }
                    Step::Again(at, len) => {
                        let at = acked + ((given - acked) as f64 * at) as u64;
                        let len = (len as u64).min(given - at);
                        outgoing.copy(at, len, acked, &mut buffer).unwrap();
                        prop_assert!(look(PieceSource::Buffer(len), at, &buffer) == bytes(at, len as usize));
                    }
                    Step::Acknowledge(part) => {
                        acked += ((given - acked) as f64 * part) as u64;
                        buffer.trim(acked);
                        outgoing.trim(acked);
                    }
                }
                let in_use = outgoing.fresh.len() + outgoing.kept.len();
                prop_assert_eq!(outgoing.pipes.0.borrow().lent, in_use);
                prop_assert!(in_use <= pipes);
            }
        }
    }
}
