//! What users do over a path: short and long transfers, pages, many at once, in both directions;
//! and the way to carry it that makes none of it slower.

use crate::{
    advice::{AdviceError, AdviceVerdict, Candidate, MIN_GAIN, Objective},
    advisor::fix_queues,
    compare::{AS_IS, of_case, ratio},
};
use outcome::Outcome;
use scenario::{Buffer, LinkCapacity, Scenario, Split, Variant};
use serde::Serialize;

/// The least gain that is none: less is slower, not noise.
const NOT_SLOWER: f64 = 0.97;
/// Of two ways that gain nearly as much, one that need not be told a capacity.
const NEARLY: f64 = 0.97;
/// The controller of the leg that has no profile.
const SYSTEM_DEFAULT: &str = "cubic";

/// A kind of transfer, such as a page or an upload: tables of a scenario without its links, which
/// are listed from the servers to the clients, and the number that is compared.
#[derive(Debug)]
pub struct Usage {
    /// Its name.
    pub name: &'static str,
    /// Tables of a scenario.
    pub tables: &'static str,
    /// The number that is compared.
    pub objective: Objective,
}

/// Sixty objects of a page, 2 MB: the document, then what it names.
macro_rules! page {
    ($connections:literal) => {
        concat!(
            "[[page]]\nloads = 1\nrequest = \"500B\"\nservice = \"10ms\"\n",
            $connections,
            "\n[[page.object]]\nname = \"html\"\nsize = \"60kB\"\n[[page.object]]\nsize = \"33kB\"\ncount = 59\nneeds = [\"html\"]\n"
        )
    };
}

macro_rules! download {
    ($bytes:literal) => {
        concat!("[[flow]]\nopens = \"receiver\"\nbytes = \"", $bytes, "\"\n")
    };
}

/// What users do, downloads first.
pub const USAGES: [Usage; 8] = [
    Usage { name: "100 kB", tables: download!("100kB"), objective: Objective::MeanFlowS },
    Usage { name: "1 MB", tables: download!("1MB"), objective: Objective::MeanFlowS },
    Usage { name: "5 MB", tables: download!("5MB"), objective: Objective::MeanFlowS },
    Usage { name: "20 MB", tables: download!("20MB"), objective: Objective::MeanFlowS },
    Usage { name: "page, six connections", tables: page!("connections = 6"), objective: Objective::PageLoadS },
    Usage { name: "page, one connection", tables: page!("multiplexed = true"), objective: Objective::PageLoadS },
    Usage { name: "20 clients × 5 MB, the last", tables: concat!(download!("5MB"), "count = 20\n"), objective: Objective::LastFlowS },
    Usage { name: "upload of 20 MB", tables: "[[flow]]\ndirection = \"reverse\"\nbytes = \"20MB\"\n", objective: Objective::MeanFlowS },
];

/// Compares ways to carry what users do over a path.
#[derive(Debug, Clone)]
pub struct UsageAdvisor {
    /// The path with each of [`USAGES`], end to end, with queues of fixed size.
    scenarios: Vec<Scenario>,
    /// The path as it is, then the others.
    ways: Vec<Candidate>,
}

impl UsageAdvisor {
    /// For the path with each of [`USAGES`]. Without `knows_capacity` no proxy is told one.
    ///
    /// # Errors
    /// If the path has networks in parallel, or one link.
    pub fn new(mut scenarios: Vec<Scenario>, knows_capacity: bool) -> Result<Self, AdviceError> {
        let first = scenarios.first().ok_or(AdviceError::OneLink)?;
        if first.parallel().is_some() {
            return Err(AdviceError::Parallel);
        }
        if first.links.len() < 2 {
            return Err(AdviceError::OneLink);
        }
        let end_to_end = |control: &str| Candidate { after: None, control: control.into(), capacity: None };
        let sender = first.control.sender.as_str();
        let mut ways = vec![end_to_end(sender)];
        ways.extend(["bbr", "cubic"].into_iter().filter(|control| *control != sender).map(end_to_end));
        for after in 1..first.links.len() {
            let split = |control: &str, capacity| Candidate { after: Some(after), control: control.into(), capacity };
            ways.extend(knows_capacity.then(|| split("share", Some(LinkCapacity::Rate(first.links[after].rate)))));
            ways.push(split("share", Some(LinkCapacity::Auto)));
            ways.extend(["bbr", "cubic"].map(|control| split(control, None)));
        }
        scenarios.iter_mut().for_each(fix_queues);
        Ok(UsageAdvisor { scenarios, ways })
    }

    /// The variants to run.
    pub fn variants(&self) -> Vec<Variant> {
        let of_way = |way| (0..self.scenarios.len()).map(move |index| self.variant(way, index));
        (0..self.ways.len()).flat_map(of_way).collect()
    }

    fn case(&self, way: usize, usage: usize) -> String {
        let name = match &self.ways[way] {
            _ if way == 0 => AS_IS.to_owned(),
            Candidate { after: None, control, .. } => format!("end to end, {control}"),
            Candidate { after: Some(after), control, capacity } => {
                let told = capacity.map_or(String::new(), |capacity| format!(", capacity {capacity}"));
                format!("split after link {after}, {control}{told}")
            }
        };
        format!("{}: {name}", USAGES[usage].name)
    }

    fn variant(&self, way: usize, usage: usize) -> Variant {
        let mut scenario = self.scenarios[usage].clone();
        let Candidate { after, control, capacity } = &self.ways[way];
        match *after {
            None => scenario.control.sender.clone_from(control),
            // Data of an upload leave the proxy over the leg that has no profile.
            Some(after) if scenario.flows.iter().any(scenario::FlowGroup::has_reverse) => {
                scenario.splits = vec![Split { buffer: Buffer::Unlimited, ..Split::at(after) }];
                scenario.control.proxy = vec![SYSTEM_DEFAULT.into()];
            }
            Some(after) => {
                scenario.splits = vec![Split { buffer: Buffer::Unlimited, capacity: *capacity, ..Split::at(after) }];
                scenario.control.proxy = vec![control.clone()];
            }
        }
        Variant::new(self.case(way, usage), scenario)
    }

    /// The advice that follows from the outcomes of the variants.
    ///
    /// # Errors
    /// If a variant has no valid outcome that can be compared with the path as it is.
    pub fn advice(&self, outcomes: &[Outcome]) -> Result<UsageAdvice, AdviceError> {
        let ways = (0..self.ways.len()).map(|way| self.assess(way, outcomes)).collect::<Result<Vec<WayAssessment>, _>>()?;
        let best = |is: &dyn Fn(&WayAssessment) -> bool| {
            let candidates = || ways[1..].iter().filter(|way| is(way));
            let most = candidates().map(|way| way.gain).fold(0.0, f64::max);
            // Of nearly equal ones the one that need not be told a capacity.
            let is_told = |way: &WayAssessment| matches!(way.way.capacity, Some(LinkCapacity::Rate(_)));
            let near = candidates().filter(|way| way.gain >= NEARLY * most);
            near.min_by(|a, b| is_told(a).cmp(&is_told(b)).then(b.gain.total_cmp(&a.gain))).cloned()
        };
        let is_split = |way: &WayAssessment| way.way.after.is_some();
        let harmless = best(&|way| is_split(way) && way.slower().next().is_none());
        let any = || best(&is_split).ok_or_else(|| AdviceError::NoAnswer("any way to split".into()));
        let split = harmless.map_or_else(any, Ok)?;
        Ok(UsageAdvice {
            verdict: match &split {
                split if split.slower().next().is_some() => AdviceVerdict::DoesNotPay,
                split if split.gain - split.half_width >= MIN_GAIN => AdviceVerdict::Split,
                split if split.gain + split.half_width < MIN_GAIN => AdviceVerdict::DoesNotPay,
                _ => AdviceVerdict::CannotTell,
            },
            seeds: of_case(outcomes, &self.case(0, 0)).len(),
            sender: best(&|way| !is_split(way)),
            split,
            ways,
        })
    }

    fn assess(&self, way: usize, outcomes: &[Outcome]) -> Result<WayAssessment, AdviceError> {
        let mut results = Vec::new();
        for (index, usage) in USAGES.iter().enumerate().take(self.scenarios.len()) {
            let of = |way: usize| of_case(outcomes, &self.case(way, index));
            let (now, then) = (of(0), of(way));
            let missing = || AdviceError::NoAnswer(self.case(way, index));
            let (gain, half_width) = ratio(usage.objective, &now, &then).ok_or_else(missing)?;
            let mean = |all: &[&Outcome]| {
                let values: Vec<f64> = all.iter().filter_map(|outcome| usage.objective.value(outcome)).collect();
                values.iter().sum::<f64>() / values.len() as f64
            };
            let half_width = if way == 0 { 0.0 } else { half_width };
            results.push(UsageResult { name: usage.name, now_s: mean(&now), then_s: mean(&then), gain, half_width });
        }
        let count = results.len() as f64;
        let gain = (results.iter().map(|result| result.gain.ln()).sum::<f64>() / count).exp();
        // To first order, of independent gains.
        let relative = results.iter().map(|result| (result.half_width / result.gain).powi(2)).sum::<f64>().sqrt() / count;
        Ok(WayAssessment { way: self.ways[way].clone(), gain, half_width: gain * relative, results })
    }
}

/// What one usage gains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsageResult {
    /// The usage.
    pub name: &'static str,
    /// How long it takes over the path as it is, mean, seconds.
    pub now_s: f64,
    /// How long it takes this way, mean, seconds.
    pub then_s: f64,
    /// The ratio of the two.
    pub gain: f64,
    /// Half the width of the 95 % interval of the gain.
    #[serde(rename = "half")]
    pub half_width: f64,
}

impl UsageResult {
    /// Whether it is slower, and not by noise or chance.
    fn is_slower(&self) -> bool {
        self.gain + self.half_width < NOT_SLOWER
    }
}

/// What a way to carry the traffic gains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WayAssessment {
    /// The way.
    pub way: Candidate,
    /// The geometric mean of the gains of all usages.
    pub gain: f64,
    /// Half the width of its 95 % interval.
    #[serde(rename = "half")]
    pub half_width: f64,
    /// Each usage.
    #[serde(rename = "usages")]
    pub results: Vec<UsageResult>,
}

impl WayAssessment {
    /// The usages that are slower this way.
    pub fn slower(&self) -> impl Iterator<Item = &UsageResult> {
        self.results.iter().filter(|result| result.is_slower())
    }
}

/// The conclusion for all usages, and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UsageAdvice {
    /// The conclusion.
    pub verdict: AdviceVerdict,
    /// The number of seeds.
    pub seeds: usize,
    /// The best split: of those that make nothing slower, if there is one.
    pub split: WayAssessment,
    /// The best other controller at the sender, without a proxy.
    pub sender: Option<WayAssessment>,
    /// All ways, the path as it is first.
    pub ways: Vec<WayAssessment>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::{FlowOutcome, TimePercentiles};
    use scenario::ScenarioFile;

    fn advisor(knows_capacity: bool) -> UsageAdvisor {
        let links = "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"300ms\"\n";
        let scenario = |usage: &Usage| {
            let file = ScenarioFile::parse(&format!("{links}{}", usage.tables), "x").unwrap();
            file.variants(&[]).unwrap().remove(0).scenario
        };
        UsageAdvisor::new(USAGES.iter().map(scenario).collect(), knows_capacity).unwrap()
    }

    /// Outcomes with five seeds; `seconds` is the time of a case and seed.
    fn outcomes(advisor: &UsageAdvisor, seconds: impl Fn(&str, u64) -> f64) -> Vec<Outcome> {
        let outcome = |case: &str, seed: u64| {
            let time = seconds(case, seed);
            let flows = vec![FlowOutcome { end_s: Some(time), ..FlowOutcome::default() }];
            let page_load_s = Some(TimePercentiles { mean: time, ..TimePercentiles::default() });
            Outcome { case: case.into(), seed, valid: true, flows, page_load_s, ..Outcome::default() }
        };
        advisor.variants().iter().flat_map(|variant| (1..=5).map(|seed| outcome(&variant.case, seed)).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn every_usage_is_carried_every_way() {
        let advisor = advisor(true);
        let all = advisor.variants();
        assert_eq!(all.len(), 8 * (2 + 4));
        let upload = all.iter().find(|variant| variant.case == "upload of 20 MB: split after link 1, share, capacity 10Mbit").unwrap();
        assert_eq!((upload.scenario.control.proxy.as_slice(), upload.scenario.splits[0].capacity), (&["cubic".to_owned()][..], None));
        assert!(all.iter().all(|variant| variant.scenario.splits.len() <= 1));
        assert!(self::advisor(false).variants().iter().all(|variant| !variant.case.contains("capacity 10Mbit")));
    }

    #[test]
    fn a_way_that_makes_one_usage_slower_is_not_advised() {
        let advisor = advisor(true);
        let advice = |page_by_share: f64| {
            let seconds = move |case: &str, _| match case {
                case if case.ends_with("share, capacity 10Mbit") && case.starts_with("page, six") => page_by_share,
                case if case.ends_with("share, capacity 10Mbit") => 4.0,
                case if case.ends_with("share, capacity auto") => 6.0,
                case if case.contains("split") => 9.0,
                _ => 10.0,
            };
            advisor.advice(&outcomes(&advisor, seconds)).unwrap()
        };
        let best = advice(5.0);
        assert_eq!((best.verdict, best.seeds), (AdviceVerdict::Split, 5));
        assert_eq!(best.split.way.capacity.unwrap().to_string(), "10Mbit");
        let harmless = advice(12.0);
        assert_eq!(harmless.split.way.capacity, Some(LinkCapacity::Auto));
        assert!((harmless.split.gain - 10.0 / 6.0).abs() < 1e-9, "{}", harmless.split.gain);
    }

    #[test]
    fn no_split_is_advised_where_each_makes_something_slower() {
        let advisor = advisor(false);
        let seconds = |case: &str, _| match case {
            case if case.contains("split") && case.starts_with("upload") => 20.0,
            case if case.contains("split") => 1.0,
            _ => 10.0,
        };
        let advice = advisor.advice(&outcomes(&advisor, seconds)).unwrap();
        assert_eq!(advice.verdict, AdviceVerdict::DoesNotPay);
        let slower: Vec<&str> = advice.split.slower().map(|result| result.name).collect();
        assert_eq!(slower, ["upload of 20 MB"]);
    }
}
