//! The epoll of an event loop: which sockets it watches, and what the events of each belong to.

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
    /// Other threads wake the event loop by it.
    Waker,
    /// The listener with this index.
    Listener(usize),
    /// A leg of the connection in this slot.
    Leg(usize, LegSide),
    /// The socket in this slot of what carries connections over several sockets each.
    Carrier(usize),
}

/// Tags in the highest bits of an event's data; the index is below them.
const TAG_SHIFT: u32 = 61;
const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const NEAR: u64 = 2;
const FAR: u64 = 3;
const CARRIER: u64 = 4;

impl Token {
    fn pack(self) -> EventData {
        let (tag, index) = match self {
            Token::Waker => (WAKER, 0),
            Token::Listener(index) => (LISTENER, index),
            Token::Leg(index, LegSide::Near) => (NEAR, index),
            Token::Leg(index, LegSide::Far) => (FAR, index),
            Token::Carrier(index) => (CARRIER, index),
        };
        EventData::new_u64(tag << TAG_SHIFT | index as u64)
    }

    fn unpack(data: EventData) -> Self {
        let (tag, index) = (data.u64() >> TAG_SHIFT, (data.u64() & ((1 << TAG_SHIFT) - 1)) as usize);
        match tag {
            LISTENER => Token::Listener(index),
            NEAR => Token::Leg(index, LegSide::Near),
            FAR => Token::Leg(index, LegSide::Far),
            CARRIER => Token::Carrier(index),
            _ => Token::Waker,
        }
    }
}

/// The epoll of an event loop, shared by all that it drives.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
}

impl Reactor {
    /// Without sockets.
    ///
    /// # Errors
    /// When there is no descriptor or memory left.
    pub fn new() -> Result<Self, Errno> {
        Ok(Reactor { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches a socket. Its first event tells how things stand.
    ///
    /// # Errors
    /// When there is no memory left, or the user watches too many.
    pub fn watch(&self, socket: impl AsFd, token: Token, interest: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, token.pack(), interest)
    }

    /// Watches for something else, and reports again what holds already.
    ///
    /// # Errors
    /// When the socket is not watched.
    pub fn rearm(&self, socket: impl AsFd, token: Token, interest: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, socket, token.pack(), interest)
    }

    /// Watches a socket no longer.
    ///
    /// # Errors
    /// When the socket is not watched.
    pub fn unwatch(&self, socket: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.epoll, socket)
    }

    /// Waits for events, for `timeout` at the most; none: without a limit. A signal ends the wait
    /// too.
    ///
    /// # Errors
    /// When epoll fails: no event of any socket will be told of any more.
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
    /// Room for so many; more are told by the next wait.
    pub fn with_capacity(events: usize) -> Self {
        EventBatch { buffer: Vec::with_capacity(events) }
    }

    /// Each event: what it belongs to, and what it tells.
    pub fn iter(&self) -> impl Iterator<Item = (Token, EventFlags)> {
        self.buffer.iter().map(|event| (Token::unpack(event.data), event.flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_tells_what_it_belongs_to() {
        let most = ((1u64 << TAG_SHIFT) - 1) as usize;
        for index in [0, 1, most] {
            for token in [Token::Listener(index), Token::Leg(index, LegSide::Near), Token::Leg(index, LegSide::Far), Token::Carrier(index)]
            {
                assert_eq!(Token::unpack(token.pack()), token);
            }
        }
        assert_eq!(Token::unpack(Token::Waker.pack()), Token::Waker);
    }
}
