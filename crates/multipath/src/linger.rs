//! A connection whose stream has ended, with bytes left to send.

use crate::channel::Channel;
use rustix::io::Errno;
use socket2::Socket;
use std::{
    io::{IoSlice, IoSliceMut},
    net::Shutdown,
    time::{Duration, Instant},
};

/// Time limit for the other end to read them and close.
const LINGER_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of reads in a turn, and their length, bytes.
const TURNS: usize = 16;
const TURN_BYTES: usize = 16 * 1024;

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LingerStep {
    Over,
    /// There is more to read, which epoll does not report again by itself.
    Again,
    /// It waits for an event.
    Waits,
}

/// Sends the last bytes, shuts down, and reads until the other end closes. Closing a socket while
/// data still arrives would reset it, and the reset would discard bytes that the other end has not
/// read yet.
#[derive(Debug)]
pub(crate) struct Linger {
    channel: Channel,
    bytes: Vec<u8>,
    said: usize,
    is_shut: bool,
    until: Instant,
}

impl Linger {
    pub(crate) fn new(channel: Channel, bytes: Vec<u8>, now: Instant) -> Self {
        Linger { channel, bytes, said: 0, is_shut: false, until: now + LINGER_TIMEOUT }
    }

    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.channel.socket()
    }

    /// Sends and reads for a turn.
    pub(crate) fn proceed(&mut self) -> LingerStep {
        while self.said < self.bytes.len() {
            match self.channel.send(&[IoSlice::new(&self.bytes[self.said..])], false) {
                Ok(count) => self.said += count,
                Err(Errno::AGAIN) => break,
                Err(_) => return LingerStep::Over,
            }
        }
        if !self.is_shut && self.said == self.bytes.len() && self.channel.flush().is_ok() {
            self.is_shut = true;
            let _ = self.channel.socket().set_linger(None);
            if self.channel.socket().shutdown(Shutdown::Write).is_err() {
                return LingerStep::Over;
            }
        }
        // Received bytes are discarded.
        let mut bytes = [0; TURN_BYTES];
        for _ in 0..TURNS {
            match self.channel.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => return LingerStep::Over,
                Ok(_) => {}
                Err(Errno::AGAIN) => return LingerStep::Waits,
                Err(_) => return LingerStep::Over,
            }
        }
        LingerStep::Again
    }
}
