//! Accounts of a run: how much of what the bottleneck allows each transfer used, and what the rest
//! was lost to.

use crate::{
    curve,
    samples::{FlowSamples, LegSamples, MOST_CURVES, RunSamples},
    web::WebSamples,
};
use account::{Account, Cause, Interval, LegTime, PAYLOAD, SenderWait, Waits};
use scenario::{FlowSpec, Scenario};

/// The accounts of a run; empty if there are too many transfers.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Of each flow. That of a flow against the direction of the data is empty.
    pub(crate) flows: Vec<Account>,
    /// Of each web client.
    pub(crate) web: Vec<Account>,
    /// Of all of them together.
    pub(crate) all: Account,
}

/// A transfer in each interval.
struct Transfer {
    /// Payload that its receiver read.
    delivered: Vec<f64>,
    /// What it waited for, and in which part of the interval it was in progress; none if it was
    /// not.
    waits: Vec<Option<(Waits, f64)>>,
}

impl Accounts {
    /// The intervals are those between samples of the bottleneck.
    pub(crate) fn of(samples: &RunSamples, scenario: &Scenario, [specs, cross_specs]: [&[FlowSpec]; 2]) -> Self {
        let times: Vec<f64> = samples.bottleneck.iter().map(|sample| sample.t).collect();
        let count = samples.flows.len() + samples.cross_flows.len() + samples.web.len();
        if count == 0 || count > MOST_CURVES || times.len() < 2 {
            return Accounts::default();
        }
        let bottleneck = scenario.bottleneck();
        let link = &scenario.links[bottleneck];
        let allowed: Vec<f64> = times.windows(2).map(|pair| link.capacity_between(pair[0], pair[1]) * PAYLOAD).collect();
        // What is read was sent a propagation delay ago, on the leg of the bottleneck.
        let leg = scenario.leg_of_link(bottleneck);
        let delay: f64 = scenario.links[leg.first..].iter().map(|link| link.delay.secs()).sum();
        let grid = Grid { times: &times, delay, run_end: samples.end_s };
        let counts = |spec: &FlowSpec| !spec.path.is_reverse && (spec.path.links.first..spec.path.links.end).contains(&bottleneck);
        let flows: Vec<Option<Transfer>> =
            samples.flows.iter().zip(specs).map(|(flow, spec)| counts(spec).then(|| grid.flow(flow, spec))).collect();
        let cross = samples.cross_flows.iter().zip(cross_specs).filter(|(_, spec)| counts(spec));
        let cross: Vec<Transfer> = cross.map(|(flow, spec)| grid.flow(flow, spec)).collect();
        let web: Vec<Transfer> = samples.web.iter().map(|client| grid.client(client)).collect();
        let own = |at: usize| flows.iter().flatten().chain(&web).map(move |transfer| transfer.delivered[at]).sum::<f64>();
        let others: Vec<f64> = (0..allowed.len())
            .map(|at| cross.iter().map(|transfer| transfer.delivered[at]).sum::<f64>() + udp(scenario, times[at], times[at + 1]))
            .collect();
        let own: Vec<f64> = (0..allowed.len()).map(own).collect();
        let of = |transfer: &Transfer| {
            let mut account = Account::default();
            for at in 0..allowed.len() {
                if let Some((waits, part)) = transfer.waits[at] {
                    let delivered = transfer.delivered[at];
                    let others = (own[at] - delivered + others[at]) * part;
                    account.add(Interval { allowed: allowed[at] * part, delivered, others, waits });
                }
            }
            account
        };
        let mut all = Account::default();
        for at in 0..allowed.len() {
            let in_progress = || flows.iter().flatten().chain(&web).filter_map(|transfer| transfer.waits[at]);
            if let Some(waits) = Waits::mean(in_progress().map(|(waits, _)| waits)) {
                let part = in_progress().map(|(_, part)| part).fold(0.0, f64::max);
                all.add(Interval { allowed: allowed[at] * part, delivered: own[at], others: others[at] * part, waits });
            }
        }
        Accounts {
            flows: flows.iter().map(|transfer| transfer.as_ref().map(of).unwrap_or_default()).collect(),
            web: web.iter().map(of).collect(),
            all,
        }
    }
}

/// The intervals.
struct Grid<'a> {
    times: &'a [f64],
    /// From the sender of the bottleneck's leg to the receiver, s.
    delay: f64,
    run_end: f64,
}

impl Grid<'_> {
    fn flow(&self, flow: &FlowSamples, spec: &FlowSpec) -> Transfer {
        let end = flow.end_s.unwrap_or(self.run_end);
        let waits = |at: usize| {
            let (from, to) = (self.times[at].max(flow.start_s), self.times[at + 1].min(end));
            let sent_at = to - self.delay;
            let waits = if sent_at <= flow.start_s {
                Waits::all(Cause::Distance)
            } else {
                let is_written = spec.bytes.is_some_and(|asked| flow.legs.first().is_some_and(|leg| leg.sent_at(sent_at) >= asked.0));
                let legs: Vec<LegTime> = flow.legs.iter().map(|leg| LegTime::all(leg.waits_at(sent_at))).collect();
                Waits::of(&legs, is_written)
            };
            (to > from).then(|| (waits, (to - from) / (self.times[at + 1] - self.times[at])))
        };
        self.transfer(&flow.read, waits)
    }

    fn client(&self, client: &WebSamples) -> Transfer {
        let read: Vec<(f64, f64)> = client.progress.iter().map(|sample| (sample.t, sample.read as f64)).collect();
        let waits_at = |t: f64| {
            let after = client.progress.partition_point(|sample| sample.t <= t);
            client.progress[..after].last().and_then(|sample| sample.waits)
        };
        let waits = |at: usize| {
            // It began to wait when nothing had been sent for it.
            waits_at(self.times[at + 1]).map(|_| (waits_at(self.times[at + 1] - self.delay).unwrap_or(Waits::all(Cause::Distance)), 1.0))
        };
        self.transfer(&read, waits)
    }

    fn transfer(&self, read: &[(f64, f64)], waits: impl Fn(usize) -> Option<(Waits, f64)>) -> Transfer {
        Transfer {
            delivered: self.times.windows(2).map(|pair| curve::value_at(read, pair[1]) - curve::value_at(read, pair[0])).collect(),
            waits: (0..self.times.len() - 1).map(waits).collect(),
        }
    }
}

impl LegSamples {
    /// What the sender waited for at this time; before the first sample it has no connection.
    fn waits_at(&self, t: f64) -> SenderWait {
        let after = self.samples.partition_point(|sample| sample.t <= t);
        self.samples[..after].last().map_or(SenderWait::Handshake, |sample| sample.waits_for)
    }

    /// Payload that it had sent by this time.
    fn sent_at(&self, t: f64) -> u64 {
        let after = self.samples.partition_point(|sample| sample.t <= t);
        self.samples[..after].last().map_or(0, |sample| sample.sent)
    }
}

/// Payload of UDP cross traffic over the bottleneck between two times. Pauses are not known here:
/// it counts as even.
fn udp(scenario: &Scenario, from: f64, to: f64) -> f64 {
    let sources = scenario.cross.iter().filter(|cross| cross.link == scenario.bottleneck() + 1);
    let carried = |cross: &scenario::Cross| {
        let time = to.min(cross.stop.map_or(f64::INFINITY, units::Span::secs)) - from.max(cross.start.secs());
        time.max(0.0) * cross.rate.bits_per_s() as f64 / 8.0
    };
    sources.map(carried).sum::<f64>() * PAYLOAD
}
