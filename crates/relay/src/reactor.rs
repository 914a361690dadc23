//! The epoll instance of an event loop: the sockets that it watches, and a token for each, which
//! says what an event belongs to.

use crate::leg_side::LegSide;
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    fd::{AsFd, OwnedFd},
    io::Errno,
};
use std::time::Duration;

/// What an event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The eventfd by which other threads wake the event loop.
    Waker,
    /// The listener with this index.
    Listener(usize),
    /// A leg of the connection in this slot.
    Leg(usize, LegSide),
    /// An attempt to reach a server for the connection in this slot, and the attempt's number.
    Attempt(usize, u16),
    /// The socket in this slot of a carrier (a bond), whose connections have several sockets each.
    Carrier(usize),
}

/// Tags in the highest bits of an event's data; the index is below them.
const TAG_SHIFT: u32 = 61;
const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const NEAR: u64 = 2;
const FAR: u64 = 3;
const CARRIER: u64 = 4;
const ATTEMPT: u64 = 5;
/// The number of an attempt is below the tag, above its slot.
const ATTEMPT_SHIFT: u32 = TAG_SHIFT - u16::BITS;

impl Token {
    fn pack(self) -> EventData {
        let (tag, index) = match self {
            Token::Waker => (WAKER, 0),
            Token::Listener(index) => (LISTENER, index as u64),
            Token::Leg(index, LegSide::Near) => (NEAR, index as u64),
            Token::Leg(index, LegSide::Far) => (FAR, index as u64),
            Token::Carrier(index) => (CARRIER, index as u64),
            Token::Attempt(index, number) => (ATTEMPT, u64::from(number) << ATTEMPT_SHIFT | index as u64),
        };
        EventData::new_u64(tag << TAG_SHIFT | index)
    }

    fn unpack(data: EventData) -> Self {
        let (tag, rest) = (data.u64() >> TAG_SHIFT, data.u64() & ((1 << TAG_SHIFT) - 1));
        let index = rest as usize;
        match tag {
            LISTENER => Token::Listener(index),
            NEAR => Token::Leg(index, LegSide::Near),
            FAR => Token::Leg(index, LegSide::Far),
            CARRIER => Token::Carrier(index),
            ATTEMPT => Token::Attempt((rest & ((1 << ATTEMPT_SHIFT) - 1)) as usize, (rest >> ATTEMPT_SHIFT) as u16),
            _ => Token::Waker,
        }
    }
}

/// The epoll instance of an event loop, shared by everything that the loop drives.
///
/// It has no timers: their owners compute the timeout of [`wait`](Self::wait).
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
}

impl Reactor {
    /// A reactor that watches no socket yet.
    ///
    /// # Errors
    /// When no descriptor or memory is left.
    pub fn new() -> Result<Self, Errno> {
        Ok(Reactor { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches a socket. The first event reports its present state.
    ///
    /// # Errors
    /// When no memory is left, or the user watches too many sockets.
    pub fn watch(&self, socket: impl AsFd, token: Token, interest: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, token.pack(), interest)
    }

    /// Changes what a socket is watched for, and has its present state reported again.
    ///
    /// # Errors
    /// When the socket is not watched.
    pub fn rearm(&self, socket: impl AsFd, token: Token, interest: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, socket, token.pack(), interest)
    }

    /// Stops watching a socket.
    ///
    /// # Errors
    /// When the socket is not watched.
    pub fn unwatch(&self, socket: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.epoll, socket)
    }

    /// Waits for events, at most for `timeout`; none: without a limit. A signal also ends the wait.
    ///
    /// # Errors
    /// When epoll fails: the event loop cannot go on.
    pub fn wait(&self, events: &mut EventBatch, timeout: Option<Duration>) -> Result<(), Errno> {
        events.buffer.clear();
        let timeout = timeout.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events.buffer), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// The events of one wait.
pub struct EventBatch {
    buffer: Vec<epoll::Event>,
}

impl EventBatch {
    /// Room for `events` events; the next wait returns the others.
    pub fn with_capacity(events: usize) -> Self {
        EventBatch { buffer: Vec::with_capacity(events) }
    }

    /// Each event: the token of its socket, and its flags.
    pub fn iter(&self) -> impl Iterator<Item = (Token, EventFlags)> {
        self.buffer.iter().map(|event| (Token::unpack(event.data), event.flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_packing() {
        let most = ((1u64 << TAG_SHIFT) - 1) as usize;
        for index in [0, 1, most] {
            for token in [Token::Listener(index), Token::Leg(index, LegSide::Near), Token::Leg(index, LegSide::Far), Token::Carrier(index)]
            {
                assert_eq!(Token::unpack(token.pack()), token);
            }
        }
        for attempt in [Token::Attempt(0, u16::MAX), Token::Attempt(7, 0), Token::Attempt((1 << ATTEMPT_SHIFT) - 1, 3)] {
            assert_eq!(Token::unpack(attempt.pack()), attempt);
        }
        assert_eq!(Token::unpack(Token::Waker.pack()), Token::Waker);
    }
}
