//! What a worker tells of its flows.

use super::Worker;
use crate::meter::Totals;
use std::mem;

/// How many slots a survey looks at before traffic has its turn again.
const SURVEYED: usize = 128;

impl Worker {
    /// What all flows came to, those that are not over too.
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

    /// Tells some more of the flows to whoever asked.
    pub(super) fn survey(&mut self) {
        for mut survey in mem::take(&mut self.surveys) {
            if let Some(carrier) = self.carrier.as_ref().filter(|_| survey.next == 0) {
                // Who asked may have gone away.
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
