//! Which transfer comes next over networks in parallel: those that come by chance and those that
//! are given, in the order of time.

use crate::{
    flows::{FlowSpec, Opens},
    parallel::{Job, Jobs, Parallel},
};
use std::{collections::VecDeque, iter::Peekable};
use units::Bytes;

/// More than any flow sends: it has no end.
const ENDLESS: Bytes = Bytes(1 << 60);

/// A transfer that is to come.
#[derive(Debug, Clone, Copy)]
pub struct PlannedTransfer {
    /// When, how much, and of which class.
    pub job: Job,
    /// The end that opens its connections.
    pub opens: Opens,
    /// Its receivers' window, where that is a limit.
    pub window: Option<Bytes>,
    /// Which flow it is, where it is one that is given.
    pub flow: Option<usize>,
    /// Whether it ends when all of it has come; else it goes on as long as the run.
    pub ends: bool,
}

/// All transfers of a run, an iterator.
#[derive(Debug)]
pub struct TransferSchedule {
    jobs: Peekable<Jobs>,
    given: VecDeque<PlannedTransfer>,
    /// Of each class.
    windows: Vec<Option<Bytes>>,
}

impl TransferSchedule {
    /// The transfers of these networks and flows, under a seed.
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
