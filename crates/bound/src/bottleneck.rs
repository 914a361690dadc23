//! The bottleneck: the packets of all connections take turns.

use crate::{
    shared_flow::{HEADERS, SharedFlow},
    web::{WebEvent, WebTraffic},
};
use link::{LossProcess, Time};
use outcome::{FlowOutcome, Outcome};
use scenario::{FlowSpec, Purpose, Scenario, stream};
use units::Span;

/// The bottleneck and its connections.
#[derive(Debug)]
pub(crate) struct Bottleneck {
    /// The flows, and then the connections of web clients.
    flows: Vec<SharedFlow>,
    specs: Vec<FlowSpec>,
    web: WebTraffic,
    losses: LossProcess,
    rate: units::Rate,
    /// Delay from the bottleneck's queue to the receiver.
    onward: Span,
    /// When it can send the next packet.
    free: Time,
    /// Index of the flow that sends next.
    turn: usize,
    /// IP bytes sent so far.
    carried: u64,
}

impl Bottleneck {
    /// The bottleneck of a scenario, at its start.
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let index = scenario.bottleneck();
        let (link, leg) = (&scenario.links[index], scenario.leg_of_link(index));
        let path = scenario.base_rtt(scenario::LegLinks { first: 0, end: scenario.links.len() });
        let is_last_leg = leg.end == scenario.links.len();
        let specs = scenario.flow_specs(seed);
        let flow = |spec: &FlowSpec| {
            let access = spec.access_delay * 2;
            let round_trip = Span(scenario.base_rtt(leg).0 + if leg.first == 0 { access.0 } else { 0 });
            let mut flow = SharedFlow::new(round_trip, spec.window.filter(|_| is_last_leg).map(|window| window.0));
            // After the handshake.
            flow.add(Time::default() + spec.start + path + access, spec.bytes.map_or(0, |bytes| bytes.0));
            flow
        };
        Bottleneck {
            flows: specs.iter().map(flow).collect(),
            specs,
            web: WebTraffic::new(scenario, seed),
            losses: LossProcess::new(link.loss.forward, stream(seed, Purpose::Losses, index as u64)),
            rate: link.rate,
            onward: Span(scenario.links[index..].iter().map(|link| link.delay.0).sum()),
            free: Time::default(),
            turn: 0,
            carried: 0,
        }
    }

    /// Plays until everything has arrived.
    pub(crate) fn play(mut self) -> Self {
        loop {
            let due = self.flows.iter().filter_map(SharedFlow::next).min().map(|when| self.free.max(when));
            match (due, self.web.next()) {
                (None, None) => return self,
                (Some(now), event) if event.is_none_or(|at| now < at) => self.send_next(now),
                _ => self.web_event(),
            }
        }
    }

    fn send_next(&mut self, now: Time) {
        let count = self.flows.len();
        let mut turns = (self.turn..self.turn + count).map(|at| at % count);
        let Some(at) = turns.find(|&at| self.flows[at].next().is_some_and(|when| when <= now)) else { return };
        self.turn = at + 1;
        let flow = &mut self.flows[at];
        let payload = flow.take(now);
        let wire = payload + HEADERS;
        let left = now + self.rate.time_for(units::Bytes(wire));
        self.free = left;
        self.carried += wire;
        let is_lost = self.losses.drops(left);
        flow.has_left(left, payload, self.onward, is_lost);
        if let (false, Some(connection)) = (is_lost, at.checked_sub(self.specs.len())) {
            self.web.arrives(left + self.onward, connection, payload);
        }
    }

    fn web_event(&mut self) {
        match self.web.take_next() {
            Some(WebEvent::Opened { round_trip }) => self.flows.push(SharedFlow::new(round_trip, None)),
            Some(WebEvent::Response { connection, at, bytes }) => self.flows[self.specs.len() + connection].add(at, bytes),
            None => {}
        }
    }

    /// What has come of it.
    pub(crate) fn outcome(self, scenario: &Scenario, seed: u64) -> Outcome {
        let flows: Vec<FlowOutcome> = self.specs.iter().zip(&self.flows).map(|(spec, flow)| outcome_of(spec, flow)).collect();
        let web = self.web.samples();
        let starts = flows.iter().map(|flow| flow.start_s).chain(self.web.first_start_s());
        let first = starts.fold(f64::INFINITY, f64::min);
        let last = self.flows.iter().map(|flow| seconds(flow.end)).fold(0.0, f64::max);
        let span = (last - first).max(1e-9);
        let bytes = flows.iter().map(|flow| flow.bytes).sum::<u64>() + web.iter().map(|client| client.times.bytes).sum::<u64>();
        let outcome = Outcome {
            scenario: scenario.name.clone(),
            engine: "bound".into(),
            seed,
            valid: true,
            goodput_bps: bytes as f64 * 8.0 / span,
            utilization: self.carried as f64 * 8.0 / (self.rate.bits_per_s() as f64 * span),
            flows,
            ..Outcome::default()
        };
        outcome.with_web(scenario, &web)
    }
}

fn seconds(at: Time) -> f64 {
    at.0 as f64 / 1e9
}

fn outcome_of(spec: &FlowSpec, flow: &SharedFlow) -> FlowOutcome {
    let (bytes, start_s, end_s) = (spec.bytes.map_or(0, |bytes| bytes.0), spec.start.secs(), seconds(flow.end));
    FlowOutcome {
        id: spec.id,
        asked_bytes: Some(bytes),
        bytes,
        start_s,
        end_s: Some(end_s),
        goodput_bps: bytes as f64 * 8.0 / (end_s - start_s),
        ..FlowOutcome::default()
    }
}
