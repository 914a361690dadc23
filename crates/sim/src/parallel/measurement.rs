//! What is measured of networks in parallel: how long transfers take, what the networks carry.
//! Which transfers count: `outcome::CountedJobs`.

use super::striping::{MOST, Stripe};
use crate::network::{Net, forward};
use outcome::CountedJobs;
use scenario::{Job, Parallel};

/// What had happened by a time, ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) at: u64,
    /// IP bytes that had left each network, and packets that its queue had dropped.
    pub(super) left: [u64; MOST],
    pub(super) drops: [u64; MOST],
    /// Payload that had come to receivers.
    pub(super) came: u64,
}

impl Mark {
    fn of(net: &mut Net, networks: usize, came: u64) -> Self {
        let mut mark = Mark { at: net.now, left: [0; MOST], drops: [0; MOST], came };
        for network in 0..networks {
            let counts = net.counts(forward(network));
            (mark.left[network], mark.drops[network]) = (counts.departed_bytes.0, counts.queue_drops);
        }
        mark
    }
}

/// Everything measured so far.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) jobs: CountedJobs<Mark>,
    pub(super) networks: usize,
    pub(super) came: u64,
    /// Payload of what is split, by network.
    pub(super) shares: [u64; MOST],
    /// What was held because something before it had not come, of each transfer at its most: the sum, the largest, and how many transfers.
    pub(super) held: (u64, u64, u64),
}

impl Tally {
    pub(super) fn new(parallel: &Parallel<'_>) -> Self {
        Tally { jobs: CountedJobs::new(parallel), networks: parallel.networks.len(), came: 0, shares: [0; MOST], held: (0, 0, 0) }
    }

    /// A transfer comes; the part of the run that it counts in, if it counts.
    pub(super) fn arrives(&mut self, job: &Job, net: &mut Net) -> Option<usize> {
        let (networks, came) = (self.networks, self.came);
        self.jobs.arrive(job.class, || Mark::of(net, networks, came))
    }

    /// Payload has come to a receiver.
    pub(super) fn came(&mut self, bytes: u64) {
        self.came += bytes;
    }

    /// A transfer has ended.
    pub(super) fn ends(&mut self, job: &Job, part: Option<usize>, stripe: &Stripe, now: u64) {
        self.jobs.end(job.class, part, Some((now - job.at.0) as f64 / 1e9));
        if job.class == 0 && (part.is_some() || !self.jobs.has_foreground()) {
            self.share(stripe);
        }
    }

    /// What is split was shared like this.
    pub(super) fn share(&mut self, stripe: &Stripe) {
        for (share, came) in self.shares.iter_mut().zip(stripe.came()) {
            *share += came;
        }
        let (sum, most, count) = &mut self.held;
        *sum += stripe.most_held();
        *most = stripe.most_held().max(*most);
        *count += 1;
    }

    /// The run has ended, if nothing else has ended what is measured.
    pub(super) fn stop(&mut self, net: &mut Net) {
        let (networks, came) = (self.networks, self.came);
        self.jobs.stop(|| Mark::of(net, networks, came));
    }
}
