//! The receiving end of a bond's stream, with a peer that sends anything.

use crate::recipe::Recipe;
use bond::{Frame, Inbound, PathId, Placement, ProtocolViolation, StreamError};
use std::collections::VecDeque;
use units::Span;

const CONNECTIONS: usize = 4;

/// A model of a correct receiver, beside the receiver under test. Of bytes that arrive twice it
/// keeps the first.
struct ReceiverModel {
    inbound: Inbound,
    window: u64,
    /// Bytes that the application has read.
    read: u64,
    /// The bytes of the window, from `read` on, as far as they have arrived.
    arrived: VecDeque<Option<u8>>,
    /// Length of the stream, once the peer has announced it.
    end: Option<u64>,
    now: Span,
    /// Payload received over each connection; `None` for a connection that does not exist.
    got: [Option<u64>; CONNECTIONS],
    /// The current piece of each connection: offset of its next byte, and the bytes left.
    pieces: [Option<(u64, u64)>; CONNECTIONS],
}

/// Plays a peer that sends pieces at any offset, repeatedly, with different bytes and beyond the
/// end, over connections that are added and removed.
///
/// # Panics
/// If the readable bytes are not exactly those that arrived first, in order, or more is buffered
/// than the window.
pub fn inbound(data: &[u8]) {
    let mut recipe = Recipe(data);
    let window = [1, 1500, 20_000, 40_000][recipe.below(4)];
    let mut model = ReceiverModel {
        inbound: Inbound::new(window),
        window: window as u64,
        read: 0,
        arrived: vec![None; window].into(),
        end: None,
        now: Span::ZERO,
        got: [None; CONNECTIONS],
        pieces: [None; CONNECTIONS],
    };
    while !recipe.is_over() {
        // The stream ends at the first protocol violation.
        if model.step(&mut recipe).is_err() {
            return;
        }
        model.check();
    }
}

impl ReceiverModel {
    fn step(&mut self, recipe: &mut Recipe<'_>) -> Result<(), StreamError> {
        let conn = recipe.below(CONNECTIONS);
        match recipe.below(10) {
            0 => self.begin(conn, recipe)?,
            1..=3 => self.payload(conn, recipe)?,
            4 => self.receive_copy(conn, recipe)?,
            5 => {
                let end = self.offset(recipe);
                let beyond = self.arrived.iter().rposition(Option::is_some).map_or(self.read, |last| self.read + last as u64 + 1);
                let is_right = self.end.unwrap_or(end) == end && end >= beyond;
                assert_eq!(
                    self.inbound.on_end(end).is_ok(),
                    is_right,
                    "an end at {end}; data reach up to {beyond}, the known end is {:?}",
                    self.end
                );
                if !is_right {
                    return Err(ProtocolViolation::DeliveredTooEarly.into());
                }
                self.end = Some(end);
            }
            6 => self.consume(recipe.word().into()),
            7 => self.join_or_leave(conn),
            8 => self.check_frame(conn),
            _ => {
                self.now.0 += recipe.number() >> 24;
                if recipe.byte() & 1 == 0 {
                    self.inbound.release_memory();
                } else {
                    self.inbound.mark_delivered();
                }
            }
        }
        Ok(())
    }

    /// An offset, most often a valid one.
    fn offset(&self, recipe: &mut Recipe<'_>) -> u64 {
        match recipe.byte() {
            0..=15 => recipe.number(),
            16..=31 => self.read.saturating_sub(recipe.word().into()),
            32..=47 => self.inbound.next_offset(),
            _ => self.read + u64::from(recipe.word()) % (self.window + self.window / 8 + 2),
        }
    }

    /// Begins a piece.
    fn begin(&mut self, conn: usize, recipe: &mut Recipe<'_>) -> Result<(), StreamError> {
        if self.got[conn].is_none() || self.pieces[conn].is_some() {
            return Ok(());
        }
        let (offset, len) = (self.offset(recipe), 1 + u64::from(recipe.word()));
        let end = offset.checked_add(len).filter(|end| *end <= self.read + self.window && *end <= self.end.unwrap_or(u64::MAX));
        let begun = self.inbound.begin_piece(offset, len);
        assert_eq!(begun.is_ok(), end.is_some(), "{begun:?} for {len} bytes at {offset}");
        begun?;
        self.pieces[conn] = Some((offset, len));
        Ok(())
    }

    /// Receives some bytes of the current piece without copying.
    fn payload(&mut self, conn: usize, recipe: &mut Recipe<'_>) -> Result<(), StreamError> {
        let Some((mut offset, mut left)) = self.pieces[conn] else { return Ok(()) };
        let (mut count, seed) = (u64::from(recipe.word()).min(left), recipe.byte());
        while count > 0 {
            let here = match self.inbound.placement(offset, count)? {
                Placement::Into(place) => {
                    assert!(!place.is_empty());
                    (offset..).zip(place.iter_mut()).for_each(|(at, byte)| *byte = value(at, seed));
                    place.len() as u64
                }
                Placement::Skip(len) => len,
            };
            assert!((1..=count).contains(&here), "{here} bytes of {count}");
            self.receive(conn, offset, here, seed, |inbound, now| inbound.on_payload(now, PathId(conn), offset, here).map_err(Into::into))?;
            (offset, left, count) = (offset + here, left - here, count - here);
        }
        self.pieces[conn] = Some((offset, left)).filter(|(_, left)| *left > 0);
        Ok(())
    }

    /// Receives a whole piece, copied.
    fn receive_copy(&mut self, conn: usize, recipe: &mut Recipe<'_>) -> Result<(), StreamError> {
        if self.got[conn].is_none() {
            return Ok(());
        }
        let (offset, len, seed) = (self.offset(recipe), u64::from(recipe.word()) % 5000, recipe.byte());
        let bytes: Vec<u8> = (0..len).map(|at| value(offset.wrapping_add(at), seed)).collect();
        self.receive(conn, offset, len, seed, |inbound, now| inbound.receive(now, PathId(conn), offset, &bytes))
    }

    /// Receives bytes: those that arrived before are kept, and bytes beyond the end are refused.
    fn receive(
        &mut self,
        conn: usize,
        offset: u64,
        len: u64,
        seed: u8,
        feed: impl FnOnce(&mut Inbound, Span) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        let result = feed(&mut self.inbound, self.now);
        if self.end.is_some_and(|end| offset.checked_add(len).is_none_or(|last| last > end)) {
            assert!(result.is_err(), "{len} bytes at {offset} are accepted beyond the end at {:?}", self.end);
        }
        result?;
        self.got[conn] = self.got[conn].map(|got| got + len);
        for at in offset.max(self.read)..offset + len {
            let slot = &mut self.arrived[(at - self.read) as usize];
            slot.get_or_insert(value(at, seed));
        }
        Ok(())
    }

    fn consume(&mut self, bytes: u64) {
        let bytes = bytes.min(self.inbound.readable_bytes());
        self.inbound.consume(self.now, bytes);
        self.arrived.drain(..bytes as usize);
        self.arrived.resize(self.window as usize, None);
        self.read += bytes;
    }

    fn join_or_leave(&mut self, conn: usize) {
        self.pieces[conn] = None;
        self.got[conn] = match self.got[conn] {
            Some(_) => {
                self.inbound.remove_path(PathId(conn));
                None
            }
            None => {
                self.inbound.add_path(PathId(conn));
                Some(0)
            }
        };
    }

    /// Checks the next frame that the receiver sends.
    fn check_frame(&mut self, conn: usize) {
        match self.inbound.next_frame(self.now, PathId(conn)) {
            Some(Frame::Ack { path_received, acked, limit }) => {
                assert_eq!((Some(path_received), acked, limit), (self.got[conn], self.read + self.ready(), self.read + self.window));
            }
            Some(Frame::Delivered) => assert!(self.end == Some(self.read) && self.got[conn].is_some()),
            Some(other) => panic!("a receiver must not send {other:?}"),
            None => {}
        }
    }

    /// Number of readable bytes.
    fn ready(&self) -> u64 {
        self.arrived.iter().take_while(|byte| byte.is_some()).count() as u64
    }

    /// Compares the receiver with the model.
    fn check(&self) {
        let ready = self.ready();
        assert_eq!((self.inbound.read_offset(), self.inbound.readable_bytes()), (self.read, ready));
        assert!(self.inbound.readable(u64::MAX).flatten().copied().map(Some).eq(self.arrived.iter().copied().take(ready as usize)));
        let held = self.arrived.iter().flatten().count() as u64 - ready;
        assert_eq!((self.inbound.next_offset(), self.inbound.out_of_order_bytes()), (self.read + ready, held));
        assert!(self.inbound.max_out_of_order_bytes() <= self.window);
        assert_eq!(self.inbound.is_fully_read(), self.end == Some(self.read));
    }
}

/// The byte at an offset of the stream that a peer sends by `seed`.
fn value(offset: u64, seed: u8) -> u8 {
    (offset as u8).wrapping_mul(167) ^ seed
}
