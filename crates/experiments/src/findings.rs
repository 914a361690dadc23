//! What outcomes say to an experiment: its numbers as means over the seeds, beside the bound, and beside what was printed.
//!
//! An outcome that is not valid counts nowhere: its figures are the machine's.

use crate::{Bound, Experiment, Printed};
use scenario::{Engine, Outcome, Variant, half_width};

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

/// What was found of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its name.
    pub case: String,
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
    /// A row a case, in the order in which they first come.
    pub fn rows(&self, variants: &[Variant], outcomes: &[Outcome]) -> Vec<Row> {
        let mut cases: Vec<&str> = Vec::new();
        for outcome in outcomes {
            if !cases.contains(&outcome.case.as_str()) {
                cases.push(&outcome.case);
            }
        }
        cases.into_iter().map(|case| self.row(case, variants, outcomes)).collect()
    }

    fn row(&self, case: &str, variants: &[Variant], outcomes: &[Outcome]) -> Row {
        let all = || outcomes.iter().filter(|outcome| outcome.case == case);
        let valid: Vec<&Outcome> = all().filter(|outcome| outcome.valid).collect();
        let number = |number: &String| Mean::of_all(valid.iter().map(|outcome| outcome.number(number)));
        // The bound of each seed: access delays are drawn by it.
        let scenario = variants.iter().find(|variant| variant.case == case).map(|variant| &variant.scenario);
        let bound = |outcome: &&Outcome| Bound.run(scenario?, outcome.seed, &()).ok();
        let bounds: Vec<Option<Outcome>> = if self.bound { valid.iter().map(bound).collect() } else { Vec::new() };
        let bounded = |number: &str| {
            let least = || bounds.iter().map(|bound| bound.as_ref()?.number(number));
            let ratios = valid.iter().zip(least()).map(|(outcome, least)| Some(outcome.number(number)? / least?));
            Some((Mean::of_all(least())?, Mean::of_all(ratios)?))
        };
        Row {
            case: case.into(),
            numbers: self.numbers.iter().map(number).collect(),
            bounds: if self.bound { BOUNDED.map(bounded).to_vec() } else { Vec::new() },
            valid: valid.len(),
            seeds: all().count(),
        }
    }
}

impl Printed {
    /// The same number here.
    pub fn here(&self, outcomes: &[Outcome]) -> Option<Mean> {
        let of = outcomes.iter().filter(|outcome| outcome.case == self.case && outcome.valid);
        Mean::of_all(of.map(|outcome| outcome.number(&self.number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Paper};

    #[test]
    fn invalid_outcomes_count_nowhere_and_the_bound_is_each_seeds_own() {
        let (paper, Entry::Experiment(experiment)) = Paper::find("li/case").unwrap() else { panic!("it is an experiment") };
        let variants = paper.variants(&experiment).unwrap();
        let variant = &variants[0];
        // The bound's own outcomes, as if they had been measured: one of them by a machine that did not keep up.
        let mut outcomes: Vec<Outcome> = (1..=3)
            .map(|seed| Outcome { case: variant.case.clone(), valid: true, ..Bound.run(&variant.scenario, seed, &()).unwrap() })
            .collect();
        for flow in &mut outcomes[2].flows {
            flow.end_s = flow.end_s.map(|end| end * 10.0);
        }
        outcomes[2].valid = false;
        let rows = experiment.rows(&variants, &outcomes);
        assert_eq!((rows.len(), rows[0].valid, rows[0].seeds), (1, 2, 3));
        assert_eq!((rows[0].numbers.len(), rows[0].bounds.len()), (experiment.numbers.len(), 2));
        for (_, ratio) in rows[0].bounds.iter().flatten() {
            assert_eq!((ratio.mean, ratio.seeds), (1.0, 2));
        }
        assert!(rows[0].bounds.iter().all(Option::is_some));
    }

    #[test]
    fn a_number_that_a_seed_lacks_has_no_mean() {
        assert_eq!(Mean::of_all([Some(1.0), None].into_iter()), None);
        assert_eq!(Mean::of(&[]), None);
        assert_eq!(Mean::of(&[2.0]).map(|mean| (mean.mean, mean.half)), Some((2.0, f64::INFINITY)));
    }
}
