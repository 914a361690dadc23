//! All transfers over networks in parallel, random ones and listed flows, in the order of time.

use crate::{
    flows::{FlowSpec, Opens},
    parallel::{Job, Jobs, Parallel},
};
use std::{collections::VecDeque, iter::Peekable};
use units::Bytes;

/// Size of a flow without an end: more than any flow sends.
const ENDLESS: Bytes = Bytes(1 << 60);

/// A transfer of the schedule.
#[derive(Debug, Clone, Copy)]
pub struct PlannedTransfer {
    /// Its time, size and class.
    pub job: Job,
    /// The end that opens its connections.
    pub opens: Opens,
    /// Its receivers' window, if that is a limit.
    pub window: Option<Bytes>,
    /// Number of the flow, from 0, if it is a listed one.
    pub flow: Option<usize>,
    /// Whether it ends with its last byte; otherwise it lasts as long as the run.
    pub ends: bool,
}

/// All transfers of a run in the order of time, an iterator.
#[derive(Debug)]
pub struct TransferSchedule {
    jobs: Peekable<Jobs>,
    given: VecDeque<PlannedTransfer>,
    /// The receivers' window of each class.
    windows: Vec<Option<Bytes>>,
}

impl TransferSchedule {
    /// The transfers of these networks and flows with this seed.
    pub fn new(parallel: &Parallel<'_>, flows: &[FlowSpec], seed: u64) -> Self {
        let coming = |(index, flow): (usize, &FlowSpec)| PlannedTransfer {
            job: Job { class: 0, at: flow.start, bytes: flow.bytes.unwrap_or(ENDLESS) },
            opens: flow.opens,
            window: flow.window,
            flow: Some(index),
            ends: flow.bytes.is_some(),
        };
        let mut given: Vec<PlannedTransfer> = flows.iter().enumerate().map(coming).collect();
        given.sort_by_key(|coming| coming.job.at);
        let windows = (0..parallel.classes()).map(|class| parallel.window(class)).collect();
        TransferSchedule { jobs: parallel.jobs(seed).peekable(), given: given.into(), windows }
    }
}

impl Iterator for TransferSchedule {
    type Item = PlannedTransfer;

    fn next(&mut self) -> Option<PlannedTransfer> {
        let given_first = match (self.given.front(), self.jobs.peek()) {
            (Some(given), Some(job)) => given.job.at <= job.at,
            (given, _) => given.is_some(),
        };
        if given_first {
            return self.given.pop_front();
        }
        let job = self.jobs.next()?;
        Some(PlannedTransfer { job, opens: Opens::Sender, window: self.windows[job.class], flow: None, ends: true })
    }
}
