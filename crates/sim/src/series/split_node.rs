//! The split node (proxy) between two legs. For each flow it holds the payload that has arrived in
//! order on one leg and was not sent on the next; the next leg sends it as soon as it may.
//!
//! **Backpressure.** With `window`, the advertised window is the free part of the buffer, so the
//! node never holds more than its buffer. With `fluid`, the window is unlimited; instead the sender
//! of the leg before knows without delay what the node holds, what is in flight to it and at which
//! rate the next leg drains it, and sends what will find room on arrival. A full buffer then limits
//! the sender to the drain rate and does not starve the next leg (Baccelli et al. (19.6)). In the
//! fluid model out-of-order data occupies no buffer until it is in order. It then arrives at once,
//! so for a while the node may exceed its buffer by up to a window of the leg before.
//!
//! With `window-read` and `window-acked`, room in the window is free at another time: when the data has
//! arrived in order, so that the node may hold any amount, or when the next leg has acknowledged it.
//! With `drop` the window is unlimited and the node drops data for which it has no room; out-of-order
//! data occupies no buffer.
//!
//! **Mode.** In `semi` mode (Semi-Split TCP, Xie, Jiang, Ho and Hua 2007) the node forwards as a
//! stream and acknowledges twice: its own acknowledgements drive the window of the leg before, and
//! delivery receipts tell that leg's sender what the next leg's receiver has acknowledged. The
//! receipts free the send buffer and tell the application of the delivery. If there were receipts
//! only, the RTT of the leg before would be that of the whole path.

use scenario::{Backpressure, SplitMode};

/// How a split node forwards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SplitNode {
    /// The largest amount of payload that it holds of a flow, bytes; [`u64::MAX`]: unlimited.
    pub(crate) buffer: u64,
    pub(crate) mode: SplitMode,
    pub(crate) backpressure: Backpressure,
}

impl SplitNode {
    /// The receive buffer of its receiver, bytes: unlimited if backpressure does not work through
    /// the window.
    pub(crate) fn receive_buffer(&self) -> u64 {
        match self.backpressure {
            Backpressure::Window | Backpressure::WindowRead | Backpressure::WindowAcked => self.buffer,
            Backpressure::Fluid | Backpressure::Drop => u64::MAX,
        }
    }

    /// The byte before which data no longer occupies the window, if `arrived` bytes have arrived in
    /// order and the next leg has sent `sent` bytes, of which `acked` are acknowledged.
    pub(crate) fn released(&self, arrived: u64, sent: u64, acked: u64) -> u64 {
        match self.backpressure {
            Backpressure::Window | Backpressure::Fluid | Backpressure::Drop => sent,
            Backpressure::WindowRead => arrived,
            Backpressure::WindowAcked => acked,
        }
    }

    /// Whether it drops a segment of `payload` bytes while it holds `held` bytes.
    pub(crate) fn drops(&self, held: u64, payload: u64) -> bool {
        self.backpressure == Backpressure::Drop && held.saturating_add(payload) > self.buffer
    }

    /// Whether what it holds is limited by the window.
    pub(crate) fn is_bounded_by_window(&self) -> bool {
        matches!(self.backpressure, Backpressure::Window | Backpressure::WindowAcked)
    }

    /// The byte up to which the next leg may send after `arrived` bytes, which are the whole stream
    /// if `complete`.
    pub(crate) fn forwardable(&self, arrived: u64, complete: bool) -> u64 {
        match self.mode {
            SplitMode::Store if !complete => 0,
            _ => arrived,
        }
    }

    /// Whether fluid backpressure limits the sender of the leg before.
    pub(crate) fn limits_fluidly(&self) -> bool {
        self.backpressure == Backpressure::Fluid && self.buffer < u64::MAX
    }
}
