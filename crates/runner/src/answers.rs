//! What came of the runs.

use outcome::{EngineError, Outcome};

/// Separates outcomes from errors. Both keep their order; errors with the same text come once.
pub fn sort_answers(answers: Vec<Result<Outcome, EngineError>>) -> (Vec<Outcome>, Vec<EngineError>) {
    let mut outcomes = Vec::new();
    let mut errors: Vec<EngineError> = Vec::new();
    for answer in answers {
        match answer {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => {
                let text = error.to_string();
                if !errors.iter().any(|known| known.to_string() == text) {
                    errors.push(error);
                }
            }
        }
    }
    (outcomes, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_once() {
        let failed = |text: &str| Err(EngineError::Failed(text.into()));
        let (outcomes, errors) = sort_answers(vec![failed("a"), Ok(Outcome::default()), failed("b"), failed("a")]);
        assert_eq!(outcomes.len(), 1);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "b"]);
    }
}
