//! Answers a scenario with networks in parallel by the CAN model: files are fluids, networks share
//! their rates fairly, and only the transfer of payload takes time.
//!
//! `fluid` is the Markov chain of Hoekstra, Remark 3, if all sizes are exponential, and simulated
//! otherwise. `single` is a processor-sharing queue for each network, whose means are known for any
//! size distribution. `round-robin` and `static` give each network a fixed part of every file, and
//! are simulated, as are modulated arrivals and streams beside the files (§VII).

use crate::{
    can::{Can, CanMeans, InelasticStreams, Modulation, SizeDistribution, ValueWithError},
    error::TheoryError,
};
use outcome::{EngineError, NetworkOutcome, Outcome, SOJOURNS};
use scenario::{Link, Medium, MmppPhases, Parallel, Scenario, Shape, TransferScheduler};

/// Whether the model can answer.
pub(crate) fn can_answer(parallel: &Parallel<'_>) -> Result<(), EngineError> {
    if parallel.foreground.is_none() {
        return EngineError::cannot("theory", "flow", "its files arrive at random: give a [foreground]");
    }
    if !parallel.links.is_empty() {
        return EngineError::cannot("theory", "link", "its networks begin at the sender; the simulator has links before them: --on sim");
    }
    for (number, network) in (1..).zip(parallel.networks) {
        if network.link.loss.forward.is_some() {
            let why = "its networks have no loss: give the rate that remains with losses";
            return EngineError::cannot("theory", format!("network[{number}].loss"), why);
        }
        // The rate of a shared medium is what transfers get of it, which is all that the model knows.
        let unshared = Link { medium: Medium::FullDuplex, ..network.link.clone() };
        if let Some(key) = unshared.beyond_rate_and_loss().next().or_else(|| unshared.varying_key()) {
            let why = "its networks have a constant rate and no packets: leave it out, or ask the simulator: --on sim";
            return EngineError::cannot("theory", format!("network[{number}].{key}"), why);
        }
    }
    match (parallel.bond.scheduler, parallel.overload()) {
        (
            TransferScheduler::Score
            | TransferScheduler::ScorePaper
            | TransferScheduler::Redundant
            | TransferScheduler::Tiers
            | TransferScheduler::Mptcp,
            _,
        ) => EngineError::cannot(
            "theory",
            "bond.scheduler",
            "it models the ideal split, fixed parts and a single network: fluid, round-robin, static, single",
        ),
        (_, Some((network, load))) => {
            let why =
                format!("network {network} would have a load of {load:.3}: the sojourn times would grow without limit and have no mean");
            EngineError::cannot("theory", "bond.scheduler", why)
        }
        _ => Ok(()),
    }
}

/// The outcome; [`can_answer`] was asked before.
pub(crate) fn answer(scenario: &Scenario, parallel: &Parallel<'_>, seed: u64) -> Result<Outcome, TheoryError> {
    let Some(foreground) = parallel.foreground else { unreachable!("can_answer requires a foreground") };
    let memoryless = (0..parallel.classes()).filter_map(|class| parallel.size(class)).all(|size| size.shape == Shape::Exponential);
    let is_poisson = foreground.arrivals.phases().is_none();
    let has_streams = parallel.networks.iter().any(|network| network.streams.is_some());
    let memoryless = memoryless && is_poisson && !has_streams;
    // With these the single network is no processor-sharing queue of Poisson arrivals.
    let is_plain = is_poisson && !has_streams && foreground.weight == 1.0;
    let (means, share, how) = match parallel.bond.scheduler {
        TransferScheduler::Single if is_plain => {
            (queues(parallel), parallel.parts(), "processor sharing, for any size distribution".to_string())
        }
        TransferScheduler::Fluid if memoryless => (chain(parallel)?, None, "the Markov chain of the CAN model".into()),
        _ => {
            let (means, share) = simulated(parallel, foreground.jobs, seed)?;
            (means, Some(share), format!("the CAN model, simulated with {} jobs", foreground.jobs))
        }
    };
    let carried: f64 = (0..parallel.classes()).map(|class| parallel.work(class)).sum();
    let rates = || parallel.networks.iter().map(|network| network.link.rate.bits_per_s() as f64);
    let network = |index: usize| {
        let rate = parallel.networks[index].link.rate.bits_per_s() as f64;
        let share = share.as_ref().map(|share| share[index]);
        let work = share.map(|share| parallel.work(index + 1) + share * parallel.work(0));
        (work.map(|work| work / rate), share)
    };
    // The chain does not give the foreground's share of each network.
    let networks = (0..parallel.networks.len())
        .filter_map(|index| {
            let (utilization, share) = network(index);
            Some(NetworkOutcome { network: index + 1, utilization: utilization?, share, queue_drops: None })
        })
        .collect();
    let ci95 = SOJOURNS.iter().zip(&means).filter_map(|(name, mean)| Some(((*name).to_string(), (*mean)?.error))).collect();
    Ok(Outcome {
        scenario: scenario.name.clone(),
        engine: "theory".into(),
        seed,
        valid: true,
        warnings: vec![format!("{how}: files are fluids, without delays, handshakes, windows, queues or controllers")],
        goodput_bps: carried,
        utilization: carried / rates().sum::<f64>(),
        sojourn_s: means.iter().map(|mean| mean.map(|mean| mean.value)).collect(),
        networks,
        ci95,
        ..Outcome::default()
    })
}

/// The model in units of the foreground's mean size and of the time that it takes over the first
/// network (returned, s): the power series needs numbers near 1.
fn system(parallel: &Parallel<'_>) -> Result<(Can, f64), TheoryError> {
    let Some(whole) = parallel.size(0) else { unreachable!("can_answer requires a foreground") };
    let (bits, rate) = (8.0 * whole.mean.0 as f64, parallel.networks[0].link.rate.bits_per_s() as f64);
    let unit_s = bits / rate;
    let classes = 0..parallel.classes();
    let arrivals: Vec<f64> = classes.clone().map(|class| parallel.arrivals_per_s(class) * unit_s).collect();
    let sizes: Vec<f64> = classes.map(|class| parallel.size(class).map_or(1.0, |size| 8.0 * size.mean.0 as f64 / bits)).collect();
    let speeds: Vec<f64> = parallel.networks.iter().map(|network| network.link.rate.bits_per_s() as f64 / rate).collect();
    let weight = parallel.foreground.map_or(1.0, |foreground| foreground.weight);
    Ok((Can::with(&arrivals, &sizes, &speeds)?.with_weight(weight)?, unit_s))
}

/// Sojourn times in seconds.
fn in_seconds(means: &CanMeans, unit_s: f64) -> Vec<Option<ValueWithError>> {
    let scaled = |number: &ValueWithError| ValueWithError { value: number.value * unit_s, error: number.error * unit_s };
    means.sojourn_s.iter().map(|mean| mean.as_ref().map(scaled)).collect()
}

fn chain(parallel: &Parallel<'_>) -> Result<Vec<Option<ValueWithError>>, TheoryError> {
    let (can, unit_s) = system(parallel)?;
    Ok(in_seconds(&can.solve(), unit_s))
}

/// The means, and the fraction of the foreground's work that each network does.
fn simulated(parallel: &Parallel<'_>, jobs: u64, seed: u64) -> Result<(Vec<Option<ValueWithError>>, Vec<f64>), TheoryError> {
    let (can, unit_s) = system(parallel)?;
    let mut run = can.simulation();
    for class in 0..parallel.classes() {
        if let Some(size) = parallel.size(class) {
            run = run.with_sizes_of(class, &SizeDistribution::from(size.shape))?;
        }
    }
    if let Some(parts) = parallel.parts() {
        run = run.with_static_split(&parts)?;
    }
    if let Some(phases) = parallel.foreground.and_then(|foreground| foreground.arrivals.phases()) {
        run = run.with_modulation(0, modulation(phases, unit_s)?)?;
    }
    let first_rate = parallel.networks[0].link.rate.bits_per_s() as f64;
    for (number, network) in (1..).zip(parallel.networks) {
        if let Some(streams) = network.streams {
            let rate = streams.rate.bits_per_s() as f64 / first_rate;
            let (every, lasts) = (streams.every.secs() / unit_s, streams.lasts.secs() / unit_s);
            run = run.with_streams(number, InelasticStreams::new(1.0 / every, lasts, rate, streams.most as usize)?)?;
        }
    }
    let found = run.run(seed, jobs)?;
    let share = parallel.parts().unwrap_or_else(|| found.split.iter().map(|part| part.value).collect());
    Ok((in_seconds(&found.means, unit_s), share))
}

/// Phases in a ring as a modulation, in units of `unit_s`.
fn modulation(phases: &MmppPhases, unit_s: f64) -> Result<Modulation, TheoryError> {
    let count = phases.rates.len();
    let row = |from: usize| (0..count).map(|to| if to == (from + 1) % count { unit_s / phases.lasts[from].secs() } else { 0.0 }).collect();
    Modulation::new(&phases.rates, &(0..count).map(row).collect::<Vec<Vec<f64>>>())
}

/// E[S] = E[B]/(c (1 − ρ)) of each processor-sharing queue, for any size distribution; the best
/// network carries the foreground too.
fn queues(parallel: &Parallel<'_>) -> Vec<Option<ValueWithError>> {
    let best = parallel.best();
    let left = |network: usize| {
        let foreground = if network == best { parallel.work(0) } else { 0.0 };
        parallel.networks[network].link.rate.bits_per_s() as f64 - parallel.work(network + 1) - foreground
    };
    let mean = |class: usize| {
        let bits = 8.0 * parallel.size(class)?.mean.0 as f64;
        Some(ValueWithError { value: bits / left(class.checked_sub(1).unwrap_or(best)), error: 0.0 })
    };
    (0..parallel.classes()).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use crate::Theory;
    use outcome::{Engine, EngineError, Outcome};
    use scenario::{Scenario, ScenarioFile};

    fn scenario(loads: [f64; 3], law: &str, scheduler: &str) -> Scenario {
        let network = |load| format!("[[network]]\nrate = \"5.28Mbit\"\ndelay = \"5ms\"\nload = {load}\n");
        let [foreground, first, second] = loads;
        let text = format!(
            "name = \"x\"\n{}{}[foreground]\nload = {foreground}\nsize = {{ law = {law}, mean = \"2MB\" }}\n[bond]\nscheduler = \"{scheduler}\"\n",
            network(first),
            network(second)
        );
        ScenarioFile::parse(&text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    fn ask(loads: [f64; 3], law: &str, scheduler: &str) -> Outcome {
        Theory.run(&scenario(loads, law, scheduler), 1, &()).unwrap()
    }

    /// The mean service time of the paper's test lab, s.
    const BETA: f64 = 16e6 / 5.28e6;

    #[test]
    fn exponential_sizes_have_the_means_of_the_chain() {
        let outcome = ask([0.5, 0.3, 0.7], "\"exponential\"", "fluid");
        let chain = crate::Can::new(0.5, &[0.3, 0.7]).unwrap().solve();
        for (found, right) in outcome.sojourn_s.iter().zip(&chain.sojourn_s) {
            assert!((found.unwrap() / (right.unwrap().value * BETA) - 1.0).abs() < 1e-9, "{outcome:?}");
        }
        assert!(outcome.ci95["sojourn_0_s"] < 1e-9 && (outcome.utilization - 0.75).abs() < 1e-12);
        // Table V of the paper has 4.922 for this row.
        assert!((outcome.sojourn_s[0].unwrap() - 4.86).abs() < 0.08, "{outcome:?}");
        // Without background traffic both are one network: 1.25 β.
        let alone = ask([1.2, 0.0, 0.0], "\"exponential\"", "fluid");
        assert!((alone.sojourn_s[0].unwrap() - 1.25 * BETA).abs() < 1e-9 && alone.sojourn_s[1].is_none(), "{alone:?}");
    }

    #[test]
    fn other_sizes_are_simulated_with_an_interval() {
        let outcome = ask([0.1, 0.5, 0.7], "\"deterministic\"", "fluid");
        // Table I: 1.16 β.
        let (mean, half) = (outcome.sojourn_s[0].unwrap(), outcome.ci95["sojourn_0_s"]);
        assert!(half > 0.0 && (mean / BETA - 1.16).abs() < 0.01 + half / BETA, "{mean} ± {half}");
        assert!((outcome.networks.iter().map(|network| network.share.unwrap()).sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_single_network_is_closed_form_and_fixed_parts_are_simulated() {
        let single = ask([0.4, 0.3, 0.1], "\"pareto\", exponent = 2", "single");
        // The second network has more capacity left, and carries all of the foreground.
        let right = [1.0 / 0.5, 1.0 / 0.7, 1.0 / 0.5].map(|mean| mean * BETA);
        for (found, right) in single.sojourn_s.iter().zip(right) {
            assert!((found.unwrap() - right).abs() < 1e-9, "{single:?}");
        }
        assert_eq!(single.networks[1].share, Some(1.0));
        let [fluid, parts] =
            ["fluid", "round-robin"].map(|scheduler| ask([0.4, 0.3, 0.1], "\"exponential\"", scheduler).sojourn_s[0].unwrap());
        assert!(parts > 1.05 * fluid && parts < single.sojourn_s[0].unwrap(), "{fluid} {parts}");
    }

    /// The outcome of a plain scenario with one text replaced.
    fn changed(scheduler: &str, old: &str, new: &str) -> Outcome {
        let network = |load| format!("[[network]]\nrate = \"5.28Mbit\"\ndelay = \"5ms\"\nload = {load}\n");
        let text = format!(
            "name = \"x\"\n{}{}[foreground]\nload = 0.5\njobs = 40000\nsize = {{ law = \"exponential\", mean = \"2MB\" }}\n[bond]\nscheduler = \"{scheduler}\"\n",
            network(0.2),
            network(0.6)
        );
        assert!(text.contains(old), "{old}");
        let scenario = ScenarioFile::parse(&text.replacen(old, new, 1), "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        Theory.run(&scenario, 1, &()).unwrap()
    }

    #[test]
    fn the_topics_for_further_research_have_keys() {
        let time = |outcome: &Outcome, class: usize| outcome.sojourn_s[class].unwrap();
        let plain = changed("fluid", "[bond]", "[bond]");
        // A heavier foreground is faster, at the cost of the backgrounds.
        let heavy = changed("fluid", "load = 0.5", "load = 0.5\nweight = 4");
        assert!(time(&heavy, 0) < 0.8 * time(&plain, 0) && time(&heavy, 2) > 1.05 * time(&plain, 2), "{heavy:?} {plain:?}");
        let bursts = changed("fluid", "load = 0.5", "load = 0.5\narrivals = { mmpp = { rates = [5, 0.5], lasts = [\"60s\", \"300s\"] } }");
        assert!(time(&bursts, 0) > 1.1 * time(&plain, 0), "{bursts:?} {plain:?}");
        let streams = "load = 0.2\nstreams = { every = \"30s\", lasts = \"60s\", rate = \"500kbit\", most = 8 }";
        let streamed = changed("fluid", "load = 0.2", streams);
        assert!(time(&streamed, 1) > 1.1 * time(&plain, 1), "{streamed:?} {plain:?}");
        // Static parts never beat the fluid; by what is left they beat halves.
        let [halves, left] =
            ["", "\nfractions = [0.5, 0.5]"].map(|fractions| changed("static", "\"static\"", &format!("\"static\"{fractions}")));
        let (left, halves) = (time(&halves, 0), time(&left, 0));
        assert!(time(&plain, 0) < left && left < halves, "{plain:?} {left} {halves}");
    }

    #[test]
    fn it_names_what_it_cannot_answer() {
        let refused =
            |loads: [f64; 3], scheduler: &str| match Theory.run(&scenario(loads, "\"exponential\"", scheduler), 1, &()).unwrap_err() {
                EngineError::CannotAnswer { key, why, .. } => format!("{key}: {why}"),
                other => panic!("{other}"),
            };
        assert!(refused([0.1, 0.1, 0.1], "score").starts_with("bond.scheduler: it models"));
        let grown = refused([1.2, 0.0, 0.1], "single");
        assert!(grown.contains("network 1 would have a load of 1.2"), "{grown}");
    }
}
