//! What is measured of networks in parallel: how long transfers take, what the networks carry.
//! Which transfers count: `outcome::CountedJobs`.

use super::{MOST, Stripe, World};
use crate::net::{Net, forward, wire_rate};
use outcome::{CountedJobs, FlowOutcome, NetworkOutcome, Outcome, ReorderOutcome};
use scenario::{Job, Parallel};

/// What had happened by a time, ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    at: u64,
    /// IP bytes that had left each network, and packets that its queue had dropped.
    left: [u64; MOST],
    drops: [u64; MOST],
    /// Payload that had come to receivers.
    came: u64,
}

impl Mark {
    fn of(net: &mut Net, networks: usize, came: u64) -> Self {
        let mut mark = Mark { at: net.now, left: [0; MOST], drops: [0; MOST], came };
        for network in 0..networks {
            let counts = net.counts(forward(network));
            (mark.left[network], mark.drops[network]) = (counts.left_bytes.0, counts.queue_drops);
        }
        mark
    }
}

/// Everything measured so far.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) jobs: CountedJobs<Mark>,
    networks: usize,
    came: u64,
    /// Payload of what is split, by network.
    shares: [u64; MOST],
    /// What was held because something before it had not come, of each transfer at its most: the sum, the largest, and how many transfers.
    held: (u64, u64, u64),
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

/// What came out.
pub(crate) fn outcome(world: &World<'_>, seed: u64) -> Outcome {
    let (scenario, tally) = (world.scenario, &world.tally);
    let nothing = Mark { at: 0, left: [0; MOST], drops: [0; MOST], came: 0 };
    let (began, stopped) = tally.jobs.marks();
    let (began, stopped) = (began.copied().unwrap_or(nothing), stopped.copied().unwrap_or(nothing));
    let span = stopped.at.saturating_sub(began.at).max(1) as f64 / 1e9;
    let capacity = |network: usize| wire_rate(world.parallel.networks[network].rate, world.settings.mss).bits_per_s() as f64 / 8.0 * span;
    let left = |network: usize| stopped.left[network].saturating_sub(began.left[network]) as f64;
    let all: u64 = tally.shares.iter().sum();
    let network = |index: usize| NetworkOutcome {
        network: index + 1,
        utilization: left(index) / capacity(index),
        share: (all > 0).then(|| tally.shares[index] as f64 / all as f64),
        queue_drops: Some(stopped.drops[index].saturating_sub(began.drops[index])),
    };
    let means = tally.jobs.means();
    let flows: Vec<FlowOutcome> = (0..world.flows.len()).map(|flow| flow_outcome(world, flow)).collect();
    let carried = if flows.is_empty() { stopped.came.saturating_sub(began.came) } else { flows.iter().map(|flow| flow.bytes).sum() };
    let (held, most, count) = tally.held;
    Outcome {
        scenario: scenario.name.clone(),
        engine: "sim".into(),
        seed,
        valid: true,
        goodput_bps: carried as f64 * 8.0 / span,
        utilization: (0..tally.networks).map(left).sum::<f64>() / (0..tally.networks).map(capacity).sum::<f64>(),
        flows,
        sojourn_s: means.sojourn_s,
        sojourn_jobs: means.jobs,
        networks: (0..tally.networks).map(network).collect(),
        reorder: (count > 0).then(|| ReorderOutcome { mean_bytes: held as f64 / count as f64, max_bytes: most }),
        ci95: means.ci95,
        ..Outcome::default()
    }
}

fn flow_outcome(world: &World<'_>, flow: usize) -> FlowOutcome {
    let of = &world.flows[flow];
    let (start_s, end_s) = (of.spec.start.secs(), of.ended.map(|at| at as f64 / 1e9));
    let time = end_s.unwrap_or(world.net.now as f64 / 1e9) - start_s;
    FlowOutcome {
        id: of.spec.id,
        asked_bytes: of.spec.bytes.map(|bytes| bytes.0),
        bytes: of.read,
        start_s,
        end_s,
        goodput_bps: if time > 0.0 { of.read as f64 * 8.0 / time } else { 0.0 },
        ..FlowOutcome::default()
    }
}
