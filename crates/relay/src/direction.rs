//! Moves bytes one way through a connection, never more than the bound allows.
//!
//! A direction copies while what comes is small, which is cheapest for messages. When a read fills
//! its room it is *bulk* and is spliced: in large lengths, through a pipe borrowed for the moment,
//! or for as long as the destination leaves bytes in it. Small bounds are always copied, since a
//! pipe and a 64 KiB segment are too coarse for them, and so is urgent data, which splice never
//! passes (it goes on as ordinary data). What the destination can't take stays in the source's
//! receive queue, so that the source is held by its advertised window. Whether an end of file is
//! passed on, and when, is the connection's business.

use crate::{
    pipe::{Filled, Pipe},
    plain_leg::PlainLeg,
    scratch::Scratch,
};
use intercept::{leg::Shares, sys};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use std::{io, mem};

/// How many bytes, in how many rounds, a direction may move in a turn.
const TURN_BYTES: u64 = 2 << 20;
const TURN_ROUNDS: usize = 64;
/// A splice of fewer bytes is a message.
const SMALL: usize = 4096;
/// Once a direction has moved so many bytes, its sockets are tuned for bulk data.
const TUNE_FROM: u64 = 32 * 1024;

/// Which socket an error came from.
#[derive(Debug)]
pub enum Fault {
    /// The socket that is read.
    Source(io::Error),
    /// The socket that is written to.
    Destination(io::Error),
    /// Neither: the process could not make a pipe.
    Own,
}

/// What a pump came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// It waits for an event.
    Waits,
    /// It waits for room in the destination's send queue, which epoll announces only once rearmed.
    WaitsForRoom,
    /// There is more to do in another turn.
    Again,
}

/// How a direction moves its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Copied, until a read fills its room.
    Messages,
    /// Spliced, until there is little to splice.
    Bulk,
    /// Copied in pieces that keep to a small bound.
    Small,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Direction {
    shares: Option<Shares>,
    /// Bytes of the preface, which no source has sent.
    preface: usize,
    manner: Manner,
    /// The sockets have been tuned for bulk data.
    tuned: bool,
    /// The source has sent its last byte, and it has been read.
    pub ended: bool,
    /// The end of file has been passed on to the destination.
    pub passed: bool,
    /// Bytes given to the destination, the preface included.
    moved: u64,
    pipe: Option<Pipe>,
    in_pipe: usize,
    /// Copied bytes that the destination did not take at once.
    rest: Vec<u8>,
}

impl Direction {
    /// A direction that first gives the destination `preface`, which no source has sent, and then
    /// `heard`, which was read from the source already.
    pub fn new(shares: Option<Shares>, preface: Vec<u8>, heard: Vec<u8>) -> Self {
        let manner = if shares.is_some_and(|shares| shares.pipe == 0) { Manner::Small } else { Manner::Messages };
        Direction {
            shares,
            preface: preface.len(),
            manner,
            tuned: false,
            ended: false,
            passed: false,
            moved: 0,
            pipe: None,
            in_pipe: 0,
            rest: [preface, heard].concat(),
        }
    }

    /// Bytes of the source given to the destination.
    pub fn carried(&self) -> u64 {
        self.moved.saturating_sub(self.preface as u64)
    }

    /// Whether the destination has been given nothing yet, not even a preface.
    pub fn has_moved_nothing(&self) -> bool {
        self.moved == 0
    }

    /// Bytes that are in neither socket.
    pub fn in_hand(&self) -> usize {
        self.in_pipe + self.rest.len()
    }

    /// Whether all bytes up to the source's end have been given to the destination.
    pub fn finished(&self) -> bool {
        self.ended && self.in_hand() == 0
    }

    /// Gives its pipe back; bytes that are still in it are lost.
    pub fn release(&mut self, scratch: &mut Scratch) {
        if self.pipe.take().is_some() {
            // It is not empty, and cannot be used again.
            scratch.lent -= 1;
        }
    }

    /// Moves what can be moved.
    pub fn pump(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<Pumped, Fault> {
        if !destination.writable || (self.in_hand() == 0 && (self.ended || !source.readable)) {
            self.leave(source, destination)?;
            return Ok(Pumped::Waits);
        }
        let (before, mut spliced) = (self.moved, false);
        for _ in 0..TURN_ROUNDS {
            if !self.rest.is_empty() {
                self.send_rest(destination)?;
            } else if self.in_pipe == 0 && (self.ended || !source.readable) {
                break;
            } else if self.manner == Manner::Small {
                if !self.copy_within_bound(source, destination, scratch)? {
                    self.leave(source, destination)?;
                    return Ok(Pumped::WaitsForRoom);
                }
            } else if self.in_pipe == 0 && (self.manner == Manner::Messages || source.urgent) {
                let room = scratch.buffer.len();
                if self.copy(source, destination, &mut scratch.buffer[..room])? == room && !source.urgent {
                    self.manner = Manner::Bulk;
                }
            } else {
                // Once a turn: a later splice moves more bytes at once. (SO_RCVLOWAT would wait for
                // them, but has the kernel acknowledge every packet until then.)
                self.splice(source, destination, scratch)?;
                spliced = true;
            }
            if !self.tuned && self.moved > TUNE_FROM {
                self.tune(source, destination)?;
            }
            if spliced || !destination.writable || self.moved - before > TURN_BYTES {
                break;
            }
        }
        if self.rest.is_empty() && self.rest.capacity() > 0 {
            // An idle connection keeps no memory.
            self.rest = Vec::new();
        }
        self.leave(source, destination)?;
        let could_read = !self.ended && source.readable;
        Ok(if destination.writable && (could_read || self.in_hand() > 0) { Pumped::Again } else { Pumped::Waits })
    }

    /// Leaves in the source's receive queue what the destination does not take.
    fn leave(&mut self, source: &mut PlainLeg, destination: &PlainLeg) -> Result<(), Fault> {
        if destination.writable || self.ended {
            return Ok(());
        }
        source.pause_receive().map_err(Fault::Source)
    }

    /// Bounds what the destination takes unsent. Short connections are spared the system calls.
    fn tune(&mut self, source: &mut PlainLeg, destination: &PlainLeg) -> Result<(), Fault> {
        self.tuned = true;
        let Some(shares) = self.shares.filter(|_| self.manner != Manner::Small) else { return Ok(()) };
        source.bound_receive(shares).map_err(Fault::Source)?;
        destination.bound_unsent(shares).map_err(Fault::Destination)
    }

    fn splice(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<(), Fault> {
        let kept = self.pipe.take();
        scratch.lent -= usize::from(kept.is_some());
        let pipe = match kept {
            Some(pipe) => pipe,
            None => scratch.take_pipe().map_err(|_| Fault::Own)?,
        };
        if self.in_pipe == 0 {
            source.resume_receive().map_err(Fault::Source)?;
            match pipe.fill(&*source, self.shares.map_or(Pipe::ROOM, |shares| shares.pipe)) {
                Ok(Filled::AtUrgentMark) => source.urgent = true,
                Ok(Filled::Ended) => self.ended = true,
                Ok(Filled::Bytes(count)) => {
                    self.in_pipe = count;
                    if count < SMALL {
                        self.manner = Manner::Messages;
                    }
                }
                Err(Errno::AGAIN) => source.readable = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Fault::Source(errno.into())),
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
                Err(errno) => return Err(Fault::Destination(errno.into())),
            }
        }
        if self.in_pipe > 0 && scratch.lent < Scratch::LENT {
            scratch.lent += 1;
            self.pipe = Some(pipe);
            return Ok(());
        }
        if self.in_pipe > 0 {
            self.rest.resize(mem::take(&mut self.in_pipe), 0);
            pipe.read(&mut self.rest).map_err(|_| Fault::Own)?;
        }
        scratch.give_back(pipe);
        Ok(())
    }

    /// Copies what fits into `buffer`; returns how many bytes.
    fn copy(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, buffer: &mut [u8]) -> Result<usize, Fault> {
        // Only a FIN reported before this read is known to follow the bytes read; a later one
        // raises another event.
        let hung_up = source.hung_up;
        source.resume_receive().map_err(Fault::Source)?;
        match recv(&*source, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                self.ended = true;
                Ok(0)
            }
            Ok((_, count)) => {
                if count < buffer.len() && !source.urgent {
                    // A short read means that there is no more: a read stops early only at an
                    // urgent mark, of which an event tells.
                    source.readable = false;
                    self.ended = hung_up;
                }
                let sent = self.send(destination, &buffer[..count])?;
                self.rest.extend_from_slice(&buffer[sent..count]);
                Ok(count)
            }
            Err(Errno::AGAIN) => {
                source.readable = false;
                // Behind the urgent mark splice works again.
                source.urgent = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(Fault::Source(errno.into())),
        }
    }

    /// Copies as much as the bound leaves room for; false: there is none.
    fn copy_within_bound(&mut self, source: &mut PlainLeg, destination: &mut PlainLeg, scratch: &mut Scratch) -> Result<bool, Fault> {
        let unsent = sys::unsent(&*destination).map_err(Fault::Destination)?;
        let most_unsent = self.shares.map_or(usize::MAX, |shares| shares.unsent);
        let room = most_unsent.saturating_sub(unsent).min(scratch.buffer.len());
        if room == 0 {
            destination.writable = false;
            return Ok(false);
        }
        self.copy(source, destination, &mut scratch.buffer[..room])?;
        Ok(true)
    }

    fn send_rest(&mut self, destination: &mut PlainLeg) -> Result<(), Fault> {
        let rest = mem::take(&mut self.rest);
        let sent = self.send(destination, &rest)?;
        self.rest = rest;
        self.rest.drain(..sent);
        Ok(())
    }

    /// Sends what the destination takes; clears `writable` when it takes no more.
    fn send(&mut self, destination: &mut PlainLeg, bytes: &[u8]) -> Result<usize, Fault> {
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
            Err(errno) => Err(Fault::Destination(errno.into())),
        }
    }
}
