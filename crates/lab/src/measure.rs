//! From what was seen to an [`Outcome`].
//!
//! A [`Recorder`] looks at every flow, proxy and link many times a second; afterwards the looks become means, distributions
//! and series.

use crate::{
    emulator::LinkReport,
    network::Network,
    workload::{Flow, Stage, Story, flow_of},
};
use proxy::{FlowRecord, FlowStats, LinkView, Phase, TcpInfo};
use scenario::{
    Dist, FlowOutcome, FlowSpec, Leg, LegOutcome, LinkOutcome, Opens, Outcome, Phases, ProxyOutcome, Scenario, Series, ShaperOutcome, Span,
};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// Points of a flow at which a byte's delay is measured.
const DELAY_POINTS: usize = 400;
/// Of more flows than this nobody reads the curves one by one.
const MOST_FLOW_CURVES: usize = 16;
/// Every how many looks at the flows there is one at the machine's memory.
const LOOKS_AT_MEMORY: usize = 10;
/// Goodput over time is a mean over this long, in seconds.
const GOODPUT_WINDOW: f64 = 0.5;

/// A look at the sending side of a TCP connection.
#[derive(Debug, Clone, Copy)]
struct LegLook {
    t: f64,
    info: TcpInfo,
}

impl LegLook {
    /// Payload sent at least once.
    fn first_sent(&self) -> f64 {
        self.info.bytes_sent.saturating_sub(self.info.bytes_retrans) as f64
    }

    /// Whether it was connected and had something to send.
    fn is_busy(&self) -> bool {
        self.info.rtt_us > 0 && (self.info.unacked > 0 || self.info.notsent_bytes > 0)
    }
}

/// A look at a flow in a proxy, in the direction of the data.
#[derive(Debug, Clone, Copy)]
struct ProxyLook {
    leg: LegLook,
    held: f64,
    phase: Phase,
    moved: u64,
}

/// All looks at a flow.
#[derive(Debug, Default)]
struct FlowLooks {
    /// When, and what the receiver had read.
    read: Vec<(f64, f64)>,
    sender: Vec<LegLook>,
    /// One list a proxy.
    proxies: Vec<Vec<ProxyLook>>,
}

/// Everything that was seen.
#[derive(Debug)]
pub(crate) struct Recorder {
    flows: Vec<FlowLooks>,
    opens: Vec<Opens>,
    /// When, bytes that had left the bottleneck, and bytes in its queue.
    bottleneck: Vec<(f64, f64, f64)>,
    /// The bottleneck's number, from 0.
    link: usize,
    /// When, and what all proxies held together.
    held: Vec<(f64, f64)>,
    /// The queues of the proxies' own shapers, where they have such.
    shaper: Option<ShaperOutcome>,
    /// When, and what waited there.
    shaped: Vec<(f64, f64)>,
    /// The kernel has had no room for what hosts received.
    short_of_memory: bool,
}

impl Recorder {
    pub(crate) fn new(scenario: &Scenario, specs: &[FlowSpec]) -> Self {
        let looks = || FlowLooks { proxies: vec![Vec::new(); scenario.splits.len()], ..FlowLooks::default() };
        Recorder {
            flows: specs.iter().map(|_| looks()).collect(),
            opens: specs.iter().map(|spec| spec.opens).collect(),
            bottleneck: Vec::new(),
            link: scenario.bottleneck(),
            held: Vec::new(),
            shaper: scenario.splits.iter().any(|split| split.shaper).then(ShaperOutcome::default),
            shaped: Vec::new(),
            short_of_memory: false,
        }
    }

    /// Looks once at everything.
    pub(crate) fn look(&mut self, stage: &Stage, flows: &[Arc<Flow>], network: &Network) {
        let (queued, left) = network.link_gauge(self.link);
        if self.bottleneck.len().is_multiple_of(LOOKS_AT_MEMORY) {
            self.short_of_memory |= is_short_of_memory().unwrap_or(false);
        }
        self.bottleneck.push((stage.now(), left as f64, queued as f64));
        for (looks, flow) in self.flows.iter_mut().zip(flows) {
            let t = stage.now();
            looks.read.push((t, flow.read.load(Relaxed) as f64));
            if let Some(info) = flow.sending().and_then(|socket| proxy::tcp_info(socket).ok()) {
                looks.sender.push(LegLook { t, info });
            }
        }
        let mut held = 0.0;
        for (proxy, stats) in network.proxy_flows().iter().enumerate() {
            let t = stage.now();
            for stats in stats {
                let Some(id) = flow_of(stats.server.port()).filter(|id| *id < self.flows.len()) else { continue };
                let look = proxy_look(t, stats, self.opens[id]);
                held += look.held;
                self.flows[id].proxies[proxy].push(look);
            }
        }
        if self.flows.iter().any(|looks| !looks.proxies.is_empty()) {
            self.held.push((stage.now(), held));
        }
        if let Some(shaper) = &mut self.shaper {
            let links: Vec<LinkView> = network.proxy_links().into_iter().filter(|link| link.shaped).collect();
            self.shaped.push((stage.now(), links.iter().map(|link| link.backlog_bytes).sum::<u64>() as f64));
            shaper.queue_drops = links.iter().map(|link| link.drops).sum();
            shaper.queue_max_bytes = links.iter().map(|link| link.backlog_bytes).fold(shaper.queue_max_bytes, u64::max);
        }
    }
}

/// Whether TCP has so much memory that the kernel begins to drop what sockets have received. All namespaces share it.
fn is_short_of_memory() -> Option<bool> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let (used, limits) = (read("/proc/net/sockstat")?, read("/proc/sys/net/ipv4/tcp_mem")?);
    let mut words = used.lines().find(|line| line.starts_with("TCP:"))?.split_whitespace().skip_while(|word| *word != "mem");
    let used: u64 = words.nth(1)?.parse().ok()?;
    let pressure: u64 = limits.split_whitespace().nth(1)?.parse().ok()?;
    Some(used >= pressure)
}

/// The direction of the data, and the leg that sends it on.
fn proxy_look(t: f64, stats: &FlowStats, opens: Opens) -> ProxyLook {
    let (direction, leg, source) = match opens {
        Opens::Sender => (&stats.up, stats.far, &stats.near),
        Opens::Receiver => (&stats.down, stats.near, &stats.far),
    };
    ProxyLook { leg: LegLook { t, info: leg }, held: direction.held().0 as f64, phase: direction.phase(source), moved: direction.moved }
}

/// Makes an outcome of what was seen. `end_s` is when the run ended.
pub(crate) fn outcome(
    scenario: &Scenario,
    seed: u64,
    recorder: Recorder,
    flows: &[Arc<Flow>],
    records: Vec<(usize, FlowRecord)>,
    links: &[LinkReport],
    end_s: f64,
) -> Outcome {
    let mut recorder = recorder;
    // The last state of each flow in each proxy is one more look at it.
    for (proxy, record) in &records {
        if let Some(id) = flow_of(record.last.server.port()).filter(|id| *id < flows.len()) {
            let t = recorder.flows[id].proxies[*proxy].last().map_or(end_s, |look| look.leg.t);
            let look = proxy_look(t, &record.last, flows[id].spec.opens);
            recorder.flows[id].proxies[*proxy].push(look);
        }
    }
    let stories: Vec<Story> = flows.iter().map(|flow| flow.story.lock().map(|story| story.clone()).unwrap_or_default()).collect();
    let outcomes: Vec<FlowOutcome> = flows
        .iter()
        .zip(&stories)
        .zip(&recorder.flows)
        .map(|((flow, story), looks)| flow_outcome(scenario, flow, story, looks, end_s))
        .collect();

    let first = outcomes.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
    let last = outcomes.iter().map(|flow| flow.end_s.unwrap_or(end_s)).fold(0.0, f64::max);
    let span = (last - first).max(1e-9);
    let total: u64 = outcomes.iter().map(|flow| flow.bytes).sum();
    let left: Vec<(f64, f64)> = recorder.bottleneck.iter().map(|(t, left, _)| (*t, *left)).collect();
    let carried = value_at(&left, last) - value_at(&left, first);

    let mut warnings = verdict(scenario, links);
    if recorder.short_of_memory {
        let cure = "play fewer runs side by side, bound the proxy's buffer, or raise net.ipv4.tcp_mem";
        warnings.push(format!("the machine's memory for TCP ran short, so that hosts dropped what they had received: {cure}"));
    }
    let valid = warnings.is_empty();
    for flow in &outcomes {
        if let Some(error) = &flow.error {
            warnings.push(format!("flow {} failed: {error}", flow.id));
        }
    }
    let controls = scenario.leg_controls();
    let delay_s = delays(&recorder);
    let proxy = (!scenario.splits.is_empty()).then(|| proxy_outcome(&recorder, &outcomes, delay_s.unwrap_or_default(), end_s));
    Outcome {
        scenario: scenario.name.clone(),
        engine: "lab".into(),
        seed,
        valid,
        warnings,
        goodput_bps: total as f64 * 8.0 / span,
        utilization: carried / scenario.links[recorder.link].capacity_between(first, first + span),
        jain: jain(scenario, seed, &recorder, &outcomes, end_s),
        converge_s: converge(&recorder, &outcomes, end_s),
        queue_bytes: Some(queue(&recorder, first, last)),
        delay_s,
        flows: outcomes,
        proxy,
        links: links.iter().enumerate().map(|(index, report)| link_outcome(scenario, index, report)).collect(),
        series: all_series(&recorder, controls.len()),
        ..Outcome::default()
    }
}

/// How alike the flows fared while all were under way; the first round trips after a start are no measure of a share.
fn jain(scenario: &Scenario, seed: u64, recorder: &Recorder, outcomes: &[FlowOutcome], end_s: f64) -> Option<f64> {
    let whole = Leg { first: 0, end: scenario.links.len() };
    let slowest = scenario.flow_specs(seed).iter().map(|flow| flow.access_delay).max().unwrap_or(Span::ZERO);
    let round_trip = scenario.base_rtt(whole).secs() + 2.0 * slowest.secs();
    let from = outcomes.iter().map(|flow| flow.start_s).fold(0.0, f64::max) + 4.0 * round_trip;
    let to = outcomes.iter().map(|flow| flow.end_s.unwrap_or(end_s)).fold(f64::INFINITY, f64::min);
    if to <= from {
        return None;
    }
    let read: Vec<f64> = recorder.flows.iter().map(|looks| value_at(&looks.read, to) - value_at(&looks.read, from)).collect();
    scenario::jain(&read)
}

/// The longest that it took after a start until the flows under way fared alike.
fn converge(recorder: &Recorder, outcomes: &[FlowOutcome], end_s: f64) -> Option<f64> {
    const ALIKE: f64 = 0.99;
    let mut starts: Vec<f64> = outcomes.iter().map(|flow| flow.start_s).collect();
    starts.sort_unstable_by(f64::total_cmp);
    let mut longest: Option<f64> = None;
    for (at, start) in starts.iter().enumerate().skip(1) {
        let until = starts.get(at + 1).copied().unwrap_or(end_s);
        let alike = |t: &&(f64, f64, f64)| {
            let under_way =
                outcomes.iter().zip(&recorder.flows).filter(|(flow, _)| flow.start_s <= t.0 && flow.end_s.is_none_or(|end| end > t.0));
            let read = under_way.map(|(_, looks)| value_at(&looks.read, t.0) - value_at(&looks.read, t.0 - GOODPUT_WINDOW));
            scenario::jain(&read.collect::<Vec<_>>()).is_some_and(|jain| jain >= ALIKE)
        };
        let when = recorder.bottleneck.iter().filter(|(t, ..)| (*start..until).contains(t)).find(alike)?.0;
        longest = Some(longest.map_or(when - start, |longest| longest.max(when - start)));
    }
    longest
}

/// What waited before the bottleneck, be it the link or a shaper before it.
fn queue(recorder: &Recorder, first: f64, last: f64) -> Dist {
    let looks = recorder.bottleneck.iter().filter(|(t, ..)| (first..=last).contains(t));
    Dist::of(&mut looks.map(|(t, _, queued)| queued + value_at(&recorder.shaped, *t)).collect::<Vec<_>>())
}

fn flow_outcome(scenario: &Scenario, flow: &Flow, story: &Story, looks: &FlowLooks, end_s: f64) -> FlowOutcome {
    let bytes = flow.read.load(Relaxed);
    let start_s = story.started.unwrap_or(flow.spec.start.secs());
    let time = story.ended.unwrap_or(end_s) - start_s;
    let mut sender = looks.sender.clone();
    sender.extend(story.last.map(|info| LegLook { t: story.ended.unwrap_or(end_s), info }));
    let proxies = looks.proxies.iter().map(|looks| looks.iter().map(|look| look.leg).collect());
    let legs = std::iter::once(sender).chain(proxies).zip(scenario.leg_controls()).map(|(looks, control)| leg_outcome(control, &looks));
    FlowOutcome {
        id: flow.spec.id,
        asked_bytes: flow.spec.bytes.map(|bytes| bytes.0),
        bytes,
        start_s,
        end_s: story.ended,
        goodput_bps: if time > 0.0 { bytes as f64 * 8.0 / time } else { 0.0 },
        error: story.error.clone(),
        legs: legs.collect(),
    }
}

fn leg_outcome(control: &str, looks: &[LegLook]) -> LegOutcome {
    let busy: Vec<&LegLook> = looks.iter().filter(|look| look.is_busy()).collect();
    // A flow that was over between two looks is known by its last state alone.
    let seen: Vec<&LegLook> = if busy.is_empty() { looks.last().into_iter().collect() } else { busy };
    let mean = |value: fn(&TcpInfo) -> u32| match seen.len() {
        0 => 0.0,
        count => seen.iter().map(|look| f64::from(value(&look.info))).sum::<f64>() / count as f64,
    };
    let last = looks.last();
    LegOutcome {
        control: control.into(),
        mean_rtt_s: mean(|info| info.rtt_us) / 1e6,
        min_rtt_s: last.map_or(0.0, |look| f64::from(look.info.min_rtt_us) / 1e6),
        retransmits: looks.iter().map(|look| u64::from(look.info.total_retrans)).max().unwrap_or(0),
        mean_cwnd_pkt: mean(|info| info.snd_cwnd),
    }
}

/// From a byte's leaving the sender's TCP to its being read, over the bytes of all flows; absent where none was read.
fn delays(recorder: &Recorder) -> Option<Dist> {
    let mut delays: Vec<f64> = recorder.flows.iter().flat_map(|looks| byte_delays(&looks.sender, &looks.read)).collect();
    (!delays.is_empty()).then(|| Dist::of(&mut delays))
}

fn proxy_outcome(recorder: &Recorder, outcomes: &[FlowOutcome], delays: Dist, end_s: f64) -> ProxyOutcome {
    let mut held = Vec::new();
    let (mut free, mut starvation, mut backpressure) = (0.0, 0.0, 0.0);
    let first = outcomes.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
    let last = outcomes.iter().map(|flow| flow.end_s.unwrap_or(end_s)).fold(0.0, f64::max);
    held.extend(recorder.held.iter().filter(|(t, _)| (first..=last).contains(t)).map(|(_, bytes)| *bytes));
    for (looks, flow) in recorder.flows.iter().zip(outcomes) {
        for looks in &looks.proxies {
            // Phases are of the time from the first byte that came to the last that went.
            for pair in looks.windows(2) {
                let (look, time) = (&pair[0], pair[1].leg.t - pair[0].leg.t);
                if (look.moved == 0 && look.held == 0.0) || (flow.end_s.is_some() && look.moved >= flow.bytes && look.held == 0.0) {
                    continue;
                }
                match look.phase {
                    Phase::Backpressure => backpressure += time,
                    Phase::Starvation => starvation += time,
                    Phase::Free => free += time,
                }
            }
        }
    }
    let all = free + starvation + backpressure;
    let share = |time: f64| if all > 0.0 { time / all } else { 0.0 };
    ProxyOutcome {
        buffer_bytes: Dist::of(&mut held),
        delay_s: delays,
        phases: Phases { free: share(free), starvation: share(starvation), backpressure: share(backpressure) },
        shaper: recorder.shaper,
    }
}

/// How long bytes took from their first sending to their being read, at equal steps of the flow.
fn byte_delays(sent: &[LegLook], read: &[(f64, f64)]) -> Vec<f64> {
    let sent: Vec<(f64, f64)> = sent.iter().map(|look| (look.t, look.first_sent())).collect();
    let most = read.last().map_or(0.0, |(_, bytes)| *bytes).min(sent.last().map_or(0.0, |(_, bytes)| *bytes));
    (1..DELAY_POINTS)
        .filter(|_| most > 0.0)
        .filter_map(|step| {
            let bytes = most * step as f64 / DELAY_POINTS as f64;
            Some(time_of(read, bytes)? - time_of(&sent, bytes)?)
        })
        .collect()
}

/// When a rising curve passes `value`, by linear interpolation.
fn time_of(curve: &[(f64, f64)], value: f64) -> Option<f64> {
    let after = curve.partition_point(|(_, v)| *v < value);
    let (t1, v1) = *curve.get(after)?;
    let (t0, v0) = *curve.get(after.checked_sub(1)?)?;
    Some(t0 + (t1 - t0) * (value - v0) / (v1 - v0))
}

/// The value of a curve at `t`, by linear interpolation; its first and last values before and after it.
fn value_at(curve: &[(f64, f64)], t: f64) -> f64 {
    let after = curve.partition_point(|(at, _)| *at < t);
    match (after.checked_sub(1).map(|before| curve[before]), curve.get(after)) {
        (Some((t0, v0)), Some(&(t1, v1))) => v0 + (v1 - v0) * (t - t0) / (t1 - t0),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

/// What the machine failed to do, link by link; nothing when it kept up.
fn verdict(scenario: &Scenario, links: &[LinkReport]) -> Vec<String> {
    let whole = scenario::Leg { first: 0, end: scenario.links.len() };
    // A delay that is off by this much changes no result that anybody would draw a conclusion from.
    let most_late = 0.0005 + 0.02 * scenario.base_rtt(whole).secs();
    let mut warnings = Vec::new();
    for (index, report) in links.iter().enumerate() {
        let number = index + 1;
        if report.refused > 0 {
            warnings.push(format!("link {number}: the machine lost {} packets outside of the emulated link", report.refused));
        }
        if let Some([_, p99]) = report.late.filter(|[_, p99]| *p99 > most_late) {
            warnings.push(format!(
                "link {number}: 1 % of the packets were more than {:.1} ms late (up to {:.1} ms is fine)",
                p99 * 1e3,
                most_late * 1e3
            ));
        }
        let asked = scenario.links[index].rate.bits_per_s() as f64;
        if let Some(share) = report.rate_share.filter(|share| (share - 1.0).abs() > 0.01) {
            warnings.push(format!("link {number}: {:.3} Mbit/s were delivered of {:.3} asked for", share * asked / 1e6, asked / 1e6));
        }
    }
    warnings
}

fn link_outcome(scenario: &Scenario, index: usize, report: &LinkReport) -> LinkOutcome {
    let link = &scenario.links[index];
    LinkOutcome {
        link: index + 1,
        rate_bps: link.rate.bits_per_s() as f64,
        delivered_rate_bps: report.rate_share.map(|share| share * link.rate.bits_per_s() as f64),
        delay_s: link.delay.secs(),
        delivered_delay_s: report.late.map(|[median, _]| link.delay.secs() + median),
        late_p99_s: report.late.map_or(0.0, |[_, p99]| p99),
        packets: report.counts.arrived,
        queue_drops: report.counts.queue_drops,
        losses: report.counts.losses,
        loss_asked: match link.loss {
            None => Some(0.0),
            Some(loss) => link::mean_loss(loss),
        },
        queue_max_bytes: report.counts.most_queued.0,
    }
}

/// Every series of a run. Times and values are rounded to what the looks can bear.
fn all_series(recorder: &Recorder, legs: usize) -> Vec<Series> {
    let mut all = vec![
        series("goodput", "all", "bit/s", goodput(recorder)),
        series("queue", &format!("link {}", recorder.link + 1), "B", recorder.bottleneck.iter().map(|(t, _, queued)| (*t, *queued))),
    ];
    if (2..=MOST_FLOW_CURVES).contains(&recorder.flows.len()) {
        let flows = recorder.flows.iter().enumerate();
        all.extend(flows.map(|(id, looks)| series("flow_goodput", &format!("flow {id}"), "bit/s", rate(&looks.read))));
    }
    if legs > 1 {
        all.push(series("held", "all", "B", recorder.held.iter().copied()));
    }
    for (id, looks) in recorder.flows.iter().enumerate() {
        let proxies = looks.proxies.iter().map(|looks| looks.iter().map(|look| look.leg).collect());
        for (number, looks) in std::iter::once(looks.sender.clone()).chain(proxies).enumerate() {
            let whose = if legs > 1 { format!("flow {id} leg {}", number + 1) } else { format!("flow {id}") };
            let mut of = |what: &str, unit: &str, value: fn(&TcpInfo) -> f64| {
                // Before the handshake there is nothing to show.
                let connected = looks.iter().filter(|look| look.info.rtt_us > 0);
                all.push(series(what, &whose, unit, connected.map(|look| (look.t, value(&look.info)))));
            };
            of("cwnd", "pkt", |info| f64::from(info.snd_cwnd));
            of("rtt", "s", |info| f64::from(info.rtt_us) / 1e6);
            of("in_flight", "B", |info| f64::from(info.unacked) * f64::from(info.snd_mss));
            of("retransmits", "pkt", |info| f64::from(info.total_retrans));
        }
    }
    all
}

fn series(what: &str, whose: &str, unit: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    let (t, v) = points.into_iter().map(|(t, v)| ((t * 1e4).round() / 1e4, (v * 1e6).round() / 1e6)).unzip();
    Series { what: what.into(), whose: whose.into(), unit: unit.into(), t, v }
}

/// Payload read by all receivers, in bits a second, over a sliding window.
fn goodput(recorder: &Recorder) -> Vec<(f64, f64)> {
    let Some(longest) = recorder.flows.iter().map(|looks| &looks.read).max_by_key(|read| read.len()) else { return Vec::new() };
    let total: Vec<(f64, f64)> = longest
        .iter()
        .enumerate()
        .map(|(index, (t, _))| (*t, recorder.flows.iter().filter_map(|looks| Some(looks.read.get(index)?.1)).sum()))
        .collect();
    rate(&total)
}

/// What a curve of bytes rises by, in bits a second, over a sliding window.
fn rate(bytes: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let at = |(t, now): &(f64, f64)| {
        let since = (t - GOODPUT_WINDOW).max(0.0);
        let span = t - since;
        (*t, if span > 0.0 { (now - value_at(bytes, since)) * 8.0 / span } else { 0.0 })
    };
    bytes.iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_read_both_ways() {
        let curve = [(0.0, 0.0), (1.0, 10.0), (2.0, 10.0), (3.0, 20.0)];
        assert_eq!(time_of(&curve, 5.0), Some(0.5));
        assert_eq!(time_of(&curve, 15.0), Some(2.5));
        assert_eq!(time_of(&curve, 25.0), None);
        assert_eq!(value_at(&curve, 0.5), 5.0);
        assert_eq!(value_at(&curve, 9.0), 20.0);
        assert_eq!(value_at(&[], 1.0), 0.0);
    }

    #[test]
    fn a_byte_takes_the_distance_between_the_curves() {
        let look = |t: f64, sent: u64| LegLook { t, info: TcpInfo { bytes_sent: sent, ..TcpInfo::default() } };
        let sent: Vec<LegLook> = (0..100).map(|i| look(f64::from(i) * 0.1, i as u64 * 1000)).collect();
        let read: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i) * 0.1 + 0.4, f64::from(i) * 1000.0)).collect();
        let delays = byte_delays(&sent, &read);
        assert!(delays.len() > 300 && delays.iter().all(|delay| (delay - 0.4).abs() < 1e-9));
    }
}
