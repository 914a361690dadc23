//! What was seen of a run.
//!
//! A [`Recorder`] looks at every flow, proxy and link many times a second; what the looks make of an outcome is said in `scenario`, for
//! every engine alike. Here is besides whether the machine kept up.

use crate::{
    emulator::LinkReport,
    network::Network,
    workload::{Flow, Stage, Story, flow_of},
};
use intercept::{LinkView, TcpInfo};
use outcome::{FlowSeen, LegLook, LegSeen, LinkLook, LinkOutcome, Outcome, Seen, ShaperOutcome};
use proxy::{FlowRecord, FlowStats};
use scenario::{FlowSpec, Opens, Scenario};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use units::{Phase, Rate, Span};

/// Every how many looks at the flows there is one at the machine's memory.
const LOOKS_AT_MEMORY: usize = 10;
/// A packet that is late by more than this, in seconds, may find that TCP has given it up: no retransmission timeout of Linux is less than
/// this beyond a round trip (TCP_RTO_MIN).
const LONGEST_STALL: f64 = 0.2;

/// What is said when it was.
pub(crate) const SHORT_OF_MEMORY: &str = "the machine's memory for TCP ran short, so that hosts dropped what they had received: play fewer runs \
     side by side, bound the proxy's buffer, or raise net.ipv4.tcp_mem";

/// Everything that was seen.
#[derive(Debug)]
pub(crate) struct Recorder {
    seen: Seen,
    opens: Vec<Opens>,
    /// The bottleneck's number, from 0.
    link: usize,
    /// The kernel has had no room for what hosts received.
    short_of_memory: bool,
}

impl Recorder {
    pub(crate) fn new(scenario: &Scenario, specs: &[FlowSpec]) -> Self {
        let flow = |_| FlowSeen { legs: vec![LegSeen::default(); scenario.splits.len() + 1], ..FlowSeen::default() };
        let shaper = scenario.splits.iter().any(|split| split.shaper).then(ShaperOutcome::default);
        Recorder {
            seen: Seen { flows: specs.iter().map(flow).collect(), shaper, ..Seen::default() },
            opens: specs.iter().map(|spec| spec.opens).collect(),
            link: scenario.bottleneck(),
            short_of_memory: false,
        }
    }

    /// Looks once at everything.
    pub(crate) fn look(&mut self, stage: &Stage, flows: &[Arc<Flow>], network: &Network) {
        let (queued, left) = network.link_gauge(self.link);
        if self.seen.bottleneck.len().is_multiple_of(LOOKS_AT_MEMORY) {
            self.short_of_memory |= is_short_of_memory().unwrap_or(false);
        }
        self.seen.bottleneck.push(LinkLook { t: stage.now(), left, queued });
        for (seen, flow) in self.seen.flows.iter_mut().zip(flows) {
            let t = stage.now();
            seen.read.push((t, flow.read.load(Relaxed) as f64));
            if let Some(info) = flow.sending().and_then(|socket| intercept::tcp_info(socket).ok()) {
                note(&mut seen.legs[0], t, &info, None);
            }
        }
        let (mut held, proxies) = (0, network.proxy_flows());
        for (proxy, stats) in proxies.iter().enumerate() {
            let t = stage.now();
            for stats in stats {
                if let Some(id) = flow_of(stats.server.port()).filter(|id| *id < flows.len()) {
                    held += self.note_proxy(proxy, id, t, stats);
                }
            }
        }
        if !proxies.is_empty() {
            self.seen.held.push((stage.now(), held as f64));
        }
        if let Some(shaper) = &mut self.seen.shaper {
            let links: Vec<LinkView> = network.proxy_links().into_iter().filter(|link| link.shaped).collect();
            self.seen.shaped.push((stage.now(), links.iter().map(|link| link.backlog_bytes).sum::<u64>() as f64));
            shaper.queue_drops = links.iter().map(|link| link.drops).sum();
            shaper.queue_max_bytes = links.iter().map(|link| link.backlog_bytes).fold(shaper.queue_max_bytes, u64::max);
        }
    }

    /// Counts, at the end, what the proxies' hosts dropped of what they had admitted.
    pub(crate) fn count_overruns(&mut self, network: &Network) {
        self.seen.receive_overruns = network.receive_overruns();
    }

    /// Notes what a proxy says of a flow: the direction of the data, and the leg that sends it on. Returns what it holds.
    fn note_proxy(&mut self, proxy: usize, id: usize, t: f64, stats: &FlowStats) -> u64 {
        let (direction, leg, source) = match self.opens[id] {
            Opens::Sender => (&stats.up, stats.far, &stats.near),
            Opens::Receiver => (&stats.down, stats.near, &stats.far),
        };
        let held = direction.held().0;
        note(&mut self.seen.flows[id].legs[proxy + 1], t, &leg, Some((direction.moved, held, direction.phase(source))));
        held
    }
}

/// Notes a look at a connection; `proxy`: what the proxy whose leg it is has moved and holds, and what it is doing.
fn note(seen: &mut LegSeen, t: f64, info: &TcpInfo, proxy: Option<(u64, u64, Phase)>) {
    let first_sent = info.bytes_sent.saturating_sub(info.bytes_retrans);
    let (sent, held, phase) = proxy.unwrap_or((first_sent, 0, Phase::Free));
    seen.looks.push(LegLook {
        t,
        sent,
        held,
        srtt_us: info.rtt_us,
        cwnd: info.snd_cwnd,
        in_flight: info.unacked.saturating_mul(info.snd_mss),
        retransmits: info.total_retrans,
        busy: info.rtt_us > 0 && (info.unacked > 0 || info.notsent_bytes > 0),
        phase,
    });
    seen.min_rtt_us = info.min_rtt_us;
    seen.retransmits = seen.retransmits.max(info.total_retrans.into());
    seen.timeouts = seen.timeouts.max(info.timeouts().map(u64::from));
}

/// Whether TCP has so much memory that the kernel begins to drop what sockets have received. All namespaces share it.
pub(crate) fn is_short_of_memory() -> Option<bool> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let (used, limits) = (read("/proc/net/sockstat")?, read("/proc/sys/net/ipv4/tcp_mem")?);
    let mut words = used.lines().find(|line| line.starts_with("TCP:"))?.split_whitespace().skip_while(|word| *word != "mem");
    let used: u64 = words.nth(1)?.parse().ok()?;
    let pressure: u64 = limits.split_whitespace().nth(1)?.parse().ok()?;
    Some(used >= pressure)
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
            let t = recorder.seen.flows[id].legs[proxy + 1].looks.last().map_or(end_s, |look| look.t);
            recorder.note_proxy(*proxy, id, t, &record.last);
        }
    }
    for (seen, flow) in recorder.seen.flows.iter_mut().zip(flows) {
        let story: Story = flow.story.lock().map(|story| story.clone()).unwrap_or_default();
        if let Some(info) = story.last {
            note(&mut seen.legs[0], story.ended.unwrap_or(end_s), &info, None);
        }
        seen.bytes = flow.read.load(Relaxed);
        seen.start_s = story.started.unwrap_or(flow.spec.start.secs());
        (seen.end_s, seen.error) = (story.ended, story.error);
    }
    recorder.seen.end_s = end_s;
    recorder.seen.links = links.iter().enumerate().map(|(index, report)| link_outcome(scenario, index, report)).collect();

    let mut warnings = verdict(scenario, links);
    if recorder.short_of_memory {
        warnings.push(SHORT_OF_MEMORY.into());
    }
    let valid = warnings.is_empty();
    let failed = recorder.seen.flows.iter().enumerate().filter_map(|(id, flow)| Some((id, flow.error.as_ref()?)));
    warnings.extend(failed.map(|(id, error)| format!("flow {id} failed: {error}")));
    Outcome { valid, warnings, ..recorder.seen.outcome("lab", scenario, seed) }
}

/// What the machine failed to do, link by link; nothing when it kept up.
fn verdict(scenario: &Scenario, links: &[LinkReport]) -> Vec<String> {
    let whole = scenario::LegLinks { first: 0, end: scenario.links.len() };
    let mut warnings = Vec::new();
    for (index, report) in links.iter().enumerate() {
        warnings.extend(faults(&format!("link {}", index + 1), scenario.links[index].rate, scenario.base_rtt(whole), report));
    }
    warnings
}

/// What the machine failed to do of a link, `what` it is called, that is to carry `rate` on a path of such a round trip.
pub(crate) fn faults(what: &str, rate: Rate, rtt: Span, report: &LinkReport) -> Vec<String> {
    // A delay that is off by this much changes no result that anybody would draw a conclusion from.
    let most_late = 0.0005 + 0.02 * rtt.secs();
    let mut warnings = Vec::new();
    if report.refused > 0 {
        warnings.push(format!("{what}: the machine lost {} packets outside of the emulated link", report.refused));
    }
    if let Some(late) = report.late.filter(|late| late.p99 > most_late) {
        warnings.push(format!(
            "{what}: 1 % of the packets were more than {:.1} ms late (up to {:.1} ms is fine)",
            late.p99 * 1e3,
            most_late * 1e3
        ));
    }
    if let Some(late) = report.late.filter(|late| late.most > LONGEST_STALL) {
        let most = LONGEST_STALL * 1e3;
        warnings.push(format!("{what}: the machine stood still for {:.0} ms (up to {most:.0} ms is fine)", late.most * 1e3));
    }
    let asked = rate.bits_per_s() as f64;
    if let Some(share) = report.rate_share.filter(|share| (share - 1.0).abs() > 0.01) {
        warnings.push(format!("{what}: {:.3} Mbit/s were delivered of {:.3} asked for", share * asked / 1e6, asked / 1e6));
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
        loss_asked: match link.loss {
            None => Some(0.0),
            Some(loss) => link::mean_loss(loss),
        },
        queue_max_bytes: report.counts.max_queued.0,
    }
}
