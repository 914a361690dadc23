//! What is measured of networks in parallel: how long transfers take, what the networks carry.
//!
//! Of transfers that come by chance a tenth as many as are measured come before these and do not count: the networks begin empty. What comes between
//! the first and the last that count, of whatever class, counts; it is waited for, and meanwhile others go on coming.

use super::{MOST, Stripe, World};
use crate::net::{Net, forward, wire_rate};
use outcome::{FlowOutcome, Means, NetworkOutcome, Outcome, ReorderOutcome, Sojourns};
use scenario::{Job, Parallel};

/// Of so many foreground transfers that count, one comes before them and does not.
const EARLY: u64 = 10;

/// What had happened by a time, ns.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: u64,
    /// IP bytes that had left each network, and packets that its queue had dropped.
    left: [u64; MOST],
    drops: [u64; MOST],
    /// Payload that had come to receivers.
    came: u64,
}

/// Everything measured so far.
#[derive(Debug)]
pub(super) struct Tally {
    /// Foreground transfers that come before those that count, that count, and that have come. Without a foreground nothing is counted one by one.
    early: u64,
    jobs: u64,
    seen: u64,
    /// Transfers that count and have not ended.
    open: u64,
    times: Sojourns,
    networks: usize,
    came: u64,
    began: Option<Mark>,
    stopped: Option<Mark>,
    /// Payload of what is split, by network.
    shares: [u64; MOST],
    /// What was held because something before it had not come, of each transfer at its most: the sum, the largest, and how many transfers.
    held: (u64, u64, u64),
}

impl Tally {
    pub(super) fn new(parallel: &Parallel<'_>) -> Self {
        let jobs = parallel.foreground.map_or(0, |foreground| foreground.jobs);
        Tally {
            early: jobs / EARLY,
            jobs,
            seen: 0,
            open: 0,
            times: Sojourns::new(parallel.classes(), jobs),
            networks: parallel.networks.len(),
            came: 0,
            began: None,
            stopped: None,
            shares: [0; MOST],
            held: (0, 0, 0),
        }
    }

    fn mark(&self, net: &mut Net) -> Mark {
        let mut mark = Mark { at: net.now, left: [0; MOST], drops: [0; MOST], came: self.came };
        for network in 0..self.networks {
            let counts = net.counts(forward(network));
            (mark.left[network], mark.drops[network]) = (counts.left_bytes.0, counts.queue_drops);
        }
        mark
    }

    /// A transfer comes; the part of the run that it counts in, if it counts.
    pub(super) fn arrives(&mut self, job: &Job, net: &mut Net) -> Option<usize> {
        let is_foreground = job.class == 0;
        self.seen += u64::from(is_foreground);
        let begins = is_foreground && self.seen == self.early + 1;
        if begins && self.began.is_none() {
            self.began = Some(self.mark(net));
        }
        if self.began.is_none() || self.stopped.is_some() || self.jobs == 0 {
            return None;
        }
        let number = self.seen - self.early - 1;
        if is_foreground && number + 1 == self.jobs {
            self.stopped = Some(self.mark(net));
        }
        self.open += 1;
        Some(self.times.part(number))
    }

    /// Payload has come to a receiver.
    pub(super) fn came(&mut self, bytes: u64) {
        self.came += bytes;
    }

    /// A transfer has ended.
    pub(super) fn ends(&mut self, job: &Job, part: Option<usize>, stripe: &Stripe, now: u64) {
        if let Some(part) = part {
            self.open -= 1;
            self.times.add(job.class, part, (now - job.at.0) as f64 / 1e9);
        }
        if job.class == 0 && (part.is_some() || self.jobs == 0) {
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
        if self.stopped.is_none() {
            self.stopped = Some(self.mark(net));
        }
    }

    /// Whether all that counts has ended.
    pub(super) fn is_over(&self) -> bool {
        self.stopped.is_some() && self.open == 0
    }

    pub(super) fn share_done(&self) -> f64 {
        (self.seen as f64 / (self.early + self.jobs).max(1) as f64).min(1.0)
    }
}

/// What came out.
pub(crate) fn outcome(world: &World<'_>, seed: u64) -> Outcome {
    let (scenario, tally) = (world.scenario, &world.tally);
    let nothing = Mark { at: 0, left: [0; MOST], drops: [0; MOST], came: 0 };
    let (began, stopped) = (tally.began.unwrap_or(nothing), tally.stopped.unwrap_or(nothing));
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
    let means = if tally.jobs > 0 { tally.times.means() } else { Means::default() };
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
