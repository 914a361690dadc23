//! Present rates of flows, from the bytes that had arrived by two times.

use proxy::{DirectionView, FlowView, Limiter};
use serde::Serialize;
use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// The shortest time over which a rate is computed.
const SHORTEST: Duration = Duration::from_millis(50);

/// A flow and its rates since the sample before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WatchedFlow {
    /// What the proxy says of it.
    #[serde(flatten)]
    pub flow: FlowView,
    /// Payload from client to server, bit/s; absent in the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_bps: Option<f64>,
    /// Payload from server to client, bit/s; absent in the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_bps: Option<f64>,
    /// The networks of its bond, in the order of `flow.multipath`; empty without a bond and in the
    /// first sample.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks_bps: Vec<NetworkRates>,
}

/// Payload over one network of a bond.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NetworkRates {
    /// Sent by this end, copies included, bit/s.
    pub sent_bps: f64,
    /// Received by this end, bit/s.
    pub received_bps: f64,
}

impl WatchedFlow {
    /// Both directions together, bit/s; 0 in the first sample.
    pub fn total_bps(&self) -> f64 {
        self.up_bps.unwrap_or(0.0) + self.down_bps.unwrap_or(0.0)
    }

    /// The direction that carries more now; if neither carries anything, that which has carried
    /// more.
    pub fn main_direction(&self) -> &DirectionView {
        main_direction(&self.flow, [self.up_bps, self.down_bps].map(|bps| bps.unwrap_or(0.0)))
    }

    /// What limits that direction; none: the flow has carried nothing.
    pub fn limited_by(&self) -> Option<Limiter> {
        (self.flow.up.bytes + self.flow.down.bytes > 0).then(|| self.main_direction().limited_by)
    }
}

/// The direction of a flow that carries more, up or down, by what they carry now: rates or bytes.
pub(crate) fn main_direction(flow: &FlowView, [up, down]: [f64; 2]) -> &DirectionView {
    let is_upward = if up + down > 0.0 { up > down } else { flow.up.bytes > flow.down.bytes };
    if is_upward { &flow.up } else { &flow.down }
}

/// Computes the rates of flows from sample to sample.
#[derive(Debug, Default)]
pub struct RateTracker {
    last: Option<Sample>,
}

/// What was counted at one time.
#[derive(Debug)]
struct Sample {
    at: Instant,
    flows: HashMap<[SocketAddr; 2], ByteCounts>,
}

/// What of one flow has arrived.
#[derive(Debug, Default)]
struct ByteCounts {
    up: u64,
    down: u64,
    /// Of each network, sent and received.
    networks: HashMap<String, [u64; 2]>,
}

impl ByteCounts {
    fn of(flow: &FlowView) -> Self {
        let paths = flow.multipath.iter().flat_map(|bond| &bond.paths);
        ByteCounts {
            up: flow.up.arrived_bytes(),
            down: flow.down.arrived_bytes(),
            networks: paths.map(|path| (path.network.clone(), [path.sent_bytes, path.received_bytes])).collect(),
        }
    }
}

impl RateTracker {
    /// Takes the list of flows as of `at`, and adds their rates since the list before.
    pub fn take(&mut self, flows: Vec<FlowView>, at: Instant) -> Vec<WatchedFlow> {
        let counts = flows.iter().map(|flow| ([flow.client, flow.server], ByteCounts::of(flow))).collect();
        let before = self.last.replace(Sample { at, flows: counts });
        flows.into_iter().map(|flow| with_rates(flow, before.as_ref(), at)).collect()
    }
}

/// Adds the rates since the sample `before` to a flow as of `at`.
fn with_rates(flow: FlowView, before: Option<&Sample>, at: Instant) -> WatchedFlow {
    let Some((span, counts)) = before.and_then(|before| base(&flow, before, at)) else {
        return WatchedFlow { flow, up_bps: None, down_bps: None, networks_bps: Vec::new() };
    };
    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 * 8.0 / span.max(SHORTEST).as_secs_f64();
    let nothing = ByteCounts::default();
    let counts = counts.unwrap_or(&nothing);
    let networks_bps = flow.multipath.iter().flat_map(|bond| &bond.paths).map(|path| {
        let [sent, received] = counts.networks.get(&path.network).copied().unwrap_or_default();
        NetworkRates { sent_bps: rate(path.sent_bytes, sent), received_bps: rate(path.received_bytes, received) }
    });
    let networks_bps = networks_bps.collect();
    let (up_bps, down_bps) = (Some(rate(flow.up.arrived_bytes(), counts.up)), Some(rate(flow.down.arrived_bytes(), counts.down)));
    WatchedFlow { flow, up_bps, down_bps, networks_bps }
}

/// The time over which a flow's rate is computed, and its counts at the beginning; without counts
/// it began with nothing. `None` if the flow is older than the sample, which does not have it.
fn base<'a>(flow: &FlowView, before: &'a Sample, at: Instant) -> Option<(Duration, Option<&'a ByteCounts>)> {
    let (elapsed, age) = (at - before.at, Duration::from_secs_f64(flow.age_s.max(0.0)));
    // A client may have used the same addresses for a flow that has ended.
    if age < elapsed {
        return Some((age, None));
    }
    let counts = before.flows.get(&[flow.client, flow.server])?;
    Some((elapsed, Some(counts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::example_flow;

    #[test]
    fn rates_are_those_since_the_sample_before() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        let mut flow = example_flow("192.0.2.1:1000", "198.51.100.1:80");
        (flow.age_s, flow.up.bytes, flow.down.bytes) = (100.0, 1_000_000, 9_000_000);
        let first = tracker.take(vec![flow.clone()], start);
        assert_eq!((first[0].up_bps, first[0].down_bps, first[0].total_bps()), (None, None, 0.0));

        (flow.age_s, flow.up.bytes, flow.down.bytes) = (102.0, 1_000_000, 9_500_000);
        let second = tracker.take(vec![flow], start + Duration::from_secs(2));
        assert_eq!((second[0].up_bps, second[0].down_bps), (Some(0.0), Some(2e6)));
    }

    #[test]
    fn a_rate_counts_what_has_arrived() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        let mut flow = example_flow("192.0.2.1:1000", "198.51.100.1:80");
        (flow.age_s, flow.down.bytes, flow.down.acknowledged_bytes) = (100.0, 2_000_000, Some(1_000_000));
        tracker.take(vec![flow.clone()], start);
        (flow.age_s, flow.down.bytes, flow.down.acknowledged_bytes) = (101.0, 4_000_000, Some(1_250_000));
        let watched = tracker.take(vec![flow], start + Duration::from_secs(1));
        assert_eq!(watched[0].down_bps, Some(2e6));
    }

    #[test]
    fn the_main_direction_is_that_which_carries_more_now() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        let mut flow = example_flow("192.0.2.1:1000", "198.51.100.1:80");
        (flow.age_s, flow.up.limited_by, flow.down.limited_by) = (100.0, Limiter::FarLeg, Limiter::NearLeg);
        let mut limiter = |up: u64, down: u64, second: u64| {
            (flow.up.bytes, flow.down.bytes) = (up, down);
            tracker.take(vec![flow.clone()], start + Duration::from_secs(second))[0].limited_by()
        };
        assert_eq!(limiter(0, 0, 0), None);
        assert_eq!(limiter(1000, 9000, 1), Some(Limiter::NearLeg));
        assert_eq!(limiter(3000, 9000, 2), Some(Limiter::FarLeg));
        assert_eq!(limiter(3000, 9000, 3), Some(Limiter::NearLeg), "neither carries anything now");
    }

    #[test]
    fn a_new_flow_of_the_same_addresses_has_its_own_rate() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        let mut flow = example_flow("192.0.2.1:1000", "198.51.100.1:80");
        (flow.age_s, flow.down.bytes) = (100.0, 9_000_000);
        tracker.take(vec![flow.clone()], start);
        (flow.age_s, flow.down.bytes) = (1.0, 250_000);
        let watched = tracker.take(vec![flow], start + Duration::from_secs(2));
        assert_eq!(watched[0].down_bps, Some(2e6));
    }

    #[test]
    fn a_flow_that_the_sample_before_lacks_has_no_rate_yet() {
        let (mut tracker, start) = (RateTracker::default(), Instant::now());
        tracker.take(Vec::new(), start);
        let mut flow = example_flow("192.0.2.1:1000", "198.51.100.1:80");
        flow.age_s = 100.0;
        assert_eq!(tracker.take(vec![flow], start + Duration::from_secs(2))[0].down_bps, None);
    }
}
