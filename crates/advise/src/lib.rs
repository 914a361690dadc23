//! Advice: whether to split a path, where, with which controller at the proxy and with how much buffer, and what says so.
//!
//! A scenario is asked about as it is, end to end with each controller that its sender could have instead, and split at each place with
//! each controller that a proxy could have, all with the same seeds, so that a gain is a mean over pairs. Queues keep the size that they
//! have end to end: one that is given in BDP would be a smaller one on a shorter leg, and what that does would be put down to the proxy.
//! One proxy is asked about, not chains. Who plays the questions is the caller's business.

use control::Controller;
use outcome::{Outcome, half_width};
use scenario::{Buffer, QueueKind, Scenario, Split, Variant};
use serde::Serialize;
use std::collections::BTreeMap;
use units::{Bytes, Rate};

/// A gain below this is not worth what splitting takes away: end-to-end acknowledgements, and a path that survives its middle (RFC 3135 §4).
const WORTH: f64 = 1.05;
/// Of candidates that are nearly as good as the best, that is taken which loses least: what it drops, it drops of others too.
const NEARLY: f64 = 0.97;
/// A buffer is enough that leaves so much of what one without a bound does.
const ENOUGH: f64 = 0.98;

/// Why there is no advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdviceError {
    /// A proxy stands between two links.
    #[error("the path is one link, and a proxy stands between two: give the part before it and the part after it a [[link]] each")]
    OneLink,
    /// A proxy stands in a row of links.
    #[error("networks in parallel have no place for a proxy: give the path as [[link]]s in a row")]
    Parallel,
    /// There is nothing to compare by.
    #[error("no seed has an answer for {0:?}: give the flows more time, or more to send")]
    NoAnswer(String),
}

/// What is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// Less time from a flow's start to its end, in the mean.
    MeanFlowS,
    /// More goodput of all flows.
    GoodputBps,
}

/// A way to carry the flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Way {
    /// The proxy stands after this link, from 1; absent: end to end.
    pub after: Option<usize>,
    /// The sender's controller, or the proxy's.
    pub control: String,
    /// What the proxy must be told that the next link carries, where its controller shares that out.
    pub capacity: Option<Rate>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Which way.
    pub way: Way,
    /// How many times as good as it is now, a geometric mean over the seeds; over 1 is better.
    pub gain: f64,
    /// Half the width of its 95 % interval.
    pub half: f64,
    /// What is compared, in the mean: seconds, or bits a second.
    pub value: f64,
    /// Packets that queues dropped, in the mean.
    pub drops: f64,
    /// The largest queue before the bottleneck, bytes, in the mean.
    pub queue_max_bytes: f64,
    /// Jain's index, in the mean; absent where flows were not together for long enough.
    pub jain: Option<f64>,
    /// The same gain by the equations, in the steady state; absent where they do not hold.
    pub by_equations: Option<f64>,
}

impl Finding {
    /// Whether the gain, as surely as its interval says, is worth a change.
    pub fn pays(&self) -> bool {
        self.gain - self.half >= WORTH
    }
}

/// What a bound of the proxy's buffer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bound {
    /// In each direction of a connection.
    pub buffer_bytes: u64,
    /// Of what is had without a bound: 1 is all, a geometric mean over the seeds.
    pub leaves: f64,
    /// Half the width of its 95 % interval.
    pub half: f64,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Split it.
    Split,
    /// Do not: it does not pay.
    DoesNotPay,
    /// Do not: that it pays can't be told from chance.
    CannotTell,
}

/// What the candidates show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// What to do.
    pub verdict: Verdict,
    /// By what.
    pub aim: Aim,
    /// How many seeds.
    pub seeds: usize,
    /// As it is.
    pub now: Finding,
    /// The best way to split, whether it pays or not.
    pub split: Finding,
    /// The best that another controller at the sender does without a proxy.
    pub sender: Option<Finding>,
    /// All ways, the best first.
    pub findings: Vec<Finding>,
}

/// Asks about a path.
#[derive(Debug, Clone)]
pub struct Advisor {
    /// End to end, with queues of fixed size.
    base: Scenario,
    /// A proxy as the file has it, or as it would stand after each link.
    proxies: Vec<Split>,
    ways: BTreeMap<String, Way>,
}

impl Advisor {
    /// Of a scenario: where it splits, those places are asked about, else each between two links.
    pub fn new(scenario: &Scenario) -> Result<Self, AdviceError> {
        if scenario.parallel().is_some() {
            return Err(AdviceError::Parallel);
        }
        if scenario.links.len() < 2 {
            return Err(AdviceError::OneLink);
        }
        let mut base = Scenario { splits: Vec::new(), ..scenario.clone() };
        for index in 0..base.links.len() {
            base.links[index].queue.limit = base.queue_size(index).into();
        }
        let anywhere = || (1..scenario.links.len()).map(Split::at).collect();
        let proxies = if scenario.splits.is_empty() { anywhere() } else { scenario.splits.clone() };
        let mut advisor = Advisor { base, proxies, ways: BTreeMap::new() };
        advisor.ways = advisor.variants().into_iter().map(|(way, variant)| (variant.case, way)).collect();
        Ok(advisor)
    }

    /// What is to be played, with the same seeds each; the first is the path as it is.
    pub fn candidates(&self) -> Vec<Variant> {
        self.variants().into_iter().map(|(_, variant)| variant).collect()
    }

    fn variants(&self) -> Vec<(Way, Variant)> {
        let mut all = vec![self.end_to_end(&self.base.control.sender, "as it is".into())];
        let others = Controller::all().filter(|controller| !controller.needs_capacity() && self.fits(*controller, 0));
        for controller in others.filter(|controller| controller.name() != self.base.control.sender) {
            all.push(self.end_to_end(controller.name(), format!("end to end, {}", controller.name())));
        }
        for proxy in &self.proxies {
            all.extend(Controller::all().filter(|controller| self.fits(*controller, proxy.after)).map(|it| self.split(proxy, it)));
        }
        all
    }

    /// Whether a controller has what it needs on the links from `first` on: DCTCP's are marks.
    fn fits(&self, controller: Controller, first: usize) -> bool {
        controller.name() != "dctcp" || self.base.links[first..].iter().any(|link| link.queue.kind == QueueKind::Ecn)
    }

    fn end_to_end(&self, control: &str, case: String) -> (Way, Variant) {
        let mut scenario = self.base.clone();
        scenario.control.sender = control.into();
        (Way { after: None, control: control.into(), capacity: None }, Variant { case, scenario })
    }

    fn split(&self, proxy: &Split, controller: Controller) -> (Way, Variant) {
        let mut scenario = self.base.clone();
        scenario.splits = vec![Split { buffer: Buffer::Unlimited, ..proxy.clone() }];
        scenario.control.proxy = vec![controller.name().into()];
        let carries = proxy.capacity.unwrap_or(self.base.links[proxy.after].rate);
        let capacity = controller.needs_capacity().then_some(carries);
        let way = Way { after: Some(proxy.after), control: controller.name().into(), capacity };
        (way, Variant { case: format!("split after link {}, {}", proxy.after, controller.name()), scenario })
    }

    /// What the outcomes of the candidates show. `equations` are those of the engine of the equations, of candidates that it can answer.
    pub fn advice(&self, outcomes: &[Outcome], equations: &[Outcome]) -> Result<Advice, AdviceError> {
        let aim = aim_of(outcomes);
        let now: Vec<&Outcome> = of_case(outcomes, "as it is");
        let mut findings = Vec::new();
        for (case, way) in &self.ways {
            findings.push(finding(aim, way, &now, &of_case(outcomes, case), case, gain_of(equations, case))?);
        }
        findings.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        let best = |is: &dyn Fn(&Way) -> bool| best_of(findings.iter().filter(|finding| is(&finding.way))).cloned();
        let as_is = |way: &Way| *way == self.ways["as it is"];
        let missing = || AdviceError::NoAnswer("any way to split".into());
        let split = best(&|way| way.after.is_some()).ok_or_else(missing)?;
        Ok(Advice {
            verdict: match &split {
                split if split.pays() => Verdict::Split,
                split if split.gain + split.half < WORTH => Verdict::DoesNotPay,
                _ => Verdict::CannotTell,
            },
            aim,
            seeds: now.len(),
            now: best(&as_is).ok_or_else(missing)?,
            sender: best(&|way| way.after.is_none() && !as_is(way)),
            split,
            findings,
        })
    }

    /// What is to be played to see how much buffer that way of splitting asks for; the first has no bound.
    pub fn buffers(&self, way: &Way) -> Vec<Variant> {
        let with = |buffer: Buffer| {
            let found = self.variants().into_iter().find(|(other, _)| other == way);
            found.map(|(_, mut variant)| {
                variant.scenario.splits[0].buffer = buffer;
                Variant { case: buffer.to_string(), scenario: variant.scenario }
            })
        };
        let whole = scenario::Leg { first: 0, end: self.base.links.len() };
        let farthest = self.base.flow_specs(self.base.seed).iter().map(|flow| flow.access_delay.0).max().unwrap_or(0);
        let rtt = units::Span(self.base.base_rtt(whole).0 + 2 * farthest);
        let most = self.base.bottleneck_rate(whole).bytes_in(rtt).0.saturating_mul(4).max(LEAST_BUFFER);
        let sizes = std::iter::successors(Some(LEAST_BUFFER), |bytes| Some(bytes * 2)).take_while(|bytes| *bytes < 2 * most);
        std::iter::once(Buffer::Unlimited).chain(sizes.map(|bytes| Buffer::Bytes(Bytes(bytes)))).filter_map(with).collect()
    }

    /// What those outcomes show, the smallest first.
    pub fn bounds(&self, aim: Aim, outcomes: &[Outcome]) -> Vec<Bound> {
        let all = of_case(outcomes, &Buffer::Unlimited.to_string());
        let cases: BTreeMap<u64, String> =
            outcomes.iter().filter_map(|outcome| Some((bytes_of(&outcome.case)?, outcome.case.clone()))).collect();
        let bound = |(buffer_bytes, case): (u64, String)| {
            let (leaves, half) = ratio(aim, &all, &of_case(outcomes, &case))?;
            Some(Bound { buffer_bytes, leaves, half })
        };
        cases.into_iter().filter_map(bound).collect()
    }
}

/// The least buffer asked about: below it a proxy copies.
const LEAST_BUFFER: u64 = 64 * 1024;

/// The least of these that is enough.
pub fn enough(bounds: &[Bound]) -> Option<&Bound> {
    let short = bounds.iter().rposition(|bound| bound.leaves < ENOUGH);
    bounds.get(short.map_or(0, |short| short + 1))
}

fn bytes_of(case: &str) -> Option<u64> {
    match case.parse() {
        Ok(Buffer::Bytes(bytes)) => Some(bytes.0),
        _ => None,
    }
}

/// The outcomes of a case that count, by seed.
fn of_case<'a>(outcomes: &'a [Outcome], case: &str) -> Vec<&'a Outcome> {
    let mut found: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.case == case && outcome.valid).collect();
    found.sort_by_key(|outcome| outcome.seed);
    found
}

/// Time, where every flow of every outcome has ended; else goodput.
fn aim_of(outcomes: &[Outcome]) -> Aim {
    if outcomes.iter().all(|outcome| outcome.mean_flow_s().is_some()) { Aim::MeanFlowS } else { Aim::GoodputBps }
}

fn value_of(aim: Aim, outcome: &Outcome) -> Option<f64> {
    match aim {
        Aim::MeanFlowS => outcome.mean_flow_s(),
        Aim::GoodputBps => Some(outcome.goodput_bps),
    }
    .filter(|value| *value > 0.0)
}

/// How many times as good the second are, seed by seed: the geometric mean, and half the width of its 95 % interval.
fn ratio(aim: Aim, now: &[&Outcome], then: &[&Outcome]) -> Option<(f64, f64)> {
    let pair = |now: &&Outcome| {
        let then = then.iter().find(|then| then.seed == now.seed)?;
        let log = (value_of(aim, then)? / value_of(aim, now)?).ln();
        Some(if aim == Aim::MeanFlowS { -log } else { log })
    };
    let logs: Vec<f64> = now.iter().filter_map(pair).collect();
    if logs.is_empty() {
        return None;
    }
    let gain = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    Some((gain, gain * half_width(&logs)))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// The gain of a case over the path as it is, both answered by the equations.
fn gain_of(equations: &[Outcome], case: &str) -> Option<f64> {
    let rate = |case: &str| equations.iter().find(|outcome| outcome.case == case).map(|outcome| outcome.goodput_bps);
    Some(rate(case)? / rate("as it is")?)
}

fn finding(
    aim: Aim,
    way: &Way,
    now: &[&Outcome],
    then: &[&Outcome],
    case: &str,
    by_equations: Option<f64>,
) -> Result<Finding, AdviceError> {
    let missing = || AdviceError::NoAnswer(case.into());
    let (gain, half) = ratio(aim, now, then).ok_or_else(missing)?;
    let of = |number: &dyn Fn(&Outcome) -> Option<f64>| mean(then.iter().filter_map(|outcome| number(outcome)));
    Ok(Finding {
        way: way.clone(),
        gain,
        half: if case == "as it is" { 0.0 } else { half },
        value: of(&|outcome| value_of(aim, outcome)).ok_or_else(missing)?,
        drops: of(&|outcome| Some(outcome.queue_drops() as f64)).unwrap_or(0.0),
        queue_max_bytes: of(&|outcome| Some(outcome.queue_max() as f64)).unwrap_or(0.0),
        jain: of(&|outcome| outcome.jain),
        by_equations,
    })
}

/// The best; of those nearly as good the one that drops least, by more than a packet, and that needs to be told nothing.
fn best_of<'a>(findings: impl Iterator<Item = &'a Finding> + Clone) -> Option<&'a Finding> {
    let most = findings.clone().map(|finding| finding.gain).fold(0.0, f64::max);
    findings.filter(|finding| finding.gain >= NEARLY * most).min_by(|a, b| {
        let key = |finding: &Finding| (finding.drops.round(), finding.way.capacity.is_some());
        let (a_key, b_key) = (key(a), key(b));
        a_key.0.total_cmp(&b_key.0).then(a_key.1.cmp(&b_key.1)).then(b.gain.total_cmp(&a.gain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::FlowOutcome;
    use scenario::ScenarioFile;
    use units::QueueSize;

    fn scenario(more: &str) -> Scenario {
        let text = format!(
            "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"300ms\"\n{more}\
             [[flow]]\nbytes = \"1MB\"\n"
        );
        ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    fn outcome(case: &str, seed: u64, seconds: f64) -> Outcome {
        let flows = vec![FlowOutcome { end_s: Some(seconds), ..FlowOutcome::default() }];
        Outcome { case: case.into(), seed, valid: true, flows, goodput_bps: 8e6 / seconds, ..Outcome::default() }
    }

    /// Every candidate takes as long as the function says.
    fn outcomes(advisor: &Advisor, seconds: impl Fn(&str, u64) -> f64) -> Vec<Outcome> {
        let cases = advisor.candidates();
        let seeds = |case: String| (1..=5).map(move |seed| (case.clone(), seed));
        cases.into_iter().flat_map(|variant| seeds(variant.case)).map(|(case, seed)| outcome(&case, seed, seconds(&case, seed))).collect()
    }

    #[test]
    fn a_path_of_one_link_is_no_place_for_a_proxy() {
        let mut scenario = scenario("");
        scenario.links.pop();
        assert_eq!(Advisor::new(&scenario).unwrap_err(), AdviceError::OneLink);
    }

    #[test]
    fn queues_keep_the_size_that_they_have_end_to_end() {
        let advisor = Advisor::new(&scenario("")).unwrap();
        let limits = |variant: &Variant| (0..2).map(|index| variant.scenario.queue_size(index)).collect::<Vec<_>>();
        let all: Vec<_> = advisor.candidates().iter().map(limits).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        // 10 Mbit/s for 610 ms.
        assert_eq!(all[0][1], QueueSize::Bytes(Bytes(762_500)));
    }

    #[test]
    fn a_place_that_the_file_names_is_the_only_one() {
        let (anywhere, there) = (scenario(""), scenario("[[split]]\nafter = 1\ncapacity = \"9Mbit\"\n"));
        for scenario in [anywhere, there] {
            let told = scenario.splits.first().map_or(Rate(10_000_000), |split| split.capacity.unwrap());
            let advisor = Advisor::new(&scenario).unwrap();
            let ways = || advisor.ways.values();
            assert!(ways().all(|way| way.after.is_none_or(|after| after == 1)));
            assert!(ways().filter(|way| way.control == "share").all(|way| way.capacity == Some(told)));
            assert!(ways().all(|way| way.control != "dctcp"), "no queue marks");
        }
    }

    #[test]
    fn what_pays_is_told_from_what_does_not_and_from_chance() {
        let advisor = Advisor::new(&scenario("")).unwrap();
        let verdict = |seconds: &dyn Fn(&str, u64) -> f64| advisor.advice(&outcomes(&advisor, seconds), &[]).unwrap().verdict;
        assert_eq!(verdict(&|case, _| if case.starts_with("split") { 5.0 } else { 10.0 }), Verdict::Split);
        assert_eq!(verdict(&|_, seed| 10.0 + seed as f64), Verdict::DoesNotPay);
        assert_eq!(verdict(&|case, seed| if case.starts_with("split") { 4.0 * seed as f64 } else { 10.0 }), Verdict::CannotTell);
    }

    #[test]
    fn of_two_that_are_alike_the_one_is_taken_that_drops_less() {
        let advisor = Advisor::new(&scenario("")).unwrap();
        let seconds = |case: &str, _| match case {
            "split after link 1, hybla" => 4.9,
            "split after link 1, share" => 5.0,
            case if case.starts_with("split") => 8.0,
            _ => 10.0,
        };
        let mut all = outcomes(&advisor, seconds);
        for outcome in all.iter_mut().filter(|outcome| outcome.case.ends_with("hybla")) {
            outcome.links = vec![outcome::LinkOutcome { queue_drops: 9000, ..outcome::LinkOutcome::default() }];
        }
        let advice = advisor.advice(&all, &[]).unwrap();
        assert_eq!((advice.split.way.control.as_str(), advice.split.gain), ("share", 2.0));
        assert_eq!(advice.findings[0].way.control, "hybla", "the list is by gain alone");
        assert!((advice.sender.unwrap().gain - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_least_buffer_is_enough_beyond_which_none_is_short() {
        let bound = |buffer_bytes, leaves| Bound { buffer_bytes, leaves, half: 0.001 };
        let bounds = [bound(1, 0.5), bound(2, 0.985), bound(4, 0.97), bound(8, 0.99), bound(16, 1.0)];
        assert_eq!(enough(&bounds).unwrap().buffer_bytes, 8);
        assert_eq!(enough(&bounds[..3]), None);
        let advisor = Advisor::new(&scenario("")).unwrap();
        let way = advisor.ways["split after link 1, share"].clone();
        let sizes: Vec<String> = advisor.buffers(&way).into_iter().map(|variant| variant.case).collect();
        assert_eq!((sizes[0].as_str(), bytes_of(&sizes[1])), ("unlimited", Some(LEAST_BUFFER)));
        assert!(bytes_of(sizes.last().unwrap()).unwrap() >= 4 * 762_500);
        assert!(advisor.buffers(&way).iter().all(|variant| variant.scenario.splits[0].after == 1));
    }
}
