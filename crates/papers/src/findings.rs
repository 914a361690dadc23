//! What outcomes say to an experiment: its numbers as means over the seeds, beside the bound, and beside what was printed.
//!
//! An outcome that is not valid counts nowhere: its figures are the machine's.

use crate::{Experiment, Part, Printed, Variation};
use bound::Bound;
use outcome::{Engine, Outcome, half_width};

/// A mean over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % interval; infinite with one seed.
    pub half: f64,
    /// How many seeds it is of.
    pub seeds: usize,
}

impl Mean {
    /// The mean of `values`; nothing of none.
    pub fn of(values: &[f64]) -> Option<Mean> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (!values.is_empty()).then(|| Mean { mean, half: half_width(values), seeds: values.len() })
    }

    /// The same, where every seed has the number: a mean over the others would flatter.
    fn of_all(values: impl Iterator<Item = Option<f64>>) -> Option<Mean> {
        Mean::of(&values.collect::<Option<Vec<f64>>>()?)
    }
}

/// Whose numbers: an engine's, under a variation's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The engine.
    pub engine: String,
    /// The variation; empty: the experiment as it stands.
    pub variation: String,
}

impl Origin {
    /// Whether an outcome is of this origin and `case`, which is named without the variation.
    fn has(&self, outcome: &Outcome, case: &str) -> bool {
        let of_case = || match self.variation.as_str() {
            "" => outcome.case == case,
            name => Variation::without(name, &outcome.case) == Some(case),
        };
        outcome.engine == self.engine && of_case()
    }

    /// The outcomes of a case that count.
    pub(crate) fn valid<'a>(&self, case: &str, outcomes: &'a [Outcome]) -> impl Iterator<Item = &'a Outcome> {
        outcomes.iter().filter(move |outcome| self.has(outcome, case) && outcome.valid)
    }
}

/// What was found of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its name, without the variation.
    pub case: String,
    /// By whom, and under which settings.
    pub origin: Origin,
    /// The experiment's numbers, in its order.
    pub numbers: Vec<Option<Mean>>,
    /// For each of [`BOUNDED`], what fair sharing allows at best, and the ratio to it; empty where the experiment asks for no bound.
    pub bounds: Vec<Option<(Mean, Mean)>>,
    /// How many seeds counted …
    pub valid: usize,
    /// … of how many.
    pub seeds: usize,
}

/// The numbers that have a bound.
pub const BOUNDED: [&str; 2] = ["mean_flow_s", "completion_s"];

impl Experiment {
    /// Whose numbers there are: the experiment as it stands before its variations, and its engines in its order before others.
    pub fn origins(&self, outcomes: &[Outcome]) -> Vec<Origin> {
        let mut engines: Vec<&str> = self.on.iter().map(|player| player.name()).collect();
        for outcome in outcomes {
            if !engines.contains(&outcome.engine.as_str()) {
                engines.push(&outcome.engine);
            }
        }
        let variations = std::iter::once("").chain(self.variations.iter().map(|variation| variation.name.as_str()));
        let all = variations
            .flat_map(|variation| engines.iter().map(move |engine| Origin { engine: (*engine).into(), variation: variation.into() }));
        let cases = self.cases(outcomes);
        all.filter(|origin| cases.iter().any(|case| outcomes.iter().any(|outcome| origin.has(outcome, case)))).collect()
    }

    /// The cases of these outcomes, without their variations, in the order in which they first come.
    fn cases<'a>(&self, outcomes: &'a [Outcome]) -> Vec<&'a str> {
        let mut cases: Vec<&str> = Vec::new();
        for outcome in outcomes {
            let varied = self.variations.iter().find_map(|variation| Variation::without(&variation.name, &outcome.case));
            let case = varied.unwrap_or(&outcome.case);
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    /// A row a case and origin: a case as it stands and varied, as its engines see it, one below the other.
    pub fn rows(&self, parts: &[Part], outcomes: &[Outcome]) -> Vec<Row> {
        let origins = self.origins(outcomes);
        let rows = self.cases(outcomes).into_iter().flat_map(|case| origins.iter().map(move |origin| (case, origin)));
        rows.filter_map(|(case, origin)| self.row(case, origin, parts, outcomes)).collect()
    }

    fn row(&self, case: &str, origin: &Origin, parts: &[Part], outcomes: &[Outcome]) -> Option<Row> {
        let seeds = outcomes.iter().filter(|outcome| origin.has(outcome, case)).count();
        if seeds == 0 {
            return None;
        }
        let valid: Vec<&Outcome> = origin.valid(case, outcomes).collect();
        let number = |number: &String| Mean::of_all(valid.iter().map(|outcome| outcome.number(number)));
        let part = parts.iter().find(|part| part.player.name() == origin.engine);
        // The bound of each seed: access delays are drawn by it.
        let bound = |outcome: &&Outcome| {
            let variant = part?.variants.iter().find(|variant| variant.case == outcome.case)?;
            Bound.run(&variant.scenario, outcome.seed, &()).ok()
        };
        let bounds: Vec<Option<Outcome>> = if self.bound { valid.iter().map(bound).collect() } else { Vec::new() };
        let bounded = |number: &str| {
            let least = || bounds.iter().map(|bound| bound.as_ref()?.number(number));
            let ratios = valid.iter().zip(least()).map(|(outcome, least)| Some(outcome.number(number)? / least?));
            Some((Mean::of_all(least())?, Mean::of_all(ratios)?))
        };
        Some(Row {
            case: case.into(),
            origin: origin.clone(),
            numbers: self.numbers.iter().map(number).collect(),
            bounds: if self.bound { BOUNDED.map(bounded).to_vec() } else { Vec::new() },
            valid: valid.len(),
            seeds,
        })
    }
}

impl Printed {
    /// The same number here.
    pub fn here(&self, origin: &Origin, outcomes: &[Outcome]) -> Option<Mean> {
        Mean::of_all(origin.valid(&self.case, outcomes).map(|outcome| outcome.number(&self.number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Paper};

    #[test]
    fn invalid_outcomes_count_nowhere_and_the_bound_is_each_seeds_own() {
        let (paper, Entry::Experiment(experiment)) = Paper::find("li/case").unwrap() else { panic!("it is an experiment") };
        let parts = paper.parts(&experiment, &experiment.on).unwrap();
        let variant = &parts[0].variants[0];
        // The bound's own outcomes, as if they had been measured: one of them by a machine that did not keep up.
        let mut outcomes: Vec<Outcome> = (1..=3)
            .map(|seed| Outcome {
                case: variant.case.clone(),
                engine: "lab".into(),
                valid: true,
                ..Bound.run(&variant.scenario, seed, &()).unwrap()
            })
            .collect();
        for flow in &mut outcomes[2].flows {
            flow.end_s = flow.end_s.map(|end| end * 10.0);
        }
        outcomes[2].valid = false;
        let rows = experiment.rows(&parts, &outcomes);
        assert_eq!((rows.len(), rows[0].valid, rows[0].seeds), (1, 2, 3));
        assert_eq!((rows[0].numbers.len(), rows[0].bounds.len()), (experiment.numbers.len(), 2));
        for (_, ratio) in rows[0].bounds.iter().flatten() {
            assert_eq!((ratio.mean, ratio.seeds), (1.0, 2));
        }
        assert!(rows[0].bounds.iter().all(Option::is_some));
    }

    #[test]
    fn engines_and_variations_have_rows_of_their_own() {
        let (paper, Entry::Experiment(experiment)) = Paper::find("baccelli/table-19.1").unwrap() else { panic!("it is an experiment") };
        let outcome = |engine: &str, case: &str, goodput_bps: f64| Outcome {
            engine: engine.into(),
            case: case.into(),
            valid: true,
            goodput_bps,
            ..Outcome::default()
        };
        let outcomes = [
            outcome("sim", "split.1.buffer=1pkt", 1.0),
            outcome("sim", "split.1.buffer=1pkt, window", 2.0),
            outcome("theory", "split.1.buffer=1pkt", 3.0),
            outcome("elsewhere", "split.1.buffer=5pkt", 4.0),
        ];
        let parts = paper.parts(&experiment, &experiment.players()).unwrap();
        let rows = experiment.rows(&parts, &outcomes);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (row.case.as_str(), row.origin.engine.as_str(), row.origin.variation.as_str(), row.numbers[0].unwrap().mean))
            .collect();
        let [one, five] = ["split.1.buffer=1pkt", "split.1.buffer=5pkt"];
        assert_eq!(seen, [(one, "theory", "", 3.0), (one, "sim", "", 1.0), (one, "sim", "window", 2.0), (five, "elsewhere", "", 4.0)]);
        let here = |origin: &Origin| experiment.printed[0].here(origin, &outcomes).map(|mean| mean.mean);
        assert_eq!(experiment.origins(&outcomes).iter().map(here).collect::<Vec<_>>(), [Some(3.0), Some(1.0), None, Some(2.0)]);
    }

    #[test]
    fn a_number_that_a_seed_lacks_has_no_mean() {
        assert_eq!(Mean::of_all([Some(1.0), None].into_iter()), None);
        assert_eq!(Mean::of(&[]), None);
        assert_eq!(Mean::of(&[2.0]).map(|mean| (mean.mean, mean.half)), Some((2.0, f64::INFINITY)));
    }
}
