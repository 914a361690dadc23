//! One byte stream over several TCP connections, each in its own network (Hoekstra, van der Mei and
//! Bosman 2011).
//!
//! A connection of a stream is a *path*. The sending end cuts the stream into *pieces* and assigns
//! each to a path; the receiving end puts them back in order. One stream runs in each direction.
//!
//! | part | what it does |
//! |---|---|
//! | [`DialHandshake`], [`AcceptHandshake`] | both ends prove that they share a key |
//! | [`Frame`], [`FrameReader`] | the wire format |
//! | [`OpenRequest`], [`OpenReply`] | the first message of a stream in each direction |
//! | [`Outbound`] | sending end: assigns pieces, reinjects them over other paths, probes idle paths |
//! | [`Inbound`] | receiving end: resequencing, flow control, acknowledgements |
//! | [`score()`], [`Scheduler`] | which path carries the next piece |
//! | [`StreamBuffer`] | bytes of a stream by offset |
//!
//! Nothing here touches a socket or a clock. Time and measurements are arguments, so the simulator
//! runs the same code as the proxy.
//!
//! Both ends bound their memory whatever the peer sends. A peer that violates the protocol yields a
//! [`ProtocolViolation`]; the caller then resets the stream.

mod buffer;
mod error;
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
mod settings;

pub use buffer::{NoMemory, StreamBuffer};
pub use error::{ProtocolViolation, StreamError};
pub use frame::{BadFrame, Decoded, Frame, FrameHeader, FrameReader, MAX_ACK_DELAY};
pub use handshake::{
    AcceptHandshake, Announcement, Challenge, DialHandshake, Families, HandshakeError, Hello, Nonce, OLDEST_VERSION, PresharedKey, Proof,
    VERSION,
};
pub use inbound::{Inbound, Placement};
pub use open::{BadOpenMessage, OpenReply, OpenRequest, ResetReason, Target};
pub use outbound::{Outbound, PathStats, Piece};
pub use path::{PathId, PathSample};
pub use resequencer::Resequencer;
pub use scheduler::Scheduler;
pub use score::{Smoothing, score};
pub use settings::BondSettings;
