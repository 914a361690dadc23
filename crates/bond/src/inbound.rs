//! The receiving end of a stream: resequencing, flow control and acknowledgements.

use crate::{
    buffer::{NoMemory, StreamBuffer},
    error::{ProtocolViolation, StreamError},
    frame::{Frame, MAX_ACK_DELAY},
    path::PathId,
    resequencer::Resequencer,
};
use units::Span;

/// Ranges that may wait behind gaps, besides one for every [`MIN_RANGE`] bytes of the window. Our
/// own sender leaves fewer gaps, even when everything is reinjected: see `MAX_BOUNDARIES` and
/// [`BondSettings::MIN_PIECE`](crate::BondSettings::MIN_PIECE).
const MAX_RANGES: usize = 8192;
const MIN_RANGE: usize = 512;
/// An acknowledgement is sent at once when this much has arrived on a path, bytes, or an eighth of
/// the window.
const ACK_AFTER: u64 = 128 * 1024;
/// Otherwise it is sent after this time. The rest of [`MAX_ACK_DELAY`] is for a caller that is
/// late.
const ACK_DELAY: Span = Span(MAX_ACK_DELAY.0 / 2);
/// The delay where more than [`BULK`] has arrived: a bulk transfer tolerates a later one.
/// [`BULK_ACK_DELAY_AWAKE`] applies when the caller asks before the timer has expired, as it does
/// after any other event.
const BULK_ACK_DELAY: Span = Span(MAX_ACK_DELAY.0 / 5 * 4);
const BULK_ACK_DELAY_AWAKE: Span = Span(BULK_ACK_DELAY.0 / 4 * 3);
/// Unacknowledged bytes on a path above which it counts as a bulk transfer. The acknowledgement of
/// a short message must not be late: until it comes, the sender takes the path for busy.
const BULK: u64 = 32 * 1024;

/// Where the next payload of a piece goes.
#[derive(Debug)]
pub enum Placement<'a> {
    /// New bytes: to this slice, which may be shorter than was asked for.
    Into(&'a mut [u8]),
    /// This many bytes are duplicates: read them and drop them.
    Skip(u64),
}

/// What has been received and acknowledged on a path.
#[derive(Debug, Clone, Copy, Default)]
struct PathAcks {
    is_open: bool,
    /// Payload received on it, bytes.
    received: u64,
    /// `path_received`, `acked` and `limit` of the last acknowledgement sent on it.
    sent_received: u64,
    sent_acked: u64,
    sent_limit: u64,
    /// Since when an acknowledgement is due.
    due_since: Option<Span>,
    /// Delivery was reported on it.
    delivered_sent: bool,
}

impl PathAcks {
    /// Whether much has arrived since the last acknowledgement.
    fn is_bulk(&self) -> bool {
        self.received - self.sent_received > BULK
    }
}

/// The receiving end of a stream.
///
/// Bytes arrive in pieces over several paths, in any order and with duplicates, and are read in
/// order. The bytes received first are kept when duplicates differ. What is received and unread
/// never exceeds the window.
///
/// # Contract
///
/// *Paths.* [`add_path`](Inbound::add_path) and [`remove_path`](Inbound::remove_path), with the ids
/// of [`Outbound`](crate::Outbound).
///
/// *Receiving a piece.* The caller
///
/// 1. calls [`begin_piece`](Inbound::begin_piece) when its header has arrived;
/// 2. asks [`placement`](Inbound::placement) where its next bytes go, and reads some of them there;
/// 3. reports those with [`on_payload`](Inbound::on_payload); and so on from 2.
///
/// [`receive`](Inbound::receive) does all three for bytes in memory. A caller may instead keep
/// payload itself (in a pipe, say): it asks [`new_prefix`](Inbound::new_prefix), reports
/// [`on_payload`](Inbound::on_payload), and either delivers the bytes itself when they are next, or
/// stores them later with [`put`](Inbound::put).
///
/// *Reading.* [`readable`](Inbound::readable) bytes, then [`consume`](Inbound::consume). After the
/// last ones were delivered, [`mark_delivered`](Inbound::mark_delivered).
///
/// *Acknowledging.* After any of these, and at [`next_timeout`](Inbound::next_timeout), the caller
/// sends what [`next_frame`](Inbound::next_frame) returns on each path.
///
/// A [`ProtocolViolation`] or [`NoMemory`] ends the stream.
#[derive(Debug)]
pub struct Inbound {
    resequencer: Resequencer,
    buffer: StreamBuffer,
    /// Offset of the first unread byte.
    read: u64,
    /// Where the stream ends, once that is announced.
    end: Option<u64>,
    paths: Vec<PathAcks>,
    /// The whole stream was delivered.
    delivered: bool,
}

impl Inbound {
    /// An empty stream with a window of `window` bytes.
    pub fn new(window: usize) -> Self {
        let resequencer = Resequencer::new(MAX_RANGES + window / MIN_RANGE);
        Inbound { resequencer, buffer: StreamBuffer::new(window), read: 0, end: None, paths: Vec::new(), delivered: false }
    }

    /// Adds a path, under its id in [`Outbound`](crate::Outbound). The peer knows the window from
    /// the handshake.
    pub fn add_path(&mut self, path: PathId) {
        if self.paths.len() <= path.0 {
            self.paths.resize(path.0 + 1, PathAcks::default());
        }
        self.paths[path.0] = PathAcks { is_open: true, sent_limit: self.buffer.window(), ..PathAcks::default() };
    }

    /// Removes a path after its connection has ended.
    pub fn remove_path(&mut self, path: PathId) {
        if let Some(acks) = self.paths.get_mut(path.0) {
            acks.is_open = false;
        }
    }

    /// Flow-control limit: the peer may send up to this offset.
    fn limit(&self) -> u64 {
        self.read + self.buffer.window()
    }

    /// Checks the header of a piece: `len` bytes at `offset`.
    ///
    /// # Errors
    /// When the piece ends beyond the flow-control limit or the end of the stream.
    pub fn begin_piece(&self, offset: u64, len: u64) -> Result<(), ProtocolViolation> {
        let end = offset.checked_add(len).ok_or(ProtocolViolation::OffsetOverflow { offset })?;
        if end > self.limit() {
            return Err(ProtocolViolation::BeyondWindow { end, limit: self.limit() });
        }
        match self.end.filter(|last| end > *last) {
            Some(last) => Err(ProtocolViolation::BeyondEnd { end: last, other: end }),
            None => Ok(()),
        }
    }

    /// Where the next bytes of a piece go: those from `offset` on, of which `left` are to come. The
    /// piece was [begun](Inbound::begin_piece).
    ///
    /// # Errors
    /// When the system has no memory for them: the stream cannot go on.
    pub fn placement(&mut self, offset: u64, left: u64) -> Result<Placement<'_>, NoMemory> {
        let (len, is_new) = self.resequencer.uniform_prefix(offset, left);
        Ok(if is_new { Placement::Into(self.buffer.get_mut(offset, len)?) } else { Placement::Skip(len) })
    }

    /// How many of the next `left` bytes of a piece, from `offset` on, are new, up to the first
    /// duplicate.
    pub fn new_prefix(&self, offset: u64, left: u64) -> u64 {
        let (len, is_new) = self.resequencer.uniform_prefix(offset, left);
        if is_new { len } else { 0 }
    }

    /// `len` bytes of payload at `offset` have arrived on a path. They are where
    /// [`placement`](Inbound::placement) said, or the caller keeps them.
    ///
    /// # Errors
    /// When they lie beyond the end of the stream, or leave too many gaps.
    pub fn on_payload(&mut self, now: Span, path: PathId, offset: u64, len: u64) -> Result<(), ProtocolViolation> {
        // The end may have been announced since the piece began.
        if let Some(end) = self.end.filter(|end| offset.saturating_add(len) > *end) {
            return Err(ProtocolViolation::BeyondEnd { end, other: offset.saturating_add(len) });
        }
        self.resequencer.insert(offset, len)?;
        if let Some(acks) = self.paths.get_mut(path.0) {
            acks.received += len;
            acks.due_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Takes a piece, or the next part of one, from memory: [`begin_piece`](Inbound::begin_piece),
    /// [`placement`](Inbound::placement) and [`on_payload`](Inbound::on_payload) in one.
    ///
    /// # Errors
    /// As those.
    pub fn receive(&mut self, now: Span, path: PathId, offset: u64, bytes: &[u8]) -> Result<(), StreamError> {
        self.begin_piece(offset, bytes.len() as u64)?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = match self.placement(at, rest.len() as u64)? {
                Placement::Into(place) => {
                    place.copy_from_slice(&rest[..place.len()]);
                    place.len()
                }
                Placement::Skip(len) => len as usize,
            };
            self.on_payload(now, path, at, len as u64)?;
            at += len as u64;
            rest = &rest[len..];
        }
        Ok(())
    }

    /// Stores payload that the caller has kept since [`on_payload`](Inbound::on_payload).
    ///
    /// # Errors
    /// When the system has no memory for it: the stream cannot go on.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        self.buffer.put(offset, bytes)
    }

    /// The peer announces that the stream ends at `end`.
    ///
    /// # Errors
    /// [`BeyondEnd`](ProtocolViolation::BeyondEnd) when it announced another end, or has sent bytes
    /// beyond.
    pub fn on_end(&mut self, end: u64) -> Result<(), ProtocolViolation> {
        let received = self.resequencer.highest_offset();
        if self.end.is_some_and(|other| other != end) || received > end {
            return Err(ProtocolViolation::BeyondEnd { end, other: self.end.unwrap_or(received) });
        }
        self.end = Some(end);
        Ok(())
    }

    /// Bytes that can be read.
    pub fn readable_bytes(&self) -> u64 {
        self.resequencer.next_offset() - self.read
    }

    /// Offset of the first unread byte.
    pub fn read_offset(&self) -> u64 {
        self.read
    }

    /// The bytes that can be read, at most `max`, as slices. Payload that the caller keeps is not
    /// among them: in its place are other bytes.
    pub fn readable(&self, max: u64) -> impl Iterator<Item = &[u8]> {
        self.buffer.get(self.read, self.readable_bytes().min(max))
    }

    /// The first `bytes` readable bytes were read; their room is granted to the peer again.
    pub fn consume(&mut self, now: Span, bytes: u64) {
        self.read = (self.read + bytes).min(self.resequencer.next_offset());
        self.buffer.trim(self.read);
        for acks in self.paths.iter_mut().filter(|acks| acks.is_open) {
            acks.due_since.get_or_insert(now);
        }
    }

    /// Whether the stream was read to its end.
    pub fn is_fully_read(&self) -> bool {
        self.end == Some(self.read)
    }

    /// What was read has been delivered. At the end of the stream the peer is told so.
    pub fn mark_delivered(&mut self) {
        self.delivered |= self.is_fully_read();
    }

    /// The frame that is to be sent on a path now: an acknowledgement, or the report of delivery.
    pub fn next_frame(&mut self, now: Span, path: PathId) -> Option<Frame> {
        let acked = self.resequencer.next_offset();
        let limit = self.limit();
        let window = self.buffer.window();
        let acks = self.paths.get_mut(path.0).filter(|acks| acks.is_open)?;
        if self.delivered {
            let is_news = !std::mem::replace(&mut acks.delivered_sent, true);
            return is_news.then_some(Frame::Delivered);
        }
        let is_much = acks.received - acks.sent_received >= ACK_AFTER.min(window / 8)
            || limit - acks.sent_limit >= window / 4
            || acked - acks.sent_acked >= window / 4;
        let delay = if acks.is_bulk() { BULK_ACK_DELAY_AWAKE } else { ACK_DELAY };
        let is_due = acks.due_since.is_some_and(|since| now >= since + delay);
        if !is_much && !is_due {
            return None;
        }
        let is_news = (acks.received, acked, limit) != (acks.sent_received, acks.sent_acked, acks.sent_limit);
        acks.sent_received = acks.received;
        acks.sent_acked = acked;
        acks.sent_limit = limit;
        acks.due_since = None;
        is_news.then_some(Frame::Ack { path_received: acks.received, acked, limit })
    }

    /// When to call [`next_frame`](Inbound::next_frame) for all paths, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Span> {
        let due = |acks: &PathAcks| Some(acks.due_since? + if acks.is_bulk() { BULK_ACK_DELAY } else { ACK_DELAY });
        self.paths.iter().filter(|acks| acks.is_open && !self.delivered).filter_map(due).min()
    }

    /// Unmaps the buffer, if nothing in it is unread.
    pub fn release_memory(&mut self) {
        if self.readable_bytes() == 0 && self.resequencer.out_of_order_bytes() == 0 {
            self.buffer.release_memory();
        }
    }

    /// Offset of the first missing byte.
    pub fn next_offset(&self) -> u64 {
        self.resequencer.next_offset()
    }

    /// Bytes that wait behind a gap: head-of-line blocking while it is not 0.
    pub fn out_of_order_bytes(&self) -> u64 {
        self.resequencer.out_of_order_bytes()
    }

    /// The most bytes that ever waited behind a gap.
    pub fn max_out_of_order_bytes(&self) -> u64 {
        self.resequencer.max_out_of_order_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathId = PathId(0);

    #[test]
    fn an_acknowledgement_of_much_waits_for_a_wake_up_that_comes_anyway() {
        let ms = |count: u64| Span(count * 1_000_000);
        let mut inbound = Inbound::new(8 << 20);
        inbound.add_path(PATH);
        let mut is_sent = |length: u64, since: u64, at: u64| {
            let begin = inbound.next_offset();
            inbound.receive(ms(since), PATH, begin, &vec![7; length as usize]).unwrap();
            let timer = if length > BULK { BULK_ACK_DELAY } else { ACK_DELAY };
            assert_eq!(inbound.next_timeout(), Some(ms(since) + timer));
            assert!(timer < MAX_ACK_DELAY);
            let frame = inbound.next_frame(ms(at), PATH);
            let _ = inbound.next_frame(ms(since + 50), PATH);
            frame.is_some()
        };
        assert_eq!([is_sent(10, 0, 24), is_sent(10, 1000, 1025)], [false, true]);
        assert_eq!([is_sent(BULK + 1, 2000, 2029), is_sent(BULK + 1, 3000, 3030)], [false, true]);
        let begin = inbound.next_offset();
        inbound.receive(ms(4000), PATH, begin, &[7; ACK_AFTER as usize]).unwrap();
        assert!(inbound.next_frame(ms(4000), PATH).is_some(), "so much is acknowledged at once");
    }

    #[test]
    fn an_end_before_received_bytes_is_refused() {
        // Ten bytes behind a gap of a hundred.
        let mut inbound = Inbound::new(1000);
        inbound.add_path(PATH);
        inbound.receive(Span::ZERO, PATH, 100, &[7; 10]).unwrap();
        assert_eq!(inbound.on_end(50), Err(ProtocolViolation::BeyondEnd { end: 50, other: 110 }));
        assert_eq!(inbound.on_end(110), Ok(()));
    }

    #[test]
    fn a_piece_begun_before_the_end_is_announced_must_stay_within_it() {
        let mut inbound = Inbound::new(1000);
        inbound.add_path(PATH);
        inbound.begin_piece(0, 100).unwrap();
        inbound.on_end(50).unwrap();
        assert_eq!(inbound.on_payload(Span::ZERO, PATH, 0, 100), Err(ProtocolViolation::BeyondEnd { end: 50, other: 100 }));
        assert_eq!(inbound.readable_bytes(), 0);
    }
}
