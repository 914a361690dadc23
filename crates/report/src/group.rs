//! Outcomes grouped by scenario, engine and case: those of a group differ only in their seed.

use crate::markup::plain;
use outcome::{FlowOutcome, Outcome};
use scenario::short_case;

/// The outcomes of one scenario, engine and case.
#[derive(Debug)]
pub(crate) struct OutcomeGroup<'a> {
    /// Its name among the groups: the case with short keys, and what else differs.
    pub(crate) label: String,
    /// An outcome for each seed.
    pub(crate) outcomes: Vec<&'a Outcome>,
}

/// A mean over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SeedNumber {
    pub(crate) mean: f64,
    /// Half the width of its 95 % interval; absent where there is one seed.
    pub(crate) half: Option<f64>,
}

/// The groups in order of first appearance.
pub(crate) fn groups(outcomes: &[Outcome]) -> Vec<OutcomeGroup<'_>> {
    let mut groups: Vec<OutcomeGroup<'_>> = Vec::new();
    for outcome in outcomes {
        match groups.iter_mut().find(|group| key(group.outcomes[0]) == key(outcome)) {
            Some(group) => group.outcomes.push(outcome),
            None => groups.push(OutcomeGroup { label: String::new(), outcomes: vec![outcome] }),
        }
    }
    for at in 0..groups.len() {
        groups[at].label = label(&groups, groups[at].outcomes[0]);
    }
    groups
}

fn key(outcome: &Outcome) -> (&str, &str, &str) {
    (&outcome.scenario, &outcome.engine, &outcome.case)
}

/// Whether `of` differs between groups: what is the same needs no column.
pub(crate) fn differs(groups: &[OutcomeGroup<'_>], of: impl Fn(&Outcome) -> &str) -> bool {
    groups.iter().any(|group| of(group.outcomes[0]) != of(groups[0].outcomes[0]))
}

fn label(groups: &[OutcomeGroup<'_>], outcome: &Outcome) -> String {
    let mut parts = Vec::new();
    if differs(groups, |outcome| &outcome.scenario) {
        parts.push(plain(&outcome.scenario));
    }
    if !outcome.case.is_empty() {
        parts.push(plain(&short_case(&outcome.case)));
    }
    if differs(groups, |outcome| &outcome.engine) {
        parts.push(plain(&outcome.engine));
    }
    if parts.is_empty() { plain(&outcome.engine) } else { parts.join(" · ") }
}

impl OutcomeGroup<'_> {
    /// The mean of a number over the seeds; absent if a seed lacks it, since a mean over the others
    /// would be biased.
    pub(crate) fn mean(&self, of: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.outcomes.iter().map(|outcome| of(outcome)).collect();
        values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The mean with its interval, which `ci95` has under `name`.
    pub(crate) fn number(&self, name: &str, of: impl Fn(&Outcome) -> Option<f64>) -> Option<SeedNumber> {
        let half = self.outcomes.iter().find_map(|outcome| outcome.ci95.get(name).copied());
        self.mean(of).map(|mean| SeedNumber { mean, half })
    }

    /// The largest over the seeds.
    pub(crate) fn max(&self, of: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        self.outcomes.iter().filter_map(|outcome| of(outcome)).reduce(f64::max)
    }

    /// The time to the last byte; absent if a flow had not ended or there were no flows.
    pub(crate) fn completion(&self) -> Option<SeedNumber> {
        self.number("completion_s", Outcome::completion_s)
    }

    /// The number of flows that should have ended and had not, and of all flows, over all seeds.
    pub(crate) fn unended(&self) -> (usize, usize) {
        let flows = || self.outcomes.iter().flat_map(|outcome| &outcome.flows);
        let endless = |flow: &FlowOutcome| flow.asked_bytes.is_none() && flow.error.is_none();
        (flows().filter(|flow| flow.end_s.is_none() && !endless(flow)).count(), flows().count())
    }

    /// The number of seeds whose outcome is valid.
    pub(crate) fn valid(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.valid).count()
    }
}
