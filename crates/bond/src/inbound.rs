//! The receiving end of a stream: bytes come in pieces over several connections, in any order and perhaps twice, and are read in order.
//!
//! What is there and was not read, in order or not, is never more than the window. The other end is told how far it may send; whoever goes beyond
//! that has broken the rules, and so has who sends beyond the end. What came first stays, if the same bytes come again.

use crate::{Breach, Buffer, ConnId, Frame, NoMemory, Order, StreamError};
use units::Span;

/// A receipt is not held back for longer: the other end would take the connection for stalled.
pub const MOST_DELAY: Span = Span(50_000_000);
/// So many parts can wait for their turn, and one more for so many bytes of the window. A sender of ours has fewer, even where all goes again: see
/// `MOST_RUNS` and `LEAST_PIECE`.
const MOST_PARTS: usize = 8192;
const LEAST_PART: usize = 512;
/// A receipt goes at once when so much has come, or a part of the window: the eighth.
const RECEIPT_BYTES: u64 = 64 * 1024;

/// Where the next bytes of a piece are to go.
#[derive(Debug)]
pub enum Room<'a> {
    /// Here; there may be fewer than were asked for.
    Into(&'a mut [u8]),
    /// Nowhere, so many: they are there already.
    Skip(u64),
}

/// What the other end was told over a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    is_up: bool,
    /// Payload that came over it, and what of that, and else, it was told of.
    got: u64,
    told_got: u64,
    next: u64,
    limit: u64,
    /// Since when there is something to tell.
    since: Option<Span>,
    done: bool,
}

/// The resequencer.
#[derive(Debug)]
pub struct Inbound {
    order: Order,
    buffer: Buffer,
    read: u64,
    end: Option<u64>,
    conns: Vec<Told>,
    /// All was delivered to whom it is for.
    delivered: bool,
}

impl Inbound {
    /// Of a window of so many bytes.
    pub fn new(window: usize) -> Self {
        let order = Order::new(MOST_PARTS + window / LEAST_PART);
        Inbound { order, buffer: Buffer::new(window), read: 0, end: None, conns: Vec::new(), delivered: false }
    }

    /// A connection is there, under the number that it has in [`Outbound`](crate::Outbound) too. The other end knows of the window when it begins.
    pub fn add(&mut self, conn: ConnId) {
        if self.conns.len() <= conn.0 {
            self.conns.resize(conn.0 + 1, Told::default());
        }
        self.conns[conn.0] = Told { is_up: true, limit: self.buffer.window(), ..Told::default() };
    }

    /// A connection is gone.
    pub fn lose(&mut self, conn: ConnId) {
        if let Some(told) = self.conns.get_mut(conn.0) {
            told.is_up = false;
        }
    }

    /// How far the other end may send.
    fn limit(&self) -> u64 {
        self.read + self.buffer.window()
    }

    /// A piece begins: whether it may be there at all.
    pub fn begin(&self, offset: u64, len: u64) -> Result<(), Breach> {
        let end = offset.checked_add(len).ok_or(Breach::BeyondAll { offset })?;
        if end > self.limit() {
            return Err(Breach::BeyondWindow { end, limit: self.limit() });
        }
        match self.end.filter(|last| end > *last) {
            Some(last) => Err(Breach::BeyondEnd { end: last, other: end }),
            None => Ok(()),
        }
    }

    /// Where the bytes of a piece from `offset` on go, of which `left` are to come. The piece has [begun](Inbound::begin).
    ///
    /// # Errors
    /// When the system has no memory for them: the stream cannot go on.
    pub fn room(&mut self, offset: u64, left: u64) -> Result<Room<'_>, NoMemory> {
        let (len, is_new) = self.order.run(offset, left);
        Ok(if is_new { Room::Into(self.buffer.get_mut(offset, len)?) } else { Room::Skip(len) })
    }

    /// How many of the bytes of a piece from `offset` on, of which `left` are to come, are wanted: none, if the first is there already.
    pub fn wanted(&self, offset: u64, left: u64) -> u64 {
        let (len, is_new) = self.order.run(offset, left);
        if is_new { len } else { 0 }
    }

    /// `len` bytes from `offset` on have come over a connection, and are where [`room`](Inbound::room) said; or the caller keeps them until they are read.
    pub fn came(&mut self, now: Span, conn: ConnId, offset: u64, len: u64) -> Result<(), Breach> {
        // The end may have been told since the piece has begun.
        if let Some(end) = self.end.filter(|end| offset.saturating_add(len) > *end) {
            return Err(Breach::BeyondEnd { end, other: offset.saturating_add(len) });
        }
        self.order.insert(offset, len)?;
        if let Some(told) = self.conns.get_mut(conn.0) {
            told.got += len;
            told.since.get_or_insert(now);
        }
        Ok(())
    }

    /// The same, of bytes that are elsewhere.
    pub fn take(&mut self, now: Span, conn: ConnId, offset: u64, bytes: &[u8]) -> Result<(), StreamError> {
        self.begin(offset, bytes.len() as u64)?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let here = match self.room(at, rest.len() as u64)? {
                Room::Into(place) => {
                    place.copy_from_slice(&rest[..place.len()]);
                    place.len()
                }
                Room::Skip(len) => len as usize,
            };
            self.came(now, conn, at, here as u64)?;
            (at, rest) = (at + here as u64, &rest[here..]);
        }
        Ok(())
    }

    /// Has bytes that [came](Inbound::came) lie where others do, which the caller has kept until now.
    ///
    /// # Errors
    /// When the system has no memory for them: the stream cannot go on.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        self.buffer.put(offset, bytes)
    }

    /// The other end says where the stream ends.
    pub fn end(&mut self, end: u64) -> Result<(), Breach> {
        let there = self.order.end();
        if self.end.is_some_and(|other| other != end) || there > end {
            return Err(Breach::BeyondEnd { end, other: self.end.unwrap_or(there) });
        }
        self.end = Some(end);
        Ok(())
    }

    /// What can be read, bytes.
    pub fn ready(&self) -> u64 {
        self.order.next() - self.read
    }

    /// The first byte that was not read.
    pub fn first(&self) -> u64 {
        self.read
    }

    /// What can be read, at most so much of it, in parts. Where the caller keeps bytes there is something else here.
    pub fn readable(&self, most: u64) -> impl Iterator<Item = &[u8]> {
        self.buffer.get(self.read, self.ready().min(most))
    }

    /// So much of it was read.
    pub fn consume(&mut self, now: Span, bytes: u64) {
        self.read = (self.read + bytes).min(self.order.next());
        self.buffer.trim(self.read);
        self.remind(now);
    }

    /// There is something to tell over all connections.
    fn remind(&mut self, now: Span) {
        for told in self.conns.iter_mut().filter(|told| told.is_up) {
            told.since.get_or_insert(now);
        }
    }

    /// Whether everything was read, to the end.
    pub fn is_read(&self) -> bool {
        self.end == Some(self.read)
    }

    /// What was read has been delivered, to the end: the other end can be told.
    pub fn deliver(&mut self) {
        self.delivered |= self.is_read();
    }

    /// What is to be said over a connection now.
    pub fn say(&mut self, now: Span, conn: ConnId) -> Option<Frame> {
        let (next, limit, window, delivered) = (self.order.next(), self.limit(), self.buffer.window(), self.delivered);
        let told = self.conns.get_mut(conn.0).filter(|told| told.is_up)?;
        if delivered {
            let is_news = !std::mem::replace(&mut told.done, true);
            return is_news.then_some(Frame::Done);
        }
        let enough = RECEIPT_BYTES.min(window / 8);
        let is_much = told.got - told.told_got >= enough || limit - told.limit >= window / 4 || next - told.next >= window / 4;
        let is_late = told.since.is_some_and(|since| now.0 >= since.0 + MOST_DELAY.0 / 2);
        if !is_much && !is_late {
            return None;
        }
        let is_news = (told.got, next, limit) != (told.told_got, told.next, told.limit);
        (told.told_got, told.next, told.limit, told.since) = (told.got, next, limit, None);
        is_news.then_some(Frame::Ack { got: told.got, next, limit })
    }

    /// When something is to be said over a connection, if nothing happens before.
    pub fn next_say(&self) -> Option<Span> {
        let since = self.conns.iter().filter(|told| told.is_up && !self.delivered).filter_map(|told| told.since).min()?;
        Some(since + MOST_DELAY / 2)
    }

    /// Gives the memory back, where nothing is there that was not read.
    pub fn forget(&mut self) {
        if self.ready() == 0 && self.order.held().0 == 0 {
            self.buffer.forget();
        }
    }

    /// The first byte that is not there, and how many wait for it.
    pub fn waiting(&self) -> (u64, u64) {
        (self.order.next(), self.order.held().0)
    }

    /// The most that ever waited.
    pub fn most_held(&self) -> u64 {
        self.order.held().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONN: ConnId = ConnId(0);

    #[test]
    fn an_end_before_what_has_come_is_refused() {
        // Ten bytes have come, beyond a hole of a hundred.
        let mut inbound = Inbound::new(1000);
        inbound.add(CONN);
        inbound.take(Span::ZERO, CONN, 100, &[7; 10]).unwrap();
        assert_eq!(inbound.end(50), Err(Breach::BeyondEnd { end: 50, other: 110 }));
        assert_eq!(inbound.end(110), Ok(()));
    }

    #[test]
    fn a_piece_that_began_before_the_end_was_told_stays_within_it() {
        let mut inbound = Inbound::new(1000);
        inbound.add(CONN);
        inbound.begin(0, 100).unwrap();
        inbound.end(50).unwrap();
        assert_eq!(inbound.came(Span::ZERO, CONN, 0, 100), Err(Breach::BeyondEnd { end: 50, other: 100 }));
        assert_eq!(inbound.ready(), 0);
    }
}
