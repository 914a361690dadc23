//! Comparison of outcomes, seed by seed.

use crate::advice::{AdviceError, Assessment, Candidate, Objective};
use outcome::{Outcome, half_width};

/// The case of the path as it is.
pub(crate) const AS_IS: &str = "as it is";
/// Fraction of the best gain. Candidates that reach it count as equally good.
const NEAR_BEST: f64 = 0.97;

/// The valid outcomes of a case, in the order of their seeds.
pub(crate) fn of_case<'a>(outcomes: &'a [Outcome], case: &str) -> Vec<&'a Outcome> {
    let mut found: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.case == case && outcome.valid).collect();
    found.sort_by_key(|outcome| outcome.seed);
    found
}

/// The mean flow time if every flow of every outcome has ended, else goodput.
pub(crate) fn objective_of(outcomes: &[Outcome]) -> Objective {
    let all_ended = outcomes.iter().all(|outcome| outcome.mean_flow_s().is_some());
    if all_ended { Objective::MeanFlowS } else { Objective::GoodputBps }
}

/// How many times as good `then` is as `baseline`: the ratio of the means over the seeds that both
/// have, and half the width of its 95 % interval. The interval is that of the mean of what the
/// ratio leaves of each pair, to first order.
pub(crate) fn ratio(objective: Objective, baseline: &[&Outcome], then: &[&Outcome]) -> Option<(f64, f64)> {
    let pair = |baseline: &&Outcome| {
        let then = then.iter().find(|then| then.seed == baseline.seed)?;
        let (now, then) = (objective.value(baseline)?, objective.value(then)?);
        Some(if objective.is_rate() { (then, now) } else { (now, then) })
    };
    let pairs: Vec<(f64, f64)> = baseline.iter().filter_map(pair).collect();
    let over = mean(pairs.iter().map(|(_, over)| *over))?;
    let gain = mean(pairs.iter().map(|(of, _)| *of))? / over;
    let left: Vec<f64> = pairs.iter().map(|(of, over)| of - gain * over).collect();
    Some((gain, half_width(&left) / over))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// The gain of a case over the path as it is, both according to the equations.
pub(crate) fn gain_by_equations(equations: &[Outcome], case: &str) -> Option<f64> {
    let rate = |case: &str| equations.iter().find(|outcome| outcome.case == case).map(|outcome| outcome.goodput_bps);
    Some(rate(case)? / rate(AS_IS)?)
}

/// What the outcomes `then` of a candidate show, compared with those of the path as it is.
pub(crate) fn assessment(
    objective: Objective,
    candidate: &Candidate,
    baseline: &[&Outcome],
    then: &[&Outcome],
    case: &str,
    by_equations: Option<f64>,
) -> Result<Assessment, AdviceError> {
    let missing = || AdviceError::NoAnswer(case.into());
    let (gain, half_width) = ratio(objective, baseline, then).ok_or_else(missing)?;
    let mean_of = |number: &dyn Fn(&Outcome) -> Option<f64>| mean(then.iter().filter_map(|outcome| number(outcome)));
    Ok(Assessment {
        candidate: candidate.clone(),
        gain,
        half_width: if case == AS_IS { 0.0 } else { half_width },
        value: mean_of(&|outcome| objective.value(outcome)).ok_or_else(missing)?,
        drops: mean_of(&|outcome| Some(outcome.queue_drops() as f64)).unwrap_or(0.0),
        queue_max_bytes: mean_of(&|outcome| Some(outcome.queue_max() as f64)).unwrap_or(0.0),
        jain: mean_of(&|outcome| outcome.jain),
        by_equations,
    })
}

/// The best of several: among those nearly as good as the best, the one with the fewest drops,
/// which hit other traffic too; at equal drops (to a packet), one that needs no capacity.
pub(crate) fn best_of<'a>(assessments: impl Iterator<Item = &'a Assessment> + Clone) -> Option<&'a Assessment> {
    let most = assessments.clone().map(|assessment| assessment.gain).fold(0.0, f64::max);
    assessments.filter(|assessment| assessment.gain >= NEAR_BEST * most).min_by(|a, b| {
        let drops = |assessment: &Assessment| assessment.drops.round();
        let needs_capacity = |assessment: &Assessment| assessment.candidate.capacity.is_some();
        drops(a).total_cmp(&drops(b)).then(needs_capacity(a).cmp(&needs_capacity(b))).then(b.gain.total_cmp(&a.gain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::FlowOutcome;

    fn outcomes(seconds: &[f64]) -> Vec<Outcome> {
        let outcome = |(seed, seconds): (u64, &f64)| {
            let flows = vec![FlowOutcome { end_s: Some(*seconds), ..FlowOutcome::default() }];
            Outcome { seed, valid: true, flows, goodput_bps: 8e6 / seconds, ..Outcome::default() }
        };
        (1..).zip(seconds).map(outcome).collect()
    }

    #[test]
    fn a_gain_is_the_ratio_of_the_means_beside_it() {
        let (now, then) = (outcomes(&[10.0, 30.0, 80.0]), outcomes(&[9.0, 10.0, 11.0]));
        let (now, then): (Vec<&Outcome>, Vec<&Outcome>) = (now.iter().collect(), then.iter().collect());
        let (gain, half) = ratio(Objective::MeanFlowS, &now, &then).unwrap();
        assert!((gain - 40.0 / 10.0).abs() < 1e-12, "{gain}");
        // What 4 times the second leave of the first: −26, −10, 36.
        assert!((half - half_width(&[-26.0, -10.0, 36.0]) / 10.0).abs() < 1e-12, "{half}");
        let (gain, _) = ratio(Objective::GoodputBps, &now, &then).unwrap();
        let mean = |all: &[&Outcome]| all.iter().map(|one| one.goodput_bps).sum::<f64>();
        assert!((gain - mean(&then) / mean(&now)).abs() < 1e-12);
    }

    #[test]
    fn equal_ratios_have_no_interval() {
        let (now, then) = (outcomes(&[10.0, 30.0]), outcomes(&[5.0, 15.0]));
        let (now, then): (Vec<&Outcome>, Vec<&Outcome>) = (now.iter().collect(), then.iter().collect());
        let (gain, half) = ratio(Objective::MeanFlowS, &now, &then).unwrap();
        assert!((gain - 2.0).abs() < 1e-12 && half < 1e-12);
    }
}
