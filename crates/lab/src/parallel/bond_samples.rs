//! Samples bonds while they carry transfers, for series over time.

use super::network::ParallelNetworks;
use outcome::Series;
use proxy::{FlowStats, MultipathView, PathView};
use scenario::Opens;
use std::time::{Duration, Instant};

/// Minimum interval between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// A sample of one network: sums over all streams. `score`, `srtt` and `throughput` are divided by
/// the number of streams that have them when a series is made.
#[derive(Debug, Clone, Copy, Default)]
struct NetworkSample {
    /// Number of streams that have a connection over the network.
    connected: f64,
    /// Number of streams whose throughput over the network is known.
    measured: f64,
    /// Scores, seconds.
    score: f64,
    /// bit/s.
    throughput: f64,
    /// Smoothed round-trip times, seconds.
    srtt: f64,
    /// Bytes assigned to the network that have not been sent yet.
    unsent: f64,
    /// Payload sent since the start, bytes.
    sent: f64,
    /// Time for which received payload waited for earlier bytes, seconds.
    waited: f64,
}

/// A sample of all bonds.
#[derive(Debug, Clone)]
struct BondSample {
    /// Seconds since the start of the run.
    at: f64,
    /// Payload that the receiving applications have read so far, bytes.
    read: u64,
    /// Payload that waits for earlier bytes at the receivers, bytes.
    waiting: u64,
    networks: Vec<NetworkSample>,
}

/// Collects the samples of a run.
#[derive(Debug, Default)]
pub(super) struct BondSampler {
    last: Option<Instant>,
    has_bond: bool,
    all: Vec<BondSample>,
}

impl BondSampler {
    /// Takes a sample unless the last one is too recent. `at` is in seconds since the start of the
    /// run; `read` is the payload that applications have read so far, in bytes.
    pub(super) fn sample(&mut self, at: f64, read: u64, networks: &ParallelNetworks) {
        if self.last.is_some_and(|last| last.elapsed() < SAMPLE_INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        let mut sample = BondSample { at, read, waiting: 0, networks: vec![NetworkSample::default(); networks.count()] };
        for (opens, [dials, accepts]) in networks.bond_ends() {
            self.has_bond = true;
            let (dials, accepts) = (dials.flows(), accepts.flows());
            let [sends, receives] = if opens == Opens::Sender { [&dials, &accepts] } else { [&accepts, &dials] };
            for view in bond_views(sends) {
                for_each_path(view, &mut sample.networks, NetworkSample::add_sender);
            }
            for view in bond_views(receives) {
                sample.waiting += view.waiting_bytes;
                for_each_path(view, &mut sample.networks, |seen, path| seen.waited += path.waited_s);
            }
        }
        self.all.push(sample);
    }

    /// The series over time that outcomes have.
    pub(super) fn series(&self) -> Vec<Series> {
        let networks = self.all.first().map_or(0, |sample| sample.networks.len());
        let points = |value: &dyn Fn(&BondSample) -> Option<f64>| {
            self.all.iter().filter_map(|sample| Some((sample.at, value(sample)?))).collect::<Vec<_>>()
        };
        let rate = |total: &dyn Fn(&BondSample) -> f64| {
            let rate = |pair: &[BondSample]| (pair[1].at, 8.0 * (total(&pair[1]) - total(&pair[0])).max(0.0) / (pair[1].at - pair[0].at));
            self.all.windows(2).filter(|pair| pair[1].at > pair[0].at).map(rate).collect::<Vec<_>>()
        };
        let mut all = vec![Series::of("goodput", "all", "bit/s", rate(&|sample| sample.read as f64))];
        if !self.has_bond {
            return all;
        }
        for index in 0..networks {
            let whose = format!("network {}", index + 1);
            let of = |value: fn(&NetworkSample) -> Option<f64>| points(&|sample| value(&sample.networks[index]));
            all.extend([
                Series::of("carried", &whose, "bit/s", rate(&|sample| sample.networks[index].sent)),
                Series::of("score", &whose, "s", of(|seen| mean(seen.score, seen.connected))),
                Series::of("throughput", &whose, "bit/s", of(|seen| mean(seen.throughput, seen.measured))),
                Series::of("rtt", &whose, "s", of(|seen| mean(seen.srtt, seen.connected))),
                Series::of("unsent", &whose, "B", of(|seen| (seen.connected > 0.0).then_some(seen.unsent))),
                Series::of("waited", &whose, "s", of(|seen| Some(seen.waited))),
            ]);
        }
        all.push(Series::of("waiting", "all", "B", points(&|sample| Some(sample.waiting as f64))));
        all
    }
}

impl NetworkSample {
    /// Adds what the sending end reports of a path.
    fn add_sender(&mut self, path: &PathView) {
        self.sent += path.sent_bytes as f64;
        if path.up {
            self.connected += 1.0;
            self.score += path.score_s.unwrap_or(0.0);
            self.srtt += path.srtt_s;
            self.unsent += path.queued_bytes as f64;
        }
        if let Some(throughput) = path.throughput_bps {
            self.measured += 1.0;
            self.throughput += throughput;
        }
    }
}

fn mean(sum: f64, of: f64) -> Option<f64> {
    (of > 0.0).then_some(sum / of)
}

fn bond_views(flows: &[FlowStats]) -> impl Iterator<Item = &MultipathView> {
    flows.iter().filter_map(|flow| flow.multipath.as_ref())
}

/// Calls `of` with each path of a stream and the sample of its network. Paths name their networks
/// by number, from 1.
fn for_each_path(view: &MultipathView, networks: &mut [NetworkSample], mut of: impl FnMut(&mut NetworkSample, &PathView)) {
    for path in &view.paths {
        let index = path.network.parse::<usize>().unwrap_or(0).wrapping_sub(1);
        if let Some(seen) = networks.get_mut(index) {
            of(seen, path);
        }
    }
}
