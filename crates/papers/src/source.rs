//! Where results come from.

use crate::variation::Variation;
use outcome::Outcome;

/// The source of results: an engine, under the settings of a variation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultSource {
    /// The engine's name.
    pub engine: String,
    /// The variation's name; empty: the experiment as it stands.
    pub variation: String,
}

impl ResultSource {
    /// The engine and the variation, as one name.
    pub fn label(&self) -> String {
        if self.variation.is_empty() { self.engine.clone() } else { format!("{}, {}", self.engine, self.variation) }
    }

    /// Whether an outcome comes from this source and is of `case`, named without the variation.
    pub(crate) fn has(&self, outcome: &Outcome, case: &str) -> bool {
        let of_case = || match self.variation.as_str() {
            "" => outcome.case == case,
            name => Variation::without(name, &outcome.case) == Some(case),
        };
        outcome.engine == self.engine && of_case()
    }

    /// The valid outcomes of a case from this source.
    pub(crate) fn valid<'a>(&self, case: &str, outcomes: &'a [Outcome]) -> impl Iterator<Item = &'a Outcome> {
        outcomes.iter().filter(move |outcome| self.has(outcome, case) && outcome.valid)
    }
}
