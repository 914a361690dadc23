//! The concurrent access network: the paper's tables, and simulations against what is known exactly.

use theory::{Can, CanPlayed, Modulation, Number, Sizes, Streams, TheoryError};

/// Whether a simulation says it: within twice the half width, so that a test in a thousand errs; `printed` is what rounding hides.
fn says(found: Number, right: f64, printed: f64) -> bool {
    (found.value - right).abs() <= printed + 2.0 * found.error
}

/// A row of Tables I to III: (ρ₀; ρ₁, ρ₂), the law, and E[S₀].
fn rows() -> impl Iterator<Item = (f64, [f64; 2], &'static str, f64)> {
    include_str!("../../../../papers/hoekstra/tables-1-2-3.csv").lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |place: usize| fields[place].parse().unwrap();
        (number(1), [number(2), number(3)], fields[4], number(6))
    })
}

#[test]
fn the_papers_exponential_rows_come_out_to_the_digit() {
    // Four of them are printed up to 0.13 % too low.
    const LOW: [(f64, [f64; 2]); 4] = [(0.9, [0.5, 0.5]), (1.8, [0.05, 0.05]), (1.8, [0.0, 0.1]), (1.8, [0.05, 0.1])];
    let mut cells = 0;
    for (foreground, backgrounds, _, printed) in rows().filter(|row| row.2 == "exponential") {
        let found = Can::new(foreground, &backgrounds).unwrap().solve().sojourn_s[0].unwrap();
        assert!(found.error < 5e-11 * found.value, "{foreground} {backgrounds:?}: {found:?}");
        if LOW.contains(&(foreground, backgrounds)) {
            assert!(found.value > printed && found.value < printed * 1.002, "{foreground} {backgrounds:?}: {found:?}");
        } else {
            assert!((found.value - printed).abs() < 0.005, "{foreground} {backgrounds:?}: {found:?}, printed {printed}");
        }
        cells += 1;
    }
    assert_eq!(cells, 28);
}

#[test]
fn the_papers_rows_of_other_laws_come_out() {
    let mut cells = 0;
    for (foreground, backgrounds, law, printed) in rows() {
        let all = foreground + backgrounds[0] + backgrounds[1];
        let sizes = match law {
            "deterministic" => Sizes::DETERMINISTIC,
            // At higher loads, sizes that vary take longer than a test may.
            _ if all > 1.75 => continue,
            "Pareto-3" => Sizes::lomax(3.0).unwrap(),
            "hyper-exponential" => Sizes::hyperexponential(16.0).unwrap(),
            // Not the law that is stated: see `Sizes::lomax`.
            "Pareto-2" => Sizes::lomax(2.0).unwrap(),
            _ => continue,
        };
        let events = if all > 1.4 { 1e6 } else { 4e5 };
        let played =
            Can::new(foreground, &backgrounds).unwrap().run().with_sizes(&sizes).play(11, (events / 2.0 * foreground / all) as u64);
        let found = played.unwrap().means.sojourn_s[0].unwrap();
        // What four of the exponential rows are off by, the others at the same loads may be. Long queues are rare in so short a run, which
        // makes an interval narrower than it should be.
        assert!(
            says(found, printed, 0.005 + 0.002 * printed + found.error),
            "{foreground} {backgrounds:?} {law}: {found:?}, printed {printed}"
        );
        cells += 1;
    }
    assert_eq!(cells, 20 * 4 + 8);
}

#[test]
fn exponential_sizes_are_the_chain_by_jumps_and_by_clocks() {
    let unequal = Can::with(&[0.5, 0.4, 0.3], &[1.5, 0.5, 2.0], &[0.8, 1.5]).unwrap();
    for can in [
        Can::new(0.4, &[0.3]).unwrap(),
        Can::new(0.1, &[0.5, 0.7]).unwrap(),
        unequal.clone(),
        unequal.with_weight(5.0).unwrap(),
        Can::new(0.6, &[0.2, 0.4, 0.7]).unwrap(),
        Can::new(0.5, &[0.3, 0.1, 0.0, 0.6]).unwrap(),
    ] {
        let right = can.solve();
        // Shifted by nothing it is the same law, and takes the other way.
        for sizes in [Sizes::EXPONENTIAL, Sizes::shifted(0.0).unwrap()] {
            let played = can.run().with_sizes(&sizes).play(5, 100_000).unwrap();
            for (found, right) in played.means.jobs.iter().zip(&right.jobs) {
                assert!(
                    says(*found, right.value, 0.0) && found.error <= 0.05 * right.value,
                    "{can:?} {sizes:?}: {found:?}, should be {right:?}"
                );
            }
            assert!((played.split.iter().map(|part| part.value).sum::<f64>() - 1.0).abs() < 1e-9, "{played:?}");
        }
    }
}

#[test]
fn intervals_hold_as_often_as_they_say() {
    let can = Can::new(0.1, &[0.3, 0.5]).unwrap();
    let right = can.solve().jobs[0].value;
    for sizes in [Sizes::EXPONENTIAL, Sizes::shifted(0.0).unwrap()] {
        let run = can.run().with_sizes(&sizes);
        let holds = (0..100).filter(|seed| {
            let found = run.play(*seed, 3000).unwrap().means.jobs[0];
            (found.value - right).abs() < found.error
        });
        // Of a hundred at 95 %, fewer than 87 are one in a thousand.
        let holds = holds.count();
        assert!(holds >= 87, "{sizes:?}: {holds} of 100");
    }
}

#[test]
fn threads_change_nothing() {
    let run = Can::new(0.1, &[0.3, 0.5]).unwrap().run().with_sizes(&Sizes::DETERMINISTIC);
    let found = [1, 3].map(|threads| run.clone().on_threads(threads).play(2, 4000).unwrap());
    assert_eq!(found[0], found[1]);
    assert_ne!(found[0], run.play(3, 4000).unwrap());
}

#[test]
fn a_network_alone_is_insensitive() {
    // Processor sharing: the mean time does not depend on the law, here not even where it differs by class.
    let can = Can::new(0.3, &[0.3]).unwrap();
    for sizes in [Sizes::DETERMINISTIC, Sizes::hyperexponential(16.0).unwrap(), Sizes::listed(&[1.0, 2.0, 30.0]).unwrap()] {
        let played = can.run().with_sizes_of(1, &sizes).unwrap().play(1, 300_000).unwrap();
        for sojourn in played.means.sojourn_s {
            assert!(says(sojourn.unwrap(), 2.5, 0.0), "{sizes:?}: {sojourn:?}");
        }
    }
}

#[test]
fn more_weight_is_less_time_for_the_foreground_and_more_for_the_others() {
    let times = |weight: f64| {
        let found = Can::new(0.4, &[0.3, 0.5]).unwrap().with_weight(weight).unwrap().solve();
        found.sojourn_s.iter().map(|number| number.unwrap().value).collect::<Vec<f64>>()
    };
    let (fair, heavy) = (times(1.0), times(5.0));
    assert!(heavy[0] < 0.8 * fair[0] && heavy[1] > fair[1] && heavy[2] > fair[2], "{fair:?} {heavy:?}");
}

/// E[N] of one queue whose arrivals and service follow a phase, by sweeps over a box of states.
fn modulated_queue(arrivals: &[f64], services: &[f64], switches: &[Vec<f64>]) -> f64 {
    const SIDE: usize = 400;
    let phases = arrivals.len();
    let mut states = vec![vec![1.0; phases]; SIDE];
    for _ in 0..20_000 {
        let mut change = 0.0f64;
        for n in 0..SIDE {
            for phase in 0..phases {
                let (mut into, mut out) = (0.0, switches[phase].iter().sum::<f64>());
                if n > 0 {
                    into += arrivals[phase] * states[n - 1][phase];
                    out += services[phase];
                }
                if n + 1 < SIDE {
                    into += services[phase] * states[n + 1][phase];
                    out += arrivals[phase];
                }
                into += (0..phases).map(|from| switches[from][phase] * states[n][from]).sum::<f64>();
                let value = into / out;
                change = change.max((value - states[n][phase]).abs());
                states[n][phase] = value;
            }
        }
        let all: f64 = states.iter().flatten().sum();
        states.iter_mut().flatten().for_each(|state| *state /= all);
        if change < 1e-13 {
            break;
        }
    }
    states.iter().enumerate().map(|(n, state)| n as f64 * state.iter().sum::<f64>()).sum()
}

#[test]
fn modulated_arrivals_are_their_chain() {
    let can = Can::new(0.5, &[0.0]).unwrap();
    let even = Modulation::new(&[3.0, 3.0], &[vec![0.0, 0.1], vec![0.2, 0.0]]).unwrap();
    let played = can.run().with_modulation(0, even).unwrap().play(1, 300_000).unwrap();
    assert!(says(played.means.jobs[0], 1.0, 0.0), "{played:?}");
    // Bursts of 5 s in a fifth of the time, at 3 times the mean: then more comes than is served.
    let bursts = Modulation::bursts(3.0, 0.2, 5.0).unwrap();
    let played = can.run().with_modulation(0, bursts).unwrap().play(1, 1_000_000).unwrap();
    let right = modulated_queue(&[1.5, 0.25], &[1.0, 1.0], &[vec![0.0, 0.2], vec![0.05, 0.0]]);
    assert!(right > 2.0 && says(played.means.jobs[0], right, 0.0), "{played:?}, should be {right}");
}

#[test]
fn streams_are_erlangs_and_jobs_share_what_they_leave() {
    let streams = Streams::new(0.5, 2.0, 0.25, 2).unwrap();
    let played = Can::new(0.3, &[0.1]).unwrap().run().with_streams(1, streams).unwrap().play(1, 400_000).unwrap();
    // 1 Erlang on 2 lines: B = 1/5.
    let [mean, blocked] = played.streams[0].unwrap();
    assert!((streams.blocked() - 0.2).abs() < 1e-15 && says(blocked, 0.2, 0.0) && says(mean, 0.8, 0.0), "{played:?}");
    let right = modulated_queue(&[0.4; 3], &[1.0, 0.75, 0.5], &[vec![0.0, 0.5, 0.0], vec![0.5, 0.0, 0.5], vec![0.0, 1.0, 0.0]]);
    for (jobs, part) in played.means.jobs.iter().zip([0.75, 0.25]) {
        assert!(says(*jobs, right * part, 0.0), "{played:?}, should be {right}");
    }
    // Who shares with nobody keeps the time that he had.
    let apart = Can::new(0.0, &[0.5, 0.5]).unwrap().run().with_streams(2, streams).unwrap().play(1, 400_000).unwrap();
    assert!(says(apart.means.jobs[1], 1.0, 0.0) && apart.means.jobs[2].value > 1.5, "{apart:?}");
    assert_eq!(apart.streams[0], None);
}

#[test]
fn static_parts_are_jobs_of_their_networks() {
    let backgrounds = [0.3, 0.5];
    let can = Can::with(&[0.4, backgrounds[0], backgrounds[1]], &[2.0, 1.0, 1.0], &[1.0, 2.0]).unwrap();
    let split = can.tail_optimal_split();
    assert!((split[0] - 0.7 / 2.2).abs() < 1e-15 && (split[1] - 1.5 / 2.2).abs() < 1e-15);
    let play = |sizes: &Sizes| can.run().with_static_split(&split).unwrap().with_sizes(sizes).play(3, 200_000).unwrap();
    for played in [play(&Sizes::EXPONENTIAL), play(&Sizes::DETERMINISTIC), play(&Sizes::hyperexponential(4.0).unwrap())] {
        // Each network is a processor sharing queue of its background and its part of the foreground, whatever the law.
        for (network, speed) in [1.0, 2.0].into_iter().enumerate() {
            let (tasks, jobs) = (0.8 * split[network] / speed, backgrounds[network] / speed);
            let empty = 1.0 - tasks - jobs;
            assert!(says(played.tasks[network], tasks / empty, 0.0), "{played:?}");
            assert!(says(played.means.jobs[network + 1], jobs / empty, 0.0), "{played:?}");
            assert!(says(played.split[network], split[network], 1e-3), "{played:?}");
        }
        // A file is there as long as its longest part, and less than all of them one after the other.
        let files = played.means.jobs[0].value;
        let (most, all) = played.tasks.iter().fold((0.0f64, 0.0), |(most, all), tasks| (most.max(tasks.value), all + tasks.value));
        assert!(files > most && files < all, "{played:?}");
        let fluid = can.solve().jobs[0].value;
        assert!(files > fluid, "splitting once cannot beat splitting all the time: {files} {fluid}");
    }
}

#[test]
fn parts_that_end_together_are_one_job() {
    // Without backgrounds and in proportion to the speeds, all parts of a file always have the same part of it left.
    let can = Can::with(&[1.2, 0.0, 0.0], &[1.0; 3], &[1.0, 2.0]).unwrap();
    let played = can.run().with_static_split(&can.tail_optimal_split()).unwrap().play(1, 300_000).unwrap();
    assert!(says(played.means.jobs[0], 0.4 / 0.6, 0.0), "{played:?}");
    // One network is not split.
    let alone = Can::new(0.3, &[0.3]).unwrap().run().with_static_split(&[1.0]).unwrap().play(1, 300_000).unwrap();
    assert!(says(alone.means.sojourn_s[0].unwrap(), 2.5, 0.0) && alone.tasks[0] == alone.means.jobs[0], "{alone:?}");
}

#[test]
fn what_cannot_be_played_is_named() {
    let can = Can::new(0.9, &[0.4, 0.6]).unwrap();
    let error = |played: Result<CanPlayed, TheoryError>| played.unwrap_err().to_string();
    let half = can.run().with_static_split(&[0.5, 0.5]).unwrap();
    assert!(error(half.play(1, 10)).contains("the background and the foreground's part in network 2 is 1.05"));
    let streams = Streams::new(1.0, 1.0, 0.25, 4).unwrap();
    let crowded = can.run().with_streams(2, streams).unwrap();
    assert!(error(crowded.play(1, 10)).contains("all classes together"), "{}", error(crowded.play(1, 10)));
    assert!(can.run().with_streams(1, Streams::new(1.0, 1.0, 0.3, 4).unwrap()).unwrap_err().to_string().contains("1.2"));
    assert!(can.run().with_streams(3, streams).unwrap_err().to_string().contains("3, and must be that of one which is there"));
    assert!(can.run().with_static_split(&[0.5, 0.4]).unwrap_err().to_string().contains("sum of the fractions is 0.9"));
    assert!(can.run().with_static_split(&[1.0]).unwrap_err().to_string().contains("number of fractions is 1"));
    assert!(error(Can::new(0.0, &[0.0]).unwrap().run().play(1, 10)).contains("sum of all arrival rates is 0"));
    assert!(can.run().with_sizes_of(3, &Sizes::DETERMINISTIC).is_err());
}
