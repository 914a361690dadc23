//! What a reader must know before using the numbers: warnings, outcomes that are not valid, flows that
//! failed. Each is reported once.

use crate::group::OutcomeGroup;
use crate::markup::plain;
use std::fmt;

/// A remark and the groups that it is about.
#[derive(Debug, PartialEq)]
pub(crate) struct Remark {
    /// Whether it makes outcomes invalid.
    pub(crate) grave: bool,
    /// The labels of the groups.
    pub(crate) about: Vec<String>,
    /// Its text.
    pub(crate) text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The label of a swept case contains commas.
        let separator = if self.about.iter().any(|label| label.contains(", ")) { "; " } else { ", " };
        write!(f, "{} {}: {}", if self.grave { '✗' } else { '!' }, self.about.join(separator), self.text)
    }
}

/// All remarks, grave ones first.
pub(crate) fn remarks(groups: &[OutcomeGroup<'_>]) -> Vec<Remark> {
    let mut remarks: Vec<Remark> = Vec::new();
    let mut add = |grave: bool, group: &OutcomeGroup<'_>, text: String| match remarks.iter_mut().find(|remark| remark.text == text) {
        Some(remark) => {
            remark.grave |= grave;
            if !remark.about.contains(&group.label) {
                remark.about.push(group.label.clone());
            }
        }
        None => remarks.push(Remark { grave, about: vec![group.label.clone()], text }),
    };
    for group in groups {
        for outcome in &group.outcomes {
            for warning in &outcome.warnings {
                add(!outcome.valid, group, plain(warning));
            }
            if !outcome.valid && outcome.warnings.is_empty() {
                add(true, group, "not valid, and the engine did not say why".into());
            }
        }
        for (error, flows) in errors(group) {
            let failed = if flows == 1 { "a flow".into() } else { format!("{flows} flows") };
            add(false, group, format!("{failed} failed: {error}"));
        }
    }
    remarks.sort_by_key(|remark| !remark.grave);
    remarks
}

/// The errors of flows, with the number of flows that had each.
fn errors(group: &OutcomeGroup<'_>) -> Vec<(String, usize)> {
    let mut errors: Vec<(String, usize)> = Vec::new();
    for error in group.outcomes.iter().flat_map(|outcome| &outcome.flows).filter_map(|flow| flow.error.as_deref()).map(plain) {
        match errors.iter_mut().find(|(known, _)| *known == error) {
            Some((_, flows)) => *flows += 1,
            None => errors.push((error, 1)),
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_with_commas_are_told_apart() {
        let remark = |about: [&str; 2]| Remark { grave: false, about: about.map(str::to_owned).into(), text: "late".into() }.to_string();
        assert_eq!(remark(["cubic", "bbr"]), "! cubic, bbr: late");
        assert_eq!(remark(["buffer=5pkt, loss=0", "buffer=9pkt, loss=0"]), "! buffer=5pkt, loss=0; buffer=9pkt, loss=0: late");
    }
}
