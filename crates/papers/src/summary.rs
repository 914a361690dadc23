//! One verdict for each claim, over all engines and over all settings of what the paper leaves
//! open.

use crate::{
    claim::{ClaimVerdict, ClaimedRatio, PaperClaim},
    equations::{ComputedRow, ComputedTable},
    experiment::Experiment,
    rows::JudgedClaim,
    source::ResultSource,
};
use outcome::Outcome;
use scenario::short_case;
use serde::Serialize;
use std::{collections::BTreeSet, fmt};

/// The verdict on a claim over all of its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SummaryVerdict {
    /// It holds in every setting that decides it.
    Holds,
    /// Its direction holds in every setting that decides it; the effect is smaller in some.
    Weaker,
    /// It does not hold in any setting that decides it.
    DoesNotHold,
    /// It depends on the engine, or on a choice that the paper leaves open.
    Sensitive,
    /// It is about several rows of a computed table, and holds in some of them.
    InPart,
    /// No setting decides it.
    CannotTell,
}

impl SummaryVerdict {
    /// All of them, in the order of a summary.
    pub const ALL: [SummaryVerdict; 6] = [
        SummaryVerdict::Holds,
        SummaryVerdict::Weaker,
        SummaryVerdict::InPart,
        SummaryVerdict::DoesNotHold,
        SummaryVerdict::Sensitive,
        SummaryVerdict::CannotTell,
    ];
}

impl fmt::Display for SummaryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SummaryVerdict::Holds => "holds",
            SummaryVerdict::Weaker => "holds, but weaker",
            SummaryVerdict::DoesNotHold => "does not hold",
            SummaryVerdict::Sensitive => "depends on the setting",
            SummaryVerdict::InPart => "holds in part",
            SummaryVerdict::CannotTell => "cannot tell",
        })
    }
}

/// A claim with its verdict over all settings. A setting is an engine, with or without a variation;
/// for a computed table it is a row.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimSummary {
    /// What the paper says.
    pub says: String,
    /// The two cases that it compares; empty where that is not all, or for computed rows.
    pub about: String,
    /// The verdict.
    pub verdict: SummaryVerdict,
    /// What `settings` counts: "settings", or "rows" of a computed table.
    pub counted: &'static str,
    /// The number of settings.
    pub settings: usize,
    /// The number of settings in which the claim holds, with a smaller effect or not.
    pub holds: usize,
    /// The number of settings that decide the claim.
    pub decided: usize,
    /// The settings that contradict the first setting that decides the claim; of a computed table,
    /// the rows in which the claim does not hold.
    pub flips: Vec<String>,
}

/// The number of rows that the summary of a claim names.
const ROWS_NAMED: usize = 4;

/// What a setting says about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    For,
    Weakly,
    Against,
}

impl ClaimSummary {
    fn of(says: String, settings: &[(String, Option<Side>)]) -> Self {
        let decided: Vec<(&str, Side)> = settings.iter().filter_map(|(name, side)| Some((name.as_str(), (*side)?))).collect();
        let holds = decided.iter().filter(|(_, side)| *side != Side::Against).count();
        let against = |side: Side| side == Side::Against;
        let flips = match decided.first() {
            Some((_, first)) => {
                decided.iter().filter(|(_, side)| against(*side) != against(*first)).map(|(name, _)| (*name).to_owned()).collect()
            }
            None => Vec::new(),
        };
        let verdict = match (holds, decided.len()) {
            (_, 0) => SummaryVerdict::CannotTell,
            (0, _) => SummaryVerdict::DoesNotHold,
            (holds, decided) if holds < decided => SummaryVerdict::Sensitive,
            _ if decided.iter().any(|(_, side)| *side == Side::Weakly) => SummaryVerdict::Weaker,
            _ => SummaryVerdict::Holds,
        };
        ClaimSummary {
            says,
            about: String::new(),
            verdict,
            counted: "settings",
            settings: settings.len(),
            holds,
            decided: decided.len(),
            flips,
        }
    }

    /// The verdict on what the paper says of `rows`, or on their printed numbers.
    fn of_rows(says: Option<&str>, rows: &[&ComputedRow]) -> Self {
        let side = |row: &ComputedRow| Some(if row.holds? { Side::For } else { Side::Against });
        let sides: Vec<_> = rows.iter().map(|row| (row.name(), side(row))).collect();
        let says = match rows {
            // A statement that names what it is about needs no row.
            [row] if says.is_none_or(|says| !says.starts_with(&row.of[0])) => {
                format!("{}: {}", row.name(), row.printed.as_deref().unwrap_or_default())
            }
            _ => says.unwrap_or("the printed numbers").to_owned(),
        };
        let summary = ClaimSummary::of(says, &sides);
        let flips = sides.into_iter().filter(|(_, side)| *side == Some(Side::Against)).map(|(name, _)| name).collect();
        let verdict = if summary.verdict == SummaryVerdict::Sensitive { SummaryVerdict::InPart } else { summary.verdict };
        ClaimSummary { flips, verdict, counted: "rows", ..summary }
    }

    /// "holds in 3 of 4 settings; flips with …": empty for a single setting.
    pub fn sensitivity(&self) -> String {
        let ClaimSummary { counted, settings, holds, decided, .. } = self;
        match settings {
            0 | 1 => String::new(),
            _ if decided < settings => {
                format!("holds in {holds} of {decided} {counted} that decide it, of {settings}{}", self.exceptions())
            }
            _ => format!("holds in {holds} of {settings} {counted}{}", self.exceptions()),
        }
    }

    /// The settings of [`Self::flips`], or the first rows.
    fn exceptions(&self) -> String {
        if self.flips.is_empty() || self.holds == 0 {
            return String::new();
        }
        let (word, named) = if self.counted == "rows" { ("not in", ROWS_NAMED) } else { ("flips with", usize::MAX) };
        let names: Vec<&str> = self.flips.iter().take(named).map(String::as_str).collect();
        let more = if self.flips.len() > named { format!("; and {} more", self.flips.len() - named) } else { String::new() };
        format!("; {word} {}{more}", names.join("; "))
    }
}

impl Experiment {
    /// The verdict on each claim over all engines and variations that there are outcomes of. What
    /// claims nothing is left out.
    pub fn summarize(&self, outcomes: &[Outcome]) -> Vec<ClaimSummary> {
        let judged = self.judge(outcomes);
        let claims = self.claims.iter().filter(|claim| claim.ratio != ClaimedRatio::Nothing);
        claims.map(|claim| self.summary_of(claim, &judged)).collect()
    }

    fn summary_of(&self, claim: &PaperClaim, judged: &[JudgedClaim<'_>]) -> ClaimSummary {
        let of_claim = || judged.iter().filter(|one| std::ptr::eq(one.claim, claim) && one.judgement.is_some());
        let engines: BTreeSet<&str> = of_claim().map(|one| one.source.engine.as_str()).collect();
        // An engine is named where there are several.
        let name = |source: &ResultSource| match engines.len() {
            1 if !source.variation.is_empty() => source.variation.clone(),
            _ => source.label(),
        };
        let settings: Vec<(String, Option<Side>)> = of_claim()
            .filter_map(|one| {
                // A source that lacks a case of the claim is no setting of it.
                let judgement = one.judgement?;
                Some((name(&one.source), side(judgement.verdict)))
            })
            .collect();
        let about = match claim.over {
            None => format!("{} ÷ {}", short_case(&claim.case), short_case(&claim.than)),
            Some(_) => String::new(),
        };
        ClaimSummary { about, ..ClaimSummary::of(claim.says.clone(), &settings) }
    }
}

impl ComputedTable {
    /// The verdict on each statement about its rows, and on all printed numbers together. Rows of
    /// which the paper says the same are one claim.
    pub fn summarize(&self) -> Vec<ClaimSummary> {
        let mut claims: Vec<(Option<&str>, Vec<&ComputedRow>)> = Vec::new();
        for row in self.rows.iter().filter(|row| row.holds.is_some()) {
            let says = row.printed.as_deref().filter(|says| says.parse::<f64>().is_err());
            match claims.iter_mut().find(|(other, _)| *other == says) {
                Some((_, rows)) => rows.push(row),
                None => claims.push((says, vec![row])),
            }
        }
        claims.into_iter().map(|(says, rows)| ClaimSummary::of_rows(says, &rows)).collect()
    }
}

fn side(verdict: ClaimVerdict) -> Option<Side> {
    match verdict {
        ClaimVerdict::Holds => Some(Side::For),
        ClaimVerdict::Weaker => Some(Side::Weakly),
        ClaimVerdict::Reversed | ClaimVerdict::Differs => Some(Side::Against),
        ClaimVerdict::Open | ClaimVerdict::Less | ClaimVerdict::More => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(sides: &[Option<Side>]) -> ClaimSummary {
        let settings: Vec<_> = sides.iter().enumerate().map(|(at, side)| (format!("s{at}"), *side)).collect();
        ClaimSummary::of("it".into(), &settings)
    }

    #[test]
    fn a_claim_that_one_setting_reverses_is_sensitive_and_names_it() {
        let summary = summary(&[Some(Side::For), None, Some(Side::Weakly), Some(Side::Against)]);
        assert_eq!((summary.verdict, summary.holds, summary.decided, summary.settings), (SummaryVerdict::Sensitive, 2, 3, 4));
        assert_eq!(summary.flips, ["s3"]);
        assert_eq!(summary.sensitivity(), "holds in 2 of 3 settings that decide it, of 4; flips with s3");
    }

    #[test]
    fn rows_of_which_the_paper_says_the_same_are_one_claim() {
        let row = |of: &str, printed: &str, holds| ComputedRow {
            of: vec![of.into(), String::new()],
            printed: Some(printed.into()),
            here: theory::Mean { mean: 1.0, half: 0.0 },
            decimals: 2,
            holds,
            note: String::new(),
        };
        let rows = vec![
            row("a", "0.57", Some(true)),
            row("b", "0.57", Some(false)),
            row("c", "0.70", Some(true)),
            row("d", "below 1", Some(true)),
            row("e", "below 1", Some(true)),
            row("f", "above 3", Some(false)),
            row("g", "g is above 3", Some(true)),
            row("not judged", "4", None),
        ];
        let found: Vec<(String, SummaryVerdict, String)> = ComputedTable { head: vec!["of".into(), "more".into()], rows, notes: vec![] }
            .summarize()
            .into_iter()
            .map(|claim| (claim.says.clone(), claim.verdict, claim.sensitivity()))
            .collect();
        let is = |says: &str, verdict, sensitivity: &str| (says.to_owned(), verdict, sensitivity.to_owned());
        assert_eq!(
            found,
            [
                is("the printed numbers", SummaryVerdict::InPart, "holds in 2 of 3 rows; not in b"),
                is("below 1", SummaryVerdict::Holds, "holds in 2 of 2 rows"),
                is("f: above 3", SummaryVerdict::DoesNotHold, ""),
                is("g is above 3", SummaryVerdict::Holds, ""),
            ]
        );
    }

    #[test]
    fn settings_that_agree_give_one_verdict() {
        assert_eq!(summary(&[Some(Side::For), Some(Side::For), None]).verdict, SummaryVerdict::Holds);
        assert_eq!(summary(&[Some(Side::For), Some(Side::Weakly)]).verdict, SummaryVerdict::Weaker);
        assert_eq!(summary(&[Some(Side::Against), None]).verdict, SummaryVerdict::DoesNotHold);
        assert_eq!(summary(&[None, None]).verdict, SummaryVerdict::CannotTell);
        assert_eq!(summary(&[Some(Side::For)]).sensitivity(), "");
    }
}
