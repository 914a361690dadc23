//! The mean times of assigned files beside closed forms and a simulation.

use super::{
    AssignmentRule, Can,
    assignment_chain::{AssignmentBox, AssignmentChain},
    decision_process::Relaxation,
    replication::{Replication, ratio},
    shared_network::SharedNetwork,
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const RULES: [AssignmentRule; 5] = [
    AssignmentRule::Optimal,
    AssignmentRule::Index,
    AssignmentRule::IndexOfTotals,
    AssignmentRule::ShortestExpectedDelay,
    AssignmentRule::LargestRate,
];

fn unequal() -> Can {
    Can::with(&[0.5, 0.4, 0.3], &[1.0, 0.5, 2.0], &[1.0, 1.5]).unwrap()
}

/// Mean time of foreground jobs by a simulation, without truncation, and half its 95 % interval.
fn simulate(can: &Can, decide: impl Fn([[usize; 2]; 2]) -> u8) -> (f64, f64) {
    const EVENTS: usize = 400_000;
    let replicate = |seed: u64| {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut jobs = [[0usize; 2]; 2];
        let mut counted = Replication::new(3);
        for event in 0..EVENTS {
            let rates = [0, 1].map(|network: usize| {
                let all = (jobs[network][0] + jobs[network][1]).max(1) as f64;
                let each = can.speeds[network] / all;
                [0, network + 1].map(|class| each * jobs[network][class.min(1)] as f64 / can.sizes[class])
            });
            let [first, second] = rates;
            let all = [can.arrivals[0], can.arrivals[1], can.arrivals[2], first[0], first[1], second[0], second[1]];
            let total: f64 = all.iter().sum();
            if event > EVENTS / 10 {
                counted.time += 1.0 / total;
                counted.areas[0] += (jobs[0][0] + jobs[1][0]) as f64 / total;
            }
            let mut point = random.random::<f64>() * total;
            let chosen = all.iter().position(|rate| {
                point -= rate;
                point < 0.0
            });
            match chosen.unwrap_or(0) {
                0 => jobs[usize::from(decide(jobs))][0] += 1,
                background @ 1..=2 => jobs[background - 1][1] += 1,
                departure => jobs[(departure - 3) / 2][(departure - 3) % 2] -= 1,
            }
        }
        counted
    };
    let replications: Vec<Replication> = (0..20).map(replicate).collect();
    let jobs = ratio(&replications, &|one| one.areas[0], &|one| one.time);
    (jobs.value / can.arrivals[0], jobs.error / can.arrivals[0])
}

#[test]
fn files_that_all_go_to_one_network_share_a_queue_whose_mean_is_known() {
    // All files to the first network: the truncated chain is priced exactly, whatever its size.
    let can = unequal();
    let networks = [SharedNetwork::new(&can, 0, 1.0), SharedNetwork::new(&can, 1, 0.0)];
    let chain = AssignmentChain::new(&can, &networks, &AssignmentBox::new(&can));
    for values in [chain.each_state(|_| 0.0), chain.each_state(|jobs| networks[0].relative_value(jobs[0][0], jobs[0][1]))] {
        let decisions = vec![0; values.len()];
        let mut relaxation = Relaxation::new(&chain, values, decisions);
        let [low, high] = relaxation.run(false, 1e-7);
        // Loads 0.5 and 0.2 of processor sharing.
        let right = 0.5 / 0.3;
        assert!(low <= right + 1e-9 && right <= high + 1e-9 && high - low < 1e-6, "{low} {high}, expected {right}");
    }
}

#[test]
fn rules_agree_with_a_simulation_that_is_not_truncated() {
    for can in [Can::new(0.3, &[0.2, 0.6]).unwrap(), unequal()] {
        let networks = can.assigned_networks().unwrap();
        for rule in RULES {
            let found = can.assigned(rule).unwrap();
            let space = AssignmentBox::new(&can).larger().larger();
            let (_, table) = can.solve_assignment(rule, &networks, &space);
            let sides = space.sides();
            let (time, half) = simulate(&can, |jobs| {
                let inside = [0, 1].map(|network: usize| [0, 1].map(|class: usize| jobs[network][class].min(sides[network][class] - 1)));
                let [[m1, n1], [m2, n2]] = inside;
                table[((m1 * sides[0][1] + n1) * sides[1][0] + m2) * sides[1][1] + n2]
            });
            // Twice the interval: ten comparisons must all hold.
            assert!((found.value - time).abs() < 2.0 * half + found.error, "{can:?} {rule:?}: {found:?}, simulated {time} ± {half}");
            assert!(half < 0.02 * time && found.error < 1e-3 * time, "{found:?} ± {half}");
        }
    }
}

#[test]
fn a_file_alone_takes_the_network_in_which_it_is_done_first() {
    // A foreground so rare that files never meet: each sees the stationary backgrounds, and the
    // optimum is its own expected time.
    let can = Can::new(1e-6, &[0.3, 0.6]).unwrap();
    let networks = [0, 1].map(|network| SharedNetwork::new(&can, network, 0.0));
    let probability = |load: f64, jobs: usize| (1.0 - load) * load.powi(jobs as i32);
    let states = (0..60).flat_map(|n1| (0..200).map(move |n2| (n1, n2)));
    let right: f64 = states
        .map(|(n1, n2)| {
            probability(0.3, n1) * probability(0.6, n2) * networks[0].expected_delay(0, n1).min(networks[1].expected_delay(0, n2))
        })
        .sum();
    for rule in [AssignmentRule::Optimal, AssignmentRule::ShortestExpectedDelay] {
        let found = can.assigned(rule).unwrap();
        assert!((found.value - right).abs() < 1e-3 * right, "{rule:?}: {found:?}, expected {right}");
    }
    // Without backgrounds either network is free.
    let free = Can::new(1e-6, &[0.0, 0.0]).unwrap().assigned(AssignmentRule::Optimal).unwrap();
    assert!((free.value - 1.0).abs() < 1e-4, "{free:?}");
}

#[test]
fn the_optimum_is_the_best_rule_and_the_index_improves_on_random_assignment() {
    for can in [Can::new(0.1, &[0.1, 0.7]).unwrap(), Can::new(0.9, &[0.1, 0.3]).unwrap(), unequal()] {
        let [best, index, totals, delay, rate] = RULES.map(|rule| can.assigned(rule).unwrap());
        let random = can.assigned(AssignmentRule::Random).unwrap();
        for other in [index, totals, delay, rate, random] {
            assert!(best.value <= other.value + best.error + other.error, "{can:?}: {best:?} {other:?}");
        }
        assert!(index.value < random.value, "{can:?}: {index:?} {random:?}");
    }
}

#[test]
fn over_equal_networks_without_backgrounds_the_shorter_queue_is_optimal() {
    // Winston 1977.
    let can = Can::new(1.2, &[0.0, 0.0]).unwrap();
    let [best, index, totals, delay, rate] = RULES.map(|rule| can.assigned(rule).unwrap());
    for other in [index, totals, delay, rate] {
        assert!((best.value - other.value).abs() < best.error + other.error, "{best:?} {other:?}");
    }
    // Between one queue with both networks' capacity, at least two of whose jobs keep both busy,
    // and a coin.
    assert!(1.0 / (1.0 - 0.36) < best.value && best.value < 1.0 / 0.4, "{best:?}");
}

#[test]
fn what_has_no_answer_is_refused() {
    let refused = |can: Can| can.assigned(AssignmentRule::Index).unwrap_err().to_string();
    assert!(refused(Can::new(0.3, &[0.2]).unwrap()).contains("number of networks of assigned files is 1"));
    assert!(refused(Can::new(0.0, &[0.2, 0.2]).unwrap()).contains("arrival rate of assigned files is 0"));
    assert!(refused(Can::new(0.3, &[0.2, 0.2]).unwrap().with_weight(2.0).unwrap()).contains("weight of assigned files is 2"));
}
