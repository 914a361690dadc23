//! Active queue management: disciplines that drop or mark packets by the delay of their queue.
//!
//! A [`Discipline`] is a queue that is asked for its next packet at the moment when the transmitter
//! can send it. Time is an argument, so that a caller that polls late gets the same packets.

mod codel;
mod codel_queue;
mod dualpi2;
mod fq_codel;
mod pie;
mod threshold;

use crate::{stage::LinkPacket, time::Time};
use rand_pcg::Pcg64;
use scenario::{QueueKind, QueueParameters};
use std::fmt;
use units::{Bytes, QueueSize};

/// Packets that a queue has dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Dropped {
    pub(crate) fn count(&mut self, packet: &impl LinkPacket) {
        self.packets += 1;
        self.bytes += u64::from(packet.wire_bytes());
    }
}

/// A queue with its discipline. The times of calls never decrease.
pub(crate) trait Discipline<P>: fmt::Debug {
    /// Takes a packet. Another one that it drops for it is counted in `dropped`.
    ///
    /// # Errors
    /// Returns the packet if that is dropped.
    fn enqueue(&mut self, now: Time, packet: P, dropped: &mut Dropped) -> Result<(), P>;

    /// The packet that is sent at `now`, and when it arrived. `None` if the queue is empty, or all
    /// of it was dropped.
    fn dequeue(&mut self, now: Time, dropped: &mut Dropped) -> Option<(Time, P)>;

    /// Packets and bytes inside.
    fn backlog(&self) -> (u64, u64);
}

/// Whether a queue of this kind is under active management. The queues of routers are drop-tail
/// queues with a tap.
pub(crate) fn is_managed(kind: QueueKind) -> bool {
    !matches!(kind, QueueKind::Droptail | QueueKind::Xcp | QueueKind::Vcp | QueueKind::Mpcp)
}

/// The discipline of a queue.
pub(crate) fn discipline<P: LinkPacket + fmt::Debug + 'static>(
    kind: QueueKind,
    limit: QueueSize,
    parameters: QueueParameters,
    rng: Pcg64,
) -> Box<dyn Discipline<P>> {
    let limit = Limit(limit);
    match kind {
        QueueKind::Ecn => Box::new(threshold::ThresholdQueue::new(limit, parameters)),
        QueueKind::Codel => Box::new(codel_queue::CodelQueue::new(limit, parameters)),
        QueueKind::FqCodel => Box::new(fq_codel::FqCodelQueue::new(limit, parameters)),
        QueueKind::Pie => Box::new(pie::PieQueue::new(limit, parameters, rng)),
        QueueKind::Dualpi2 => Box::new(dualpi2::DualPi2Queue::new(limit, parameters, rng)),
        QueueKind::Droptail | QueueKind::Xcp | QueueKind::Vcp | QueueKind::Mpcp => {
            Box::new(threshold::ThresholdQueue::without_marks(limit))
        }
    }
}

/// The limit of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(QueueSize);

impl Limit {
    /// Whether a packet of `size` bytes fits beside this backlog.
    fn has_room(self, (packets, bytes): (u64, u64), size: u32) -> bool {
        match self.0 {
            QueueSize::Packets(limit) => packets < limit,
            QueueSize::Bytes(Bytes(limit)) => bytes + u64::from(size) <= limit,
        }
    }

    /// Whether this backlog exceeds it.
    fn is_exceeded_by(self, (packets, bytes): (u64, u64)) -> bool {
        match self.0 {
            QueueSize::Packets(limit) => packets > limit,
            QueueSize::Bytes(Bytes(limit)) => bytes > limit,
        }
    }
}

/// A first-in, first-out queue of packets with their arrival times.
#[derive(Debug)]
struct Fifo<P> {
    packets: std::collections::VecDeque<(Time, P)>,
    bytes: u64,
}

impl<P: LinkPacket> Fifo<P> {
    fn new() -> Self {
        Fifo { packets: std::collections::VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, now: Time, packet: P) {
        self.bytes += u64::from(packet.wire_bytes());
        self.packets.push_back((now, packet));
    }

    fn pop(&mut self) -> Option<(Time, P)> {
        let (arrived, packet) = self.packets.pop_front()?;
        self.bytes -= u64::from(packet.wire_bytes());
        Some((arrived, packet))
    }

    /// When the first packet arrived.
    fn first_arrival(&self) -> Option<Time> {
        self.packets.front().map(|(arrived, _)| *arrived)
    }

    fn backlog(&self) -> (u64, u64) {
        (self.packets.len() as u64, self.bytes)
    }

    fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// Marks a packet if that is wanted and its transport understands it; returns whether it did.
fn mark(packet: &mut impl LinkPacket, marks: bool) -> bool {
    let is_capable = marks && packet.ecn().is_capable();
    if is_capable {
        packet.mark_congestion();
    }
    is_capable
}

#[cfg(test)]
mod tests;
