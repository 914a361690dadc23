//! What a worker reports of its flows.

use super::Worker;
use crate::meter::Totals;
use std::mem;

/// How many slots a survey covers in a turn, so that traffic gets its own.
const SURVEYED: usize = 128;

impl Worker {
    /// The totals of all flows, those that are not over too.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.totals.clone();
        totals.flows = self.alive() as u64;
        for connection in self.flows.iter().filter_map(|(_, flow)| flow.split()) {
            let (up, down) = connection.carried();
            totals.up += up;
            totals.down += down;
        }
        if let Some(carrier) = &self.carrier {
            carrier.add_to(&mut totals);
        }
        totals
    }

    /// Reports some more of the flows that were asked for.
    pub(super) fn survey(&mut self) {
        for mut survey in mem::take(&mut self.surveys) {
            if let Some(carrier) = self.carrier.as_ref().filter(|_| survey.next == 0) {
                // The asking thread may have given up.
                let _ = survey.reply.send(carrier.stats());
            }
            let end = self.flows.bound().min(survey.next + SURVEYED);
            let connections = (survey.next..end).filter_map(|slot| self.flows.get(slot)?.split());
            let flows = connections.map(|connection| connection.stats(self.scratch.now)).collect();
            survey.next = end;
            if survey.reply.send(flows).is_ok() && end < self.flows.bound() {
                self.surveys.push(survey);
            }
        }
    }
}
