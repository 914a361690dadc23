//! A sender's application: all that it has from the start, or so much now and then.

use scenario::{FlowSpec, Writes};
use units::{Bytes, Span};

/// More than any flow sends: it has no end.
const ENDLESS: u64 = 1 << 60;

/// The application of a flow.
#[derive(Debug)]
pub(crate) struct App {
    all: u64,
    offered: u64,
    writes: Option<Writes>,
    /// The write that it waits to make.
    next: Option<(Span, Bytes)>,
    /// Up to when it has asked to be woken.
    wakes: Span,
}

impl App {
    /// One that has not begun.
    pub(crate) fn new(spec: &FlowSpec, seed: u64) -> Self {
        let all = spec.bytes.map_or(ENDLESS, |bytes| bytes.0);
        let mut writes = spec.offers.map(|offer| offer.writes(seed, spec.id, spec.start));
        let next = writes.as_mut().and_then(Iterator::next);
        App { all, offered: if writes.is_some() { 0 } else { all }, writes, next, wakes: Span::ZERO }
    }

    /// All that it has written by `now`.
    pub(crate) fn write(&mut self, now: u64) -> u64 {
        while let Some((at, bytes)) = self.next
            && at.0 <= now
            && self.offered < self.all
        {
            self.offered = (self.offered + bytes.0).min(self.all);
            self.next = self.writes.as_mut().and_then(Iterator::next);
        }
        self.offered
    }

    /// When it is to be woken for its next write, if nobody was told so before.
    pub(crate) fn wake(&mut self) -> Option<Span> {
        let (at, _) = self.next.filter(|_| self.offered < self.all)?;
        (at > self.wakes).then(|| {
            self.wakes = at;
            at
        })
    }

    /// Whether it has written its last byte.
    pub(crate) fn is_over(&self) -> bool {
        self.offered == self.all && self.all < ENDLESS
    }
}
