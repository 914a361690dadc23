//! Which variants to compare for a path, and what their outcomes say.

use crate::{
    advice::{Advice, AdviceError, AdviceVerdict, BufferResult, Candidate, MIN_GAIN, Objective, ProxyLeg},
    compare::{AS_IS, assessment, best_of, gain_by_equations, objective_of, of_case, ratio},
};
use control::Controller;
use outcome::Outcome;
use scenario::{Buffer, LinkCapacity, Opens, QueueKind, Scenario, Split, Variant};
use std::collections::BTreeMap;
use units::Bytes;

/// The smallest buffer that is tried: below it the proxy copies instead of splicing.
const MIN_BUFFER: u64 = 64 * 1024;

/// Compares ways to carry the flows of a scenario.
///
/// The caller runs [`candidates`](Self::candidates) with the same seeds each and passes the
/// outcomes to [`advice`](Self::advice). For the buffer it then runs [`buffers`](Self::buffers) of
/// a split candidate and passes those outcomes to [`buffer_results`](Self::buffer_results).
#[derive(Debug, Clone)]
pub struct Advisor {
    /// End to end, with queues of fixed size.
    base: Scenario,
    /// One proxy for each place: those of the file, else one between any two links.
    proxies: Vec<Split>,
    /// The candidates by their case.
    candidates: BTreeMap<String, Candidate>,
}

impl Advisor {
    /// For a scenario. Places where it splits are the ones compared; without any, every place
    /// between two links is.
    ///
    /// # Errors
    /// If the scenario has networks in parallel, or one link.
    pub fn new(scenario: &Scenario) -> Result<Self, AdviceError> {
        if scenario.parallel().is_some() {
            return Err(AdviceError::Parallel);
        }
        if scenario.links.len() < 2 {
            return Err(AdviceError::OneLink);
        }
        let mut base = Scenario { splits: Vec::new(), ..scenario.clone() };
        fix_queues(&mut base);
        let anywhere = || (1..scenario.links.len()).map(Split::at).collect();
        let proxies = if scenario.splits.is_empty() { anywhere() } else { scenario.splits.clone() };
        let mut advisor = Advisor { base, proxies, candidates: BTreeMap::new() };
        advisor.name_candidates();
        Ok(advisor)
    }

    fn name_candidates(&mut self) {
        self.candidates = self.variants().into_iter().map(|(candidate, variant)| (variant.case, candidate)).collect();
    }

    /// The variants to run, the path as it is first.
    pub fn candidates(&self) -> Vec<Variant> {
        self.variants().into_iter().map(|(_, variant)| variant).collect()
    }

    fn variants(&self) -> Vec<(Candidate, Variant)> {
        let mut all = vec![self.end_to_end(&self.base.control.sender, AS_IS.into())];
        let others = Controller::all().filter(|controller| !controller.needs_capacity() && self.fits(*controller, 0));
        for controller in others.filter(|controller| controller.name() != self.base.control.sender) {
            all.push(self.end_to_end(controller.name(), format!("end to end, {}", controller.name())));
        }
        for proxy in &self.proxies {
            // Where the capacity is to be estimated, it is unknown: a controller that must be told
            // it does not fit.
            let is_known = |controller: &Controller| proxy.capacity != Some(LinkCapacity::Auto) || controller.estimates_capacity();
            let possible =
                |controller: &Controller| self.fits(*controller, proxy.after) && (!controller.needs_capacity() || is_known(controller));
            all.extend(Controller::all().filter(possible).map(|it| self.split(proxy, it)));
        }
        all
    }

    /// Whether the links from `first` on provide what a controller needs: DCTCP needs ECN marks.
    fn fits(&self, controller: Controller, first: usize) -> bool {
        controller.name() != "dctcp" || self.base.links[first..].iter().any(|link| link.queue.kind == QueueKind::Ecn)
    }

    fn end_to_end(&self, control: &str, case: String) -> (Candidate, Variant) {
        let mut scenario = self.base.clone();
        scenario.control.sender = control.into();
        (Candidate { after: None, control: control.into(), capacity: None }, Variant::new(case, scenario))
    }

    fn split(&self, proxy: &Split, controller: Controller) -> (Candidate, Variant) {
        let mut scenario = self.base.clone();
        scenario.splits = vec![Split { buffer: Buffer::Unlimited, ..proxy.clone() }];
        scenario.control.proxy = vec![controller.name().into()];
        let rate = LinkCapacity::Rate(self.base.links[proxy.after].rate);
        let capacity = controller.needs_capacity().then_some(proxy.capacity.unwrap_or(rate));
        let candidate = Candidate { after: Some(proxy.after), control: controller.name().into(), capacity };
        (candidate, Variant::new(format!("split after link {}, {}", proxy.after, controller.name()), scenario))
    }

    /// The advice that follows from the outcomes of the candidates. `equations` are the outcomes of
    /// the equations for those candidates that they can answer.
    ///
    /// # Errors
    /// If a candidate has no valid outcome that can be compared with the path as it is.
    pub fn advice(&self, outcomes: &[Outcome], equations: &[Outcome]) -> Result<Advice, AdviceError> {
        let objective = objective_of(outcomes);
        let baseline: Vec<&Outcome> = of_case(outcomes, AS_IS);
        let mut assessments = Vec::new();
        for (case, candidate) in &self.candidates {
            let by_equations = gain_by_equations(equations, case);
            assessments.push(assessment(objective, candidate, &baseline, &of_case(outcomes, case), case, by_equations)?);
        }
        assessments.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        let best = |is: &dyn Fn(&Candidate) -> bool| best_of(assessments.iter().filter(|assessment| is(&assessment.candidate))).cloned();
        let is_baseline = |candidate: &Candidate| *candidate == self.candidates[AS_IS];
        let missing = || AdviceError::NoAnswer("any way to split".into());
        let split = best(&|candidate| candidate.after.is_some()).ok_or_else(missing)?;
        Ok(Advice {
            verdict: match &split {
                split if split.pays() => AdviceVerdict::Split,
                split if split.gain + split.half_width < MIN_GAIN => AdviceVerdict::DoesNotPay,
                _ => AdviceVerdict::CannotTell,
            },
            objective,
            seeds: baseline.len(),
            leg: match self.base.flows.first().map(|flow| flow.opens) {
                Some(Opens::Receiver) => ProxyLeg::Near,
                _ => ProxyLeg::Far,
            },
            baseline: best(&is_baseline).ok_or_else(missing)?,
            sender: best(&|candidate| candidate.after.is_none() && !is_baseline(candidate)),
            split,
            assessments,
        })
    }

    /// The variants to run to find how much buffer a split candidate needs: an unlimited buffer
    /// first, then sizes that double, up to at least four BDPs.
    pub fn buffers(&self, candidate: &Candidate) -> Vec<Variant> {
        let with = |buffer: Buffer| {
            let found = self.variants().into_iter().find(|(other, _)| other == candidate);
            found.map(|(_, mut variant)| {
                variant.scenario.splits[0].buffer = buffer;
                Variant::new(buffer.to_string(), variant.scenario)
            })
        };
        let whole = scenario::LegLinks { first: 0, end: self.base.links.len() };
        let farthest = self.base.flow_specs(self.base.seed).iter().map(|flow| flow.access_delay.0).max().unwrap_or(0);
        let rtt = units::Span(self.base.base_rtt(whole).0 + 2 * farthest);
        let most = self.base.bottleneck_rate(whole).bytes_in(rtt).0.saturating_mul(4).max(MIN_BUFFER);
        let sizes = std::iter::successors(Some(MIN_BUFFER), |bytes| Some(bytes * 2)).take_while(|bytes| *bytes < 2 * most);
        std::iter::once(Buffer::Unlimited).chain(sizes.map(|bytes| Buffer::Bytes(Bytes(bytes)))).filter_map(with).collect()
    }

    /// What the outcomes of [`buffers`](Self::buffers) show, in ascending order of size.
    pub fn buffer_results(&self, objective: Objective, outcomes: &[Outcome]) -> Vec<BufferResult> {
        let unlimited = of_case(outcomes, &Buffer::Unlimited.to_string());
        let cases: BTreeMap<u64, String> =
            outcomes.iter().filter_map(|outcome| Some((bytes_of(&outcome.case)?, outcome.case.clone()))).collect();
        let result = |(buffer_bytes, case): (u64, String)| {
            let (fraction, half_width) = ratio(objective, &unlimited, &of_case(outcomes, &case))?;
            Some(BufferResult { buffer_bytes, fraction, half_width })
        };
        cases.into_iter().filter_map(result).collect()
    }
}

/// Gives the queues of a path end to end the size that they have there, whatever splits it.
pub(crate) fn fix_queues(base: &mut Scenario) {
    for index in 0..base.links.len() {
        base.links[index].queue.limit = base.queue_size(index).into();
    }
}

/// The size that names a case; absent for an unlimited buffer.
fn bytes_of(case: &str) -> Option<u64> {
    match case.parse() {
        Ok(Buffer::Bytes(bytes)) => Some(bytes.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::FlowOutcome;
    use scenario::ScenarioFile;
    use units::{QueueSize, Rate};

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

    /// Outcomes of every candidate with five seeds; `seconds` is the flow time of a case and seed.
    fn outcomes(advisor: &Advisor, seconds: impl Fn(&str, u64) -> f64) -> Vec<Outcome> {
        let cases = advisor.candidates();
        let seeds = |case: String| (1..=5).map(move |seed| (case.clone(), seed));
        cases.into_iter().flat_map(|variant| seeds(variant.case)).map(|(case, seed)| outcome(&case, seed, seconds(&case, seed))).collect()
    }

    #[test]
    fn a_path_of_one_link_has_no_place_for_a_proxy() {
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
            let told = LinkCapacity::Rate(Rate(10_000_000));
            let capacity = scenario.splits.first().map_or(told, |split| split.capacity.unwrap());
            let advisor = Advisor::new(&scenario).unwrap();
            let candidates = || advisor.candidates.values();
            assert!(candidates().all(|candidate| candidate.after.is_none_or(|after| after == 1)));
            assert!(candidates().filter(|candidate| candidate.control == "share").all(|candidate| candidate.capacity == Some(capacity)));
            assert!(candidates().all(|candidate| candidate.control != "dctcp"), "no queue sets ECN marks");
        }
    }

    #[test]
    fn a_capacity_that_is_estimated_is_told_to_no_controller() {
        let advisor = Advisor::new(&scenario("[[split]]\nafter = 1\ncapacity = \"auto\"\n")).unwrap();
        let with_capacity: Vec<_> = advisor.candidates.values().filter_map(|candidate| candidate.capacity).collect();
        assert_eq!(with_capacity, [LinkCapacity::Auto], "share alone estimates it");
        assert!(advisor.candidates.contains_key("split after link 1, cubic"));
    }

    #[test]
    fn gains_are_told_from_losses_and_from_chance() {
        let advisor = Advisor::new(&scenario("")).unwrap();
        let verdict = |seconds: &dyn Fn(&str, u64) -> f64| advisor.advice(&outcomes(&advisor, seconds), &[]).unwrap().verdict;
        assert_eq!(verdict(&|case, _| if case.starts_with("split") { 5.0 } else { 10.0 }), AdviceVerdict::Split);
        assert_eq!(verdict(&|_, seed| 10.0 + seed as f64), AdviceVerdict::DoesNotPay);
        assert_eq!(verdict(&|case, seed| if case.starts_with("split") { 4.0 * seed as f64 } else { 10.0 }), AdviceVerdict::CannotTell);
    }

    #[test]
    fn of_two_nearly_equal_candidates_the_one_with_fewer_drops_is_chosen() {
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
        assert_eq!((advice.split.candidate.control.as_str(), advice.split.gain), ("share", 2.0));
        assert_eq!(advice.assessments[0].candidate.control, "hybla", "the list is by gain alone");
        assert!((advice.sender.unwrap().gain - 1.0).abs() < 1e-12);
    }

    #[test]
    fn buffers_up_to_four_bdps_are_tried() {
        let advisor = Advisor::new(&scenario("")).unwrap();
        let candidate = advisor.candidates["split after link 1, share"].clone();
        let sizes: Vec<String> = advisor.buffers(&candidate).into_iter().map(|variant| variant.case).collect();
        assert_eq!((sizes[0].as_str(), bytes_of(&sizes[1])), ("unlimited", Some(MIN_BUFFER)));
        assert!(bytes_of(sizes.last().unwrap()).unwrap() >= 4 * 762_500);
        assert!(advisor.buffers(&candidate).iter().all(|variant| variant.scenario.splits[0].after == 1));
    }
}
