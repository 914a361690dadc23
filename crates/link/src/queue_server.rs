//! The interface between a queue that is asked for its next packet and what transmits its packets.

use crate::{aqm::Dropped, time::Time};
use std::fmt;
use units::{Rate, Span};

/// A packet that has been transmitted.
#[derive(Debug)]
pub(crate) struct Departure<P> {
    pub(crate) arrived: Time,
    pub(crate) departed: Time,
    pub(crate) packet: P,
}

/// A queue and what serves it: a transmitter of its own, or a medium that it shares.
///
/// The times of calls never decrease. Before each arrival the caller takes all departures until
/// then, so that each decision is made with the packets that had arrived by that time.
pub(crate) trait QueueServer<P>: fmt::Debug {
    /// A packet arrives.
    ///
    /// # Errors
    /// Returns the packet if the queue drops it.
    fn enqueue(&mut self, now: Time, packet: P) -> Result<(), P>;

    /// Takes the next packet that has departed by `now`.
    fn take_departed(&mut self, now: Time) -> Option<Departure<P>>;

    /// When something happens next to one of its packets; `None` without any. After
    /// [`take_departed`](Self::take_departed) found nothing at `now`, it is later than that.
    fn next_wakeup(&self) -> Option<Time>;

    /// Packets and bytes that wait, without the packet in transmission.
    fn backlog(&self) -> (u64, u64);

    /// Packets inside: those that wait, in transmission, or departed and not taken.
    fn len(&self) -> usize;

    /// What the queue has dropped.
    fn dropped(&self) -> Dropped;

    /// For how long its packets have been transmitted from time zero until `now`.
    fn busy_time(&self, now: Time) -> Span;

    /// Collisions of frames on a shared medium, of both directions.
    fn collisions(&self) -> u64 {
        0
    }

    /// Changes the rate at `now`, for the rest of the packet in transmission as well.
    fn set_rate(&mut self, now: Time, rate: Rate);

    /// Starts a trace at `now`, if a trace permits the transmissions.
    fn start_trace(&mut self, now: Time);
}
