//! The segments of the scoreboard.

/// [`SentSegment::flags`]: selectively acknowledged (TCPCB_SACKED_ACKED).
pub(super) const SACKED: u8 = 1;
/// [`SentSegment::flags`]: marked lost (TCPCB_LOST).
pub(super) const LOST: u8 = 2;
/// [`SentSegment::flags`]: a retransmission is in flight (TCPCB_SACKED_RETRANS).
pub(super) const RETRANS: u8 = 4;
/// [`SentSegment::flags`]: was retransmitted at some time (TCPCB_EVER_RETRANS).
pub(super) const EVER_RETRANS: u8 = 8;
/// [`SentSegment::flags`]: ends the stream.
pub(super) const LAST: u8 = 16;

/// A segment that was sent and is not cumulatively acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentSegment {
    /// Its first byte.
    pub(super) start: u64,
    /// When it was last sent, ns.
    pub(super) sent_ns: u64,
    /// Payload, bytes.
    pub(super) len: u32,
    pub(super) flags: u8,
}

impl SentSegment {
    /// The byte after its last one.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// Whether one of these flags is set.
    pub(super) fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}
