//! Far legs that are connecting, and how long that may take.

use super::{CONNECT_TICK, Worker, WorkerSlot};
use relay::{Ending, LegSide};
use std::{
    io, mem,
    time::{Duration, Instant},
};

impl Worker {
    /// Gives up far legs that have been connecting for too long. Once one has been connecting for
    /// [`CONNECT_TICK`], its near leg is watched too: the client may give up.
    pub(super) fn check_dialling(&mut self) {
        let now = self.scratch.now;
        while let Some(&(begun, slot)) = self.dialling.front() {
            if self.still_dials(begun, slot).is_some() {
                if now - begun < CONNECT_TICK {
                    break;
                }
                // With TCP Fast Open the near leg is watched already.
                if self.flows.get(slot).and_then(WorkerSlot::split).is_some_and(|connection| !connection.watches_near) {
                    self.watch_leg(slot, LegSide::Near);
                }
                self.dialling_long.push((begun, slot));
            }
            self.dialling.pop_front();
        }
        if self.dialling_long.is_empty() || now < self.next_check {
            return;
        }
        self.next_check = now + CONNECT_TICK;
        for (begun, slot) in mem::take(&mut self.dialling_long) {
            let Some(limit) = self.still_dials(begun, slot) else { continue };
            if now - begun < limit {
                self.dialling_long.push((begun, slot));
            } else {
                self.end(slot, Ending::FarNotReached(io::ErrorKind::TimedOut));
            }
        }
    }

    /// How long the far leg that was dialled then may take to connect; none: it is connected, or
    /// replaced by a leg to another address.
    fn still_dials(&self, begun: Instant, slot: usize) -> Option<Duration> {
        let connection = self.flows.get(slot)?.split()?;
        (connection.is_dialling() && connection.dialled_at() == begun).then(|| connection.connect_timeout())
    }
}
