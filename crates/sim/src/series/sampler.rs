//! Samples of a run and the [`Outcome`] that follows from them. Samples are taken at regular
//! intervals of simulated time. The interval doubles when there are too many samples, so memory
//! does not grow with simulated time. `outcome` computes the figures from the samples, in the same
//! way for every engine.

use super::{
    simulation::{RunObserver, SeriesFlow, SeriesSimulation},
    split_node::SplitNode,
};
use crate::{
    agent::{AgentCounters, PathAgent},
    connection::TcpConnection,
    network::{backward, forward},
    settings::TcpSettings,
};
use outcome::{
    AgentOutcome, FlowSamples, LegSample, LegSamples, LinkOutcome, LinkSample, Outcome, ReverseLinkOutcome, RunSamples, ShaperOutcome,
    WebSamples,
};
use scenario::Backpressure;
use units::{Phase, Span};

/// The initial interval between samples, ns, for each 200 connections.
const INITIAL_INTERVAL: u64 = 1_000_000;
/// The most samples of single connections, over all connections.
const MAX_CONNECTION_SAMPLES: usize = 4_000_000;
/// The least number of samples of each connection.
const MIN_SAMPLES: usize = 20;

/// Collects the samples of a run.
#[derive(Debug)]
pub(crate) struct RunSampler {
    interval: u64,
    max_samples: usize,
    samples: RunSamples,
}

impl RunSampler {
    /// A sampler for the flows of a simulation.
    pub(crate) fn new(simulation: &SeriesSimulation<'_>, settings: &TcpSettings) -> Self {
        let legs = simulation.flows.iter().map(|flow| flow.legs).sum::<usize>();
        let max_samples = (MAX_CONNECTION_SAMPLES / legs.max(1)).clamp(MIN_SAMPLES, settings.max_samples.max(MIN_SAMPLES));
        let interval = INITIAL_INTERVAL * (legs as u64 / 200).max(1);
        let of = |flow: &SeriesFlow| FlowSamples { legs: vec![LegSamples::default(); flow.legs], ..FlowSamples::default() };
        let (flows, cross_flows) = simulation.flows.iter().partition::<Vec<_>, _>(|flow| flow.is_awaited);
        let clients = simulation.web.iter().flat_map(|web| &web.clients);
        let samples = RunSamples {
            web: clients.map(|client| WebSamples::of(client.table())).collect(),
            flows: flows.into_iter().map(of).collect(),
            cross_flows: cross_flows.into_iter().map(of).collect(),
            ..RunSamples::default()
        };
        RunSampler { interval, max_samples, samples }
    }

    /// Keeps every second sample.
    fn thin(&mut self) {
        thin(&mut self.samples.bottleneck);
        thin(&mut self.samples.held);
        thin(&mut self.samples.shaped);
        for flow in self.samples.flows.iter_mut().chain(&mut self.samples.cross_flows) {
            thin(&mut flow.read);
            flow.legs.iter_mut().for_each(|leg| thin(&mut leg.samples));
        }
        self.samples.web.iter_mut().for_each(|client| thin(&mut client.progress));
    }
}

/// Keeps every second item.
fn thin<T>(list: &mut Vec<T>) {
    let mut number = 0;
    list.retain(|_| {
        number += 1;
        number % 2 == 1
    });
}

impl RunObserver for RunSampler {
    fn interval(&self) -> u64 {
        self.interval
    }

    fn sample(&mut self, simulation: &mut SeriesSimulation<'_>) {
        if self.samples.bottleneck.len() >= self.max_samples {
            self.interval *= 2;
            self.thin();
        }
        let t = seconds(simulation.net.now);
        let mut held = 0;
        let samples = &mut self.samples;
        for (flow, of_flow) in samples.flows.iter_mut().chain(&mut samples.cross_flows).enumerate() {
            let first_connection = simulation.flows[flow].first_connection;
            of_flow.read.push((t, simulation.read_bytes(flow) as f64));
            for (leg, of_leg) in of_flow.legs.iter_mut().enumerate() {
                let sample = leg_sample(simulation, first_connection + leg);
                held += sample.held;
                of_leg.samples.push(sample);
            }
        }
        held += simulation.held_of_web_traffic();
        simulation.sample_clients(t, &mut samples.web);
        let channel = forward(simulation.scenario.bottleneck());
        let (left, queued) = (simulation.net.departed_bytes(channel), simulation.net.queued(channel));
        self.samples.bottleneck.push(LinkSample { t, left, queued });
        self.samples.held.push((t, held as f64));
        let shaped: u64 = shapers(simulation).into_iter().map(|channel| simulation.net.queued(channel)).sum();
        self.samples.shaped.push((t, shaped as f64));
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The channels of the proxies' shapers.
fn shapers(simulation: &SeriesSimulation<'_>) -> Vec<usize> {
    simulation.shapers.iter().flatten().copied().collect()
}

fn leg_sample(simulation: &SeriesSimulation<'_>, connection: usize) -> LegSample {
    let sender = &simulation.connections[connection].sender;
    let mut sample = LegSample {
        t: seconds(simulation.net.now),
        sent: sender.snd_nxt,
        held: 0,
        srtt_us: sender.rtt.srtt_us(),
        cwnd: sender.cwnd(),
        in_flight: (sender.snd_nxt - sender.snd_una).min(u32::MAX.into()) as u32,
        retransmits: sender.counters.retransmits as u32,
        busy: sender.is_established() && (sender.packets_out() > 0 || sender.unsent() > 0),
        waits_for: sender.waits_for(),
        phase: Phase::Free,
    };
    if let Some(node) = simulation.proxy_before(connection) {
        sample.held = simulation.held_bytes(connection - 1);
        let leg_before = &simulation.connections[connection - 1];
        sample.phase = match sample.held {
            _ if is_held_back(node, leg_before) => Phase::Backpressure,
            0 => Phase::Starvation,
            _ => Phase::Free,
        };
    }
    sample
}

/// Whether a proxy holds back the sender of the leg before it: by a window of less than two
/// segments, the criterion of the proxy's meter, or by fluid backpressure.
fn is_held_back(node: &SplitNode, leg_before: &TcpConnection) -> bool {
    match node.backpressure {
        Backpressure::Window | Backpressure::WindowRead | Backpressure::WindowAcked => leg_before.receiver.window_nearly_closed(),
        Backpressure::Drop => false,
        Backpressure::Fluid => leg_before.sender.is_held_by_proxy(),
    }
}

/// The outcome of a run that has ended.
pub(crate) fn outcome(simulation: &mut SeriesSimulation<'_>, seed: u64, mut sampler: RunSampler) -> Outcome {
    // The final state is one more sample.
    if sampler.samples.bottleneck.last().is_none_or(|sample| sample.t < seconds(simulation.net.now)) {
        sampler.sample(simulation);
    }
    let mut samples = sampler.samples;
    samples.end_s = seconds(simulation.net.now);
    let of_flows = samples.flows.iter_mut().chain(&mut samples.cross_flows);
    for (number, (flow, of_flow)) in simulation.flows.iter().zip(of_flows).enumerate() {
        // A flow whose start is after the end of the run has read nothing.
        of_flow.start_s = flow.spec.start.secs();
        of_flow.end_s = flow.ended.map(seconds);
        of_flow.bytes = simulation.read_bytes(number);
        of_flow.kept_max_bytes = Some(simulation.connections[flow.first_connection].sender.counters.max_unreleased);
        for (leg, of_leg) in of_flow.legs.iter_mut().enumerate() {
            let sender = &simulation.connections[flow.first_connection + leg].sender;
            of_leg.min_rtt_us = sender.rtt.min_us();
            of_leg.retransmits = sender.counters.retransmits;
        }
    }
    let clients = simulation.web.iter().flat_map(|web| &web.clients);
    samples.web.iter_mut().zip(clients).for_each(|(samples, client)| samples.times.clone_from(client.times()));
    samples.shaper = shaper_outcome(simulation);
    samples.links = (0..simulation.scenario.links.len()).map(|index| link_outcome(simulation, index)).collect();
    Outcome { agents: agent_outcomes(simulation), ..samples.outcome("sim", simulation.scenario, seed) }
}

fn agent_outcomes(simulation: &SeriesSimulation<'_>) -> Vec<AgentOutcome> {
    let outcome = |(index, agent): (usize, &PathAgent)| {
        let AgentCounters { local_retransmits, suppressed_acks, loss_notices, cache_max_bytes } = agent.counters;
        let after = simulation.scenario.agents[index].after;
        AgentOutcome { after, local_retransmits, suppressed_acks, loss_notices, cache_max_bytes }
    };
    simulation.agents.iter().enumerate().map(outcome).collect()
}

fn shaper_outcome(simulation: &mut SeriesSimulation<'_>) -> Option<ShaperOutcome> {
    let counts: Vec<link::LinkCounts> = shapers(simulation).into_iter().map(|channel| simulation.net.counts(channel)).collect();
    let queue_max_bytes = counts.iter().map(|counts| counts.max_queued.0).max()?;
    Some(ShaperOutcome { queue_drops: counts.iter().map(|counts| counts.queue_drops).sum(), queue_max_bytes })
}

fn link_outcome(simulation: &mut SeriesSimulation<'_>, index: usize) -> LinkOutcome {
    let link = &simulation.scenario.links[index];
    let counts = simulation.net.counts(forward(index));
    let delays = simulation.net.queue_delays(forward(index));
    let quantile = |share: f64| delays?.quantile(share).map(Span::secs);
    let rate = link.rate.bits_per_s() as f64;
    LinkOutcome {
        link: index + 1,
        rate_bps: rate,
        delivered_rate_bps: (counts.max_queued.0 > 0 && link.trace.is_none()).then_some(rate),
        delay_s: link.delay.secs(),
        delivered_delay_s: (counts.delivered > 0).then(|| link.delay.secs()),
        late_p99_s: 0.0,
        packets: counts.arrived,
        queue_drops: counts.queue_drops,
        losses: counts.losses,
        duplicates: counts.duplicates,
        loss_asked: link::asked_loss(link),
        queue_max_bytes: counts.max_queued.0,
        queue_delay_p50_s: quantile(0.5),
        queue_delay_p95_s: quantile(0.95),
        reverse: simulation.scenario.has_two_way_data().then(|| {
            let counts = simulation.net.counts(backward(index));
            ReverseLinkOutcome {
                packets: counts.arrived,
                queue_drops: counts.queue_drops,
                losses: counts.losses,
                queue_max_bytes: counts.max_queued.0,
            }
        }),
    }
}
