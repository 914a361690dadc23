//! The application at a flow's sender. It has all data from the start, or writes it over time.

use scenario::{FlowSpec, Writes};
use units::{Bytes, Span};

/// The size of a flow without end, bytes: more than any flow sends.
const ENDLESS: u64 = 1 << 60;

/// The application of a flow.
///
/// The caller calls [`write`](Self::write) when the connection is established and at each wakeup,
/// and then schedules [`next_wakeup`](Self::next_wakeup) if there is one.
#[derive(Debug)]
pub(crate) struct SourceApplication {
    /// Bytes that it will write in all; [`ENDLESS`] for a flow without end.
    total: u64,
    written: u64,
    /// The writes to come; `None` if everything is there from the start.
    writes: Option<Writes>,
    /// Time and size of the next write.
    next: Option<(Span, Bytes)>,
    /// The last wakeup that was returned.
    last_wakeup: Span,
}

impl SourceApplication {
    /// An application that has not started.
    pub(crate) fn new(spec: &FlowSpec, seed: u64) -> Self {
        let total = spec.bytes.map_or(ENDLESS, |bytes| bytes.0);
        let mut writes = spec.offers.map(|offer| offer.writes(seed, spec.id, spec.start));
        let next = writes.as_mut().and_then(Iterator::next);
        SourceApplication { total, written: if writes.is_some() { 0 } else { total }, writes, next, last_wakeup: Span::ZERO }
    }

    /// An application that writes messages when it is told to, without end.
    pub(crate) fn of_messages() -> Self {
        SourceApplication { total: ENDLESS, written: 0, writes: None, next: None, last_wakeup: Span::ZERO }
    }

    /// Writes a message; returns the bytes written so far.
    pub(crate) fn append(&mut self, bytes: u64) -> u64 {
        self.written += bytes;
        self.written
    }

    /// Performs the writes that are due at `now` ns; returns the bytes written so far.
    pub(crate) fn write(&mut self, now: u64) -> u64 {
        while let Some((at, bytes)) = self.next
            && at.0 <= now
            && self.written < self.total
        {
            self.written = (self.written + bytes.0).min(self.total);
            self.next = self.writes.as_mut().and_then(Iterator::next);
        }
        self.written
    }

    /// The time of the next write, if it was not returned before.
    pub(crate) fn next_wakeup(&mut self) -> Option<Span> {
        let (at, _) = self.next.filter(|_| self.written < self.total)?;
        (at > self.last_wakeup).then(|| {
            self.last_wakeup = at;
            at
        })
    }

    /// Whether it has written its last byte.
    pub(crate) fn is_done(&self) -> bool {
        self.written == self.total && self.total < ENDLESS
    }
}
