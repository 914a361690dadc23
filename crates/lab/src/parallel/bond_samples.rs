//! Looks at a bond while it carries what is given: what is plotted over time.

use super::network::Networks;
use outcome::Series;
use proxy::{FlowStats, MultipathView, PathView};
use scenario::Opens;
use std::time::{Duration, Instant};

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(50);

/// What was seen of a network at a time, of all streams together: numbers that add up are sums, the others means.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Streams that have a connection over it, and those of them whose G is known.
    connected: f64,
    measured: f64,
    score: f64,
    throughput: f64,
    srtt: f64,
    unsent: f64,
    sent: f64,
    waited: f64,
}

/// What was seen at a time.
#[derive(Debug, Clone)]
struct Look {
    at: f64,
    /// Payload that the receivers' applications had read.
    read: u64,
    /// Payload that had come before its turn.
    waiting: u64,
    networks: Vec<Seen>,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last: Option<Instant>,
    has_bond: bool,
    all: Vec<Look>,
}

impl Looks {
    /// Looks, if it is time to.
    pub(super) fn look(&mut self, at: f64, read: u64, networks: &Networks) {
        if self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let mut look = Look { at, read, waiting: 0, networks: vec![Seen::default(); networks.count()] };
        for (opens, [dials, accepts]) in networks.ends() {
            self.has_bond = true;
            let (dials, accepts) = (dials.flows(), accepts.flows());
            let [sends, receives] = if opens == Opens::Sender { [&dials, &accepts] } else { [&accepts, &dials] };
            for view in bonds(sends) {
                each(view, &mut look.networks, Seen::add_sender);
            }
            for view in bonds(receives) {
                look.waiting += view.waiting_bytes;
                each(view, &mut look.networks, |seen, path| seen.waited += path.waited_s);
            }
        }
        self.all.push(look);
    }

    /// As lines over time.
    pub(super) fn series(&self) -> Vec<Series> {
        let networks = self.all.first().map_or(0, |look| look.networks.len());
        let points =
            |value: &dyn Fn(&Look) -> Option<f64>| self.all.iter().filter_map(|look| Some((look.at, value(look)?))).collect::<Vec<_>>();
        let rate = |total: &dyn Fn(&Look) -> f64| {
            let rate = |pair: &[Look]| (pair[1].at, 8.0 * (total(&pair[1]) - total(&pair[0])).max(0.0) / (pair[1].at - pair[0].at));
            self.all.windows(2).filter(|pair| pair[1].at > pair[0].at).map(rate).collect::<Vec<_>>()
        };
        let mut all = vec![Series::of("goodput", "all", "bit/s", rate(&|look| look.read as f64))];
        if !self.has_bond {
            return all;
        }
        for index in 0..networks {
            let whose = format!("network {}", index + 1);
            let of = |value: fn(&Seen) -> Option<f64>| points(&|look| value(&look.networks[index]));
            all.extend([
                Series::of("carried", &whose, "bit/s", rate(&|look| look.networks[index].sent)),
                Series::of("score", &whose, "s", of(|seen| mean(seen.score, seen.connected))),
                Series::of("throughput", &whose, "bit/s", of(|seen| mean(seen.throughput, seen.measured))),
                Series::of("rtt", &whose, "s", of(|seen| mean(seen.srtt, seen.connected))),
                Series::of("unsent", &whose, "B", of(|seen| (seen.connected > 0.0).then_some(seen.unsent))),
                Series::of("waited", &whose, "s", of(|seen| Some(seen.waited))),
            ]);
        }
        all.push(Series::of("waiting", "all", "B", points(&|look| Some(look.waiting as f64))));
        all
    }
}

impl Seen {
    /// What the sending end believes of a network.
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

fn bonds(flows: &[FlowStats]) -> impl Iterator<Item = &MultipathView> {
    flows.iter().filter_map(|flow| flow.multipath.as_ref())
}

/// What a stream has of each network; networks count from 1.
fn each(view: &MultipathView, networks: &mut [Seen], mut of: impl FnMut(&mut Seen, &PathView)) {
    for path in &view.paths {
        let index = path.network.parse::<usize>().unwrap_or(0).wrapping_sub(1);
        if let Some(seen) = networks.get_mut(index) {
            of(seen, path);
        }
    }
}
