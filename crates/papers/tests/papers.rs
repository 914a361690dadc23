//! The embedded papers: every experiment can be played as its index says, and outcomes become the
//! rows that it asks for.

mod common;

use bound::FairShareBound;
use common::outcome;
use outcome::{Engine, Outcome};
use papers::{EngineKind, Experiment, Paper, PaperEntry, ResultSource};
use std::collections::BTreeSet;
use theory::Theory;

fn experiment(id: &str) -> (Paper, Experiment) {
    match Paper::find(id).unwrap() {
        (paper, PaperEntry::Experiment(experiment)) => (paper, experiment),
        (_, PaperEntry::Equations(_)) => panic!("{id} is an experiment"),
    }
}

#[test]
fn every_experiment_can_be_read() {
    let papers = papers::papers().unwrap();
    assert!(!papers.is_empty());
    for paper in &papers {
        for experiment in &paper.experiments {
            let id = paper.identifier(&experiment.id);
            assert!(matches!(Paper::find(&id).unwrap().1, PaperEntry::Experiment(_)), "{id}");
            assert!(!experiment.on.is_empty(), "{id}");
            for plan in paper.plans(experiment, &experiment.on).unwrap() {
                let cases: BTreeSet<&str> = plan.variants.iter().map(|variant| variant.case.as_str()).collect();
                assert!(!cases.is_empty() && cases.len() == plan.variants.len(), "{id}: two cases with the same name");
                let engine: &dyn Engine = match plan.engine {
                    EngineKind::Theory => &Theory,
                    EngineKind::Sim => &sim::Sim::default(),
                    EngineKind::Compose => &compose::Compose::default(),
                    // What the lab can answer depends on the machine.
                    EngineKind::Lab => continue,
                };
                let (plan, left_out) = plan.answerable(engine);
                assert!(!plan.variants.is_empty(), "{id}: {} answers no case: {left_out:?}", plan.engine);
            }
        }
        for table in &paper.equation_tables {
            let id = paper.identifier(&table.id);
            assert!(matches!(Paper::find(&id).unwrap().1, PaperEntry::Equations(_)), "{id}");
        }
    }
}

#[test]
fn an_unknown_experiment_is_refused_with_the_nearest() {
    let error = Paper::find("li/fig-33").unwrap_err().to_string();
    assert!(error.contains("\"li/fig-33\"") && error.contains("did you mean li/fig-3?"), "{error}");
    let error = Paper::select("nonsense").unwrap_err().to_string();
    assert!(error.contains("`tandem paper` lists them") && !error.contains("mean"), "{error}");
}

#[test]
fn a_prefix_selects_all_entries_that_begin_with_it() {
    let selected =
        |asked: &str| Paper::select(asked).unwrap().iter().map(|(paper, entry)| paper.identifier(entry.id())).collect::<Vec<_>>();
    assert_eq!(selected("li/fig-3"), ["li/fig-3"]);
    assert!(selected("li/fig").len() > 5 && selected("li/fig").iter().all(|id| id.starts_with("li/fig")));
    assert!(selected("joshi").iter().all(|id| id.starts_with("joshi/")));
    let all: usize = papers::papers().unwrap().iter().map(|paper| paper.entries().count()).sum();
    assert_eq!(selected("").len(), all);
}

#[test]
fn the_lab_plays_by_default_only_what_no_other_engine_plays() {
    assert_eq!(experiment("li/fig-3").1.default_engines(), [EngineKind::Lab]);
    assert_eq!(experiment("baccelli/table-19.1").1.default_engines(), [EngineKind::Theory, EngineKind::Sim]);
}

#[test]
fn cases_that_an_engine_cannot_answer_are_left_out_with_the_reason() {
    let (paper, experiment) = experiment("baccelli/table-19.1");
    let plan = paper.plans(&experiment, &[EngineKind::Theory]).unwrap().remove(0);
    let all = plan.variants.len();
    let (plan, left_out) = plan.answerable(&Theory);
    assert!(!left_out.is_empty() && left_out.len() + plan.variants.len() == all);
    let of_window = left_out.iter().find(|left_out| left_out.case.ends_with(", window")).unwrap();
    assert!(of_window.why.contains("split[1].backpressure"), "{left_out:?}");
    assert!(plan.variants.iter().all(|variant| !variant.case.ends_with(", window")));
    let notes = plan.left_out_notes(&left_out);
    assert!(notes[0].starts_with("theory leaves out "), "{notes:?}");
}

/// Two cores do not carry 1 Gbit/s over two links: the lab has a tenth of it, with queues to match.
#[test]
fn the_lab_plays_joshis_cases_as_they_stand_and_a_gigabit_at_a_tenth() {
    let paper = papers::papers().unwrap().into_iter().find(|paper| paper.key == "joshi").unwrap();
    let mut tenths = 0;
    for experiment in paper.experiments.iter().filter(|experiment| experiment.on.contains(&EngineKind::Lab)) {
        let plans = paper.plans(experiment, &[EngineKind::Sim, EngineKind::Lab]).unwrap();
        let (sim, lab) = (&plans[0], &plans[1]);
        assert_eq!(lab.variants.len() * (1 + experiment.variations.len()), sim.variants.len(), "{}", experiment.id);
        for (sim, lab) in sim.variants.iter().zip(&lab.variants) {
            assert_eq!(sim.case, lab.case);
            // A short file does not fill a gigabit.
            let is_short = |flow: &scenario::FlowGroup| flow.bytes.is_some_and(|bytes| bytes.mean <= units::Bytes(1_000_000));
            let fills = !sim.scenario.flows.iter().all(is_short);
            let scale = if fills && sim.scenario.links[0].rate.bits_per_s() == 1_000_000_000 { 10 } else { 1 };
            tenths += u32::from(scale == 10);
            for (index, (simulated, emulated)) in sim.scenario.links.iter().zip(&lab.scenario.links).enumerate() {
                assert_eq!(emulated.rate.bits_per_s() * scale, simulated.rate.bits_per_s(), "{}: {}", experiment.id, lab.case);
                let [simulated, emulated] = [&sim.scenario, &lab.scenario].map(|scenario| match scenario.queue_size(index) {
                    units::QueueSize::Bytes(bytes) => bytes.0,
                    other => panic!("{}: {other:?}", experiment.id),
                });
                assert_eq!(emulated * scale, simulated, "{}: {}", experiment.id, lab.case);
            }
        }
    }
    assert!(tenths > 0);
}

#[test]
fn invalid_outcomes_do_not_count_and_each_seed_has_its_own_bound() {
    let (paper, experiment) = experiment("li/case");
    let plans = paper.plans(&experiment, &experiment.on).unwrap();
    let variant = &plans[0].variants[0];
    // Outcomes of the bound itself in place of measured ones; the last is of a machine that did not
    // keep up.
    let mut outcomes: Vec<Outcome> = (1..=3)
        .map(|seed| Outcome {
            case: variant.case.clone(),
            engine: "lab".into(),
            valid: true,
            ..FairShareBound.run(&variant.scenario, seed, &()).unwrap()
        })
        .collect();
    for flow in &mut outcomes[2].flows {
        flow.end_s = flow.end_s.map(|end| end * 10.0);
    }
    outcomes[2].valid = false;
    let rows = experiment.rows(&plans, &outcomes);
    assert_eq!((rows.len(), rows[0].valid, rows[0].seeds), (1, 2, 3));
    assert_eq!((rows[0].numbers.len(), rows[0].bounds.len()), (experiment.numbers.len(), 2));
    for comparison in rows[0].bounds.iter().flatten() {
        assert_eq!((comparison.ratio.mean, comparison.ratio.seeds), (1.0, 2));
    }
    assert!(rows[0].bounds.iter().all(Option::is_some));
}

#[test]
fn engines_and_variations_have_rows_of_their_own() {
    let (paper, experiment) = experiment("baccelli/table-19.1");
    let outcomes = [
        outcome("sim", "split.1.buffer=1pkt", 0, 1.0),
        outcome("sim", "split.1.buffer=1pkt, window", 0, 2.0),
        outcome("theory", "split.1.buffer=1pkt", 0, 3.0),
        outcome("elsewhere", "split.1.buffer=5pkt", 0, 4.0),
    ];
    let plans = paper.plans(&experiment, &experiment.default_engines()).unwrap();
    let rows = experiment.rows(&plans, &outcomes);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.case.as_str(), row.source.engine.as_str(), row.source.variation.as_str(), row.numbers[0].unwrap().mean))
        .collect();
    let [one, five] = ["split.1.buffer=1pkt", "split.1.buffer=5pkt"];
    assert_eq!(seen, [(one, "theory", "", 3.0), (one, "sim", "", 1.0), (one, "sim", "window", 2.0), (five, "elsewhere", "", 4.0)]);
    let here = |source: &ResultSource| experiment.printed[0].here(source, &outcomes).map(|mean| mean.mean);
    assert_eq!(experiment.sources(&outcomes).iter().map(here).collect::<Vec<_>>(), [Some(3.0), Some(1.0), None, Some(2.0)]);
}
