//! The paths of a running proxy's connections, measured from samples of its flows: round trips,
//! losses and rates of both legs, by destination prefix or by the clients' interface.

use crate::rates::main_direction;
use ipnet::IpNet;
use proxy::{FlowView, LegView, Limiter, prefix_of};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// A path with fewer connections cannot be judged.
const LEAST_FLOWS: usize = 3;
/// A path over which fewer segments were sent has no meaningful share of losses.
const LEAST_SEGMENTS: f64 = 500.0;
/// Segments that a share of losses is of, at least, and how many shares have a median.
const SEGMENTS_OF_A_SHARE: f64 = 500.0;
const LEAST_SHARES: usize = 3;
/// A round trip that is longer than the least one by this factor, and this time in seconds, has met
/// a queue.
const QUEUED: (f64, f64) = (1.1, 0.005);
/// A direction is busy above this rate, bytes a second.
const BUSY: f64 = 2_000.0;

/// A leg of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct MeasuredLeg {
    /// Median over the connections of the least round trip, seconds.
    pub rtt_s: f64,
    /// The share of segments that were sent again while the RTT showed no queue: the median over
    /// times with some hundred segments each, so that overflows, which are rare and lose many at
    /// once, do not count. 0 if there always was a queue. Absent: the leg sent too few.
    pub loss: Option<f64>,
    /// The share that was sent again, if there always was a queue: it may have overflowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_loss: Option<f64>,
    /// The largest receive window that its peers have offered, bytes.
    pub window_bytes: u32,
}

/// What the connections of a path have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathGroup {
    /// The destination prefix, /24 or /48.
    Prefix(IpNet),
    /// The interface through which the clients are reached.
    Interface(String),
}

impl PathGroup {
    /// The prefix of a flow's destination.
    pub fn prefix(flow: &FlowView) -> PathGroup {
        PathGroup::Prefix(prefix_of(flow.server.ip()))
    }
}

impl fmt::Display for PathGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathGroup::Prefix(prefix) => prefix.fmt(f),
            PathGroup::Interface(name) => f.write_str(name),
        }
    }
}

/// The path of a group of connections.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredPath {
    /// What they have in common: `prefix` or `interface`.
    #[serde(flatten)]
    pub group: PathGroup,
    /// A client and a server of the path.
    #[serde(skip)]
    pub ends: [IpAddr; 2],
    /// Connections that carried data.
    pub flows: usize,
    /// Payload that they carried in the samples, from servers to clients and back, bytes.
    pub down_bytes: u64,
    /// From clients to servers.
    pub up_bytes: u64,
    /// The clients' side.
    pub near: MeasuredLeg,
    /// The servers' side.
    pub far: MeasuredLeg,
    /// The controller of the leg that sends most of the data, of the connection that began last.
    pub control: String,
    /// The highest rate of all connections together, bit/s.
    pub peak_bps: f64,
    /// Connections that carried data at the same time, on average.
    pub concurrent: f64,
    /// Share of the samples of busy directions in which each was the limit, the largest first.
    pub limits: Vec<(Limiter, f64)>,
    /// Mean payload of a connection, bytes.
    pub mean_bytes: u64,
}

impl MeasuredPath {
    /// Whether clients download: more data go towards them than to the servers.
    pub fn is_download(&self) -> bool {
        self.down_bytes >= self.up_bytes
    }

    /// The leg that sends most of the data, which the controller of the proxy governs.
    pub fn sending(&self) -> &MeasuredLeg {
        if self.is_download() { &self.near } else { &self.far }
    }

    /// Why it cannot be judged: too little was measured. Absent: it can.
    pub fn too_little(&self) -> Option<String> {
        if self.flows < LEAST_FLOWS {
            return Some(format!("{} connections carried data, and at least {LEAST_FLOWS} are needed", self.flows));
        }
        if self.near.rtt_s <= 0.0 || self.far.rtt_s <= 0.0 {
            return Some("a leg has no round trip yet".into());
        }
        let needed = LEAST_SEGMENTS;
        self.sending()
            .loss
            .is_none()
            .then(|| format!("the leg that sends has sent fewer than {needed:.0} segments, too few to tell its losses"))
    }
}

/// What was seen of a flow.
#[derive(Debug)]
struct Seen {
    first: Progress,
    last: Progress,
    /// When it began.
    begun: Option<Instant>,
    control: [String; 2],
    rtt_s: [f64; 2],
    mss: [f64; 2],
    windows: [u32; 2],
    has_moved: bool,
}

/// Counters of a flow at a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    at: Option<Instant>,
    down: u64,
    up: u64,
    retransmits: [u32; 2],
}

impl Progress {
    fn of(flow: &FlowView, at: Instant) -> Self {
        Progress {
            at: Some(at),
            down: flow.down.arrived_bytes(),
            up: flow.up.arrived_bytes(),
            retransmits: [flow.near.retransmits, flow.far.retransmits],
        }
    }

    /// Whether the counters are those of a new connection with the same addresses and ports.
    fn is_before(&self, other: &Progress) -> bool {
        self.down < other.down || self.up < other.up
    }
}

/// What was seen of a group.
#[derive(Debug, Default)]
struct OfGroup {
    flows: BTreeMap<(SocketAddr, SocketAddr), Seen>,
    peak_bps: f64,
    /// Samples in which a direction was busy, and the sum of busy flows in them.
    samples: usize,
    busy: usize,
    limits: BTreeMap<usize, usize>,
    /// What the near and the far leg of all flows have lost.
    losses: [Losses; 2],
}

/// Segments sent and sent again, over a path.
#[derive(Debug, Default, Clone, Copy)]
struct Segments {
    sent: f64,
    again: f64,
}

impl Segments {
    fn add(&mut self, more: Segments) {
        self.sent += more.sent;
        self.again += more.again;
    }

    /// The share that was sent again; none if they are fewer than `least`.
    fn share(&self, least: f64) -> Option<f64> {
        let all = self.sent + self.again;
        (all >= least).then(|| self.again / all)
    }
}

/// What a leg of all flows has lost.
#[derive(Debug, Default)]
struct Losses {
    /// With a queue and without.
    all: Segments,
    /// Without a queue.
    unqueued: Segments,
    /// Of those, since the last share, and the shares so far.
    recent: Segments,
    shares: Vec<f64>,
}

impl Losses {
    fn add(&mut self, segments: Segments, is_queued: bool) {
        self.all.add(segments);
        if is_queued {
            return;
        }
        self.unqueued.add(segments);
        self.recent.add(segments);
        if let Some(share) = self.recent.share(SEGMENTS_OF_A_SHARE) {
            self.shares.push(share);
            self.recent = Segments::default();
        }
    }

    /// The values of [`MeasuredLeg::loss`] and [`MeasuredLeg::queued_loss`].
    fn measured(&self) -> (Option<f64>, Option<f64>) {
        let Some(queued) = self.all.share(LEAST_SEGMENTS) else { return (None, None) };
        match self.unqueued.share(LEAST_SEGMENTS) {
            None => (Some(0.0), Some(queued)),
            Some(all) if self.shares.len() < LEAST_SHARES => (Some(all), None),
            Some(all) => (Some(median(self.shares.clone()).min(all)), None),
        }
    }
}

/// Observes the flows of a proxy. Call [`take`](Self::take) about every second.
#[derive(Debug, Default)]
pub struct PathObserver {
    groups: BTreeMap<PathGroup, OfGroup>,
}

impl PathObserver {
    /// Takes a sample of all flows; `group` says to which group each belongs, if to any. Flows over
    /// a bond are left out: they have several paths.
    pub fn take(&mut self, flows: &[FlowView], mut group: impl FnMut(&FlowView) -> Option<PathGroup>, at: Instant) {
        let mut rates: BTreeMap<PathGroup, (f64, usize)> = BTreeMap::new();
        for flow in flows.iter().filter(|flow| flow.multipath.is_none()) {
            let Some(group) = group(flow) else { continue };
            let of = self.groups.entry(group.clone()).or_default();
            let now = Progress::of(flow, at);
            // A flow that began between two samples has done all it did since then.
            let is_new = !of.flows.contains_key(&(flow.client, flow.server));
            let seen = of.flows.entry((flow.client, flow.server)).or_insert_with(|| Seen::begin(flow, now));
            let [up, down] = [now.up.saturating_sub(seen.last.up), now.down.saturating_sub(seen.last.down)];
            let bytes = up + down;
            let since = seen.last.at.map_or(0.0, |last| at.duration_since(last).as_secs_f64());
            let before = if is_new || now.is_before(&seen.last) { Progress::default() } else { seen.last };
            seen.update(flow, now);
            for (leg, bytes) in [now.down - before.down, now.up - before.up].into_iter().enumerate() {
                let again = now.retransmits[leg].saturating_sub(before.retransmits[leg]);
                let (least, rtt) = (seen.rtt_s[leg], [&flow.near, &flow.far][leg].rtt_s);
                let is_queued = least > 0.0 && rtt > least * QUEUED.0 + QUEUED.1;
                of.losses[leg].add(Segments { sent: bytes as f64 / seen.mss[leg], again: f64::from(again) }, is_queued);
            }
            if !is_new && since > 0.0 && bytes as f64 / since >= BUSY {
                let (rate, busy) = rates.entry(group).or_default();
                *rate += bytes as f64 * 8.0 / since;
                *busy += 1;
                let limiter = main_direction(flow, [up, down].map(|bytes| bytes as f64)).limited_by;
                let index = Limiter::ALL.iter().position(|known| *known == limiter).unwrap_or(0);
                *of.limits.entry(index).or_default() += 1;
            }
        }
        for (group, (rate, busy)) in rates {
            let of = self.groups.entry(group).or_default();
            of.peak_bps = of.peak_bps.max(rate);
            of.samples += 1;
            of.busy += busy;
        }
    }

    /// The paths that carried data, those that carried the most first.
    pub fn paths(&self) -> Vec<MeasuredPath> {
        let mut paths: Vec<MeasuredPath> = self.groups.iter().filter_map(|(group, of)| of.path(group)).collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.down_bytes + path.up_bytes));
        paths
    }
}

impl Seen {
    fn begin(flow: &FlowView, now: Progress) -> Self {
        // What it did before the first sample counts too: its counters begin at 0.
        let (first, leg) = (Progress::default(), |of: fn(&LegView) -> f64| [of(&flow.near), of(&flow.far)]);
        let control = [flow.near.control.clone(), flow.far.control.clone()];
        let mss = leg(|leg| f64::from(leg.mss_bytes.max(1)));
        let windows = [flow.near.window_bytes, flow.far.window_bytes];
        let begun = now.at.and_then(|at| at.checked_sub(Duration::try_from_secs_f64(flow.age_s).unwrap_or_default()));
        Seen { first, last: now, begun, control, rtt_s: leg(|leg| leg.min_rtt_s), mss, windows, has_moved: now.down + now.up > 0 }
    }

    fn update(&mut self, flow: &FlowView, now: Progress) {
        if now.is_before(&self.last) {
            *self = Seen::begin(flow, now);
            return;
        }
        self.last = now;
        self.has_moved |= now.down + now.up > 0;
        for (index, leg) in [&flow.near, &flow.far].into_iter().enumerate() {
            self.windows[index] = self.windows[index].max(leg.window_bytes);
            let known = &mut self.rtt_s[index];
            if leg.min_rtt_s > 0.0 && (*known == 0.0 || leg.min_rtt_s < *known) {
                *known = leg.min_rtt_s;
            }
        }
    }

    fn bytes(&self) -> [u64; 2] {
        [self.last.down - self.first.down, self.last.up - self.first.up]
    }
}

impl OfGroup {
    fn path(&self, group: &PathGroup) -> Option<MeasuredPath> {
        let (ends, _) = self.flows.iter().find(|(_, seen)| seen.has_moved)?;
        let flows: Vec<&Seen> = self.flows.values().filter(|seen| seen.has_moved).collect();
        let [down_bytes, up_bytes] = [0, 1].map(|direction| flows.iter().map(|seen| seen.bytes()[direction]).sum::<u64>());
        if down_bytes + up_bytes == 0 {
            return None;
        }
        // The near leg sends what goes down, the far leg what goes up.
        let leg = |index: usize| {
            let (loss, queued_loss) = self.losses[index].measured();
            MeasuredLeg {
                rtt_s: median(flows.iter().map(|seen| seen.rtt_s[index]).filter(|rtt| *rtt > 0.0).collect()),
                loss,
                queued_loss,
                window_bytes: flows.iter().map(|seen| seen.windows[index]).max().unwrap_or(0),
            }
        };
        let sending = usize::from(up_bytes > down_bytes);
        let busy: usize = self.limits.values().sum();
        let mut limits: Vec<(Limiter, f64)> =
            self.limits.iter().map(|(index, count)| (Limiter::ALL[*index], *count as f64 / busy.max(1) as f64)).collect();
        limits.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Some(MeasuredPath {
            group: group.clone(),
            ends: [ends.0, ends.1].map(|end| end.ip().to_canonical()),
            flows: flows.len(),
            down_bytes,
            up_bytes,
            near: leg(0),
            far: leg(1),
            control: flows.iter().max_by_key(|seen| seen.begun).map(|seen| seen.control[sending].clone()).unwrap_or_default(),
            peak_bps: self.peak_bps,
            concurrent: self.busy as f64 / self.samples.max(1) as f64,
            limits,
            mean_bytes: (down_bytes + up_bytes) / flows.len() as u64,
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::example_flow;

    /// A download of this many bytes so far.
    fn flow(port: u16, server: &str, down: u64, retransmits: u32) -> FlowView {
        let mut flow = example_flow(&format!("10.0.0.1:{port}"), server);
        (flow.down.bytes, flow.up.bytes, flow.near.retransmits) = (down, 100, retransmits);
        (flow.near.min_rtt_s, flow.near.rtt_s) = (0.6, 0.61);
        (flow.far.min_rtt_s, flow.far.rtt_s) = (0.02, 0.02);
        flow.down.limited_by = Limiter::NearLeg;
        flow
    }

    #[test]
    fn a_path_is_measured_from_its_flows() {
        let (mut observer, begun) = (PathObserver::default(), Instant::now());
        for second in 0..4u64 {
            let mut flows: Vec<FlowView> =
                (0..4).map(|port| flow(port, "192.0.2.9:443", 1_000_000 + second * 250_000, 10 + second as u32)).collect();
            flows.push(flow(9, "198.51.100.1:80", 500, 0));
            observer.take(&flows, by_prefix, begun + Duration::from_secs(second));
        }
        let [path, small] = &observer.paths()[..] else { panic!("{:?}", observer.paths()) };
        assert_eq!(
            (path.group.to_string().as_str(), path.flows, path.down_bytes, path.is_download()),
            ("192.0.2.0/24", 4, 7_000_000, true)
        );
        assert!((path.peak_bps - 8e6).abs() < 1.0 && (path.concurrent - 4.0).abs() < 1e-9, "{path:?}");
        // 52 of 7 MB / 1448 + 52 segments.
        let loss = path.near.loss.unwrap();
        assert!((loss - 52.0 / (7e6 / 1448.0 + 52.0)).abs() < 1e-9, "{loss}");
        assert_eq!((path.near.rtt_s, path.far.rtt_s, path.far.loss), (0.6, 0.02, None));
        assert_eq!(path.limits, [(Limiter::NearLeg, 1.0)]);
        assert_eq!(path.too_little(), None);
        assert!(small.too_little().unwrap().starts_with("1 connections carried data"));
    }

    #[test]
    fn an_overflow_of_a_queue_is_no_loss_of_the_path() {
        let (mut observer, begun) = (PathObserver::default(), Instant::now());
        let mut retransmits = 0;
        for second in 0..10u64 {
            // One of 691 segments is lost, and 2000 when the queue overflows.
            retransmits += if second == 5 { 2000 } else { 1 };
            observer.take(
                &[flow(1, "192.0.2.9:443", 1_000_000 * (second + 1), retransmits)],
                by_prefix,
                begun + Duration::from_secs(second),
            );
        }
        let loss = observer.paths()[0].near.loss.unwrap();
        assert!((loss - 1.0 / 691.6).abs() < 1e-5, "{loss}");
    }

    #[test]
    fn losses_of_a_full_queue_are_none_of_the_path() {
        let (mut observer, begun) = (PathObserver::default(), Instant::now());
        for second in 0..10u64 {
            let mut full = flow(1, "192.0.2.9:443", 1_000_000 * (second + 1), 80 * second as u32);
            full.near.rtt_s = 0.9;
            observer.take(&[full], by_prefix, begun + Duration::from_secs(second));
        }
        let near = observer.paths()[0].near;
        assert_eq!(near.loss, Some(0.0));
        assert!(near.queued_loss.unwrap() > 0.09, "{near:?}");
    }

    fn by_prefix(flow: &FlowView) -> Option<PathGroup> {
        Some(PathGroup::prefix(flow))
    }

    #[test]
    fn a_group_without_a_name_is_left_out() {
        let (mut observer, begun) = (PathObserver::default(), Instant::now());
        let flows = [flow(1, "192.0.2.9:443", 1_000_000, 5), flow(2, "198.51.100.1:80", 500, 0), flow(3, "[2001:db8::1]:80", 7, 0)];
        let group = |flow: &FlowView| (flow.client.port() < 3).then(|| PathGroup::Interface("sat0".into()));
        observer.take(&flows, group, begun);
        let [path] = &observer.paths()[..] else { panic!("{:?}", observer.paths()) };
        assert_eq!((path.group.to_string().as_str(), path.flows, path.down_bytes), ("sat0", 2, 1_000_500));
        let json = serde_json::to_value(path).unwrap();
        assert!(json["interface"] == "sat0" && json.get("prefix").is_none(), "{json}");
    }

    #[test]
    fn a_reused_port_begins_anew() {
        let (mut observer, begun) = (PathObserver::default(), Instant::now());
        observer.take(&[flow(1, "192.0.2.9:443", 1_000_000, 5)], by_prefix, begun);
        observer.take(&[flow(1, "192.0.2.9:443", 2_000, 0)], by_prefix, begun + Duration::from_secs(1));
        assert_eq!(observer.paths()[0].down_bytes, 2_000);
    }
}
