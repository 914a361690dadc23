//! Which transfer comes next: those that come by chance and those that are given, in the order of time.

use scenario::{FlowSpec, Job, Jobs, Opens, Parallel};
use std::{collections::VecDeque, iter::Peekable};
use units::Bytes;

/// More than any flow sends: it has no end.
const ENDLESS: Bytes = Bytes(1 << 60);

/// A transfer that is to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coming {
    pub(super) job: Job,
    pub(super) opens: Opens,
    /// Its receivers' window, where that is a limit.
    pub(super) window: Option<Bytes>,
    /// Which flow it is, where it is one that is given.
    pub(super) flow: Option<usize>,
    /// It ends when all of it has come.
    pub(super) ends: bool,
}

/// All that are to come.
#[derive(Debug)]
pub(super) struct Schedule {
    jobs: Peekable<Jobs>,
    given: VecDeque<Coming>,
    /// Of each class.
    windows: Vec<Option<Bytes>>,
}

impl Schedule {
    pub(super) fn new(parallel: &Parallel<'_>, flows: &[FlowSpec], seed: u64) -> Self {
        let coming = |(index, flow): (usize, &FlowSpec)| Coming {
            job: Job { class: 0, at: flow.start, bytes: flow.bytes.unwrap_or(ENDLESS) },
            opens: flow.opens,
            window: flow.window,
            flow: Some(index),
            ends: flow.bytes.is_some(),
        };
        let mut given: Vec<Coming> = flows.iter().enumerate().map(coming).collect();
        given.sort_by_key(|coming| coming.job.at);
        let windows = (0..parallel.classes()).map(|class| parallel.window(class)).collect();
        Schedule { jobs: parallel.jobs(seed).peekable(), given: given.into(), windows }
    }
}

impl Iterator for Schedule {
    type Item = Coming;

    fn next(&mut self) -> Option<Coming> {
        let given_first = match (self.given.front(), self.jobs.peek()) {
            (Some(given), Some(job)) => given.job.at <= job.at,
            (given, _) => given.is_some(),
        };
        if given_first {
            return self.given.pop_front();
        }
        let job = self.jobs.next()?;
        Some(Coming { job, opens: Opens::Sender, window: self.windows[job.class], flow: None, ends: true })
    }
}
