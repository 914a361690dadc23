//! Results are a function of the scenario and the seed: every scenario file in the tree gives the
//! same bytes twice, and a sweep gives the same bytes on any number of cores.

mod common;

use common::{TANDEM, parse_scenario, scenario_files};
use scenario::{Link, Loss, QueueKind, Scenario, Variant};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};
use units::Span;

/// A scenario file, with overrides.
#[derive(PartialEq)]
struct Play {
    file: PathBuf,
    sets: Vec<String>,
}

impl Play {
    /// The file with a duration that is shortened to `most`.
    fn of(file: &Path, sets: &[String], most: Most) -> Self {
        let whole = Play { file: file.into(), sets: sets.to_vec() };
        let scenarios: Vec<Scenario> = whole.variants().into_iter().map(|variant| variant.scenario).collect();
        let short = match &scenarios[0].foreground {
            Some(_) => format!("foreground.jobs={}", most.jobs),
            None => format!("duration={}", scenarios.iter().map(|scenario| short(scenario, most)).max().unwrap_or(Span::ZERO)),
        };
        Play { sets: [sets, &[short]].concat(), ..whole }
    }

    fn variants(&self) -> Vec<Variant> {
        let file = parse_scenario(&self.file);
        let sets: Vec<_> = self.sets.iter().map(|set| set.parse().unwrap()).collect();
        file.variants(&sets).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the JSON of the virtual engines, without series, which would take a gigabyte; all
    /// other numbers derive from them.
    fn json(&self, seed: u64, more: &[&str]) -> String {
        let mut command = Command::new(TANDEM);
        command.arg("run").arg(&self.file).args(["--on", "sim,theory", "--json", "--seed", &seed.to_string()]).args(more);
        for set in &self.sets {
            command.args(["--set", set]);
        }
        let output = command.output().unwrap();
        let (status, said) = (output.status.code(), String::from_utf8_lossy(&output.stderr));
        // 3: an engine does not support a part of it.
        assert!(matches!(status, Some(0 | 3)), "{}: {status:?} {said}", self.name());
        String::from_utf8(output.stdout).unwrap()
    }

    fn name(&self) -> String {
        format!("{} --set {}", self.file.display(), self.sets.join(" --set "))
    }
}

/// How much a play of this test is at most.
#[derive(Debug, Clone, Copy)]
struct Most {
    duration: Span,
    bits: u64,
    jobs: u64,
}

/// Of a scenario as it stands.
const WHOLE: Most = Most { duration: Span(10_000_000_000), bits: 1_000_000_000, jobs: 200 };
/// Of a variation: there are many, which mostly run the same code.
const PART: Most = Most { duration: Span(2_000_000_000), bits: 100_000_000, jobs: 100 };

/// Returns the duration of a scenario in this test: long enough for a result, but bounded in
/// packets.
fn short(scenario: &Scenario, most: Most) -> Span {
    const LEAST_ROUND_TRIPS: u64 = 3;
    let whole = scenario::LegLinks { first: 0, end: scenario.links.len() };
    let slowest = match &scenario.networks[..] {
        [] => scenario.bottleneck_rate(whole).bits_per_s(),
        networks => networks.iter().map(|network| network.link.rate.bits_per_s()).sum(),
    };
    let slowest = slowest.max(1);
    let bounded = Span(most.bits * 1_000_000_000 / slowest).min(most.duration);
    let least = Span(LEAST_ROUND_TRIPS * scenario.base_rtt(whole).0);
    scenario.duration.unwrap_or(Span(u64::MAX)).min(bounded.max(least))
}

/// Returns whether a scenario uses random numbers.
fn has_chance(scenario: &Scenario) -> bool {
    const SEEDS: [u64; 2] = [1, 2];
    let loses = |loss: Option<Loss>| match loss {
        None => false,
        Some(Loss::PerPacket(often) | Loss::PerSecond(often)) => often > 0.0,
        Some(Loss::Gilbert(_)) => true,
    };
    let links = || scenario.links.iter().chain(scenario.networks.iter().map(|network| &network.link));
    let changed = |link: &Link| link.changes.iter().any(|change| change.loss.is_some_and(|loss| loss.0 > 0.0));
    let mut losses = links().flat_map(|link| [link.loss.forward, link.loss.reverse]);
    let differ = |drawn: &dyn Fn(u64) -> String| drawn(SEEDS[0]) != drawn(SEEDS[1]);
    losses.any(loses)
        || links().any(|link| changed(link) || link.beyond_rate_and_loss().any(|key| key != "trace"))
        || differ(&|seed| format!("{:?}", scenario.flow_specs(seed)))
        || scenario.parallel().is_some_and(|parallel| differ(&|seed| format!("{:?}", parallel.jobs(seed).take(100).collect::<Vec<_>>())))
        || scenario.cross.iter().any(|cross| differ(&|seed| format!("{:?}", cross.times(seed, 0).take(100).collect::<Vec<_>>())))
        || scenario
            .flows
            .iter()
            .filter_map(|flow| flow.offers)
            .any(|offer| differ(&|seed| format!("{:?}", offer.writes(seed, 0, Span::ZERO).take(100).collect::<Vec<_>>())))
}

/// Asserts that two texts are equal; shows the first line that differs.
#[track_caller]
fn same(one: &str, other: &str, what: &str) {
    if one != other {
        let parting = (1..).zip(one.lines().zip(other.lines())).find(|(_, (one, other))| one != other);
        panic!("{what}: {parting:?}, of {} and {} bytes", one.len(), other.len());
    }
}

/// Returns outcomes by engine and case, without their seeds.
fn outcomes(json: &str) -> Vec<(String, String, Value)> {
    let mut list: Vec<Value> = serde_json::from_str(json).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.iter_mut()
        .map(|outcome| {
            outcome["seed"] = Value::Null;
            (text(&outcome["engine"]), text(&outcome["case"]), outcome.take())
        })
        .collect()
}

/// Returns every file, and the variants of the papers' experiments.
fn plays() -> Vec<Play> {
    let mut plays: Vec<Play> = scenario_files().iter().map(|file| Play::of(file, &[], WHOLE)).collect();
    let papers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers").canonicalize().unwrap();
    for paper in papers::papers().unwrap() {
        for experiment in &paper.experiments {
            let file = papers.join(&paper.key).join(&experiment.file);
            let varied = experiment.variations.iter().map(|variation| ([&experiment.sets[..], &variation.sets].concat(), PART));
            for (sets, most) in [(experiment.sets.clone(), WHOLE)].into_iter().chain(varied) {
                let play = Play::of(&file, &sets, most);
                // Experiments share files and settings.
                if !sets.is_empty() && !plays.contains(&play) {
                    plays.push(play);
                }
            }
        }
    }
    plays
}

/// Runs a play twice, and with another seed; returns the numbers of outcomes of the simulator and
/// of the equations.
fn same_bytes_twice(play: &Play) -> (usize, usize) {
    let (mut simulated, mut computed) = (0, 0);
    let one = play.json(5, &[]);
    same(&one, &play.json(5, &["--jobs", "1"]), &play.name());
    let other = outcomes(&play.json(6, &[]));
    let variants = play.variants();
    for ((engine, case, one), (_, _, other)) in outcomes(&one).into_iter().zip(other) {
        let variant = variants.iter().find(|variant| variant.case == case).unwrap();
        match engine.as_str() {
            "sim" => {
                simulated += 1;
                // BBR draws when it probes, and some queues when they are long, which a short run
                // may not reach.
                let is_bbr = |control: &&str| control.trim_start_matches("td_").starts_with("bbr");
                let draws = |link: &Link| matches!(link.queue.kind, QueueKind::Pie | QueueKind::Dualpi2);
                if !variant.scenario.leg_controls().iter().any(is_bbr) && !variant.scenario.links.iter().any(draws) {
                    assert_eq!(one != other, has_chance(&variant.scenario), "{}: case {case:?} under another seed", play.name());
                }
            }
            // Solved equations use no random numbers, simulated ones do.
            _ => computed += 1,
        }
    }
    (simulated, computed)
}

#[test]
fn every_scenario_gives_the_same_bytes_twice() {
    // Most files have one case, which uses one core.
    let (plays, next) = (plays(), AtomicUsize::new(0));
    let work = || {
        let mine = std::iter::from_fn(|| plays.get(next.fetch_add(1, Relaxed)));
        mine.map(same_bytes_twice).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let counts: Vec<(usize, usize)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|why| std::panic::resume_unwind(why))).collect()
    });
    let (simulated, computed) = counts.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    assert!(simulated > 100 && computed > 0, "{simulated} {computed}");
}

const SWEPT: &str = "name = \"swept\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"5ms\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"50ms\"\n\
                     loss = { per_packet = 0.01 }\n[[split]]\nafter = 1\n[[flow]]\ncount = 2\nbytes = \"500kB\"\nstart = { uniform = [\"0s\", \"1s\"] }\n";

#[test]
fn a_sweep_gives_the_same_bytes_on_any_number_of_cores() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("swept.toml");
    fs::write(&file, SWEPT).unwrap();
    let run = |what: &[&str], jobs: &[&str]| {
        let output = Command::new(TANDEM).arg(what[0]).arg(&file).args(&what[1..]).args(jobs).output().unwrap();
        assert!(output.status.success(), "{what:?} {jobs:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let sweep =
        ["run", "--on", "sim", "--seeds", "3", "--set", "control.proxy=cubic,hybla,share", "--set", "split.1.buffer=64kB,unlimited"];
    let curves = [&sweep[..], &["--json", "--series"]].concat();
    for what in [&sweep[..], &curves, &["advise", "--seeds", "3", "--json"]] {
        let alone = run(what, &["--jobs", "1"]);
        for jobs in [&["--jobs", "2"][..], &["--jobs", "5"], &["--jobs", "100"], &[]] {
            same(&alone, &run(what, jobs), &format!("{what:?} {jobs:?}"));
        }
    }
    let outcomes = outcomes(&run(&curves, &["--jobs", "5"]));
    assert_eq!(outcomes.len(), 3 * 3 * 2);
}
