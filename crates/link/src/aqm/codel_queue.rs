//! One queue under CoDel (RFC 8289).

use super::{Discipline, Dropped, Fifo, Limit, codel::Codel};
use crate::{stage::LinkPacket, time::Time};
use scenario::QueueParameters;
use std::fmt;

#[derive(Debug)]
pub(super) struct CodelQueue<P> {
    fifo: Fifo<P>,
    codel: Codel,
    limit: Limit,
}

impl<P: LinkPacket> CodelQueue<P> {
    pub(super) fn new(limit: Limit, parameters: QueueParameters) -> Self {
        CodelQueue { fifo: Fifo::new(), codel: Codel::new(parameters), limit }
    }
}

impl<P: LinkPacket + fmt::Debug> Discipline<P> for CodelQueue<P> {
    fn enqueue(&mut self, now: Time, packet: P, _: &mut Dropped) -> Result<(), P> {
        if !self.limit.has_room(self.fifo.backlog(), packet.wire_bytes()) {
            return Err(packet);
        }
        self.fifo.push(now, packet);
        Ok(())
    }

    fn dequeue(&mut self, now: Time, dropped: &mut Dropped) -> Option<(Time, P)> {
        self.codel.dequeue(now, &mut self.fifo, dropped)
    }

    fn backlog(&self) -> (u64, u64) {
        self.fifo.backlog()
    }
}
