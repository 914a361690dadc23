//! The interfaces of the link model: packets, stages and taps.

use crate::time::Time;
use units::{Bytes, Span};

/// What a stage needs to know about a packet.
///
/// It is cloned where a link duplicates it.
pub trait LinkPacket: Clone {
    /// Size in bytes, IP header included.
    fn wire_bytes(&self) -> u32;

    /// Extra one-way delay of the packet's flow on this link.
    fn extra_delay(&self) -> Span {
        Span::ZERO
    }

    /// What its transport says about congestion marks.
    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    /// Marks it with Congestion Experienced. Only called where [`ecn`](Self::ecn) permits it.
    fn mark_congestion(&mut self) {}

    /// A number of its flow, for queues that keep flows apart.
    fn flow(&self) -> u64 {
        0
    }
}

/// The ECN field of a packet (RFC 3168 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not understand marks.
    NotEct,
    /// ECN-capable transport, classic.
    Ect0,
    /// ECN-capable transport that reacts to each mark by little: L4S (RFC 9331).
    Ect1,
    /// Marked.
    Ce,
}

impl Ecn {
    /// Whether a packet may be marked.
    pub fn is_capable(self) -> bool {
        self != Ecn::NotEct
    }
}

/// A queue that packets pass through.
///
/// The caller polls: it calls [`ready`](Self::ready) until that returns `None`, then sleeps until
/// [`next_wakeup`](Self::next_wakeup) or until it has a packet to enqueue. The times that it passes
/// never decrease. Polling late or more often changes neither which packets come out nor the times
/// that are reported for them.
pub trait LinkStage<P> {
    /// Accepts a packet at `now`.
    ///
    /// # Errors
    /// Returns the packet if the queue has no room for it, so that its buffer can be reused.
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P>;

    /// Removes the next packet that has left by `now`, with the time at which it left. That time is
    /// when the packet enters the next stage.
    fn ready(&mut self, now: Time) -> Option<(Time, P)>;

    /// The earliest time at which a packet may leave; `None` if no packet is inside. Inside a
    /// composed stage the packet may only have moved from one part to the next at that time, so
    /// `ready` may still return `None`.
    fn next_wakeup(&self) -> Option<Time>;
}

/// An observer at the queue of a [`LinkDirection`](crate::LinkDirection), such as a router that
/// takes part in congestion control. It sees each arrival and departure at its exact time and may
/// modify departing packets.
pub trait QueueTap<P> {
    /// Whether there is a tap. Without one the link keeps its fast path, on which packets are not
    /// inspected at departure.
    fn is_attached(&self) -> bool {
        true
    }

    /// A packet arrives. Whether the queue has room for it is not decided yet.
    fn packet_arrived(&mut self, now: Time, packet: &P);

    /// A packet has been transmitted completely.
    fn packet_departed(&mut self, at: Time, packet: &mut P);

    /// The queue length after an arrival or a departure, without the packet in transmission.
    fn queue_changed(&mut self, queued: Bytes);
}

/// No tap.
impl<P> QueueTap<P> for () {
    fn is_attached(&self) -> bool {
        false
    }

    fn packet_arrived(&mut self, _: Time, _: &P) {}
    fn packet_departed(&mut self, _: Time, _: &mut P) {}
    fn queue_changed(&mut self, _: Bytes) {}
}
