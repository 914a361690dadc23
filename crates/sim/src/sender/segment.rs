//! The segments of the scoreboard.

/// [`Segment::flags`]: it was selectively acknowledged.
pub(super) const SACKED: u8 = 1;
/// It counts as lost.
pub(super) const LOST: u8 = 2;
/// A retransmission of it is under way.
pub(super) const RETRANS: u8 = 4;
/// It was sent again at some time.
pub(super) const EVER_RETRANS: u8 = 8;
/// It ends the stream.
pub(super) const LAST: u8 = 16;

/// A segment that is not acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) start: u64,
    /// When it was sent last, ns.
    pub(super) sent: u64,
    pub(super) len: u32,
    pub(super) flags: u8,
}

impl Segment {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}
