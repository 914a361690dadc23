//! One stream over several connections, each over its own network (Hoekstra, van der Mei and Bosman 2011).
//!
//! Which of the connections gets the next piece of the stream is steered by a score of each ([`score()`], [`Scheduler`]); [`Outbound`] is the sending
//! end, [`Inbound`] the receiving one, [`Frame`] what they say to each other, once [`Dialled`] and [`Accepted`] know that they share a key. Nothing here knows sockets or clocks: time, and
//! what connections look like, are arguments, so that what steers sockets steers simulated connections too.
//!
//! Both ends bound what they remember, whatever the other does. Whoever breaks the rules of the stream is told how, as a [`Breach`], and the
//! stream is to be given up.

mod buffer;
mod frame;
mod handshake;
mod inbound;
mod open;
mod outbound;
mod path;
mod ranges;
mod resequencer;
mod scheduler;
mod score;

pub use buffer::{Buffer, NoMemory};
pub use frame::{BadFrame, Frame, Header, Reader, Step};
pub use handshake::{Accepted, Challenge, Dialled, Hello, Key, Nonce, Proof, Refused, VERSION};
pub use inbound::{Inbound, MOST_DELAY, Room};
pub use open::{Answer, BadCall, Call, Target, Why};
pub use outbound::{ConnId, Outbound, Piece, Seen, Settings};
pub use path::Look;
pub use resequencer::Order;
pub use scheduler::Scheduler;
pub use score::{Smoothing, score};

/// Why a stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The other end has broken the rules.
    #[error(transparent)]
    Breach(#[from] Breach),
    /// The system has no memory for its window.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// How the other end has broken the rules of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// It has what nobody sent.
    #[error("the other end of the bond says it has {got} bytes where {sent} were sent: give the stream up")]
    NeverSent {
        /// What it says to have.
        got: u64,
        /// What was sent.
        sent: u64,
    },
    /// It has sent more than there is room for.
    #[error("the other end of the bond has sent up to byte {end}, and was told to stop at {limit}: give the stream up")]
    BeyondWindow {
        /// Where its piece ends.
        end: u64,
        /// What it was told.
        limit: u64,
    },
    /// It has sent beyond the end, or has two ends.
    #[error("the other end of the bond has ended its stream at byte {end}, and at or beyond {other} too: give the stream up")]
    BeyondEnd {
        /// Where it ends.
        end: u64,
        /// And where else.
        other: u64,
    },
    /// It has sent what no stream is long enough for.
    #[error("the other end of the bond has sent a piece at byte {offset} that no stream is long enough for: give the stream up")]
    BeyondAll {
        /// Where it would begin.
        offset: u64,
    },
    /// What it has sent has too many holes.
    #[error("the other end of the bond has left more than {most} holes in its stream: give the stream up")]
    TooManyParts {
        /// How many there can be.
        most: usize,
    },
    /// It says that all was delivered, and has not been sent all.
    #[error("the other end of the bond says that all was delivered before it was sent all: give the stream up")]
    NotAtEnd,
}
