//! What a paper claims, and whether it holds: the ratio of a number in one case to that in another, seed by seed.

use crate::{Mean, Origin};
use outcome::Outcome;
use serde::Deserialize;
use std::fmt;

/// That a number is less in one case than in another, or more.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What the paper says, and where; empty: nothing, and the ratio is told all the same.
    #[serde(default)]
    pub says: String,
    /// Which number of an outcome.
    pub number: String,
    /// In which case …
    pub case: String,
    /// … against which other.
    pub than: String,
    /// Two further cases, where the claim is about what one gains beside what another does: the ratio is divided by theirs.
    #[serde(default)]
    pub over: Option<Pair>,
    /// The ratio of the one to the other that is claimed: below 1 is less, above 1 is more. Where only the direction is claimed it is
    /// `less` or `more`, where it is that nothing changes `same`, and where it is that nothing is gained `not-more`. Absent: nothing is claimed.
    #[serde(default)]
    pub ratio: Ratio,
}

/// Two cases, and the ratio of the first to the second.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The one …
    pub case: String,
    /// … against the other.
    pub than: String,
}

/// What is claimed of a ratio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// Nothing: which way it goes is told.
    #[default]
    Nothing,
    /// Below 1.
    Less,
    /// Above 1.
    More,
    /// 1, to [`ALIKE`].
    Same,
    /// Not above 1 by more than [`ALIKE`].
    NotMore,
    /// That it is this.
    #[serde(untagged)]
    Is(f64),
}

/// What counts as nothing gained or lost where a paper sees no difference: it prints no number for that, and shows curves.
pub const ALIKE: f64 = 0.05;

/// What the measurements say to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// So it is, and by as much as claimed or more.
    Holds,
    /// So it is, but by less than claimed.
    Weaker,
    /// The interval has both.
    Open,
    /// It is the other way round.
    Reversed,
    /// There is a difference where none is claimed, or none where one of some size is.
    Differs,
    /// Nothing is claimed: it is less …
    Less,
    /// … or more.
    More,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Holds => "holds",
            Verdict::Weaker => "holds, but weaker",
            Verdict::Open => "cannot tell",
            Verdict::Reversed => "the other way round",
            Verdict::Differs => "does not hold",
            Verdict::Less => "less",
            Verdict::More => "more",
        })
    }
}

/// A claim's ratio as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Over the seeds that had both.
    pub ratio: Mean,
    /// What follows.
    pub verdict: Verdict,
}

impl Claim {
    /// The cases that it is about.
    pub(crate) fn cases(&self) -> impl Iterator<Item = &String> {
        [&self.case, &self.than].into_iter().chain(self.over.iter().flat_map(|pair| [&pair.case, &pair.than]))
    }

    /// Judges by outcomes of one origin; nothing where no seed has the number in both cases. Outcomes that are not valid are left out.
    pub fn judge(&self, origin: &Origin, outcomes: &[Outcome]) -> Option<Judgement> {
        let number = |outcome: &Outcome| outcome.number(&self.number).filter(|value| *value > 0.0);
        let of = |case: &str, seed: u64| origin.valid(case, outcomes).find(|outcome| outcome.seed == seed).and_then(number);
        let over = |seed: u64| self.over.as_ref().map_or(Some(1.0), |pair| Some(of(&pair.case, seed)? / of(&pair.than, seed)?));
        let ours = origin.valid(&self.case, outcomes);
        let ratios: Vec<f64> =
            ours.filter_map(|outcome| Some(number(outcome)? / of(&self.than, outcome.seed)? / over(outcome.seed)?)).collect();
        let ratio = Mean::of(&ratios)?;
        Some(Judgement { ratio, verdict: self.ratio.verdict(ratio.mean, ratio.half) })
    }
}

impl Ratio {
    fn verdict(self, ratio: f64, half: f64) -> Verdict {
        let (low, high) = (ratio - half, ratio + half);
        // Of more all is mirrored, as if less were claimed.
        let mirrored = (2.0 - high, 2.0 - low);
        match self {
            Ratio::Nothing if high < 1.0 => Verdict::Less,
            Ratio::Nothing if low > 1.0 => Verdict::More,
            Ratio::Nothing => Verdict::Open,
            Ratio::Less => below((low, high), 1.0),
            Ratio::More => below(mirrored, 1.0),
            Ratio::Is(claimed) if claimed <= 1.0 => below((low, high), claimed),
            Ratio::Is(claimed) => below(mirrored, 2.0 - claimed),
            Ratio::Same if low > 1.0 - ALIKE && high < 1.0 + ALIKE => Verdict::Holds,
            Ratio::Same if high < 1.0 - ALIKE || low > 1.0 + ALIKE => Verdict::Differs,
            Ratio::NotMore if high < 1.0 + ALIKE => Verdict::Holds,
            Ratio::NotMore if low > 1.0 + ALIKE => Verdict::Differs,
            Ratio::Same | Ratio::NotMore => Verdict::Open,
        }
    }
}

/// What an interval says to the claim that a ratio is `claimed`, which is 1 at most.
fn below((low, high): (f64, f64), claimed: f64) -> Verdict {
    match () {
        () if low > 1.0 => Verdict::Reversed,
        // A number is claimed, and hardly anything is to be seen.
        () if low > claimed && low > 1.0 - ALIKE => Verdict::Differs,
        () if high >= 1.0 => Verdict::Open,
        () if low > claimed => Verdict::Weaker,
        () => Verdict::Holds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratio: Ratio, ours: &[f64], theirs: &[f64]) -> Option<Judgement> {
        let outcome = |case: &str, seed: usize, value: &f64| Outcome {
            case: case.into(),
            engine: "lab".into(),
            seed: seed as u64,
            valid: true,
            goodput_bps: *value,
            ..Outcome::default()
        };
        let mut outcomes: Vec<Outcome> = ours.iter().enumerate().map(|(seed, value)| outcome("ours", seed, value)).collect();
        outcomes.extend(theirs.iter().enumerate().map(|(seed, value)| outcome("theirs", seed, value)));
        let claim =
            Claim { says: String::new(), number: "goodput_bps".into(), case: "ours".into(), than: "theirs".into(), over: None, ratio };
        claim.judge(&Origin { engine: "lab".into(), variation: String::new() }, &outcomes)
    }

    fn verdict(ratio: Ratio, ours: &[f64]) -> Verdict {
        judged(ratio, ours, &[10.0, 10.0, 10.0]).unwrap().verdict
    }

    #[test]
    fn a_claim_is_judged_by_its_interval() {
        assert_eq!(verdict(Ratio::Is(0.75), &[7.4, 7.5, 7.6]), Verdict::Holds);
        assert_eq!(verdict(Ratio::Is(0.75), &[5.0, 5.1, 5.2]), Verdict::Holds);
        assert_eq!(verdict(Ratio::Is(0.75), &[9.0, 9.1, 9.2]), Verdict::Weaker);
        assert_eq!(verdict(Ratio::Is(0.75), &[9.0, 10.0, 11.2]), Verdict::Open);
        assert_eq!(verdict(Ratio::Less, &[11.0, 11.1, 11.2]), Verdict::Reversed);
        assert_eq!(verdict(Ratio::More, &[11.0, 11.1, 11.2]), Verdict::Holds);
        assert_eq!(verdict(Ratio::Is(1.5), &[11.0, 11.1, 11.2]), Verdict::Weaker);
        assert_eq!(verdict(Ratio::Is(1.5), &[9.9, 10.0, 10.1]), Verdict::Differs);
        assert_eq!(verdict(Ratio::Is(1.5), &[10.1, 10.1, 10.1]), Verdict::Differs);
        assert_eq!(verdict(Ratio::Is(1.5), &[8.0, 8.1, 8.2]), Verdict::Reversed);
        assert_eq!(verdict(Ratio::More, &[9.0, 9.1, 9.2]), Verdict::Reversed);
    }

    #[test]
    fn no_difference_can_be_claimed_and_nothing() {
        assert_eq!(verdict(Ratio::Same, &[10.0, 10.1, 10.2]), Verdict::Holds);
        assert_eq!(verdict(Ratio::Same, &[11.0, 11.1, 11.2]), Verdict::Differs);
        assert_eq!(verdict(Ratio::Same, &[8.0, 8.1, 8.2]), Verdict::Differs);
        assert_eq!(verdict(Ratio::Same, &[9.0, 10.0, 11.0]), Verdict::Open);
        assert_eq!(verdict(Ratio::NotMore, &[8.0, 8.1, 8.2]), Verdict::Holds);
        assert_eq!(verdict(Ratio::NotMore, &[11.0, 11.1, 11.2]), Verdict::Differs);
        assert_eq!(verdict(Ratio::Nothing, &[11.0, 11.1, 11.2]), Verdict::More);
        assert_eq!(verdict(Ratio::Nothing, &[9.0, 9.1, 9.2]), Verdict::Less);
        assert_eq!(verdict(Ratio::Nothing, &[9.0, 10.0, 11.0]), Verdict::Open);
    }

    #[test]
    fn engines_are_judged_apart() {
        let outcome = |engine: &str, case: &str, goodput_bps: f64| Outcome {
            engine: engine.into(),
            case: case.into(),
            valid: true,
            goodput_bps,
            ..Outcome::default()
        };
        let outcomes = [
            outcome("sim", "a", 2.0),
            outcome("lab", "a", 1.0),
            outcome("sim", "b", 1.0),
            outcome("lab", "b, with more", 4.0),
            outcome("lab", "a, with more", 2.0),
        ];
        let claim =
            Claim { says: String::new(), number: "goodput_bps".into(), case: "a".into(), than: "b".into(), over: None, ratio: Ratio::Less };
        let ratio = |engine: &str, variation: &str| {
            claim.judge(&Origin { engine: engine.into(), variation: variation.into() }, &outcomes).map(|judged| judged.ratio.mean)
        };
        assert_eq!([ratio("sim", ""), ratio("lab", ""), ratio("lab", "with more")], [Some(2.0), None, Some(0.5)]);
    }

    #[test]
    fn a_gain_can_be_held_against_another_seed_by_seed() {
        let outcome = |case: &str, seed: u64, goodput_bps: f64| Outcome {
            engine: "sim".into(),
            case: case.into(),
            seed,
            valid: true,
            goodput_bps,
            ..Outcome::default()
        };
        // The gain of the one is twice the other's in either seed, whatever the seed does to all of them.
        let all = |seed: u64, speed: f64| {
            [("a", 6.0), ("b", 2.0), ("c", 3.0), ("d", 2.0)].map(|(case, value)| outcome(case, seed, value * speed))
        };
        let outcomes: Vec<Outcome> = all(1, 1.0).into_iter().chain(all(2, 10.0)).collect();
        let over = Some(Pair { case: "c".into(), than: "d".into() });
        let claim =
            Claim { says: String::new(), number: "goodput_bps".into(), case: "a".into(), than: "b".into(), over, ratio: Ratio::More };
        let origin = Origin { engine: "sim".into(), variation: String::new() };
        let judged = claim.judge(&origin, &outcomes).unwrap();
        assert_eq!((judged.ratio, judged.verdict), (Mean { mean: 2.0, half: 0.0, seeds: 2 }, Verdict::Holds));
        assert!(claim.cases().eq(["a", "b", "c", "d"]));
        // A seed that lacks one of the four says nothing.
        assert_eq!(claim.judge(&origin, &outcomes[..7]).unwrap().ratio.seeds, 1);
        assert_eq!(claim.judge(&origin, &outcomes[..3]), None);
    }

    #[test]
    fn seeds_are_compared_with_themselves_and_one_tells_nothing_for_sure() {
        let both = judged(Ratio::Less, &[5.0, 50.0], &[10.0, 100.0]).unwrap();
        assert_eq!(both.ratio, Mean { mean: 0.5, half: 0.0, seeds: 2 });
        assert_eq!(judged(Ratio::Less, &[5.0], &[10.0]).unwrap().verdict, Verdict::Open);
        assert_eq!(judged(Ratio::Less, &[5.0], &[]), None);
    }
}
