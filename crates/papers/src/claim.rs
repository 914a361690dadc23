//! What a paper claims, and whether it holds: the ratio of a number in one case to the same number in
//! another, seed by seed.

use crate::{seed_mean::SeedMean, source::ResultSource};
use outcome::Outcome;
use scenario::Interval;
use serde::Deserialize;
use std::fmt;

/// A claim: a number is less in one case than in another, or more, or the same.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperClaim {
    /// What the paper says, and where; empty: it says nothing, and the ratio is reported all the same.
    #[serde(default)]
    pub says: String,
    /// The name of the number in an outcome.
    pub number: String,
    /// The case in the numerator.
    pub case: String,
    /// The case in the denominator.
    pub than: String,
    /// Two further cases whose ratio the first ratio is divided by: for claims about the gain of one
    /// scheme compared with the gain of another.
    #[serde(default)]
    pub over: Option<CasePair>,
    /// The claimed ratio: a number (below 1 is less, above 1 is more), or `less` or `more` where
    /// only the direction is claimed, `same` for no difference, `not-more` for no gain. Absent:
    /// nothing is claimed.
    #[serde(default)]
    pub ratio: ClaimedRatio,
    /// Begin of the time that is claimed about, in seconds from the start of the run; with
    /// [`to`](Self::to), and for `goodput_bps` only. Absent: the whole run. The scenario has an
    /// `[[interval]]` for it, so that outcomes without series can be judged.
    #[serde(default)]
    pub from: Option<f64>,
    /// End of that time.
    #[serde(default)]
    pub to: Option<f64>,
}

/// Two cases, for the ratio of the first to the second.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CasePair {
    /// The case in the numerator.
    pub case: String,
    /// The case in the denominator.
    pub than: String,
}

/// What is claimed of a ratio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimedRatio {
    /// Nothing: the direction is reported.
    #[default]
    Nothing,
    /// Below 1.
    Less,
    /// Above 1.
    More,
    /// 1, within [`SAME_WITHIN`].
    Same,
    /// Not above 1 by more than [`SAME_WITHIN`].
    NotMore,
    /// This value.
    #[serde(untagged)]
    Is(f64),
}

/// The relative difference below which a paper's "no difference" holds. The papers print no number
/// for that: they show curves.
pub const SAME_WITHIN: f64 = 0.05;

/// What the measurements say about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// It holds, with the claimed size of the effect or more.
    Holds,
    /// The direction holds, with a smaller effect than claimed.
    Weaker,
    /// The interval contains both.
    Open,
    /// The direction is reversed.
    Reversed,
    /// There is a difference where none is claimed, or none where one is claimed.
    Differs,
    /// Nothing is claimed; the ratio is below 1.
    Less,
    /// Nothing is claimed; the ratio is above 1.
    More,
}

impl fmt::Display for ClaimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimVerdict::Holds => "holds",
            ClaimVerdict::Weaker => "holds, but weaker",
            ClaimVerdict::Open => "cannot tell",
            ClaimVerdict::Reversed => "the other way round",
            ClaimVerdict::Differs => "does not hold",
            ClaimVerdict::Less => "less",
            ClaimVerdict::More => "more",
        })
    }
}

/// The measured ratio of a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Over the seeds that have the number in all cases.
    pub ratio: SeedMean,
    /// What follows.
    pub verdict: ClaimVerdict,
}

impl PaperClaim {
    /// The cases that it names.
    pub(crate) fn cases(&self) -> impl Iterator<Item = &String> {
        [&self.case, &self.than].into_iter().chain(self.over.iter().flat_map(|pair| [&pair.case, &pair.than]))
    }

    /// The number that it is about: of the whole run, or of the claimed time.
    fn number_of(&self, outcome: &Outcome) -> Option<f64> {
        match self.from.zip(self.to) {
            Some((from_s, to_s)) => outcome.goodput_between(from_s, to_s),
            None => outcome.number(&self.number),
        }
    }

    /// Checks that outcomes of scenarios with these intervals can answer it. The error says what is
    /// wrong.
    pub(crate) fn check_time(&self, intervals: &[Interval]) -> Result<(), String> {
        let (from_s, to_s) = match (self.from, self.to) {
            (None, None) => return Ok(()),
            (Some(from_s), Some(to_s)) => (from_s, to_s),
            _ => return Err(format!("the claim {:?} has only one of from and to: give both", self.says)),
        };
        if self.number != "goodput_bps" {
            return Err(format!("the claim {:?} has from and to, which are for goodput_bps, not for {}", self.says, self.number));
        }
        let fits = |interval: &Interval| (interval.from.secs(), interval.to.secs()) == (from_s, to_s);
        if intervals.iter().any(fits) {
            return Ok(());
        }
        Err(format!("the claim {:?} is about {from_s} to {to_s} s, for which the scenario has no [[interval]]: add it there", self.says))
    }

    /// Judges the claim by the valid outcomes of one source; none if no seed has the number in all
    /// cases.
    pub fn judge(&self, source: &ResultSource, outcomes: &[Outcome]) -> Option<Judgement> {
        let number = |outcome: &Outcome| self.number_of(outcome).filter(|value| *value > 0.0);
        let of = |case: &str, seed: u64| source.valid(case, outcomes).find(|outcome| outcome.seed == seed).and_then(number);
        let over = |seed: u64| self.over.as_ref().map_or(Some(1.0), |pair| Some(of(&pair.case, seed)? / of(&pair.than, seed)?));
        let numerators = source.valid(&self.case, outcomes);
        let ratios: Vec<f64> =
            numerators.filter_map(|outcome| Some(number(outcome)? / of(&self.than, outcome.seed)? / over(outcome.seed)?)).collect();
        let ratio = SeedMean::of(&ratios)?;
        Some(Judgement { ratio, verdict: self.ratio.verdict(ratio.mean, ratio.half) })
    }
}

impl ClaimedRatio {
    fn verdict(self, ratio: f64, half: f64) -> ClaimVerdict {
        let (low, high) = (ratio - half, ratio + half);
        // A claim of "more" is judged as a claim of "less", mirrored at 1.
        let mirrored = (2.0 - high, 2.0 - low);
        match self {
            ClaimedRatio::Nothing if high < 1.0 => ClaimVerdict::Less,
            ClaimedRatio::Nothing if low > 1.0 => ClaimVerdict::More,
            ClaimedRatio::Nothing => ClaimVerdict::Open,
            ClaimedRatio::Less => below((low, high), 1.0),
            ClaimedRatio::More => below(mirrored, 1.0),
            ClaimedRatio::Is(claimed) if claimed <= 1.0 => below((low, high), claimed),
            ClaimedRatio::Is(claimed) => below(mirrored, 2.0 - claimed),
            ClaimedRatio::Same if low > 1.0 - SAME_WITHIN && high < 1.0 + SAME_WITHIN => ClaimVerdict::Holds,
            ClaimedRatio::Same if high < 1.0 - SAME_WITHIN || low > 1.0 + SAME_WITHIN => ClaimVerdict::Differs,
            ClaimedRatio::NotMore if high < 1.0 + SAME_WITHIN => ClaimVerdict::Holds,
            ClaimedRatio::NotMore if low > 1.0 + SAME_WITHIN => ClaimVerdict::Differs,
            ClaimedRatio::Same | ClaimedRatio::NotMore => ClaimVerdict::Open,
        }
    }
}

/// What an interval says about the claim that a ratio is `claimed`, which is at most 1.
fn below((low, high): (f64, f64), claimed: f64) -> ClaimVerdict {
    match () {
        () if low > 1.0 => ClaimVerdict::Reversed,
        // An effect is claimed, and next to none is seen.
        () if low > claimed && low > 1.0 - SAME_WITHIN => ClaimVerdict::Differs,
        () if high >= 1.0 => ClaimVerdict::Open,
        () if low > claimed => ClaimVerdict::Weaker,
        () => ClaimVerdict::Holds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_outcomes::outcome;
    use outcome::IntervalOutcome;

    fn judged(ratio: ClaimedRatio, ours: &[f64], theirs: &[f64]) -> Option<Judgement> {
        let outcomes_of = |case: &'static str, values: &[f64]| -> Vec<Outcome> {
            (0..).zip(values).map(|(seed, value)| outcome("lab", case, seed, *value)).collect()
        };
        let outcomes = [outcomes_of("ours", ours), outcomes_of("theirs", theirs)].concat();
        let claim = PaperClaim {
            says: String::new(),
            number: "goodput_bps".into(),
            case: "ours".into(),
            than: "theirs".into(),
            over: None,
            ratio,
            from: None,
            to: None,
        };
        claim.judge(&ResultSource { engine: "lab".into(), variation: String::new() }, &outcomes)
    }

    fn verdict(ratio: ClaimedRatio, ours: &[f64]) -> ClaimVerdict {
        judged(ratio, ours, &[10.0, 10.0, 10.0]).unwrap().verdict
    }

    #[test]
    fn a_claim_is_judged_by_its_interval() {
        assert_eq!(verdict(ClaimedRatio::Is(0.75), &[7.4, 7.5, 7.6]), ClaimVerdict::Holds);
        assert_eq!(verdict(ClaimedRatio::Is(0.75), &[5.0, 5.1, 5.2]), ClaimVerdict::Holds);
        assert_eq!(verdict(ClaimedRatio::Is(0.75), &[9.0, 9.1, 9.2]), ClaimVerdict::Weaker);
        assert_eq!(verdict(ClaimedRatio::Is(0.75), &[9.0, 10.0, 11.2]), ClaimVerdict::Open);
        assert_eq!(verdict(ClaimedRatio::Less, &[11.0, 11.1, 11.2]), ClaimVerdict::Reversed);
        assert_eq!(verdict(ClaimedRatio::More, &[11.0, 11.1, 11.2]), ClaimVerdict::Holds);
        assert_eq!(verdict(ClaimedRatio::Is(1.5), &[11.0, 11.1, 11.2]), ClaimVerdict::Weaker);
        assert_eq!(verdict(ClaimedRatio::Is(1.5), &[9.9, 10.0, 10.1]), ClaimVerdict::Differs);
        assert_eq!(verdict(ClaimedRatio::Is(1.5), &[10.1, 10.1, 10.1]), ClaimVerdict::Differs);
        assert_eq!(verdict(ClaimedRatio::Is(1.5), &[8.0, 8.1, 8.2]), ClaimVerdict::Reversed);
        assert_eq!(verdict(ClaimedRatio::More, &[9.0, 9.1, 9.2]), ClaimVerdict::Reversed);
    }

    #[test]
    fn no_difference_and_nothing_can_be_claimed() {
        assert_eq!(verdict(ClaimedRatio::Same, &[10.0, 10.1, 10.2]), ClaimVerdict::Holds);
        assert_eq!(verdict(ClaimedRatio::Same, &[11.0, 11.1, 11.2]), ClaimVerdict::Differs);
        assert_eq!(verdict(ClaimedRatio::Same, &[8.0, 8.1, 8.2]), ClaimVerdict::Differs);
        assert_eq!(verdict(ClaimedRatio::Same, &[9.0, 10.0, 11.0]), ClaimVerdict::Open);
        assert_eq!(verdict(ClaimedRatio::NotMore, &[8.0, 8.1, 8.2]), ClaimVerdict::Holds);
        assert_eq!(verdict(ClaimedRatio::NotMore, &[11.0, 11.1, 11.2]), ClaimVerdict::Differs);
        assert_eq!(verdict(ClaimedRatio::Nothing, &[11.0, 11.1, 11.2]), ClaimVerdict::More);
        assert_eq!(verdict(ClaimedRatio::Nothing, &[9.0, 9.1, 9.2]), ClaimVerdict::Less);
        assert_eq!(verdict(ClaimedRatio::Nothing, &[9.0, 10.0, 11.0]), ClaimVerdict::Open);
    }

    #[test]
    fn engines_are_judged_apart() {
        let outcomes = [
            outcome("sim", "a", 0, 2.0),
            outcome("lab", "a", 0, 1.0),
            outcome("sim", "b", 0, 1.0),
            outcome("lab", "b, with more", 0, 4.0),
            outcome("lab", "a, with more", 0, 2.0),
        ];
        let claim = PaperClaim {
            says: String::new(),
            number: "goodput_bps".into(),
            case: "a".into(),
            than: "b".into(),
            over: None,
            ratio: ClaimedRatio::Less,
            from: None,
            to: None,
        };
        let ratio = |engine: &str, variation: &str| {
            claim.judge(&ResultSource { engine: engine.into(), variation: variation.into() }, &outcomes).map(|judged| judged.ratio.mean)
        };
        assert_eq!([ratio("sim", ""), ratio("lab", ""), ratio("lab", "with more")], [Some(2.0), None, Some(0.5)]);
    }

    #[test]
    fn a_gain_is_compared_with_another_seed_by_seed() {
        let outcome = |case: &str, seed: u64, goodput_bps: f64| Outcome {
            engine: "sim".into(),
            case: case.into(),
            seed,
            valid: true,
            goodput_bps,
            ..Outcome::default()
        };
        // The gain of one is twice the other's with either seed, although the seed changes all numbers.
        let all = |seed: u64, speed: f64| {
            [("a", 6.0), ("b", 2.0), ("c", 3.0), ("d", 2.0)].map(|(case, value)| outcome(case, seed, value * speed))
        };
        let outcomes: Vec<Outcome> = all(1, 1.0).into_iter().chain(all(2, 10.0)).collect();
        let over = Some(CasePair { case: "c".into(), than: "d".into() });
        let claim = PaperClaim {
            says: String::new(),
            number: "goodput_bps".into(),
            case: "a".into(),
            than: "b".into(),
            over,
            ratio: ClaimedRatio::More,
            from: None,
            to: None,
        };
        let source = ResultSource { engine: "sim".into(), variation: String::new() };
        let judged = claim.judge(&source, &outcomes).unwrap();
        assert_eq!((judged.ratio, judged.verdict), (SeedMean { mean: 2.0, half: 0.0, seeds: 2 }, ClaimVerdict::Holds));
        assert!(claim.cases().eq(["a", "b", "c", "d"]));
        // A seed that lacks one of the four does not count.
        assert_eq!(claim.judge(&source, &outcomes[..7]).unwrap().ratio.seeds, 1);
        assert_eq!(claim.judge(&source, &outcomes[..3]), None);
    }

    #[test]
    fn a_seed_is_compared_with_itself_and_one_seed_leaves_it_open() {
        let both = judged(ClaimedRatio::Less, &[5.0, 50.0], &[10.0, 100.0]).unwrap();
        assert_eq!(both.ratio, SeedMean { mean: 0.5, half: 0.0, seeds: 2 });
        assert_eq!(judged(ClaimedRatio::Less, &[5.0], &[10.0]).unwrap().verdict, ClaimVerdict::Open);
        assert_eq!(judged(ClaimedRatio::Less, &[5.0], &[]), None);
    }

    #[test]
    fn a_claim_about_a_time_is_judged_by_that_time() {
        // Over the whole run ours is the faster one, from 5 to 35 s the slower one.
        let outcome = |case: &str, seed: u64, whole: f64, part: f64| Outcome {
            intervals: vec![IntervalOutcome { from_s: 5.0, to_s: 35.0, goodput_bps: part }],
            ..outcome("sim", case, seed, whole)
        };
        let outcomes = [1, 2].map(|seed| [outcome("ours", seed, 20.0, 5.0), outcome("theirs", seed, 10.0, 10.0)]).concat();
        let claim = |times: &str| -> PaperClaim {
            let text = format!("number = \"goodput_bps\"\ncase = \"ours\"\nthan = \"theirs\"\nratio = \"less\"\n{times}");
            toml_file::read_toml(&text, "claim", |_| Ok(())).unwrap()
        };
        let source = ResultSource { engine: "sim".into(), variation: String::new() };
        let verdict = |times: &str| claim(times).judge(&source, &outcomes).map(|judged| judged.verdict);
        assert_eq!(verdict(""), Some(ClaimVerdict::Reversed));
        assert_eq!(verdict("from = 5\nto = 35"), Some(ClaimVerdict::Holds));
        // These outcomes have neither that interval nor a series.
        assert_eq!(verdict("from = 5\nto = 30"), None);
        let interval = Interval { from: "5s".parse().unwrap(), to: "35s".parse().unwrap() };
        assert_eq!(claim("from = 5\nto = 35").check_time(&[interval]), Ok(()));
        assert!(claim("from = 5\nto = 30").check_time(&[interval]).unwrap_err().contains("no [[interval]]"));
        assert!(claim("from = 5").check_time(&[interval]).unwrap_err().contains("give both"));
    }
}
