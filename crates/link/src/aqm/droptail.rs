//! A drop-tail queue, where the transmitter asks for its next packet.

use super::{Discipline, Dropped, Fifo, Limit};
use crate::{stage::LinkPacket, time::Time};
use std::fmt;

/// Drops an arriving packet for which there is no room.
#[derive(Debug)]
pub(super) struct DropTailQueue<P> {
    fifo: Fifo<P>,
    limit: Limit,
}

impl<P: LinkPacket> DropTailQueue<P> {
    pub(super) fn new(limit: Limit) -> Self {
        DropTailQueue { fifo: Fifo::new(), limit }
    }
}

impl<P: LinkPacket + fmt::Debug> Discipline<P> for DropTailQueue<P> {
    fn enqueue(&mut self, now: Time, packet: P, _: &mut Dropped) -> Result<(), P> {
        if !self.limit.has_room(self.fifo.backlog(), packet.wire_bytes()) {
            return Err(packet);
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
