//! Connect timeouts of far legs.

use super::{CONNECT_TICK, Worker, WorkerSlot};
use relay::{Ending, LegSide};
use std::{
    io, mem,
    time::{Duration, Instant},
};

impl Worker {
    /// Ends connections whose far leg has been connecting for too long. After [`CONNECT_TICK`] the
    /// near leg is watched too, since the client may give up.
    pub(super) fn check_dialling(&mut self) {
        let now = self.scratch.now;
        while let Some(&(begun, slot)) = self.dialling.front() {
            if self.connect_limit(begun, slot).is_some() {
                if now - begun < CONNECT_TICK {
                    break;
                }
                // With TCP Fast Open the near leg may be watched already.
                if self.flows.get(slot).and_then(WorkerSlot::split).is_some_and(|connection| !connection.watches_near) {
                    self.watch_leg(slot, LegSide::Near);
                }
                self.dialling_long.push((begun, slot));
            }
            self.dialling.pop_front();
        }
        if self.dialling_long.is_empty() || now < self.next_dialling_check {
            return;
        }
        self.next_dialling_check = now + CONNECT_TICK;
        for (begun, slot) in mem::take(&mut self.dialling_long) {
            let Some(limit) = self.connect_limit(begun, slot) else { continue };
            if now - begun < limit {
                self.dialling_long.push((begun, slot));
            } else {
                self.end(slot, Ending::FarNotReached(io::ErrorKind::TimedOut));
            }
        }
    }

    /// Connect timeout of the far leg in this slot that was dialled at `begun`; none: it is
    /// connected, or the slot has another connection.
    fn connect_limit(&self, begun: Instant, slot: usize) -> Option<Duration> {
        let connection = self.flows.get(slot)?.split()?;
        (connection.is_dialling() && connection.dialled_at() == begun).then(|| connection.connect_timeout())
    }
}
