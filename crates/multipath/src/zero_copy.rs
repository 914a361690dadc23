//! The zero-copy path of a stream: bytes go from the plain leg to the connections, and from these
//! to the plain leg, by reference, through pipes. A second reference to what goes to the
//! connections is kept until the other end has acknowledged it; bytes that have to be sent again
//! are copied then.
//!
//! A [`PipeChunk`] is a pipe with bytes in it. All chunks of an event loop share its [`PipePool`];
//! when that has no pipe left, bytes are copied.

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

/// Most bytes that are taken at once: as many as the longest piece, so that a piece is one chunk.
const MOST_TAKEN: usize = 512 * 1024;
/// Most chunks that wait to be sent, and most that wait for the plain leg. More would be small, or
/// the receiver is slow, and other streams want pipes too.
const MOST_FRESH: usize = 4;
const MOST_INCOMING: usize = 16;
/// Fewer bytes are cheaper to copy, and a pipe full of small parts of pages takes much more memory
/// than it has bytes.
pub(crate) const LEAST: usize = 64 * 1024;

/// The pipes of an event loop, empty and in use.
#[derive(Debug, Clone)]
pub(crate) struct PipePool(Rc<RefCell<Pool>>);

#[derive(Debug)]
struct Pool {
    free: Vec<Pipe>,
    lent: usize,
    most: usize,
    /// Where a pipe is emptied into.
    sink: Option<OwnedFd>,
}

impl PipePool {
    /// Idle, empty pipes kept for reuse; more are closed.
    const FREE: usize = 16;
    /// Most pipes in use; each takes two descriptors.
    const MOST: usize = 128;

    /// Most pipes in use by an event loop that may have so many open files.
    pub(crate) fn most(open_files: u64) -> usize {
        Self::MOST.min(open_files as usize / 32)
    }

    pub(crate) fn new(most: usize) -> Self {
        let sink = open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        PipePool(Rc::new(RefCell::new(Pool { free: Vec::new(), lent: 0, most, sink })))
    }

    /// A chunk with nothing in it.
    fn lend(&self) -> Option<PipeChunk> {
        let mut pool = self.0.borrow_mut();
        if pool.lent >= pool.most {
            return None;
        }
        let pipe = pool.free.pop().or_else(|| Pipe::new().ok().filter(Pipe::is_large))?;
        pool.lent += 1;
        Some(PipeChunk { pipe: Some(pipe), len: 0, pipes: self.clone() })
    }

    /// Closes the empty pipes while none is in use: the limit of pipe pages is one for all
    /// processes of a user.
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
    /// Whether a pipe is empty now.
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

/// Some bytes in a pipe, which goes back to its pool afterwards.
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

    /// Takes what a socket has, `most` bytes at the most, into an empty chunk. False: nothing came;
    /// a read returns the reason.
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

    /// Gives a socket what that takes, and tells how much; [`Errno::AGAIN`]: nothing now.
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

    /// Gives another, which has nothing yet, the same bytes once more, by reference; whether it has
    /// got all.
    fn share(&self, twin: &mut PipeChunk) -> bool {
        twin.len = self.pipe().share(twin.pipe(), self.len).unwrap_or(0);
        twin.len == self.len
    }

    /// The first of its bytes, at most so many, as a chunk of their own.
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
    /// So many of them in the stream's buffer.
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

/// Whether a socket has enough for the zero-copy path, where `most` bytes are wanted.
fn has_much(source: impl AsFd, most: u64) -> bool {
    most >= LEAST as u64 && sys::received(source) >= LEAST
}

/// The chunks of what a stream sends: `fresh` ones that no connection was given yet, and `kept`
/// ones that the other end has not acknowledged. Bytes that are in neither, or have to be sent
/// again, are in the stream's buffer.
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

    /// Takes what a socket has, `most` bytes at the most, as the stream's from `offset` on, and
    /// tells how much; none: it had better be copied.
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

    /// Where the bytes from `offset` on are, none of which was given out yet: as many of `len` as
    /// are in one place.
    pub(crate) fn give(&mut self, offset: u64, len: u64, acked: u64, buffer: &mut StreamBuffer) -> Result<PieceSource, Errno> {
        let Some(first) = self.fresh.front_mut() else { return Ok(PieceSource::Buffer(len)) };
        if first.start > offset {
            return Ok(PieceSource::Buffer(len.min(first.start - offset)));
        }
        debug_assert_eq!(first.start, offset, "chunks are given out in their order");
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

    /// Sees to it that these bytes, as far as the other end has not acknowledged them, are in the
    /// buffer. After an error some of them are lost, and the stream must end.
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

    /// The same of all of them, whether they were given out or not.
    pub(crate) fn copy_all(&mut self, acked: u64, buffer: &mut StreamBuffer) -> Result<(), Errno> {
        self.copy(acked, u64::MAX - acked, acked, buffer)?;
        self.fresh.clear();
        Ok(())
    }

    /// The bytes below `acked` are wanted no longer.
    pub(crate) fn trim(&mut self, acked: u64) {
        while self.kept.front().is_some_and(|placed| placed.end() <= acked) {
            self.kept.pop_front();
        }
    }
}

/// The chunks of what a stream has received, by their place in the stream. Other bytes are in the
/// receiving end's own buffer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pipes: PipePool,
    chunks: BTreeMap<u64, PipeChunk>,
}

impl Incoming {
    pub(crate) fn new(pipes: PipePool) -> Self {
        Incoming { pipes, chunks: BTreeMap::new() }
    }

    /// Takes what a socket has of a piece from `offset` on, of which `left` bytes are to come, and
    /// tells how much; none: it had better be copied.
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

    /// Where the first chunk begins.
    pub(crate) fn first(&self) -> Option<u64> {
        self.chunks.first_key_value().map(|(start, _)| *start)
    }

    /// Gives a socket some of the first chunk, and tells how much; [`Errno::AGAIN`]: nothing now.
    pub(crate) fn pour(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        let Some((start, mut chunk)) = self.chunks.pop_first() else { return Ok(0) };
        let poured = chunk.pour(socket);
        if chunk.len > 0 {
            self.chunks.insert(start + poured.unwrap_or(0) as u64, chunk);
        }
        poured
    }

    /// Copies all to where the receiving end has the rest. After an error some of it is lost, and
    /// the stream must end.
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

    /// Sends so many bytes, and waits until they are there.
    fn send(to: &mut TcpStream, there: &TcpStream, bytes: &[u8]) {
        to.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        to.write_all(bytes).unwrap();
        let begun = Instant::now();
        while sys::received(there) < bytes.len() {
            assert!(begun.elapsed() < Duration::from_secs(60), "they do not come");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a source has.
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
    fn what_is_little_or_has_no_pipe_is_copied() {
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
        // One that stands still has them all in its buffer.
        outgoing.copy_all(LEAST as u64, &mut buffer).unwrap();
        assert_eq!((outgoing.kept.len(), outgoing.fresh.len(), outgoing.pipes.0.borrow().lent), (0, 0, 0));
        let rest = outgoing.give(LEAST as u64, 2 * LEAST as u64, LEAST as u64, &mut buffer).unwrap();
        assert!(look(rest, LEAST as u64, &buffer) == bytes(LEAST as u64, 2 * LEAST));
    }

    #[test]
    fn what_came_before_its_turn_waits_for_it() {
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
    fn a_pipe_that_was_not_empty_is_emptied_for_the_next() {
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
        /// Comes, and is taken in chunks or copied.
        Come(usize, bool),
        Give(usize),
        /// A part of what was given goes again: where, of all of it, and how much.
        Again(f64, usize),
        /// The other end has a part of what was given.
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
        /// Whatever way bytes were taken, and however they are given out, once or again, they are
        /// what came.
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
