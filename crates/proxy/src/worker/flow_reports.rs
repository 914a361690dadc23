//! Reports of a worker's flows and totals.

use super::Worker;
use crate::meter::Totals;
use std::mem;

/// Number of slots that a report covers in a turn of the event loop, so that traffic is not
/// delayed.
const SLOTS_PER_TURN: usize = 128;

impl Worker {
    /// The totals of all flows, open ones too.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.totals.clone();
        totals.flows = self.alive() as u64;
        totals.measured = self.measurements.named();
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

    /// Continues the requested reports of all flows.
    pub(super) fn continue_flow_reports(&mut self) {
        for mut report in mem::take(&mut self.flow_reports) {
            if let Some(carrier) = self.carrier.as_ref().filter(|_| report.next == 0) {
                // Fails if the requesting thread has given up.
                let _ = report.reply.send(carrier.stats());
            }
            let end = self.flows.bound().min(report.next + SLOTS_PER_TURN);
            let connections = (report.next..end).filter_map(|slot| self.flows.get(slot)?.split());
            let flows = connections.map(|connection| connection.stats(self.scratch.now)).collect();
            report.next = end;
            if report.reply.send(flows).is_ok() && end < self.flows.bound() {
                self.flow_reports.push(report);
            }
        }
    }
}
