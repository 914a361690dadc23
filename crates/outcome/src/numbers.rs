//! The numbers by which outcomes are compared, and their intervals over seeds.

use crate::{
    link_outcome::LinkOutcome,
    outcome::{AgentOutcome, FlowOutcome, IntervalOutcome, Outcome, ShaperOutcome},
    statistics::half_width,
};
use scenario::Scenario;
use std::collections::BTreeMap;

/// A number of an outcome; none if the outcome lacks it.
type Number = fn(&Outcome) -> Option<f64>;

/// Every number by its name.
const TABLE: [(&str, Number); 42] = [
    ("goodput_bps", |outcome| Some(outcome.goodput_bps)),
    ("utilization", |outcome| Some(outcome.utilization)),
    ("completion_s", Outcome::completion_s),
    ("mean_flow_s", Outcome::mean_flow_s),
    ("mean_acked_s", Outcome::mean_acked_s),
    ("kept_max_bytes", Outcome::kept_max),
    ("last_acked_s", Outcome::last_acked_s),
    ("jain", |outcome| outcome.jain),
    ("jain_window", |outcome| outcome.jain_window),
    ("converge_s", |outcome| outcome.converge_s),
    ("retransmits", |outcome| Some(outcome.retransmits() as f64)),
    ("local_retransmits", |outcome| outcome.of_agents(|agent| agent.local_retransmits)),
    ("suppressed_acks", |outcome| outcome.of_agents(|agent| agent.suppressed_acks)),
    ("loss_notices", |outcome| outcome.of_agents(|agent| agent.loss_notices)),
    ("queue_drops", |outcome| Some(outcome.queue_drops() as f64)),
    ("queue_max_bytes", |outcome| Some(outcome.queue_max() as f64)),
    ("queue_p50_bytes", |outcome| Some(outcome.queue_bytes?.p50)),
    ("queue_delay_p50_s", |outcome| outcome.bottleneck()?.queue_delay_p50_s),
    ("queue_delay_p95_s", |outcome| outcome.bottleneck()?.queue_delay_p95_s),
    ("phase_free", |outcome| Some(outcome.proxy.as_ref()?.phases.free)),
    ("phase_starvation", |outcome| Some(outcome.proxy.as_ref()?.phases.starvation)),
    ("phase_backpressure", |outcome| Some(outcome.proxy.as_ref()?.phases.backpressure)),
    ("held_bytes", |outcome| Some(outcome.proxy.as_ref()?.buffer_bytes.mean)),
    ("delay_s", Outcome::mean_delay_s),
    ("page_load_s", |outcome| Some(outcome.page_load_s?.mean)),
    ("page_load_p50_s", |outcome| Some(outcome.page_load_s?.p50)),
    ("page_load_p95_s", |outcome| Some(outcome.page_load_s?.p95)),
    ("page_load_p99_s", |outcome| Some(outcome.page_load_s?.p99)),
    ("response_s", |outcome| Some(outcome.response_s?.mean)),
    ("response_p50_s", |outcome| Some(outcome.response_s?.p50)),
    ("response_p95_s", |outcome| Some(outcome.response_s?.p95)),
    ("response_p99_s", |outcome| Some(outcome.response_s?.p99)),
    ("sojourn_0_s", |outcome| of_class(&outcome.sojourn_s, 0)),
    ("sojourn_1_s", |outcome| of_class(&outcome.sojourn_s, 1)),
    ("sojourn_2_s", |outcome| of_class(&outcome.sojourn_s, 2)),
    ("sojourn_3_s", |outcome| of_class(&outcome.sojourn_s, 3)),
    ("sojourn_4_s", |outcome| of_class(&outcome.sojourn_s, 4)),
    ("over_can_0", |outcome| of_class(&outcome.sojourn_over_can, 0)),
    ("over_can_1", |outcome| of_class(&outcome.sojourn_over_can, 1)),
    ("over_can_2", |outcome| of_class(&outcome.sojourn_over_can, 2)),
    ("over_can_3", |outcome| of_class(&outcome.sojourn_over_can, 3)),
    ("over_can_4", |outcome| of_class(&outcome.sojourn_over_can, 4)),
];

/// The names of the numbers by which outcomes are compared, and which have intervals over seeds.
pub const NUMBERS: [&str; TABLE.len()] = names(0);

/// The names among [`NUMBERS`] of the mean sojourn time of each class.
pub const SOJOURNS: [&str; CLASSES] = names(TABLE.len() - 2 * CLASSES);

/// The names of that time over the CAN model's, class by class.
pub const OVER_CAN: [&str; CLASSES] = names(TABLE.len() - CLASSES);

/// Classes of transfers: the foreground, and each network's background.
const CLASSES: usize = Scenario::MOST_NETWORKS + 1;

/// The names in [`TABLE`] from the one at `from` on.
const fn names<const N: usize>(from: usize) -> [&'static str; N] {
    let mut names = [""; N];
    let mut i = 0;
    while i < N {
        names[i] = TABLE[from + i].0;
        i += 1;
    }
    names
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn of_class(values: &[Option<f64>], class: usize) -> Option<f64> {
    values.get(class).copied().flatten()
}

impl Outcome {
    /// End of the last flow, in seconds from the first start; none if one has not ended.
    pub fn completion_s(&self) -> Option<f64> {
        let first = self.flows.iter().map(|flow| flow.start_s).fold(f64::INFINITY, f64::min);
        let ends: Option<Vec<f64>> = self.flows.iter().map(|flow| flow.end_s).collect();
        let last = ends?.into_iter().fold(f64::NEG_INFINITY, f64::max);
        (last >= first).then_some(last - first)
    }

    /// Mean time from a flow's start to its last byte; none if one has not ended.
    pub fn mean_flow_s(&self) -> Option<f64> {
        mean(&self.times_until(|flow| flow.end_s)?)
    }

    /// Mean time from a flow's start until its sender knew that its last byte was acknowledged;
    /// none if one did not.
    pub fn mean_acked_s(&self) -> Option<f64> {
        mean(&self.times_until(|flow| flow.acked_s)?)
    }

    /// Longest time from a flow's start until its sender knew that its last byte was acknowledged,
    /// by the first proxy if there is one; none if one did not.
    pub fn last_acked_s(&self) -> Option<f64> {
        self.times_until(|flow| flow.acked_s)?.into_iter().reduce(f64::max)
    }

    /// The time from each flow's start to an event; none if it has not come for one of them.
    fn times_until(&self, event: impl Fn(&FlowOutcome) -> Option<f64>) -> Option<Vec<f64>> {
        self.flows.iter().map(|flow| Some(event(flow)? - flow.start_s)).collect()
    }

    /// Retransmitted segments on all legs.
    pub fn retransmits(&self) -> u64 {
        self.flows.iter().flat_map(|flow| &flow.legs).map(|leg| leg.retransmits).sum()
    }

    /// Packets that the bottleneck's queue and the proxies' shapers dropped.
    pub fn queue_drops(&self) -> u64 {
        self.bottleneck().map(|link| link.queue_drops).into_iter().chain(self.shaper().map(|shaper| shaper.queue_drops)).sum()
    }

    /// Largest length of the bottleneck's queue or of a shaper's, in bytes.
    pub fn queue_max(&self) -> u64 {
        let queues = self.bottleneck().map(|link| link.queue_max_bytes).into_iter();
        queues.chain(self.shaper().map(|shaper| shaper.queue_max_bytes)).max().unwrap_or(0)
    }

    /// Most payload that a sender had to keep.
    fn kept_max(&self) -> Option<f64> {
        self.flows.iter().filter_map(|flow| flow.kept_max_bytes).max().map(|kept| kept as f64)
    }

    /// Mean delay of a byte from end to end, or through the proxy.
    fn mean_delay_s(&self) -> Option<f64> {
        self.delay_s.or(self.proxy.as_ref().map(|proxy| proxy.delay_s)).map(|delay| delay.mean)
    }

    /// The slowest link, the first of equals.
    fn bottleneck(&self) -> Option<&LinkOutcome> {
        self.links.iter().min_by(|a, b| a.rate_bps.total_cmp(&b.rate_bps))
    }

    fn shaper(&self) -> Option<ShaperOutcome> {
        self.proxy.as_ref()?.shaper
    }

    /// The sum of a counter over the agents; none without agents.
    fn of_agents(&self, counter: impl Fn(&AgentOutcome) -> u64) -> Option<f64> {
        (!self.agents.is_empty()).then(|| self.agents.iter().map(counter).sum::<u64>() as f64)
    }

    /// The goodput between two times, s: from [`Self::intervals`], else from the series; none if
    /// this outcome has neither.
    pub fn goodput_between(&self, from_s: f64, to_s: f64) -> Option<f64> {
        let asked = |interval: &&IntervalOutcome| (interval.from_s - from_s).abs() < 1e-9 && (interval.to_s - to_s).abs() < 1e-9;
        self.intervals.iter().find(asked).map(|interval| interval.goodput_bps).or_else(|| {
            let goodput = self.series.iter().find(|series| series.what == "goodput" && series.whose == "all")?;
            let within = goodput.t.iter().zip(&goodput.v).filter(|(t, _)| (from_s..=to_s).contains(*t));
            let (sum, count) = within.fold((0.0, 0.0), |(sum, count), (_, value)| (sum + value, count + 1.0));
            (count > 0.0).then_some(sum / count)
        })
    }

    /// The number of this name, one of [`NUMBERS`]; none if this outcome lacks it.
    pub fn number(&self, name: &str) -> Option<f64> {
        TABLE.iter().find(|(other, _)| *other == name).and_then(|(_, number)| number(self))
    }
}

/// Sets the intervals of every outcome to those of the mean over the seeds of its scenario, engine
/// and case. A number that some seed lacks gets none. With a single seed an outcome keeps the
/// intervals of its engine.
pub fn add_ci95(outcomes: &mut [Outcome]) {
    let key = |outcome: &Outcome| (outcome.scenario.clone(), outcome.engine.clone(), outcome.case.clone());
    let mut groups: BTreeMap<_, BTreeMap<&'static str, Vec<f64>>> = BTreeMap::new();
    let mut sizes: BTreeMap<_, usize> = BTreeMap::new();
    for outcome in outcomes.iter() {
        *sizes.entry(key(outcome)).or_default() += 1;
        for (name, value) in NUMBERS.into_iter().filter_map(|name| Some((name, outcome.number(name)?))) {
            groups.entry(key(outcome)).or_default().entry(name).or_default().push(value);
        }
    }
    for outcome in outcomes {
        let count = sizes[&key(outcome)];
        if count == 1 {
            continue;
        }
        outcome.ci95 = groups[&key(outcome)]
            .iter()
            .filter(|(_, values)| values.len() == count)
            .map(|(name, values)| ((*name).to_string(), half_width(values)))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{outcome::ProxyOutcome, statistics::Dist, web::TimePercentiles};

    fn outcome(case: &str, goodput: f64) -> Outcome {
        Outcome { case: case.into(), engine: "lab".into(), goodput_bps: goodput, ..Outcome::default() }
    }

    #[test]
    fn the_interval_is_students() {
        let mut outcomes = vec![outcome("a", 1.0), outcome("a", 2.0), outcome("a", 3.0), outcome("b", 5.0)];
        add_ci95(&mut outcomes);
        // s = 1, n = 3, t(2) = 4.3027
        assert!((outcomes[0].ci95["goodput_bps"] - 4.302_653 / 3f64.sqrt()).abs() < 1e-6);
        assert!(outcomes[3].ci95.is_empty(), "one seed has no interval");
        let own = [("sojourn_0_s".to_string(), 0.1)];
        let mut alone = [Outcome { ci95: own.clone().into(), ..outcome("c", 1.0) }];
        add_ci95(&mut alone);
        assert_eq!(alone[0].ci95, own.into(), "but that of its engine");
    }

    #[test]
    fn completion_counts_from_the_first_start_and_needs_every_end() {
        let flow = |start_s, end_s| FlowOutcome { start_s, end_s, ..FlowOutcome::default() };
        let mut outcome = Outcome { flows: vec![flow(1.0, Some(4.0)), flow(2.0, Some(9.0))], ..Outcome::default() };
        assert_eq!(outcome.completion_s(), Some(8.0));
        assert_eq!(outcome.mean_flow_s(), Some(5.0));
        outcome.flows[0].end_s = None;
        assert_eq!(outcome.completion_s(), None);
    }

    #[test]
    fn every_number_is_one_of_an_outcome() {
        let flow = |end_s| FlowOutcome { end_s: Some(end_s), acked_s: Some(end_s), kept_max_bytes: Some(1), ..FlowOutcome::default() };
        let flows = vec![flow(1.0), flow(2.0)];
        let (queue_bytes, proxy) = (Some(Dist::default()), Some(ProxyOutcome::default()));
        let (sojourn_s, sojourn_over_can) = (vec![Some(1.0); SOJOURNS.len()], vec![Some(1.0); OVER_CAN.len()]);
        let outcome = Outcome {
            flows,
            links: vec![LinkOutcome { queue_delay_p50_s: Some(0.1), queue_delay_p95_s: Some(0.2), ..LinkOutcome::default() }],
            jain: Some(1.0),
            jain_window: Some(1.0),
            converge_s: Some(1.0),
            queue_bytes,
            proxy,
            agents: vec![AgentOutcome::default()],
            page_load_s: Some(TimePercentiles::default()),
            response_s: Some(TimePercentiles::default()),
            sojourn_s,
            sojourn_over_can,
            ..Outcome::default()
        };
        assert!(NUMBERS.iter().all(|name| outcome.number(name).is_some()));
        assert_eq!(outcome.number("afct"), None);
    }
}
