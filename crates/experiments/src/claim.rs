//! What a paper claims, and whether it holds: the ratio of a number in one case to that in another, seed by seed.

use crate::Mean;
use scenario::Outcome;
use serde::Deserialize;
use std::fmt;

/// That a number is less in one case than in another, or more.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What the paper says, and where.
    pub says: String,
    /// Which number of an outcome.
    pub number: String,
    /// In which case …
    pub case: String,
    /// … against which other.
    pub than: String,
    /// The ratio of the one to the other that is claimed: below 1 is less, above 1 is more. Where only the direction is claimed it is
    /// `less` or `more`.
    pub ratio: Ratio,
}

/// What is claimed of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ratio {
    /// Below 1.
    Less,
    /// Above 1.
    More,
    /// That it is this.
    #[serde(untagged)]
    Is(f64),
}

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
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Holds => "holds",
            Verdict::Weaker => "holds, but weaker",
            Verdict::Open => "cannot tell",
            Verdict::Reversed => "the other way round",
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
    /// Judges by outcomes; nothing where no seed has the number in both cases. Outcomes that are not valid are left out.
    pub fn judge(&self, outcomes: &[Outcome]) -> Option<Judgement> {
        let of = |case: &str, seed: u64| {
            let found = outcomes.iter().find(|outcome| outcome.case == case && outcome.seed == seed && outcome.valid)?;
            found.number(&self.number).filter(|value| *value > 0.0)
        };
        let seeds = outcomes.iter().filter(|outcome| outcome.case == self.case).map(|outcome| outcome.seed);
        let ratios: Vec<f64> = seeds.filter_map(|seed| Some(of(&self.case, seed)? / of(&self.than, seed)?)).collect();
        let ratio = Mean::of(&ratios)?;
        Some(Judgement { ratio, verdict: self.ratio.verdict(ratio.mean, ratio.half) })
    }
}

impl Ratio {
    fn verdict(self, ratio: f64, half: f64) -> Verdict {
        // As if less were claimed: of more, all is mirrored.
        let (low, high, claimed) = match self {
            Ratio::Less => (ratio - half, ratio + half, 1.0),
            Ratio::Is(claimed) if claimed <= 1.0 => (ratio - half, ratio + half, claimed),
            Ratio::More => (2.0 - ratio - half, 2.0 - ratio + half, 1.0),
            Ratio::Is(claimed) => (2.0 - ratio - half, 2.0 - ratio + half, 2.0 - claimed),
        };
        match () {
            () if low >= 1.0 => Verdict::Reversed,
            () if high >= 1.0 => Verdict::Open,
            () if low > claimed => Verdict::Weaker,
            () => Verdict::Holds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratio: Ratio, ours: &[f64], theirs: &[f64]) -> Option<Judgement> {
        let outcome = |case: &str, seed: usize, value: &f64| Outcome {
            case: case.into(),
            seed: seed as u64,
            valid: true,
            goodput_bps: *value,
            ..Outcome::default()
        };
        let mut outcomes: Vec<Outcome> = ours.iter().enumerate().map(|(seed, value)| outcome("ours", seed, value)).collect();
        outcomes.extend(theirs.iter().enumerate().map(|(seed, value)| outcome("theirs", seed, value)));
        let claim = Claim { says: String::new(), number: "goodput_bps".into(), case: "ours".into(), than: "theirs".into(), ratio };
        claim.judge(&outcomes)
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
        assert_eq!(verdict(Ratio::More, &[9.0, 9.1, 9.2]), Verdict::Reversed);
    }

    #[test]
    fn seeds_are_compared_with_themselves_and_one_tells_nothing_for_sure() {
        let both = judged(Ratio::Less, &[5.0, 50.0], &[10.0, 100.0]).unwrap();
        assert_eq!(both.ratio, Mean { mean: 0.5, half: 0.0, seeds: 2 });
        assert_eq!(judged(Ratio::Less, &[5.0], &[10.0]).unwrap().verdict, Verdict::Open);
        assert_eq!(judged(Ratio::Less, &[5.0], &[]), None);
    }
}
