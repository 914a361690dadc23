//! A drop-tail queue that marks above a threshold, as DCTCP needs it (Alizadeh et al., SIGCOMM
//! 2010, section 3.1).

use super::{Discipline, Dropped, Fifo, Limit, mark};
use crate::{stage::LinkPacket, time::Time};
use scenario::QueueParameters;
use std::fmt;
use units::{PKT, QueueSize};

/// Without a configured threshold it is the limit divided by this, and at least three packets.
/// DCTCP needs a seventh of a bandwidth-delay product to keep the link busy, and the limit is one
/// BDP unless the scenario sets another.
const MARK_DIVISOR: u64 = 5;
const LEAST_PACKETS: u64 = 3;

/// A drop-tail queue. Marks an arriving packet if more than the threshold waits before it.
#[derive(Debug)]
pub(super) struct ThresholdQueue<P> {
    fifo: Fifo<P>,
    limit: Limit,
    /// The threshold; none: it marks nothing.
    mark_above: Option<Limit>,
}

impl<P: LinkPacket> ThresholdQueue<P> {
    pub(super) fn new(limit: Limit, parameters: QueueParameters) -> Self {
        let default = match limit.0 {
            QueueSize::Bytes(bytes) => QueueSize::Bytes((bytes / MARK_DIVISOR).max(PKT * LEAST_PACKETS)),
            QueueSize::Packets(count) => QueueSize::Bytes(PKT * (count / MARK_DIVISOR).max(LEAST_PACKETS)),
        };
        ThresholdQueue { fifo: Fifo::new(), limit, mark_above: Some(Limit(parameters.mark_above.unwrap_or(default))) }
    }

    /// Without a threshold: a plain drop-tail queue.
    pub(super) fn without_marks(limit: Limit) -> Self {
        ThresholdQueue { fifo: Fifo::new(), limit, mark_above: None }
    }
}

impl<P: LinkPacket + fmt::Debug> Discipline<P> for ThresholdQueue<P> {
    fn enqueue(&mut self, now: Time, mut packet: P, _: &mut Dropped) -> Result<(), P> {
        let backlog = self.fifo.backlog();
        if !self.limit.has_room(backlog, packet.wire_bytes()) {
            return Err(packet);
        }
        if self.mark_above.is_some_and(|threshold| threshold.is_exceeded_by(backlog)) {
            mark(&mut packet, true);
        }
        self.fifo.push(now, packet);
        Ok(())
    }

    fn dequeue(&mut self, _: Time, _: &mut Dropped) -> Option<(Time, P)> {
        self.fifo.pop()
    }

    fn backlog(&self) -> (u64, u64) {
        self.fifo.backlog()
    }
}
