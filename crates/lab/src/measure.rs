//! Measures a run.
//!
//! A [`Recorder`] samples every flow, proxy and link many times a second. How samples become an
//! outcome is the same for every engine: see [`outcome::RunSamples`]. This module also decides
//! whether the machine kept up with the scenario.

use crate::{
    emulator::LinkReport,
    network::SeriesNetwork,
    run_context::RunContext,
    workload::{Flow, FlowResult, Workload, flow_of},
};
use account::SenderWait;
use intercept::{LinkView, TcpInfo};
use outcome::{
    FlowSamples, LegSample, LegSamples, LinkOutcome, LinkSample, Outcome, ReverseLinkOutcome, RunSamples, ShaperOutcome, WebSamples,
};
use proxy::{FlowRecord, FlowStats};
use scenario::{FlowLeg, FlowSpec, Opens, Scenario, WebTable};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use units::{Phase, Rate, Span};

/// The machine's memory is checked with every tenth sample of the flows.
const SAMPLES_PER_MEMORY_CHECK: usize = 10;
/// Maximum lateness of a packet, in seconds: TCP may retransmit a packet that is later, since the
/// retransmission timeout of Linux exceeds the RTT by at least this much (TCP_RTO_MIN).
const MAX_STALL_S: f64 = 0.2;

/// The warning when the kernel ran short of memory for TCP.
pub(crate) const SHORT_OF_MEMORY: &str = "the machine's memory for TCP ran short, so hosts dropped received packets: play fewer runs at once, \
     bound the proxy's buffer, or raise net.ipv4.tcp_mem";

/// Collects the samples of a run.
#[derive(Debug)]
pub(crate) struct Recorder {
    seen: RunSamples,
    /// The flows, and then those of TCP cross traffic.
    specs: Vec<FlowSpec>,
    /// For each leg of each flow: whether its controller sets the window by a model of the path.
    by_model: Vec<Vec<bool>>,
    /// Number of flows that are not cross traffic.
    flows: usize,
    /// For each flow and proxy: which leg the proxy sends on; none if the flow does not pass it.
    proxy_legs: Vec<Vec<Option<usize>>>,
    /// Index of the bottleneck link, from 0.
    link: usize,
    /// The kernel has run short of memory for TCP at least once.
    short_of_memory: bool,
}

impl Recorder {
    /// A recorder of these flows and of those of TCP cross traffic.
    pub(crate) fn new(scenario: &Scenario, specs: &[FlowSpec], cross_specs: &[FlowSpec]) -> Self {
        let all: Vec<FlowSpec> = specs.iter().chain(cross_specs).copied().collect();
        let legs: Vec<Vec<FlowLeg>> = all.iter().map(|spec| scenario.legs_of(spec.path)).collect();
        let flow = |legs: &Vec<FlowLeg>| FlowSamples { legs: vec![LegSamples::default(); legs.len()], ..FlowSamples::default() };
        let sent_by = |legs: &[FlowLeg], proxy: usize| legs.iter().position(|leg| leg.split_before == Some(proxy));
        let shaper = scenario.splits.iter().any(|split| split.shaper).then(ShaperOutcome::default);
        Recorder {
            seen: RunSamples { flows: legs.iter().map(flow).collect(), shaper, ..RunSamples::default() },
            proxy_legs: legs.iter().map(|legs| (0..scenario.splits.len()).map(|proxy| sent_by(legs, proxy)).collect()).collect(),
            by_model: all.iter().map(|spec| leg_models(scenario, spec)).collect(),
            specs: all,
            flows: specs.len(),
            link: scenario.bottleneck(),
            short_of_memory: false,
        }
    }

    /// Samples all flows, proxies and the bottleneck link once.
    pub(crate) fn sample(&mut self, context: &RunContext, workload: &Workload, network: &SeriesNetwork) {
        let flows = &workload.flows;
        let (queued, left) = network.link_gauge(self.link);
        if self.seen.bottleneck.len().is_multiple_of(SAMPLES_PER_MEMORY_CHECK) {
            self.short_of_memory |= is_short_of_memory().unwrap_or(false);
        }
        self.seen.bottleneck.push(LinkSample { t: context.now(), left, queued });
        for (id, flow) in flows.iter().enumerate() {
            let t = context.now();
            self.seen.flows[id].read.push((t, flow.read.load(Relaxed) as f64));
            if let Some(info) = flow.sending().and_then(|socket| intercept::tcp_info(socket).ok()) {
                self.record_sender_sample(id, t, &info);
            }
        }
        let (mut held, proxies) = (0, network.proxy_flows());
        for (proxy, stats) in proxies.iter().enumerate() {
            let t = context.now();
            for stats in stats {
                held += match flow_of(stats.server.port()) {
                    Some(id) if id < flows.len() => self.record_proxy_sample(proxy, id, t, stats),
                    // Web traffic has data in both directions.
                    _ => stats.up.held().0 + stats.down.held().0,
                };
            }
        }
        for client in &workload.web {
            client.sample(context.now(), &proxies);
        }
        if !proxies.is_empty() {
            self.seen.held.push((context.now(), held as f64));
        }
        if let Some(shaper) = &mut self.seen.shaper {
            let links: Vec<LinkView> = network.proxy_links().into_iter().filter(|link| link.shaped).collect();
            self.seen.shaped.push((context.now(), links.iter().map(|link| link.backlog_bytes).sum::<u64>() as f64));
            shaper.queue_drops = links.iter().map(|link| link.drops).sum();
            shaper.queue_max_bytes = links.iter().map(|link| link.backlog_bytes).fold(shaper.queue_max_bytes, u64::max);
        }
    }

    /// Reads, at the end of a run, how often sockets on the proxies' hosts lacked receive buffer.
    pub(crate) fn count_overruns(&mut self, network: &SeriesNetwork) {
        self.seen.receive_overruns = network.receive_overruns();
    }

    /// Records a proxy's statistics of flow `id`: of the direction of the data, and of the leg that
    /// sends them on. Returns the bytes that the proxy holds of it.
    fn record_proxy_sample(&mut self, proxy: usize, id: usize, t: f64, stats: &FlowStats) -> u64 {
        let Some(number) = self.proxy_legs[id][proxy] else { return 0 };
        let (direction, leg, source) = match self.specs[id].opens {
            Opens::Sender => (&stats.up, stats.far, &stats.near),
            Opens::Receiver => (&stats.down, stats.near, &stats.far),
        };
        let held = direction.held().0;
        let waits_for = leg.waits_for(held > u64::from(leg.notsent_bytes), self.by_model[id][number]);
        let proxy = Some((held, direction.phase(source)));
        record_sample(&mut self.seen.flows[id].legs[number], t, &leg, waits_for, proxy);
        held
    }

    /// Records the state of the sender of flow `id`.
    fn record_sender_sample(&mut self, id: usize, t: f64, info: &TcpInfo) {
        let spec = &self.specs[id];
        // An application that writes over time may have nothing.
        let has_more = spec.offers.is_none() && spec.bytes.is_none_or(|asked| first_sent(info) + u64::from(info.notsent_bytes) < asked.0);
        let waits_for = info.waits_for(has_more, self.by_model[id][0]);
        record_sample(&mut self.seen.flows[id].legs[0], t, info, waits_for, None);
    }
}

/// Records a sample of a connection. `proxy` is present if the connection is a leg of a proxy: the
/// bytes that the proxy holds, and its phase.
fn record_sample(seen: &mut LegSamples, t: f64, info: &TcpInfo, waits_for: SenderWait, proxy: Option<(u64, Phase)>) {
    let (held, phase) = proxy.unwrap_or((0, Phase::Free));
    seen.samples.push(LegSample {
        t,
        sent: first_sent(info),
        held,
        srtt_us: info.rtt_us,
        cwnd: info.snd_cwnd,
        in_flight: info.unacked.saturating_mul(info.snd_mss),
        retransmits: info.total_retrans,
        busy: info.rtt_us > 0 && (info.unacked > 0 || info.notsent_bytes > 0),
        waits_for,
        phase,
    });
    seen.min_rtt_us = info.min_rtt_us;
    seen.retransmits = seen.retransmits.max(info.total_retrans.into());
    seen.timeouts = seen.timeouts.max(info.timeouts().map(u64::from));
}

/// Payload that was sent at least once.
fn first_sent(info: &TcpInfo) -> u64 {
    info.bytes_sent.saturating_sub(info.bytes_retrans)
}

/// For each leg of a flow: whether its controller sets the window by a model of the path.
fn leg_models(scenario: &Scenario, spec: &FlowSpec) -> Vec<bool> {
    scenario.flow_leg_settings(spec.path, None).iter().map(|setting| intercept::leg::sets_window_by_model(&setting.name)).collect()
}

/// Whether TCP uses so much memory that the kernel drops received packets (memory pressure). All
/// namespaces share this memory. `None` if `/proc` cannot be read.
pub(crate) fn is_short_of_memory() -> Option<bool> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let (used, limits) = (read("/proc/net/sockstat")?, read("/proc/sys/net/ipv4/tcp_mem")?);
    let mut words = used.lines().find(|line| line.starts_with("TCP:"))?.split_whitespace().skip_while(|word| *word != "mem");
    let used: u64 = words.nth(1)?.parse().ok()?;
    let pressure: u64 = limits.split_whitespace().nth(1)?.parse().ok()?;
    Some(used >= pressure)
}

/// Computes the outcome of a run. `end_s` is the end of the run, in seconds since its start.
pub(crate) fn outcome(
    scenario: &Scenario,
    seed: u64,
    recorder: Recorder,
    (flows, web): (&[Arc<Flow>], Vec<WebSamples>),
    records: Vec<(usize, FlowRecord)>,
    links: &[LinkReport],
    end_s: f64,
) -> Outcome {
    let mut recorder = recorder;
    // The record of an ended flow is the last sample of it at that proxy.
    for (proxy, record) in &records {
        if let Some(id) = flow_of(record.last.server.port()).filter(|id| *id < flows.len()) {
            let leg = recorder.proxy_legs[id][*proxy].map(|leg| &recorder.seen.flows[id].legs[leg]);
            let t = leg.and_then(|leg| leg.samples.last()).map_or(end_s, |sample| sample.t);
            recorder.record_proxy_sample(*proxy, id, t, &record.last);
        }
    }
    for (id, flow) in flows.iter().enumerate() {
        let result: FlowResult = flow.result.lock().map(|result| result.clone()).unwrap_or_default();
        if let Some(info) = result.last {
            recorder.record_sender_sample(id, result.ended.unwrap_or(end_s), &info);
        }
        let seen = &mut recorder.seen.flows[id];
        seen.bytes = flow.read.load(Relaxed);
        seen.start_s = result.started.unwrap_or(flow.spec.start.secs());
        (seen.end_s, seen.error) = (result.ended, result.error);
    }
    recorder.seen.end_s = end_s;
    recorder.seen.web = web;
    recorder.seen.links = links.iter().enumerate().map(|(index, report)| link_outcome(scenario, index, report)).collect();

    let mut warnings = series_warnings(scenario, links);
    if recorder.short_of_memory {
        warnings.push(SHORT_OF_MEMORY.into());
    }
    let seen = recorder.seen.flows.iter().map(|flow| flow.start_s);
    warnings.extend(late_start(flows.iter().map(|flow| flow.spec.start.secs()).zip(seen)));
    let valid = warnings.is_empty();
    let failed = recorder.seen.flows.iter().enumerate().filter_map(|(id, flow)| Some((id, flow.error.as_ref()?)));
    warnings.extend(failed.map(|(id, error)| format!("flow {id} failed: {error}")));
    let failed = recorder.seen.web.iter().filter_map(|client| Some((client.table, client.error.as_ref()?)));
    warnings.extend(failed.map(|(table, error)| match table {
        WebTable::Page(page) => format!("a browser of page {} failed: {error}", page + 1),
        WebTable::Exchange(exchange) => format!("a client of exchange {} failed: {error}", exchange + 1),
    }));
    recorder.seen.cross_flows = recorder.seen.flows.split_off(recorder.flows);
    let mut outcome = recorder.seen.outcome("lab", scenario, seed);
    outcome.warnings.extend(warnings);
    Outcome { valid, ..outcome }
}

/// A warning if a flow started late. `starts` has the planned and the actual start of each, s. On a
/// loaded machine the scheduler can delay a flow's thread while the emulated links, which run in a
/// real-time thread, are on time.
fn late_start(starts: impl Iterator<Item = (f64, f64)>) -> Option<String> {
    let late = starts.map(|(asked, started)| started - asked).enumerate().filter(|(_, late)| *late > MAX_STALL_S);
    let (flow, most) = late.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    Some(format!("flow {flow} started {:.0} ms late (up to {:.0} ms is fine)", most * 1e3, MAX_STALL_S * 1e3))
}

/// Warnings about all links; empty if the machine kept up.
fn series_warnings(scenario: &Scenario, links: &[LinkReport]) -> Vec<String> {
    let whole = scenario::LegLinks { first: 0, end: scenario.links.len() };
    let mut warnings = Vec::new();
    for (index, report) in links.iter().enumerate() {
        warnings.extend(link_warnings(&format!("link {}", index + 1), scenario.links[index].rate, scenario.base_rtt(whole), report));
    }
    warnings
}

/// Warnings about one link; empty if the machine kept up. `what` is the name of the link in the
/// warnings, `rate` its configured rate, `rtt` the base RTT of its path.
pub(crate) fn link_warnings(what: &str, rate: Rate, rtt: Span, report: &LinkReport) -> Vec<String> {
    // A deviation of the delay up to this changes no result noticeably.
    let max_late_s = 0.0005 + 0.02 * rtt.secs();
    let mut warnings = Vec::new();
    if report.refused > 0 {
        warnings.push(format!("{what}: the machine lost {} packets outside of the emulated link", report.refused));
    }
    if let Some(late) = report.late.filter(|late| late.p99 > max_late_s) {
        warnings.push(format!(
            "{what}: 1 % of the packets were more than {:.1} ms late (up to {:.1} ms is fine)",
            late.p99 * 1e3,
            max_late_s * 1e3
        ));
    }
    if let Some(late) = report.late.filter(|late| late.most > MAX_STALL_S) {
        let most = MAX_STALL_S * 1e3;
        warnings.push(format!("{what}: the machine stalled for {:.0} ms (up to {most:.0} ms is fine)", late.most * 1e3));
    }
    let asked = rate.bits_per_s() as f64;
    if let Some(share) = report.rate_share.filter(|share| (share - 1.0).abs() > 0.01) {
        warnings.push(format!("{what}: {:.3} Mbit/s were delivered instead of {:.3} Mbit/s", share * asked / 1e6, asked / 1e6));
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
        delivered_delay_s: report.late.map(|late| link.delay.secs() + late.median),
        late_p99_s: report.late.map_or(0.0, |late| late.p99),
        packets: report.counts.arrived,
        queue_drops: report.counts.queue_drops,
        losses: report.counts.losses,
        duplicates: report.counts.duplicates,
        loss_asked: link::asked_loss(link),
        queue_max_bytes: report.counts.max_queued.0,
        queue_delay_p50_s: report.queue_delays.quantile(0.5).map(Span::secs),
        queue_delay_p95_s: report.queue_delays.quantile(0.95).map(Span::secs),
        reverse: scenario.has_two_way_data().then_some(ReverseLinkOutcome {
            packets: report.reverse_counts.arrived,
            queue_drops: report.reverse_counts.queue_drops,
            losses: report.reverse_counts.losses,
            queue_max_bytes: report.reverse_counts.max_queued.0,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_starts_late_is_named() {
        assert_eq!(late_start([(1.0, 1.001), (2.0, 2.19)].into_iter()), None);
        let late = [(0.0, 0.0), (1.0, 1.3), (2.0, 2.5)];
        assert_eq!(late_start(late.into_iter()).as_deref(), Some("flow 2 started 500 ms late (up to 200 ms is fine)"));
    }
}
