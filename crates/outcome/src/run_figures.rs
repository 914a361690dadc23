//! The [`Outcome`] that is computed from the samples of a run: the same figures with the same
//! meanings for all engines.

use crate::{
    accounts::Accounts,
    curve,
    outcome::{FlowOutcome, IntervalOutcome, LegOutcome, Outcome, Phases, ProxyOutcome, Series},
    samples::{FlowSamples, LegSample, LegSamples, MOST_CURVES, RunSamples},
    statistics::{Dist, jain},
    web::WebResults,
};
use scenario::{FlowSpec, Interval, LegLinks, Scenario};
use units::{Phase, Span};

/// Number of points of a flow at which a byte's delay is measured.
const DELAY_POINTS: usize = 400;
/// Most flows for which each flow's goodput is in the series.
const MOST_FLOW_CURVES: usize = 16;
/// Length of the windows of Jain's index, seconds: six round trips of a satellite link.
const JAIN_WINDOW: f64 = 5.0;
/// The part of a window for which a flow must be in progress to count in it.
const JAIN_SHARE: f64 = 0.2;
/// Window over which goodput is averaged, in seconds.
const GOODPUT_WINDOW: f64 = 0.5;
/// Jain's index at which flows count as having converged.
const ALIKE: f64 = 0.99;

impl RunSamples {
    /// Computes the outcome.
    pub fn outcome(self, engine: &str, scenario: &Scenario, seed: u64) -> Outcome {
        let specs = scenario.flow_specs(seed);
        let mut flows = self.flow_outcomes(scenario, &specs, &self.flows, |_| None);
        let cross = scenario.cross_flow_specs(seed, specs.len() as u32);
        let cross_flows = self.flow_outcomes(scenario, &cross, &self.cross_flows, |group| scenario.cross_flows[group].control.as_deref());
        let [first, last] = self.span();
        let span = (last - first).max(1e-9);
        let total: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let left: Vec<(f64, f64)> = self.bottleneck.iter().map(|sample| (sample.t, sample.left as f64)).collect();
        let carried = curve::value_at(&left, last) - curve::value_at(&left, first);
        let delay_s = self.delays();
        let accounts = Accounts::of(&self, scenario, [&specs, &cross]);
        flows.iter_mut().zip(&accounts.flows).for_each(|(flow, account)| flow.account = account.shares());
        let web = WebResults::of(scenario, &self.web, &accounts.web);
        Outcome {
            scenario: scenario.name.clone(),
            engine: engine.into(),
            seed,
            valid: true,
            goodput_bps: total as f64 * 8.0 / span,
            utilization: carried / scenario.links[scenario.bottleneck()].capacity_between(first, first + span),
            account: accounts.all.shares(),
            intervals: self.intervals(scenario),
            warnings: left_out_intervals(scenario),
            jain: self.jain(scenario, specs.iter().map(|flow| flow.access_delay).max().unwrap_or(Span::ZERO)),
            jain_window: self.jain_window(),
            converge_s: self.converge(),
            queue_bytes: Some(self.queue([first, last])),
            delay_s,
            proxy: (!scenario.splits.is_empty()).then(|| self.proxy(delay_s.unwrap_or_default(), [first, last])),
            series: self.series(scenario),
            links: self.links,
            flows,
            cross_flows,
            pages: web.pages,
            exchanges: web.exchanges,
            page_load_s: web.page_load_s,
            response_s: web.response_s,
            ..Outcome::default()
        }
    }

    /// The outcomes of these flows. `control` has the sender's controller of each group, if it is
    /// not `control.sender`.
    fn flow_outcomes<'a>(
        &self,
        scenario: &Scenario,
        specs: &[FlowSpec],
        samples: &[FlowSamples],
        control: impl Fn(usize) -> Option<&'a str>,
    ) -> Vec<FlowOutcome> {
        let outcome = |(spec, samples): (&FlowSpec, &FlowSamples)| {
            let controls = scenario.flow_leg_settings(spec.path, control(spec.group));
            let time = samples.end_s.unwrap_or(self.end_s) - samples.start_s;
            FlowOutcome {
                id: spec.id,
                reverse: spec.path.is_reverse,
                asked_bytes: spec.bytes.map(|bytes| bytes.0),
                bytes: samples.bytes,
                start_s: samples.start_s,
                end_s: samples.end_s,
                // Senders may learn of the end after the run.
                acked_s: None,
                kept_max_bytes: samples.kept_max_bytes,
                goodput_bps: if time > 0.0 { samples.bytes as f64 * 8.0 / time } else { 0.0 },
                account: None,
                error: samples.error.clone(),
                legs: controls.iter().zip(&samples.legs).map(|(control, leg)| leg.outcome(&control.to_string())).collect(),
            }
        };
        specs.iter().zip(samples).map(outcome).collect()
    }

    /// The times of the first start and of the last end of flows; the whole run if there are none.
    fn span(&self) -> [f64; 2] {
        if self.flows.is_empty() {
            return [0.0, self.end_s];
        }
        let first = self.flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
        let last = self.flows.iter().map(|flow| flow.end_s.unwrap_or(self.end_s)).fold(0.0, f64::max);
        [first, last]
    }

    fn intervals(&self, scenario: &Scenario) -> Vec<IntervalOutcome> {
        let goodput = |interval: &Interval| {
            let (from_s, to_s) = (interval.from.secs(), interval.to.secs());
            let read: f64 = self.flows.iter().map(|flow| flow.read_between(from_s, to_s)).sum();
            IntervalOutcome { from_s, to_s, goodput_bps: read * 8.0 / (to_s - from_s) }
        };
        scenario.intervals.iter().filter(|interval| scenario.lasts_for(interval)).map(goodput).collect()
    }

    /// Jain's index of the flows while all were in progress, without the first round trips after a
    /// start.
    fn jain(&self, scenario: &Scenario, farthest: Span) -> Option<f64> {
        let whole = LegLinks { first: 0, end: scenario.links.len() };
        let round_trip = scenario.base_rtt(whole).secs() + 2.0 * farthest.secs();
        let from = self.flows.iter().map(|flow| flow.start_s).fold(0.0, f64::max) + 4.0 * round_trip;
        let to = self.flows.iter().map(|flow| flow.end_s.unwrap_or(self.end_s)).fold(f64::INFINITY, f64::min);
        if to <= from {
            return None;
        }
        jain(&self.flows.iter().map(|flow| flow.read_between(from, to)).collect::<Vec<_>>())
    }

    /// Mean of Jain's index over windows of [`JAIN_WINDOW`], each over the rates of the flows that
    /// are in progress from its begin for [`JAIN_SHARE`] of it. A flow that ends within the window
    /// has the rate until its end: without it, a flow that ends soon because it got everything
    /// would not count.
    fn jain_window(&self) -> Option<f64> {
        if self.flows.len() > MOST_CURVES {
            return None;
        }
        let [first, last] = self.span();
        let indices: Vec<f64> = (0..((last - first) / JAIN_WINDOW) as usize)
            .filter_map(|number| {
                let from = first + number as f64 * JAIN_WINDOW;
                let to = from + JAIN_WINDOW;
                let rate = |flow: &FlowSamples| {
                    let until = flow.end_s.unwrap_or(self.end_s).min(to);
                    let lasts = flow.start_s <= from && until >= from + JAIN_SHARE * JAIN_WINDOW;
                    lasts.then(|| flow.read_between(from, until) / (until - from))
                };
                jain(&self.flows.iter().filter_map(rate).collect::<Vec<_>>())
            })
            .collect();
        (!indices.is_empty()).then(|| indices.iter().sum::<f64>() / indices.len() as f64)
    }

    /// Longest time after a start until the flows in progress had converged.
    fn converge(&self) -> Option<f64> {
        if self.flows.len() > MOST_CURVES {
            return None;
        }
        let mut starts: Vec<f64> = self.flows.iter().map(|flow| flow.start_s).collect();
        starts.sort_unstable_by(f64::total_cmp);
        let mut longest: Option<f64> = None;
        for (at, start) in starts.iter().enumerate().skip(1) {
            let until = starts.get(at + 1).copied().unwrap_or(self.end_s);
            let alike = |t: &f64| {
                let under_way = self.flows.iter().filter(|flow| flow.start_s <= *t && flow.end_s.is_none_or(|end| end > *t));
                let read = under_way.map(|flow| flow.read_between(*t - GOODPUT_WINDOW, *t));
                jain(&read.collect::<Vec<_>>()).is_some_and(|jain| jain >= ALIKE)
            };
            let when = self.bottleneck.iter().map(|sample| sample.t).filter(|t| (*start..until).contains(t)).find(alike)?;
            longest = Some(longest.map_or(when - start, |longest| longest.max(when - start)));
        }
        longest
    }

    /// Length of the bottleneck's queue: the link's and that of a shaper before it.
    fn queue(&self, [first, last]: [f64; 2]) -> Dist {
        let samples = self.bottleneck.iter().filter(|sample| (first..=last).contains(&sample.t));
        Dist::of(&mut samples.map(|sample| sample.queued as f64 + curve::value_at(&self.shaped, sample.t)).collect::<Vec<_>>())
    }

    /// Delays from a byte's transmission by the sender's TCP until it is read, over the bytes of
    /// all flows; none if none was read.
    fn delays(&self) -> Option<Dist> {
        let of = |flow: &FlowSamples| {
            let sent =
                flow.legs.first().map_or_else(Vec::new, |leg| leg.samples.iter().map(|sample| (sample.t, sample.sent as f64)).collect());
            curve::delays(&sent, &flow.read, DELAY_POINTS)
        };
        let mut delays: Vec<f64> = self.flows.iter().flat_map(of).collect();
        (!delays.is_empty()).then(|| Dist::of(&mut delays))
    }

    fn proxy(&self, delay_s: Dist, [first, last]: [f64; 2]) -> ProxyOutcome {
        let mut held: Vec<f64> = self.held.iter().filter(|(t, _)| (first..=last).contains(t)).map(|(_, bytes)| *bytes).collect();
        let mut phases = Phases::default();
        for flow in &self.flows {
            for leg in flow.legs.iter().skip(1) {
                leg.add_phases(flow, &mut phases);
            }
        }
        let all = phases.free + phases.starvation + phases.backpressure;
        let share = |time: f64| if all > 0.0 { time / all } else { 0.0 };
        ProxyOutcome {
            buffer_bytes: Dist::of(&mut held),
            delay_s,
            phases: Phases { free: share(phases.free), starvation: share(phases.starvation), backpressure: share(phases.backpressure) },
            shaper: self.shaper,
            receive_overruns: self.receive_overruns,
        }
    }

    /// All quantities over time.
    fn series(&self, scenario: &Scenario) -> Vec<Series> {
        let link = format!("link {}", scenario.bottleneck() + 1);
        let mut all = vec![
            Series::of("goodput", "all", "bit/s", self.goodput()),
            Series::of("queue", &link, "B", self.bottleneck.iter().map(|sample| (sample.t, sample.queued as f64))),
        ];
        if (2..=MOST_FLOW_CURVES).contains(&self.flows.len()) {
            let flows = self.flows.iter().enumerate();
            let goodput = |flow: &FlowSamples| curve::rate(&flow.read, GOODPUT_WINDOW);
            all.extend(flows.map(|(id, flow)| Series::of("flow_goodput", &format!("flow {id}"), "bit/s", goodput(flow))));
        }
        if !scenario.splits.is_empty() {
            all.push(Series::of("held", "all", "B", self.held.iter().copied()));
        }
        let legs = self.flows.iter().enumerate().flat_map(|(id, flow)| (1..).zip(&flow.legs).map(move |(number, leg)| (id, number, leg)));
        for (id, number, leg) in legs.take(MOST_CURVES) {
            let whose = if scenario.splits.is_empty() { format!("flow {id}") } else { format!("flow {id} leg {number}") };
            let mut of = |what: &str, unit: &str, value: fn(&LegSample) -> f64| {
                // Samples before the handshake have no values.
                let connected = leg.samples.iter().filter(|sample| sample.srtt_us > 0);
                all.push(Series::of(what, &whose, unit, connected.map(|sample| (sample.t, value(sample)))));
            };
            of("cwnd", "pkt", |sample| f64::from(sample.cwnd));
            of("rtt", "s", |sample| f64::from(sample.srtt_us) / 1e6);
            of("in_flight", "B", |sample| f64::from(sample.in_flight));
            of("retransmits", "pkt", |sample| f64::from(sample.retransmits));
        }
        all
    }

    /// Goodput of all receivers over a sliding window. Their samples have different times if taking
    /// them took long.
    fn goodput(&self) -> Vec<(f64, f64)> {
        let Some(longest) = self.flows.iter().map(|flow| &flow.read).max_by_key(|read| read.len()) else { return Vec::new() };
        let total = |t: f64| self.flows.iter().map(|flow| curve::value_at(&flow.read, t)).sum();
        let total: Vec<(f64, f64)> = longest.iter().map(|(t, _)| (*t, total(*t))).collect();
        curve::rate(&total, GOODPUT_WINDOW)
    }
}

impl FlowSamples {
    /// Payload that the receiver read between two times.
    fn read_between(&self, from: f64, to: f64) -> f64 {
        curve::value_at(&self.read, to) - curve::value_at(&self.read, from)
    }
}

impl LegSamples {
    fn outcome(&self, control: &str) -> LegOutcome {
        let busy: Vec<&LegSample> = self.samples.iter().filter(|sample| sample.busy).collect();
        // A flow that was over between two samples has only the last one.
        let counted: Vec<&LegSample> = if busy.is_empty() { self.samples.last().into_iter().collect() } else { busy };
        let mean = |values: &[u32]| match values.len() {
            0 => 0.0,
            count => values.iter().map(|value| f64::from(*value)).sum::<f64>() / count as f64,
        };
        // Zero: there was no RTT sample yet.
        let rtts: Vec<u32> = counted.iter().map(|sample| sample.srtt_us).filter(|rtt| *rtt > 0).collect();
        let windows: Vec<u32> = counted.iter().map(|sample| sample.cwnd).collect();
        LegOutcome {
            control: control.into(),
            mean_rtt_s: mean(&rtts) / 1e6,
            min_rtt_s: f64::from(self.min_rtt_us) / 1e6,
            retransmits: self.retransmits,
            mean_cwnd_pkt: mean(&windows),
            timeouts: self.timeouts,
        }
    }

    /// Adds the time in seconds that the proxy was in each phase, from the arrival of the first
    /// byte until the last one was forwarded.
    fn add_phases(&self, flow: &FlowSamples, phases: &mut Phases) {
        for pair in self.samples.windows(2) {
            let (sample, time) = (&pair[0], pair[1].t - pair[0].t);
            let before = sample.sent == 0 && sample.held == 0;
            let after = flow.end_s.is_some() && sample.sent >= flow.bytes && sample.held == 0;
            if !before && !after {
                *match sample.phase {
                    Phase::Free => &mut phases.free,
                    Phase::Starvation => &mut phases.starvation,
                    Phase::Backpressure => &mut phases.backpressure,
                } += time;
            }
        }
    }
}

/// A warning for each interval that ends after the run.
fn left_out_intervals(scenario: &Scenario) -> Vec<String> {
    let later = scenario.intervals.iter().filter(|interval| !scenario.lasts_for(interval));
    later.map(|interval| format!("the interval from {} to {} is left out: the run ends before", interval.from, interval.to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::LinkSample;
    use account::SenderWait;
    use scenario::ScenarioFile;

    fn scenario() -> Scenario {
        let text = "name = \"x\"\nduration = \"10s\"\n[[interval]]\nfrom = \"1s\"\nto = \"3s\"\n[[link]]\nrate = \"8Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"80Mbit\"\ndelay = \"10ms\"\n\
                    [[split]]\nafter = 1\n[[flow]]\ncount = 2\nstart = { every = \"2s\" }\n";
        ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    /// Two flows: the first alone has a megabyte a second for 2 s, and then each has half of it.
    fn samples() -> RunSamples {
        let series = |of: fn(f64) -> f64| (0..=100).map(|at| f64::from(at) / 10.0).map(|t| (t, of(t))).collect::<Vec<_>>();
        let first: fn(f64) -> f64 = |t| 1e6 * t.min(2.0) + 5e5 * (t - 2.0).max(0.0);
        let second: fn(f64) -> f64 = |t| 5e5 * (t - 2.0).max(0.0);
        let flow = |start_s: f64, read: fn(f64) -> f64| {
            let sample = |(t, bytes): &(f64, f64)| LegSample {
                t: *t,
                sent: *bytes as u64,
                held: 0,
                srtt_us: 20_000,
                cwnd: 10,
                in_flight: 14_480,
                retransmits: 0,
                busy: *bytes > 0.0,
                waits_for: SenderWait::SlowStart,
                phase: if *t < 5.0 { Phase::Free } else { Phase::Starvation },
            };
            let read = series(read);
            let leg = LegSamples { samples: read.iter().map(sample).collect(), min_rtt_us: 19_000, retransmits: 3, timeouts: None };
            FlowSamples { start_s, bytes: read[100].1 as u64, legs: vec![leg.clone(), leg], read, ..FlowSamples::default() }
        };
        let bottleneck = series(|t| 1e6 * t).into_iter().map(|(t, left)| LinkSample { t, left: left as u64, queued: 1500 });
        RunSamples {
            end_s: 10.0,
            flows: vec![flow(0.0, first), flow(2.0, second)],
            bottleneck: bottleneck.collect(),
            shaped: series(|_| 500.0),
            ..RunSamples::default()
        }
    }

    #[test]
    fn figures_are_computed_from_samples() {
        let outcome = samples().outcome("x", &scenario(), 1);
        assert!((outcome.goodput_bps - 8e6).abs() < 1.0 && (outcome.utilization - 1.0).abs() < 1e-9);
        assert!((outcome.jain.unwrap() - 1.0).abs() < 1e-9);
        // A megabyte in the second with one flow, a megabyte in the second with two.
        assert!((outcome.intervals[0].goodput_bps - 8e6).abs() < 1.0, "{:?}", outcome.intervals);
        assert_eq!(outcome.goodput_between(1.0, 3.0), Some(outcome.intervals[0].goodput_bps));
        // A shortened run has no interval that ends after it, and says so.
        let short = Scenario { duration: Some(Span(2_000_000_000)), ..scenario() };
        let left_out = samples().outcome("x", &short, 1);
        assert_eq!((left_out.intervals, left_out.valid), (Vec::new(), true));
        assert_eq!(left_out.warnings, ["the interval from 1s to 3s is left out: the run ends before"]);
        assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
        // No interval of the scenario: from the series, and not at all without.
        assert!((outcome.goodput_between(4.0, 6.0).unwrap() - 8e6).abs() < 1.0);
        assert_eq!(Outcome { series: Vec::new(), ..outcome.clone() }.goodput_between(4.0, 6.0), None);
        // From 0 to 5 s only the first flow lasts, from 5 to 10 s both are alike.
        assert!((outcome.jain_window.unwrap() - 1.0).abs() < 1e-9);
        // If the first reads 9 MB in the first 7 s and ends, the second 1 MB in the last 3 s: from
        // 5 to 10 s the rates are 1 MB/s and 0.2 MB/s, and the flow that got more counts although
        // it has ended.
        let mut uneven = samples();
        let curve = |of: fn(f64) -> f64| (0..=100).map(|at| f64::from(at) / 10.0).map(|t| (t, of(t))).collect();
        uneven.flows[0].read = curve(|t| 1e6 * t.min(7.0));
        uneven.flows[0].end_s = Some(7.0);
        uneven.flows[1].read = curve(|t| 1e6 / 3.0 * (t - 7.0).max(0.0));
        assert!((uneven.jain_window().unwrap() - 1.2f64.powi(2) / (2.0 * 1.04)).abs() < 1e-9, "{:?}", uneven.jain_window());
        // Half a second after the second start the mean over half a second is fair.
        assert!((outcome.converge_s.unwrap() - 0.5).abs() < 0.11, "{:?}", outcome.converge_s);
        assert_eq!(outcome.queue_bytes.unwrap().mean, 2000.0);
        let proxy = outcome.proxy.unwrap();
        // The first flow's leg from 0.1 s on, the second's from 2.1 s on.
        let (free, starved) = (4.9 + 2.9, 5.0 + 5.0);
        assert!((proxy.phases.free - free / (free + starved)).abs() < 1e-9, "{:?}", proxy.phases);
        assert!(proxy.delay_s.max.abs() < 1e-9, "what is sent is read at once");
        let leg = &outcome.flows[1].legs[1];
        assert_eq!((leg.min_rtt_s, leg.retransmits, leg.mean_cwnd_pkt), (0.019, 3, 10.0));
        assert_eq!(outcome.series.iter().filter(|series| series.whose == "flow 1 leg 2").count(), 4);
    }
}
