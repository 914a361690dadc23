//! The split node: what it holds of a flow in the direction of the data, between the receiver of one leg and the sender of the next. That is
//! payload that has arrived in order and was not sent on for the first time; it goes on as soon as the next leg may send.
//!
//! In `semi` mode (Semi-Split TCP, Xie, Jiang, Ho and Hua 2007) it forwards as a stream, and acknowledges to the sender twice: what it has itself, by which the
//! window of the leg before goes, and, by receipts of their own, what the next leg's end has acknowledged, by which that leg's sender frees its send buffer and its
//! application knows of delivery. Acknowledging nothing else than the latter would make the whole path's round trip that of the leg before.
//!
//! With `window` the window told is the room that is free, so that never more than the buffer is held. With `fluid` there is no window: the sender of the
//! leg before knows at once what the proxy holds, what is under way to it, and at what rate the next leg sends on, and sends what there will be room for
//! when it comes. So a full buffer holds it to the drain rate and leaves no hole behind (Baccelli et al. (19.6)). What has arrived out of order takes no room until it
//! is in order: a fluid knows no order. Then it comes at once, so that more than the buffer may be held for a while, by up to a window of that leg.

use scenario::{Backpressure, SplitMode};

/// How one proxy forwards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relay {
    /// What it holds of a flow at most; [`u64::MAX`]: as much as comes.
    pub(crate) buffer: u64,
    pub(crate) mode: SplitMode,
    pub(crate) backpressure: Backpressure,
}

impl Relay {
    /// How much room its receiving end has: the buffer, or without end, where the sender is held by other means than the window.
    pub(crate) fn room(&self) -> u64 {
        match self.backpressure {
            Backpressure::Window => self.buffer,
            Backpressure::Fluid => u64::MAX,
        }
    }

    /// Up to where the next leg may send, when so much has arrived; `complete`: that is all.
    pub(crate) fn passes(&self, arrived: u64, complete: bool) -> u64 {
        match self.mode {
            SplitMode::Store if !complete => 0,
            _ => arrived,
        }
    }

    /// Whether it holds its sender back otherwise than by a window.
    pub(crate) fn holds_by_rate(&self) -> bool {
        self.backpressure == Backpressure::Fluid && self.buffer < u64::MAX
    }
}
