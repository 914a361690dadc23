//! Networks in parallel: comparison with the fluid model, and delivery of every byte exactly once.

use crate::common::{near, refused, scenario};
use outcome::Outcome;
use scenario::{Job, Scenario};
use sim::{RunCounters, Sim, TcpSettings};

/// Networks with these rates (Mbit/s) and loads, as in the paper's test lab (§V-A): the delay is so
/// short that the window of six segments fills even the slowest network while acknowledgements are
/// delayed, and the queue never overflows.
fn networks(rates_and_loads: &[(f64, f64)]) -> String {
    let network =
        |(rate, load): &(f64, f64)| format!("[[network]]\nrate = \"{rate}Mbit\"\ndelay = \"2ms\"\nqueue = \"2000pkt\"\nload = {load}\n");
    rates_and_loads.iter().map(network).collect()
}

fn foreground(load: f64, law: &str, jobs: u64, scheduler: &str) -> String {
    format!(
        "[foreground]\nload = {load}\nsize = {{ law = {law}, mean = \"1MB\" }}\njobs = {jobs}\nwindow = \"8760B\"\n[bond]\nscheduler = \"{scheduler}\"\n"
    )
}

fn flows(bytes: &str, scheduler: &str) -> String {
    format!("[[flow]]\nbytes = \"{bytes}\"\nwindow = \"32KiB\"\n[bond]\nscheduler = \"{scheduler}\"\n")
}

fn play(scenario: &Scenario, seed: u64) -> (Outcome, RunCounters) {
    Sim::default().play(scenario, seed, &()).unwrap()
}

/// The transfers that count (those after the first tenth of the foreground's), with the sojourn
/// time of each by the CAN model, s.
fn by_the_model(scenario: &Scenario, seed: u64) -> Vec<(Job, f64)> {
    let parallel = scenario.parallel().unwrap();
    let jobs = parallel.foreground.unwrap().jobs;
    let (early, all) = (jobs / 10, jobs / 10 + jobs);
    let mut foreground = 0;
    let mut coming = parallel.jobs(seed);
    // As many transfers again follow, so that the last ones do not have the networks to themselves.
    let trace: Vec<Job> = std::iter::from_fn(|| {
        let job = coming.next()?;
        foreground += u64::from(job.class == 0);
        (foreground <= 2 * all).then_some(job)
    })
    .collect();
    let sojourns = theory::replay(&parallel, &trace);
    let mut seen = 0;
    let mut counts = |job: &Job| {
        let before = seen;
        seen += u64::from(job.class == 0);
        // From the first transfer that counts to the last.
        seen > early && before < all
    };
    trace.into_iter().zip(sojourns).filter(|(job, _)| counts(job)).collect()
}

/// Mean sojourn time of each class: simulated over modelled.
fn over_model(scenario: &Scenario, seed: u64) -> Vec<Option<f64>> {
    let (outcome, model) = (play(scenario, seed).0, by_the_model(scenario, seed));
    let ratio = |(class, measured): (usize, &Option<f64>)| {
        let of: Vec<f64> = model.iter().filter(|(job, _)| job.class == class).map(|(_, sojourn)| *sojourn).collect();
        assert_eq!(outcome.sojourn_jobs[class], of.len() as u64, "class {class}: the same transfers");
        Some((*measured)? / (of.iter().sum::<f64>() / of.len() as f64))
    };
    outcome.sojourn_s.iter().enumerate().map(ratio).collect()
}

#[test]
fn one_network_is_a_processor_sharing_queue_for_any_size_distribution() {
    for law in ["\"deterministic\"", "\"exponential\"", "\"hyperexponential\", scv = 16", "\"lomax\", exponent = 2"] {
        let one = scenario(&(networks(&[(5.28, 0.0)]) + &foreground(0.6, law, 1000, "fluid")));
        let ratio = over_model(&one, 1)[0].unwrap();
        assert!((0.99..1.05).contains(&ratio), "{law}: {ratio}");
    }
    // β/(1 − ρ), within the accuracy of the run.
    let one = scenario(&(networks(&[(5.28, 0.0)]) + &foreground(0.6, "\"deterministic\"", 4000, "fluid")));
    let outcome = play(&one, 2).0;
    let (mean, half) = (outcome.sojourn_s[0].unwrap(), outcome.ci95["sojourn_0_s"]);
    let right = 8.0 / 5.28 / 0.4;
    assert!((mean - right).abs() < 0.03 * right + 1.5 * half && half < 0.2 * right, "{mean} ± {half}, should be {right}");
}

#[test]
fn fluid_over_two_networks_matches_the_can_model() {
    let two = scenario(&(networks(&[(5.28, 0.3), (5.28, 0.6)]) + &foreground(0.5, "\"exponential\"", 1000, "fluid")));
    let ratios: Vec<f64> = over_model(&two, 1).into_iter().flatten().collect();
    assert!(ratios.len() == 3 && ratios.iter().all(|ratio| (0.98..1.06).contains(ratio)), "{ratios:?}");
}

#[test]
fn score_is_close_to_the_can_model_and_foresight_brings_it_closer() {
    let two = |scheduler: &str| {
        scenario(
            &(networks(&[(5.28, 0.1), (5.28, 0.7)]) + &foreground(0.4, "\"exponential\"", 600, "score").replace("\"score\"", scheduler)),
        )
    };
    let ratio = |scheduler: &str| over_model(&two(scheduler), 1)[0].unwrap();
    let [fluid, score, plain] = ["\"fluid\"", "\"score\"", "\"score\"\nforesight = false"].map(ratio);
    assert!((0.98..1.03).contains(&score) && (fluid - score).abs() < 0.01 && score < plain && plain < 1.1, "{fluid} {score} {plain}");
    // Background transfers are hardly affected by the scheduler: their network is shared evenly.
    let ratios = over_model(&two("\"score\""), 1);
    assert!(ratios[1..].iter().flatten().all(|ratio| (0.97..1.03).contains(ratio)), "{ratios:?}");
}

#[test]
fn networks_carry_their_configured_loads() {
    let two = scenario(&(networks(&[(5.28, 0.4), (10.56, 0.2)]) + &foreground(0.5, "\"exponential\"", 1500, "fluid")));
    let outcome = play(&two, 5).0;
    // Compared with the payload that arrived during the measurement; it differs from the carried
    // payload by what was in flight at both ends.
    let model = by_the_model(&two, 5);
    let span = model.last().unwrap().0.at.secs() - model[0].0.at.secs();
    let came =
        |class: usize| model.iter().filter(|(job, _)| job.class == class).map(|(job, _)| job.bytes.0 as f64 * 8.0).sum::<f64>() / span;
    let shares: Vec<f64> = outcome.networks.iter().map(|network| network.share.unwrap()).collect();
    near(shares.iter().sum(), 1.0, 1e-9);
    for (index, rate) in [(0, 5.28e6), (1, 10.56e6)] {
        near(outcome.networks[index].utilization, (came(index + 1) + shares[index] * came(0)) / rate, 0.02);
        assert_eq!(outcome.networks[index].queue_drops, Some(0));
    }
    near(outcome.goodput_bps, came(0) + came(1) + came(2), 0.01);
    // And with the configured loads, within the accuracy of so few transfers: 0.5 + 0.4 of the
    // first, 0.2 of the second, which is twice as fast.
    near(outcome.utilization, (0.9 + 2.0 * 0.2) / 3.0, 0.1);
}

#[test]
fn round_robin_and_single_are_worse_than_fluid_over_unequal_networks() {
    let time = |scheduler: &str| {
        let two = scenario(&(networks(&[(5.28, 0.2), (1.76, 0.0)]) + &foreground(0.4, "\"exponential\"", 600, scheduler)));
        let outcome = play(&two, 3).0;
        (outcome.sojourn_s[0].unwrap(), outcome.reorder.unwrap(), outcome.networks[1].share.unwrap())
    };
    let (fluid, turns, single) = (time("fluid"), time("round-robin"), time("single"));
    assert!(turns.0 > 1.5 * fluid.0 && single.0 > 1.2 * fluid.0, "{fluid:?} {turns:?} {single:?}");
    near(turns.2, 0.5, 0.02);
    assert_eq!(single.2, 0.0);
    // With round robin nearly all of the faster half waits for the slower one; with fluid only what
    // is in flight.
    assert!(turns.1.mean_bytes > 1e5 && fluid.1.mean_bytes < 3e4 && single.1.max_bytes == 0, "{fluid:?} {turns:?}");
}

#[test]
fn two_equal_networks_halve_the_time_of_a_transfer() {
    let time =
        |rates: &[(f64, f64)], scheduler: &str| play(&scenario(&(networks(rates) + &flows("5MB", scheduler))), 1).0.completion_s().unwrap();
    let one = time(&[(8.0, 0.0)], "fluid");
    near(one, 5.0, 0.03);
    for scheduler in ["fluid", "round-robin", "score", "tiers"] {
        let two = time(&[(8.0, 0.0), (8.0, 0.0)], scheduler);
        assert!((1.9..2.001).contains(&(one / two)), "{scheduler}: {one} {two}");
    }
    near(time(&[(8.0, 0.0), (2.0, 0.0)], "fluid"), 4.0, 0.03);
    near(time(&[(8.0, 0.0), (2.0, 0.0)], "score"), 4.0, 0.03);
    near(time(&[(2.0, 0.0), (8.0, 0.0)], "score"), 4.0, 0.03);
    near(time(&[(8.0, 0.0), (2.0, 0.0)], "round-robin"), 10.0, 0.03);
    near(time(&[(8.0, 0.0), (2.0, 0.0)], "redundant"), 5.0, 0.03);
    near(time(&[(2.0, 0.0), (8.0, 0.0)], "redundant"), 5.0, 0.03);
    near(time(&[(2.0, 0.0), (8.0, 0.0)], "single"), 5.0, 0.03);
}

#[test]
fn a_far_network_beside_a_near_one_does_no_harm_and_two_far_ones_halve_the_time() {
    let network = |ms: u64| format!("[[network]]\nrate = \"8Mbit\"\ndelay = \"{ms}ms\"\n");
    let time = |networks: &str, bytes: &str| {
        let rest = format!("[control]\nsender = \"cubic\"\n[[flow]]\nbytes = \"{bytes}\"\n[bond]\nscheduler = \"score\"\n");
        play(&scenario(&(networks.to_string() + &rest)), 1).0.completion_s().unwrap()
    };
    for bytes in ["20kB", "200kB", "2MB", "10MB"] {
        let (alone, both) = (time(&network(25), bytes), time(&(network(25) + &network(350)), bytes));
        assert!(both < 1.01 * alone, "{bytes}: {both} s, and {alone} over the near one alone");
    }
    // Slow start takes equally long for both: 3.7 s.
    let (one, two) = (time(&network(300), "60MB"), time(&(network(300) + &network(300)), "60MB"));
    assert!(one / two > 1.85, "{one} {two}");
}

/// 30 random pairs of networks with 1 to 50 Mbit/s, RTTs of 5 to 600 ms and losses of up to 1 %.
#[test]
fn two_networks_are_rarely_worse_than_the_better_one() {
    let mut state = 7_u64;
    let mut random = |least: f64, most: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        least * (most / least).powf((state >> 33) as f64 / f64::from(1_u32 << 31))
    };
    let mut gains = Vec::new();
    for _ in 0..30 {
        let networks = [0; 2].map(|_| {
            let (rate, delay, loss) = (random(1.0, 50.0), random(2.5, 300.0), random(0.000_01, 0.01));
            format!("[[network]]\nrate = \"{rate:.3}Mbit\"\ndelay = \"{delay:.3}ms\"\nloss = {{ per_packet = {loss:.6} }}\n")
        });
        let time = |networks: &str| {
            let rest = "[[flow]]\nbytes = \"5MB\"\n[bond]\nscheduler = \"score\"\n";
            let whole = scenario(&(networks.to_string() + rest));
            (1..=4).map(|seed| play(&whole, seed).0.completion_s().unwrap()).sum::<f64>() / 4.0
        };
        let (alone, both) = (networks.each_ref().map(|network| time(network)), time(&networks.concat()));
        let best = alone[0].min(alone[1]);
        gains.push(best / both);
    }
    // In the worst case slow start on both networks ends while the queue of the slower one is still
    // full.
    let (mean, worse) = (gains.iter().sum::<f64>() / 30.0, gains.iter().filter(|gain| **gain < 0.99).count());
    assert!(mean > 1.25 && worse <= 1 && gains.iter().all(|gain| *gain > 0.94), "{mean} {gains:.3?}");
}

#[test]
fn tiers_use_the_second_network_only_when_the_first_is_full() {
    let share = |bytes: &str| {
        let outcome = play(&scenario(&(networks(&[(8.0, 0.0), (8.0, 0.0)]) + &flows(bytes, "tiers"))), 1).0;
        outcome.networks[1].share.unwrap()
    };
    assert_eq!(share("10kB"), 0.0);
    near(share("5MB"), 0.5, 0.02);
}

#[test]
fn every_byte_is_delivered_once_over_lossy_networks() {
    let mut tails = 0;
    for scheduler in ["fluid", "round-robin", "single", "score", "tiers", "redundant"] {
        let lossy = "[[network]]\nrate = \"4Mbit\"\ndelay = \"20ms\"\nqueue = \"20pkt\"\nload = 0.3\nsize = \"100kB\"\nloss = { per_packet = 0.02 }\n\
            [[network]]\nrate = \"8Mbit\"\ndelay = \"2ms\"\nqueue = { limit = \"30pkt\", kind = \"ecn\" }\nloss = { per_second = 2 }\n\
            [control]\nsender = \"reno\"\n";
        let given =
            "[[flow]]\ncount = 4\nbytes = \"1234567B\"\nstart = { every = \"500ms\" }\n[[flow]]\nbytes = \"1B\"\nopens = \"receiver\"\n";
        let whole = scenario(&format!("{lossy}{given}[bond]\nscheduler = \"{scheduler}\"\npiece = \"10kB\"\n"));
        let (outcome, counters) = play(&whole, 9);
        assert!(outcome.flows.iter().all(|flow| flow.asked_bytes == Some(flow.bytes) && flow.end_s.is_some()), "{outcome:?}");
        assert_eq!(outcome.flows.iter().map(|flow| flow.bytes).sum::<u64>(), 4 * 1_234_567 + 1);
        let least = 4 * 1_234_567 / 1448;
        assert!(counters.segments > least, "{counters:?}");
        tails += counters.timeouts + counters.probes;
    }
    assert!(tails > 5, "{tails}");
}

#[test]
fn endless_flows_last_for_the_duration() {
    let text =
        networks(&[(8.0, 0.0), (4.0, 0.0)]) + "[control]\nsender = \"reno\"\n[[flow]]\nwindow = \"32KiB\"\n[bond]\nscheduler = \"fluid\"\n";
    let outcome = play(&scenario(&format!("duration = \"20s\"\n{text}")), 1).0;
    near(outcome.goodput_bps, 12e6, 0.02);
    assert!(outcome.flows[0].end_s.is_none() && outcome.valid);
    near(outcome.networks[0].share.unwrap(), 2.0 / 3.0, 0.02);
    let steered = play(&scenario(&format!("duration = \"20s\"\n{}", text.replace("fluid", "score"))), 1).0;
    near(steered.goodput_bps, 12e6, 0.02);
    // With round robin the slower network is the limit, and the faster one runs ahead.
    let turns = play(&scenario(&format!("duration = \"20s\"\n{}", text.replace("fluid", "round-robin"))), 1).0;
    near(turns.goodput_bps, 8e6, 0.02);
}

#[test]
fn equal_seeds_give_identical_runs() {
    let text = networks(&[(5.28, 0.3), (2.0, 0.5)]) + &foreground(0.3, "\"lomax\", exponent = 3", 150, "score");
    assert_eq!(play(&scenario(&text), 4), play(&scenario(&text), 4));
    let two = scenario(&text.replace("score", "fluid"));
    let (one, other) = (play(&two, 4), play(&two, 4));
    assert_eq!(one, other);
    assert_ne!(one.0.sojourn_s, play(&two, 5).0.sojourn_s);
    // The number of samples does not affect the results.
    let settings = TcpSettings { max_samples: 10, ..TcpSettings::default() };
    assert_eq!(Sim::with(settings).play(&two, 4, &()).unwrap(), one);
}

#[test]
fn connections_over_each_network_are_the_weight_of_the_foreground() {
    let weighted = |weight: u32| {
        let foreground = foreground(0.5, "\"exponential\"", 600, "fluid").replace("jobs", &format!("weight = {weight}\njobs"));
        scenario(&(networks(&[(5.28, 0.3), (5.28, 0.6)]) + &foreground))
    };
    let [fair, heavy] = [1, 3].map(|weight| play(&weighted(weight), 1).0.sojourn_s);
    assert!(heavy[0].unwrap() < 0.85 * fair[0].unwrap() && heavy[2].unwrap() > 1.05 * fair[2].unwrap(), "{fair:?} {heavy:?}");
    let shares: f64 = play(&weighted(3), 1).0.networks.iter().filter_map(|network| network.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
}

#[test]
fn static_parts_match_the_model() {
    let text = networks(&[(5.28, 0.3), (2.0, 0.2)]) + &foreground(0.4, "\"exponential\"", 600, "static");
    for (class, ratio) in over_model(&scenario(&text), 1).into_iter().enumerate() {
        assert!((ratio.unwrap() - 1.0).abs() < 0.08, "class {class}: {ratio:?}");
    }
}

#[test]
fn a_receive_buffer_bounds_what_is_held() {
    let over = |window: &str| {
        let text = networks(&[(8.0, 0.0), (0.8, 0.0)]) + &flows("2MB", "score-paper") + window;
        play(&scenario(&text), 1).0
    };
    let [unlimited, small] = ["", "window = \"16KiB\"\n"].map(over);
    let held = |outcome: &Outcome| outcome.reorder.as_ref().unwrap().max_bytes;
    assert!(held(&unlimited) > 30_000 && held(&small) <= 16_384, "{} {}", held(&unlimited), held(&small));
    // The fast network would fill the buffer while a piece is under way over the slow one, so that the slow one carries less.
    let share = |outcome: &Outcome| outcome.networks[1].share.unwrap();
    assert!(share(&small) < share(&unlimited) / 2.0, "{} {}", share(&small), share(&unlimited));
}

#[test]
fn unsupported_scenarios_are_refused_by_key() {
    let two = |scheduler: &str| networks(&[(5.28, 0.6), (5.28, 0.1)]) + &foreground(0.9, "\"exponential\"", 100, scheduler);
    // 0.6 + 0.9/2
    assert_eq!(refused(&two("round-robin")), "bond.scheduler");
    assert_eq!(refused(&two("fluid").replace("jobs", "weight = 2.5\njobs")), "foreground.weight");
    let streams = "streams = { every = \"9s\", lasts = \"9s\", rate = \"10kbit\", most = 9 }\nload = 0.6";
    assert_eq!(refused(&two("fluid").replacen("load = 0.6", streams, 1)), "network[1].streams");
    assert_eq!(refused(&two("fluid").replace("queue = \"2000pkt\"", "queue = { kind = \"xcp\" }")), "network[1].queue.kind");
    assert_eq!(refused(&format!("[control]\nsender = \"share\"\n{}", two("fluid"))), "control.sender");
    let offers = "[[flow]]\nbytes = \"1MB\"\noffers = { bytes = \"1kB\", every = \"1s\" }\n[bond]\nscheduler = \"fluid\"\n";
    assert_eq!(refused(&(networks(&[(1.0, 0.0)]) + offers)), "flow[1].offers");
}
