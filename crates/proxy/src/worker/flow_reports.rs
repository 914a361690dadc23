//! Reports of a worker's flows and totals.

use super::{Worker, WorkerSlot, memory::ASK_PAUSE};
use crate::{
    brief::{FlowBrief, FlowId},
    meter::Totals,
};
use relay::FlowStats;
use std::{
    mem,
    sync::{Arc, mpsc},
};

/// Number of flows whose statistics a report reads in a turn of the event loop, so that traffic is
/// not delayed: each takes a dozen system calls.
const FLOWS_PER_TURN: usize = 128;
/// About the most system calls at a time that ask what is acknowledged, some tenths of a
/// millisecond. With more flows, each is asked less often.
const ASKED_AT_ONCE: usize = 1024;
/// Number of slots that a list in brief covers in a turn.
const SLOTS_PER_TURN: usize = 1024;

/// Which flows to report, and to whom.
#[derive(Debug)]
pub(crate) enum FlowRequest {
    /// All statistics of every flow.
    All(mpsc::Sender<Vec<FlowStats>>),
    /// What is known of every flow without a system call.
    Brief(mpsc::Sender<Vec<FlowBrief>>),
    /// All statistics of these flows, if they are this worker's and still open.
    Of(Arc<[FlowId]>, mpsc::Sender<Vec<(FlowId, FlowStats)>>),
}

/// A report in progress: it continues from slot, or flow, `next`.
pub(super) struct FlowReport {
    pub(super) next: usize,
    pub(super) request: FlowRequest,
}

impl Worker {
    /// The totals of all flows, open ones too.
    pub(super) fn totals(&mut self) -> Totals {
        self.ask_acknowledged();
        let asks = self.scratch.now.saturating_duration_since(self.memory.asked) >= ASK_PAUSE;
        if asks {
            self.ask_sockets();
        }
        let mut totals = self.totals.clone();
        totals.flows = self.alive() as u64;
        totals.memory = self.own_memory();
        totals.measured = self.measurements.named();
        for connection in self.flows.iter().filter_map(|(_, flow)| flow.split()) {
            let [up, down] = connection.carried();
            totals.up += up;
            totals.down += down;
            totals.add_acknowledged(connection.acknowledged_bytes());
        }
        if let Some(carrier) = &self.carrier {
            carrier.add_to(&mut totals);
        }
        totals
    }

    /// Asks the kernel what is acknowledged of the flows that are next in turn.
    fn ask_acknowledged(&mut self) {
        let (bound, mut asked) = (self.flows.bound(), 0);
        for step in 0..bound {
            let slot = (self.next_asked + step) % bound;
            let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { continue };
            asked += connection.ask_acknowledged();
            if asked >= ASKED_AT_ONCE {
                self.next_asked = slot + 1;
                return;
            }
        }
    }

    /// Continues the requested reports.
    pub(super) fn continue_flow_reports(&mut self) {
        for mut report in mem::take(&mut self.flow_reports) {
            // Sending fails if the requesting thread has given up.
            let (end, bound, sent) = match &report.request {
                FlowRequest::All(reply) => {
                    if let Some(carrier) = self.carrier.as_ref().filter(|_| report.next == 0) {
                        let _ = reply.send(carrier.stats());
                    }
                    let end = self.flows.bound().min(report.next + FLOWS_PER_TURN);
                    let connections = (report.next..end).filter_map(|slot| self.flows.get(slot)?.split());
                    let flows = connections.map(|connection| connection.stats(self.scratch.now)).collect();
                    (end, self.flows.bound(), reply.send(flows).is_ok())
                }
                FlowRequest::Brief(reply) => {
                    if let Some(carrier) = self.carrier.as_ref().filter(|_| report.next == 0) {
                        let _ = reply.send(carrier.briefs(self.context.number));
                    }
                    let end = self.flows.bound().min(report.next + SLOTS_PER_TURN);
                    (end, self.flows.bound(), reply.send(self.briefs(report.next, end)).is_ok())
                }
                FlowRequest::Of(ids, reply) => {
                    let end = ids.len().min(report.next + FLOWS_PER_TURN);
                    let flows = ids[report.next..end].iter().filter_map(|id| Some((*id, self.stats_of(id)?))).collect();
                    (end, ids.len(), reply.send(flows).is_ok())
                }
            };
            report.next = end;
            if sent && end < bound {
                self.flow_reports.push(report);
            }
        }
    }

    /// The flows in these slots, in brief.
    fn briefs(&self, from: usize, to: usize) -> Vec<FlowBrief> {
        let worker = self.context.number;
        let connections = (from..to).filter_map(|slot| Some((slot, self.flows.get(slot)?.split()?)));
        let mut briefs = Vec::with_capacity(to - from);
        briefs.extend(connections.map(|(slot, connection)| connection.brief(worker, slot)));
        briefs
    }

    /// The statistics of a flow of this worker; none: it has ended, or is another worker's.
    fn stats_of(&self, id: &FlowId) -> Option<FlowStats> {
        if id.worker != self.context.number {
            return None;
        }
        if id.is_carried {
            return self.carrier.as_ref()?.stats_of(id);
        }
        let connection = self.flows.get(id.slot)?.split()?;
        (connection.born() == id.born).then(|| connection.stats(self.scratch.now))
    }
}
