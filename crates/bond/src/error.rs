//! Errors that end a stream.

use crate::buffer::NoMemory;

/// Why a stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The peer has violated the protocol.
    #[error(transparent)]
    Violation(#[from] ProtocolViolation),
    /// The system has no memory for the stream's window.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// How the peer has violated the protocol of a stream. All offsets are in bytes from the beginning
/// of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The peer acknowledges bytes that were not sent.
    #[error("the bond's peer acknowledges {acked} bytes, but only {sent} were sent: reset the stream")]
    AckedUnsent {
        /// Bytes that the peer acknowledges.
        acked: u64,
        /// Bytes that were sent.
        sent: u64,
    },
    /// A piece ends beyond the advertised flow-control limit.
    #[error("the bond's peer sent a piece that ends at byte {end}, beyond its flow-control limit {limit}: reset the stream")]
    BeyondWindow {
        /// Offset behind the last byte of the piece.
        end: u64,
        /// The limit that was advertised.
        limit: u64,
    },
    /// The stream has bytes beyond its end, or two different ends.
    #[error("the bond's peer ended its stream at byte {end}, but also at byte {other} or sent bytes up to there: reset the stream")]
    BeyondEnd {
        /// The end that was announced.
        end: u64,
        /// Another end, or the offset behind the last byte that was received.
        other: u64,
    },
    /// The end of a piece is not a 64-bit offset.
    #[error("the bond's peer sent a piece at byte {offset}, which ends beyond the largest possible offset: reset the stream")]
    OffsetOverflow {
        /// Offset of the piece.
        offset: u64,
    },
    /// More ranges wait for missing bytes than the receiver tracks.
    #[error("the bond's peer left more than {max} gaps in its stream: reset the stream")]
    TooManyGaps {
        /// The most gaps that are tracked.
        max: usize,
    },
    /// The peer reports delivery of a stream that was not sent to its end.
    #[error("the bond's peer reports delivery of the whole stream before all of it was sent: reset the stream")]
    DeliveredTooEarly,
}
