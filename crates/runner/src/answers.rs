//! What came of the runs.

use outcome::{EngineError, Outcome};
use std::fmt;

/// Why a run has no outcome.
#[derive(Debug)]
pub struct RunError {
    /// The name of the run's case; empty if the scenario has no cases.
    pub case: String,
    /// The engine's error.
    pub error: EngineError,
}

/// Runs that ended with the same error. Its text names their cases.
#[derive(Debug)]
pub struct FailedRuns {
    /// The error.
    pub error: EngineError,
    /// The names of the cases, each once. Empty if the scenario has no cases, or if the error is not
    /// about a case: a failure that all runs have in common.
    pub cases: Vec<String>,
}

impl From<RunError> for FailedRuns {
    fn from(RunError { case, error }: RunError) -> Self {
        FailedRuns { error, cases: if case.is_empty() { Vec::new() } else { vec![case] } }
    }
}

impl fmt::Display for FailedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases = self.cases.iter().map(|case| format!("{case:?}")).collect::<Vec<_>>().join(", ");
        match self.cases.len() {
            0 => write!(f, "{}", self.error),
            1 => write!(f, "case {cases}: {}", self.error),
            _ => write!(f, "cases {cases}: {}", self.error),
        }
    }
}

/// Separates outcomes from errors. Both keep their order; errors with the same text come once, with
/// all their cases.
pub fn sort_answers(answers: Vec<Result<Outcome, RunError>>) -> (Vec<Outcome>, Vec<FailedRuns>) {
    let runs = answers.len();
    let mut outcomes = Vec::new();
    let mut errors: Vec<FailedRuns> = Vec::new();
    let mut failed = 0;
    for answer in answers {
        match answer {
            Ok(outcome) => outcomes.push(outcome),
            Err(this) => {
                failed += 1;
                let text = this.error.to_string();
                match errors.iter_mut().find(|known| known.error.to_string() == text) {
                    Some(known) if this.case.is_empty() || known.cases.contains(&this.case) => {}
                    Some(known) => known.cases.push(this.case),
                    None => errors.push(this.into()),
                }
            }
        }
    }
    if let [FailedRuns { error: EngineError::Failed(_) | EngineError::Cancelled, cases }] = &mut errors[..]
        && failed == runs
    {
        cases.clear();
    }
    (outcomes, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(answers: Vec<Result<Outcome, RunError>>) -> Vec<String> {
        sort_answers(answers).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_error_comes_once() {
        let failed = |text: &str| Err(RunError { case: String::new(), error: EngineError::Failed(text.into()) });
        let (outcomes, errors) = sort_answers(vec![failed("a"), Ok(Outcome::default()), failed("b"), failed("a")]);
        assert_eq!(outcomes.len(), 1);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn an_error_names_its_cases() {
        let unanswered = |case: &str, key: &str| {
            let error = EngineError::CannotAnswer { engine: "sim", key: key.into(), why: "it has none".into() };
            Err(RunError { case: case.into(), error })
        };
        assert_eq!(texts(vec![unanswered("", "tcp")]), ["sim cannot answer tcp: it has none"]);
        assert_eq!(texts(vec![Ok(Outcome::default()), unanswered("a", "tcp")]), ["case \"a\": sim cannot answer tcp: it has none"]);
        let several = vec![unanswered("a", "tcp"), unanswered("b", "tcp"), unanswered("a", "tcp"), unanswered("c", "link[1]")];
        assert_eq!(
            texts(several),
            ["cases \"a\", \"b\": sim cannot answer tcp: it has none", "case \"c\": sim cannot answer link[1]: it has none"]
        );
    }

    #[test]
    fn a_failure_of_all_runs_names_no_case() {
        let failed = |case: &str| Err(RunError { case: case.into(), error: EngineError::Failed("no namespaces".into()) });
        assert_eq!(texts(vec![failed("a"), failed("b")]), ["no namespaces"]);
        assert_eq!(texts(vec![failed("a"), Ok(Outcome::default())]), ["case \"a\": no namespaces"]);
    }
}
