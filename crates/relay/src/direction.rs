//! Moves bytes one way through a connection, never more than the bound allows.
//!
//! A direction copies while reads are short, which is cheapest for messages. A read that fills the
//! buffer is *bulk* data and switches the direction to the zero-copy path: `splice` through a
//! borrowed pipe, which the direction keeps only while the destination leaves bytes in it. Two
//! kinds of data are always copied: those of a direction with a small bound, for which a pipe and a
//! 64 KiB segment are too coarse, and urgent data, which splice never passes (it goes on as
//! ordinary data).
//!
//! Backpressure: data that the destination does not take stays in the source's receive queue, so
//! that the advertised window closes and stops the sender.
//!
//! The caller calls [`Direction::pump`] after each event of either leg and whenever the last call
//! returned [`Pumped::Again`]. It passes the end of file on itself, once [`Direction::finished`],
//! and calls [`Direction::release`] before it drops a direction.
//!
//! A source that has failed ([`PlainLeg::fail`]) is read to the end of its receive queue: what was
//! received before a reset is passed on, as the peer of a direct connection would read it.

use crate::{
    buffer_control::{BufferControl, SendingSide},
    buffer_law::{self, BufferLimits},
    buffer_rise::BufferRise,
    pipe::{Filled, Pipe},
    plain_leg::PlainLeg,
    relay_fault::RelayFault,
    scratch::Scratch,
    squeeze::{Squeeze, Squeezed},
};
use intercept::{leg::Shares, sys};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use std::mem;

/// The most bytes that a direction moves in a turn of the event loop, and the most rounds. Other
/// connections get theirs in between.
const TURN_BYTES: u64 = 2 << 20;
const TURN_ROUNDS: usize = 64;
/// What may arrive at a leg without a bound that is not read, before memory is measured again,
/// bytes.
const UNBOUND_RECEIVE: u64 = 1 << 20;
/// A splice of fewer bytes counts as a message, bytes.
const SMALL: usize = 4096;
/// After this many bytes a direction tunes its sockets for bulk data.
const TUNE_FROM: u64 = 32 * 1024;

/// Result of [`Direction::pump`]: when to call it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// After the next event of either leg.
    Waits,
    /// When the destination's send queue has room. Epoll reports that only after
    /// [`Reactor::rearm`](crate::Reactor::rearm).
    WaitsForRoom,
    /// In the next turn of the event loop: there is more to move.
    Again,
}

/// How a direction moves its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayMode {
    /// Copied, until a read fills the buffer.
    Messages,
    /// Spliced, until a splice moves few bytes.
    Bulk,
    /// Copied in pieces that fit into a small bound.
    Small,
}

/// Bounds what the sockets hold, by a B that follows the flow.
fn bound_both(control: &mut BufferControl, source: &mut PlainLeg, destination: &PlainLeg) -> Result<(), RelayFault> {
    control.bound_source(source).map_err(RelayFault::Source)?;
    destination.bound_unsent(control.shares()).map_err(RelayFault::Destination)
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Direction {
    shares: Option<Shares>,
    /// How a fixed B is divided while memory is not short.
    fixed: Option<Shares>,
    /// How far a fixed B has risen that begins small.
    rise: BufferRise,
    /// Length of the preface, which the proxy itself sends, bytes.
    preface: usize,
    mode: RelayMode,
    /// The sockets have been tuned for bulk data.
    tuned: bool,
    /// The source has sent its last byte, and it has been read.
    pub ended: bool,
    /// The end of file has been passed on to the destination.
    pub passed: bool,
    /// Bytes written to the destination, the preface included.
    moved: u64,
    pipe: Option<Pipe>,
    in_pipe: usize,
    /// Copied bytes that the destination has not taken yet.
    rest: Vec<u8>,
    /// Between which values B follows the flow; none: B is fixed.
    limits: Option<BufferLimits>,
    /// The control of such a B, once the direction carries bulk data.
    control: Option<Box<BufferControl>>,
    /// B while memory is short.
    squeeze: Squeeze,
}

impl Direction {
    /// A direction that first writes `preface`, which the proxy itself sends, and then
    /// `already_read`, bytes that were read from the source before. `shares` is how its bound B is
    /// divided; none: it has no bound.
    pub fn new(shares: Option<Shares>, preface: Vec<u8>, already_read: Vec<u8>) -> Self {
        let mode = if shares.is_some_and(|shares| shares.pipe == 0) { RelayMode::Small } else { RelayMode::Messages };
        Direction {
            shares,
            fixed: shares,
            rise: BufferRise::Complete,
            preface: preface.len(),
            mode,
            tuned: false,
            ended: false,
            passed: false,
            moved: 0,
            pipe: None,
            in_pipe: 0,
            rest: [preface, already_read].concat(),
            limits: None,
            control: None,
            squeeze: Squeeze::default(),
        }
    }

    /// Has B follow the flow between these limits once the direction carries bulk data; none: B
    /// stays fixed. The sockets must be prepared for the largest B, which their window scale has to
    /// fit.
    #[must_use]
    pub fn adapting(self, limits: Option<BufferLimits>) -> Self {
        Direction { limits, ..self }
    }

    /// Has a fixed B rise to this many bytes once the direction carries bulk data, memory permits
    /// and the destination takes what comes; none: it stays as it is. The sockets must be prepared
    /// for it.
    #[must_use]
    pub fn rising_to(self, most: Option<usize>) -> Self {
        Direction { rise: BufferRise::to(most), ..self }
    }

    /// The present B, bytes, if it follows the flow.
    pub fn adapted_buffer(&self) -> Option<u64> {
        self.control.as_ref().map(|control| control.buffer())
    }

    /// Bytes of the source that were written to the destination.
    pub fn carried(&self) -> u64 {
        self.moved.saturating_sub(self.preface as u64)
    }

    /// Bytes that were read from the source.
    pub fn taken(&self) -> u64 {
        (self.moved + self.in_hand() as u64).saturating_sub(self.preface as u64)
    }

    /// Whether nothing was written to the destination yet, not even a preface.
    pub fn has_moved_nothing(&self) -> bool {
        self.moved == 0
    }

    /// Bytes that the process holds, in a pipe or a buffer: they are in neither socket.
    pub fn in_hand(&self) -> usize {
        self.in_pipe + self.rest.len()
    }

    /// Whether all bytes up to the source's end of file were written to the destination.
    pub fn finished(&self) -> bool {
        self.ended && self.in_hand() == 0
    }

    /// Gives up its pipe, and the bytes that are still in it. To be called before it is dropped.
    pub fn release(&mut self, scratch: &mut Scratch) {
        if self.pipe.take().is_some() {
            // The pipe is not empty, so that it is closed instead of reused.
            scratch.lent -= 1;
        }
        if let Some(control) = &self.control {
            scratch.budget.change(control.buffer(), buffer_law::START);
        }
        self.squeeze.hold_back(0, &mut scratch.budget);
        self.rise.release(&mut scratch.budget);
        if mem::take(&mut self.tuned) {
            scratch.budget.change_bulk(false);
        }
    }

    /// Moves bytes from `source` to `destination` until one of them blocks or the turn is used up.
    ///
    /// # Errors
    /// [`RelayFault`]: an error of either socket, or of a pipe.
    pub fn pump(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<Pumped, RelayFault> {
        if !destination.writable || (self.in_hand() == 0 && (self.ended || !source.readable)) {
            self.leave(source, destination, scratch)?;
            return Ok(Pumped::Waits);
        }
        if !source.has_failed() {
            if self.tuned || self.squeeze.applies() {
                self.follow_cap(source, destination, scratch)?;
            }
            if self.tuned {
                self.rise(source, destination, scratch)?;
            }
            self.adapt(source, destination, scratch)?;
        }
        let (before, mut spliced) = (self.moved, false);
        for _ in 0..TURN_ROUNDS {
            self.settle_mode();
            if !self.rest.is_empty() {
                self.send_rest(destination)?;
            } else if self.in_pipe == 0 && (self.ended || !source.readable) {
                break;
            } else if self.mode == RelayMode::Small {
                if !self.copy_within_bound(source, destination, scratch)? {
                    self.leave(source, destination, scratch)?;
                    return Ok(Pumped::WaitsForRoom);
                }
            } else if self.in_pipe == 0 && (self.mode == RelayMode::Messages || source.urgent) {
                let room = scratch.buffer.len();
                if self.copy(source, destination, &mut scratch.buffer[..room])? == room && !source.urgent {
                    self.mode = RelayMode::Bulk;
                }
            } else {
                // Once a turn: a later splice moves more bytes at once. (SO_RCVLOWAT would also
                // wait for more, but makes the kernel acknowledge every packet until then.)
                self.splice(source, destination, scratch)?;
                spliced = true;
            }
            if !self.tuned && self.moved > TUNE_FROM && !source.has_failed() {
                self.tune(source, destination, scratch)?;
            }
            if spliced || !destination.writable || self.moved - before > TURN_BYTES {
                break;
            }
        }
        if self.moved > before {
            scratch.budget.note_growth(self.moved - before);
        }
        if self.moved > before && !source.has_failed() {
            self.squeeze.settle(source)?;
            if let Some(control) = self.control.as_mut().filter(|_| !self.squeeze.applies()) {
                control.end_turn(source).map_err(RelayFault::Source)?;
            }
        }
        if self.rest.is_empty() && self.rest.capacity() > 0 {
            // An idle connection keeps no memory.
            self.rest = Vec::new();
        }
        self.leave(source, destination, scratch)?;
        let could_read = !self.ended && source.readable;
        Ok(if destination.writable && (could_read || self.in_hand() > 0) { Pumped::Again } else { Pumped::Waits })
    }

    /// Backpressure: leaves data in the source's receive queue while the destination is full.
    fn leave(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        if destination.writable || self.ended {
            self.squeeze.hold_back(0, &mut scratch.budget);
            if let Some(control) = self.control.as_mut().filter(|_| !source.readable) {
                control.wait_for_source();
            }
            return Ok(());
        }
        let receive = self.own_shares().map_or(UNBOUND_RECEIVE, |shares| shares.receive as u64);
        self.squeeze.hold_back(receive, &mut scratch.budget);
        if !source.has_failed() {
            self.follow_cap(source, destination, scratch)?;
        }
        source.pause_receive().map_err(RelayFault::Source)
    }

    /// How its B is divided while memory is not short.
    fn own_shares(&self) -> Option<Shares> {
        self.control.as_ref().map(|control| control.shares()).or(self.fixed)
    }

    /// Has B follow the cap for all directions, which applies while memory is short.
    fn follow_cap(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        let own = self.own_shares();
        match self.squeeze.follow(scratch.budget.cap(), own, source, destination)? {
            Squeezed::Same => {}
            Squeezed::To(shares) => self.shares = Some(shares),
            Squeezed::Lifted => {
                self.shares = own;
                match &mut self.control {
                    Some(control) => bound_both(control, source, destination)?,
                    None if self.tuned => self.divide(source, destination, scratch)?,
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Bounds the source's receive queue and the destination's unsent data. It runs only once a
    /// direction has moved bulk data, so that short connections cost no system call.
    fn tune(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        self.tuned = true;
        scratch.budget.change_bulk(true);
        self.follow_cap(source, destination, scratch)?;
        // Its B is the cap until that is lifted.
        if self.squeeze.applies() { Ok(()) } else { self.divide(source, destination, scratch) }
    }

    /// Divides B of a direction that carries bulk data, or begins to have it follow the flow.
    fn divide(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        if let Some(limits) = self.limits {
            let figures = [self.moved, scratch.budget.spare(buffer_law::START)];
            let sending = SendingSide::of(destination).map_err(RelayFault::Destination)?;
            let mut control = BufferControl::new(limits, source, sending, figures, scratch.now).map_err(RelayFault::Source)?;
            scratch.budget.change(buffer_law::START, control.buffer());
            self.shares = Some(control.shares());
            let divided = bound_both(&mut control, source, destination);
            self.control = Some(Box::new(control));
            return divided;
        }
        let Some(shares) = self.shares.filter(|_| self.mode != RelayMode::Small) else { return Ok(()) };
        // If B is still to rise, the kernel has tuned the receive buffer so far: it gets its bound
        // here. Otherwise it has had one from the beginning.
        let bounded = if self.rise == BufferRise::Complete { source.bound_receive(shares) } else { source.change_receive(shares) };
        bounded.map_err(RelayFault::Source)?;
        destination.bound_unsent(shares).map_err(RelayFault::Destination)?;
        self.rise(source, destination, scratch)
    }

    /// Raises a fixed B that began small, if that is due.
    fn rise(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        if self.rise == BufferRise::Complete || self.squeeze.applies() {
            return Ok(());
        }
        let Some(shares) = self.rise.step(self.moved, destination, &mut scratch.budget).map_err(RelayFault::Destination)? else {
            return Ok(());
        };
        (self.fixed, self.shares) = (Some(shares), Some(shares));
        source.change_receive(shares).map_err(RelayFault::Source)?;
        destination.bound_unsent(shares).map_err(RelayFault::Destination)?;
        self.squeeze.reconsider();
        self.follow_cap(source, destination, scratch)
    }

    /// Measures the flow, if that is due, and has B follow it.
    fn adapt(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        let in_hand = self.in_hand() as u64;
        if self.squeeze.applies() {
            return Ok(());
        }
        let Some(control) = &mut self.control else { return Ok(()) };
        control.begin_turn(scratch.now);
        if !control.is_due(self.moved, scratch.now) {
            return Ok(());
        }
        let before = control.buffer();
        let figures = [self.moved, in_hand, scratch.budget.spare(before)];
        let sending = SendingSide::of(destination).map_err(RelayFault::Destination)?;
        let updated = control.update(source, sending, figures, scratch.now);
        scratch.budget.change(before, control.buffer());
        let shares = control.shares();
        self.shares = Some(shares);
        if updated.map_err(RelayFault::Source)? { destination.bound_unsent(shares).map_err(RelayFault::Destination) } else { Ok(()) }
    }

    /// Changes between copying within a small bound and the modes for a larger one, after B has
    /// changed. What is in a pipe goes on first.
    fn settle_mode(&mut self) {
        let is_small = self.shares.is_some_and(|shares| shares.pipe == 0);
        if is_small == (self.mode == RelayMode::Small) || self.in_pipe > 0 {
            return;
        }
        self.mode = if is_small { RelayMode::Small } else { RelayMode::Messages };
    }

    fn splice(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), RelayFault> {
        let kept = self.pipe.take();
        scratch.lent -= usize::from(kept.is_some());
        let pipe = match kept {
            Some(pipe) => pipe,
            None => match scratch.take_pipe() {
                Ok(pipe) => pipe,
                // No descriptor or memory is left for one: this read is copied.
                Err(_) => {
                    self.mode = RelayMode::Messages;
                    return Ok(());
                }
            },
        };
        if self.in_pipe == 0 {
            source.resume_receive().map_err(RelayFault::Source)?;
            match pipe.fill(&*source, self.shares.map_or(Pipe::ROOM, |shares| shares.pipe)) {
                Ok(Filled::AtUrgentMark) => source.urgent = true,
                Ok(Filled::Ended) => self.ended = true,
                Ok(Filled::Bytes(count)) => {
                    self.in_pipe = count;
                    if count < SMALL {
                        self.mode = RelayMode::Messages;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) if source.has_failed() => self.ended = true,
                Err(Errno::AGAIN) => source.readable = false,
                Err(errno) => return Err(RelayFault::Source(errno.into())),
            }
        }
        while self.in_pipe > 0 {
            match pipe.pour(&*destination, self.in_pipe) {
                Ok(count) => {
                    self.in_pipe -= count;
                    self.moved += count as u64;
                }
                Err(Errno::AGAIN | Errno::INPROGRESS) => {
                    destination.writable = false;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(RelayFault::Destination(errno.into())),
            }
        }
        if self.in_pipe > 0 && scratch.lent < Scratch::LENT {
            scratch.lent += 1;
            self.pipe = Some(pipe);
            return Ok(());
        }
        if self.in_pipe > 0 {
            self.rest.resize(mem::take(&mut self.in_pipe), 0);
            pipe.read(&mut self.rest).map_err(|_| RelayFault::Own)?;
        }
        scratch.give_back(pipe);
        Ok(())
    }

    /// Copies one read of at most `buffer.len()` bytes; returns how many were read.
    fn copy(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, buffer: &mut [u8]) -> Result<usize, RelayFault> {
        // Only a FIN reported before this read is known to follow the bytes read; a later one
        // raises another event.
        let hung_up = source.hung_up;
        source.resume_receive().map_err(RelayFault::Source)?;
        match recv(&*source, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                self.ended = true;
                Ok(0)
            }
            Ok((_, count)) => {
                if count < buffer.len() && !source.urgent {
                    // A short read means that the receive queue is empty: otherwise a read stops
                    // early only at an urgent mark, which an event reports.
                    source.readable = source.has_failed();
                    self.ended = hung_up;
                }
                let sent = self.send(destination, &buffer[..count])?;
                self.rest.extend_from_slice(&buffer[sent..count]);
                Ok(count)
            }
            Err(Errno::INTR) => Ok(0),
            Err(_) if source.has_failed() => {
                self.ended = true;
                Ok(0)
            }
            Err(Errno::AGAIN) => {
                source.readable = false;
                // After the urgent mark splice works again.
                source.urgent = false;
                Ok(0)
            }
            Err(errno) => Err(RelayFault::Source(errno.into())),
        }
    }

    /// Copies as much as the bound leaves room for; false: it leaves none.
    fn copy_within_bound(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<bool, RelayFault> {
        let unsent = sys::unsent(&*destination).map_err(RelayFault::Destination)?;
        let most_unsent = self.shares.map_or(usize::MAX, |shares| shares.unsent);
        let room = most_unsent.saturating_sub(unsent).min(scratch.buffer.len());
        if room == 0 {
            destination.writable = false;
            return Ok(false);
        }
        self.copy(source, destination, &mut scratch.buffer[..room])?;
        Ok(true)
    }

    fn send_rest(&mut self, destination: &mut PlainLeg) -> Result<(), RelayFault> {
        let rest = mem::take(&mut self.rest);
        let sent = self.send(destination, &rest)?;
        self.rest = rest;
        self.rest.drain(..sent);
        Ok(())
    }

    /// Writes as many bytes as the destination takes, and returns how many. Clears `writable` when
    /// the send queue is full.
    fn send(&mut self, destination: &mut PlainLeg, bytes: &[u8]) -> Result<usize, RelayFault> {
        match send(&*destination, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => {
                self.moved += count as u64;
                Ok(count)
            }
            Err(Errno::INTR) => Ok(0),
            // EINPROGRESS: the SYN was sent without the bytes that it could have carried.
            Err(Errno::AGAIN | Errno::INPROGRESS) => {
                destination.writable = false;
                Ok(0)
            }
            Err(errno) => Err(RelayFault::Destination(errno.into())),
        }
    }
}
