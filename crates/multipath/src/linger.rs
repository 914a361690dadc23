//! A connection whose stream is over, and that has something left to say.

use crate::channel::Channel;
use rustix::io::Errno;
use socket2::Socket;
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    time::{Duration, Instant},
};

/// How long the other end has to hear it, and to end too.
const PATIENCE: Duration = Duration::from_secs(15);
/// How much of what still comes is read before others have their turn: as often as a buffer of so many bytes is filled.
const TURNS: usize = 16;
const TURN_BYTES: usize = 16 * 1024;

/// What a turn has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    Over,
    /// There is more to read, of which epoll would not tell again.
    Again,
    /// Until something comes, or can be said.
    Waits,
}

/// A connection that says its last, and goes when the other end does: one that was closed at once would be reset by what still comes, and what it had said
/// be lost with it.
#[derive(Debug)]
pub(crate) struct Farewell {
    channel: Channel,
    bytes: Vec<u8>,
    said: usize,
    is_shut: bool,
    until: Instant,
}

impl Farewell {
    pub(crate) fn new(channel: Channel, bytes: Vec<u8>, now: Instant) -> Self {
        Farewell { channel, bytes, said: 0, is_shut: false, until: now + PATIENCE }
    }

    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.channel.socket()
    }

    /// Goes on.
    pub(crate) fn go_on(&mut self) -> Parting {
        while self.said < self.bytes.len() {
            match self.channel.send(&[IoSlice::new(&self.bytes[self.said..])], false) {
                Ok(count) => self.said += count,
                Err(Errno::AGAIN) => break,
                Err(_) => return Parting::Over,
            }
        }
        if !self.is_shut && self.said == self.bytes.len() && self.channel.flush().is_ok() {
            self.is_shut = true;
            let _ = self.channel.socket().set_linger(None);
            if self.channel.socket().shutdown(Shutdown::Write).is_err() {
                return Parting::Over;
            }
        }
        // What comes is of no interest any more.
        let mut bytes = [0; TURN_BYTES];
        for _ in 0..TURNS {
            match self.channel.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => return Parting::Over,
                Ok(_) => {}
                Err(Errno::AGAIN) => return Parting::Waits,
                Err(_) => return Parting::Over,
            }
        }
        Parting::Again
    }
}
