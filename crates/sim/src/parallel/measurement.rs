//! Measurement of transfers over parallel networks: what the networks carry, what is held for
//! reordering. `outcome::CountedJobs` decides which transfers count and measures their sojourn
//! times.

use super::striping::StripedTransfer;
use crate::network::{SimNetwork, forward};
use outcome::CountedJobs;
use scenario::{Job, Parallel, Scenario};

/// The most networks.
const MAX_NETWORKS: usize = Scenario::MOST_NETWORKS;

/// Counters of the networks at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkSnapshot {
    /// The time, ns.
    pub(super) at: u64,
    /// IP bytes that had departed from each network.
    pub(super) departed: [u64; MAX_NETWORKS],
    /// Packets that each network's queue had dropped.
    pub(super) drops: [u64; MAX_NETWORKS],
    /// Payload that receivers had received, bytes.
    pub(super) received: u64,
}

impl NetworkSnapshot {
    /// The state before anything was sent.
    pub(super) const ZERO: NetworkSnapshot = NetworkSnapshot { at: 0, departed: [0; MAX_NETWORKS], drops: [0; MAX_NETWORKS], received: 0 };

    fn take(net: &mut SimNetwork, networks: usize, received: u64) -> Self {
        let mut snapshot = NetworkSnapshot { at: net.now, received, ..NetworkSnapshot::ZERO };
        for network in 0..networks {
            let counts = net.counts(forward(network));
            snapshot.departed[network] = counts.departed_bytes.0;
            snapshot.drops[network] = counts.queue_drops;
        }
        snapshot
    }
}

/// The measurement of a run.
///
/// For each transfer the caller calls [`on_arrival`](Self::on_arrival),
/// [`on_received`](Self::on_received) and [`on_end`](Self::on_end); at the end of the run
/// [`stop`](Self::stop).
#[derive(Debug)]
pub(super) struct TransferMeasurement {
    pub(super) jobs: CountedJobs<NetworkSnapshot>,
    pub(super) networks: usize,
    received: u64,
    /// Payload of striped transfers that each network has delivered, bytes.
    pub(super) bytes_by_network: [u64; MAX_NETWORKS],
    /// Sum over striped transfers of the most bytes that each held out of order.
    pub(super) held_sum: u64,
    /// The largest of these.
    pub(super) held_max: u64,
    /// Number of striped transfers in `held_sum`.
    pub(super) striped_transfers: u64,
}

impl TransferMeasurement {
    pub(super) fn new(parallel: &Parallel<'_>) -> Self {
        TransferMeasurement {
            jobs: CountedJobs::new(parallel),
            networks: parallel.networks.len(),
            received: 0,
            bytes_by_network: [0; MAX_NETWORKS],
            held_sum: 0,
            held_max: 0,
            striped_transfers: 0,
        }
    }

    /// A transfer arrives. Returns the part of the run that it counts in, if it counts.
    pub(super) fn on_arrival(&mut self, job: &Job, net: &mut SimNetwork) -> Option<usize> {
        let (networks, received) = (self.networks, self.received);
        self.jobs.arrive(job.class, || NetworkSnapshot::take(net, networks, received))
    }

    /// A receiver has received this much new payload.
    pub(super) fn on_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// A transfer has ended at `now` ns. `part` is what [`on_arrival`](Self::on_arrival) returned
    /// for it.
    pub(super) fn on_end(&mut self, job: &Job, part: Option<usize>, striped: &StripedTransfer, now: u64) {
        self.jobs.end(job.class, part, Some((now - job.at.0) as f64 / 1e9));
        if job.class == 0 && (part.is_some() || !self.jobs.has_foreground()) {
            self.add_striped(striped);
        }
    }

    /// Adds how a transfer was striped.
    pub(super) fn add_striped(&mut self, striped: &StripedTransfer) {
        // Connections go round the networks.
        for (connection, delivered) in striped.delivered().iter().enumerate() {
            self.bytes_by_network[connection % self.networks] += delivered;
        }
        self.held_sum += striped.max_held();
        self.held_max = self.held_max.max(striped.max_held());
        self.striped_transfers += 1;
    }

    /// The run has ended, and the measurement with it if a transfer has not ended it before.
    pub(super) fn stop(&mut self, net: &mut SimNetwork) {
        let (networks, received) = (self.networks, self.received);
        self.jobs.stop(|| NetworkSnapshot::take(net, networks, received));
    }
}
