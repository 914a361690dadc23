//! A connection whose stream is over, and that has something left to say.

use super::channel::Channel;
use rustix::io::Errno;
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    time::{Duration, Instant},
};

/// How long the other end has to hear it, and to end too.
const PATIENCE: Duration = Duration::from_secs(15);

/// A connection that says its last, and goes when the other end does: one that was closed at once would be reset by what still comes, and what it had said
/// be lost with it.
#[derive(Debug)]
pub(super) struct Farewell {
    channel: Channel,
    bytes: Vec<u8>,
    said: usize,
    is_shut: bool,
    until: Instant,
}

impl Farewell {
    pub(super) fn new(channel: Channel, bytes: Vec<u8>, now: Instant) -> Self {
        Farewell { channel, bytes, said: 0, is_shut: false, until: now + PATIENCE }
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Goes on; true: it is over.
    pub(super) fn go_on(&mut self) -> bool {
        while self.said < self.bytes.len() {
            match self.channel.send(&[IoSlice::new(&self.bytes[self.said..])]) {
                Ok(count) => self.said += count,
                Err(Errno::AGAIN) => break,
                Err(_) => return true,
            }
        }
        if !self.is_shut && self.said == self.bytes.len() && self.channel.flush().is_ok() {
            self.is_shut = true;
            let _ = self.channel.socket().set_linger(None);
            if self.channel.socket().shutdown(Shutdown::Write).is_err() {
                return true;
            }
        }
        // What comes is of no interest any more.
        let mut bytes = [0; 16 * 1024];
        loop {
            match self.channel.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
    }
}
