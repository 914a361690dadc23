//! A queue that is asked for its next packet, and its counters.

use crate::{aqm::Dropped, delay_histogram::DelayHistogram, queue_server::QueueServer, stage::LinkPacket, time::Time};
use units::{Bytes, Rate, Span};

/// A queue whose discipline selects the next packet at the moment when that can be transmitted.
///
/// Unlike a [`Shaper`](crate::Shaper) it does not know departures in advance. The caller takes what
/// has departed before each arrival.
#[derive(Debug)]
pub(crate) struct ManagedQueue<P> {
    server: Box<dyn QueueServer<P>>,
    arrived: u64,
    taken: Dropped,
    max_queued: u64,
    /// From arrival to departure, of the packets that have departed.
    delays: DelayHistogram,
}

impl<P: LinkPacket> ManagedQueue<P> {
    pub(crate) fn new(server: Box<dyn QueueServer<P>>) -> Self {
        ManagedQueue { server, arrived: 0, taken: Dropped::default(), max_queued: 0, delays: DelayHistogram::default() }
    }

    /// A packet arrives. All departures until `now` have been taken.
    ///
    /// # Errors
    /// Returns the packet if the queue drops it.
    pub(crate) fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P> {
        self.arrived += 1;
        let accepted = self.server.enqueue(now, packet);
        self.max_queued = self.max_queued.max(self.server.backlog().1);
        accepted
    }

    /// Takes the next packet that has departed by `now`, and when.
    pub(crate) fn ready(&mut self, now: Time) -> Option<(Time, P)> {
        let departure = self.server.take_departed(now)?;
        self.delays.add(departure.departed - departure.arrived);
        self.taken.count(&departure.packet);
        Some((departure.departed, departure.packet))
    }

    /// When something happens next: a departure, or the begin of a transmission.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        self.server.next_wakeup()
    }

    /// Changes the rate at `now`, for the rest of the packet in transmission as well.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Rate) {
        self.server.set_rate(now, rate);
    }

    pub(crate) fn start_trace(&mut self, now: Time) {
        self.server.start_trace(now);
    }

    /// Bytes that wait, without the packet in transmission.
    pub(crate) fn queued(&self) -> Bytes {
        Bytes(self.server.backlog().1)
    }

    pub(crate) fn max_queued(&self) -> Bytes {
        Bytes(self.max_queued)
    }

    /// From arrival to departure, of the packets that have departed.
    pub(crate) fn delays(&self) -> &DelayHistogram {
        &self.delays
    }

    /// Packets inside.
    pub(crate) fn len(&self) -> usize {
        self.server.len()
    }

    /// Packets that have arrived, dropped ones included.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    pub(crate) fn drops(&self) -> u64 {
        self.server.dropped().packets
    }

    /// Collisions on a shared medium, of both directions.
    pub(crate) fn collisions(&self) -> u64 {
        self.server.collisions()
    }

    /// Packets and bytes that have departed and were taken.
    pub(crate) fn taken(&self) -> (u64, Bytes) {
        (self.taken.packets, Bytes(self.taken.bytes))
    }

    pub(crate) fn busy_time(&self, now: Time) -> Span {
        self.server.busy_time(now)
    }
}
