//! The engine that answers a scenario by the equations.

use crate::{
    aimd::{Aimd, LossRate},
    error::TheoryError,
    estimate::Estimate,
    parallel,
    split::TandemModel,
    trajectory::TandemState,
};
use outcome::{Dist, Engine, EngineError, FlowOutcome, Outcome, Phases, Progress, ProxyOutcome, Series};
use scenario::{Backpressure, Link, Loss, Scenario, SplitMode};
use units::PKT;

/// Answers with the steady state of one endless connection, split at most once, or of networks in
/// parallel.
#[derive(Debug, Default, Clone, Copy)]
pub struct Theory;

/// Payload of a packet of 1500 bytes: IPv4, and TCP with timestamps.
const PAYLOAD: f64 = 1448.0;
/// Losses of the simulated trajectory.
const LOSSES: u64 = 400_000;
/// Samples of the buffer content.
const SAMPLES: usize = 40_000;

impl Engine for Theory {
    fn name(&self) -> &'static str {
        "theory"
    }

    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError> {
        if let Some(parallel) = scenario.parallel() {
            return parallel::can_answer(&parallel);
        }
        check_flow(scenario)?;
        check_steady_state(scenario)?;
        check_splits(scenario)?;
        check_legs(scenario)
    }

    fn run(&self, scenario: &Scenario, seed: u64, _: &dyn Progress) -> Result<Outcome, EngineError> {
        self.can_answer(scenario)?;
        let (key, found) = match scenario.parallel() {
            Some(parallel) => ("network", parallel::answer(scenario, &parallel, seed)),
            None => ("link", answer(scenario, seed)),
        };
        found.map_err(|error| EngineError::WrongScenario { key: key.into(), why: error.to_string() })
    }
}

/// The equations describe one endless flow.
fn check_flow(scenario: &Scenario) -> Result<(), EngineError> {
    let flows = scenario.flow_specs(scenario.seed);
    if flows.len() != 1 {
        return EngineError::cannot("theory", "flow", "its equations describe a single connection");
    }
    let flow = &flows[0];
    if flow.bytes.is_some() {
        return EngineError::cannot("theory", "flow.bytes", "it computes the steady state, which a file transfer does not reach");
    }
    if flow.window.is_some() || flow.send_buffer.is_some() || flow.offers.is_some() || flow.access_delay.0 > 0 {
        return EngineError::cannot("theory", "flow", "its sender always has data, its receiver always has room, and neither adds delay");
    }
    Ok(())
}

/// The equations describe a steady state without other traffic.
fn check_steady_state(scenario: &Scenario) -> Result<(), EngineError> {
    if !scenario.cross.is_empty() {
        return EngineError::cannot("theory", "cross", "its equations have no cross traffic");
    }
    if let Some(key) = scenario.beyond_forward_flows() {
        return EngineError::cannot(
            "theory",
            key,
            "its equations describe data from the first link to the last; the simulator has other traffic: --on sim",
        );
    }
    if scenario.links.iter().any(|link| link.demand.is_some()) {
        return EngineError::cannot(
            "theory",
            "link.demand",
            "its links have one rate; the simulator has rates that follow demand: --on sim",
        );
    }
    if scenario.links.iter().any(|link| !link.changes.is_empty()) {
        return EngineError::cannot("theory", "link.changes", "a steady state has no changing links");
    }
    if let Some(key) = scenario.links.iter().flat_map(Link::beyond_rate_and_loss).next() {
        let why = "its links have a rate, a delay and losses; the simulator has the others: --on sim";
        return EngineError::cannot("theory", format!("link.{key}"), why);
    }
    if let Some(key) = scenario.tcp.first_set() {
        return EngineError::cannot("theory", key, "its equations have no TCP settings: the window grows with every acknowledgement");
    }
    Ok(())
}

/// The equations describe at most one split, with fluid backpressure, and no agents.
fn check_splits(scenario: &Scenario) -> Result<(), EngineError> {
    if !scenario.agents.is_empty() {
        let why = "its equations have no agents that repair or report losses; the simulator has: --on sim";
        return EngineError::cannot("theory", "agent", why);
    }
    if scenario.splits.len() > 1 {
        return EngineError::cannot("theory", "split", "its equations describe at most two connections in tandem");
    }
    let Some(split) = scenario.splits.first() else { return Ok(()) };
    if split.mode != SplitMode::Stream {
        return EngineError::cannot("theory", "split[1].mode", "its proxy forwards a stream: \"stream\"");
    }
    if split.buffer == scenario::Buffer::Adaptive {
        return EngineError::cannot("theory", "split[1].buffer", "its buffer is constant: give a size, \"auto\" or \"unlimited\"");
    }
    if split.backpressure != Backpressure::Fluid {
        return EngineError::cannot("theory", "split[1].backpressure", "its sender is held back only while the buffer is full: \"fluid\"");
    }
    Ok(())
}

/// The equations need Reno and one loss process on each leg.
fn check_legs(scenario: &Scenario) -> Result<(), EngineError> {
    let senders = scenario.sender_settings();
    if scenario.leg_controls().into_iter().chain(senders.iter().map(|setting| setting.name.as_str())).any(|control| control != "reno") {
        return EngineError::cannot("theory", "control", "its rates rise linearly and are halved by a loss: \"reno\"");
    }
    for leg in scenario.legs() {
        let losses: Vec<&Loss> = scenario.links[leg.first..leg.end].iter().filter_map(|link| link.loss.forward.as_ref()).collect();
        match losses[..] {
            [Loss::PerPacket(_) | Loss::PerSecond(_)] => {}
            [Loss::Gilbert(_)] => {
                return EngineError::cannot("theory", "link.loss", "its losses are independent: per_packet or per_second");
            }
            _ => {
                return EngineError::cannot(
                    "theory",
                    "link.loss",
                    "it needs exactly one loss process on each leg: without losses its rates would rise for ever",
                );
            }
        }
    }
    Ok(())
}

/// A leg in the equations, and the rate of its bottleneck, packets/s.
fn leg(scenario: &Scenario, leg: scenario::LegLinks) -> Result<(Aimd, f64), TheoryError> {
    let losses = scenario.links[leg.first..leg.end].iter().find_map(|link| match link.loss.forward {
        Some(Loss::PerPacket(rate)) => Some(LossRate::PerPacket(rate)),
        Some(Loss::PerSecond(rate)) => Some(LossRate::PerSecond(rate)),
        _ => None,
    });
    let losses = losses.expect("can_answer requires a loss process");
    let capacity = scenario.bottleneck_rate(leg).bits_per_s() as f64 / 8.0 / PKT.0 as f64;
    Ok((Aimd::new(scenario.base_rtt(leg).secs(), losses)?, capacity))
}

/// `percent` rounded up to 1, 2 or 5 times a power of ten.
fn round_up(percent: f64) -> f64 {
    if percent <= 0.0 {
        return 0.0;
    }
    let power = 10f64.powf(percent.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| percent <= step * power).unwrap_or(10.0);
    // A quotient of whole numbers prints without the error of the multiplication: 0.05.
    if power < 1.0 { step / (1.0 / power).round() } else { step * power }
}

fn answer(scenario: &Scenario, seed: u64) -> Result<Outcome, TheoryError> {
    let legs: Vec<(Aimd, f64)> = scenario.legs().into_iter().map(|of| leg(scenario, of)).collect::<Result<_, _>>()?;
    let (first, first_cap) = legs[0];
    let mut split = match legs.get(1) {
        Some(&(second, second_cap)) => TandemModel::new(first, second).with_capacities(first_cap, second_cap)?,
        None => TandemModel::alone(first, first_cap)?,
    };
    if let Some(buffer) = scenario.splits.first().and_then(|_| scenario.buffer_limit(0)) {
        split = split.with_buffer(buffer.0 as f64 / PKT.0 as f64)?;
    }
    let found = split.estimate(seed, LOSSES)?;
    let goodput = found.rate.mean * PAYLOAD * 8.0;
    let seconds = scenario.duration.map_or(0.0, units::Span::secs);
    let bottleneck = scenario.links[scenario.bottleneck()].rate.bits_per_s() as f64;
    // Rounded up, so that all seeds give the same remark, which tables then print once.
    let percent = round_up(found.rate.half / found.rate.mean * 100.0);
    Ok(Outcome {
        scenario: scenario.name.clone(),
        engine: "theory".into(),
        seed,
        valid: true,
        warnings: vec![format!("the steady state, without slow start, queues at links or timeouts; within {percent} %")],
        goodput_bps: goodput,
        utilization: found.rate.mean * PKT.0 as f64 * 8.0 / bottleneck,
        flows: vec![FlowOutcome {
            id: 0,
            asked_bytes: None,
            bytes: (goodput / 8.0 * seconds) as u64,
            start_s: 0.0,
            end_s: None,
            goodput_bps: goodput,
            ..FlowOutcome::default()
        }],
        proxy: (!scenario.splits.is_empty()).then(|| proxy(&split, seed, &found)),
        series: series(&split, legs.len(), seed, seconds),
        ..Outcome::default()
    })
}

/// The buffer content of the proxy, by samples at random times, and the delay: its mean by Little's
/// law, its spread by that of the content as in Baccelli (19.16), with the throughput as the rate.
fn proxy(split: &TandemModel, seed: u64, found: &Estimate) -> ProxyOutcome {
    let [first, second] = split.legs;
    let mean_gap = 3.0 * first.rtt_s().max(second.rtt_s()) + 1.0;
    let start = TandemState { x: first.mean(), y: second.mean(), q: 0.0 };
    let held: Vec<f64> =
        split.trajectory(start, seed).samples(mean_gap, seed).skip(SAMPLES / 20).take(SAMPLES).map(|state| state.q).collect();
    let propagation = (first.rtt_s() + second.rtt_s()) / 2.0;
    let [free, starvation, backpressure] = found.phases.map(|phase| phase.mean);
    ProxyOutcome {
        buffer_bytes: Dist::of(&mut held.iter().map(|packets| packets * PAYLOAD).collect::<Vec<_>>()),
        delay_s: Dist::of(&mut held.iter().map(|packets| propagation + packets / found.rate.mean).collect::<Vec<_>>()),
        phases: Phases { free, starvation, backpressure },
        shaper: None,
        receive_overruns: None,
    }
}

/// Time series of the windows and the buffer content over `seconds`, after a warm-up of the same
/// length.
fn series(split: &TandemModel, legs: usize, seed: u64, seconds: f64) -> Vec<Series> {
    const POINTS: usize = 3000;
    let [first, second] = split.legs;
    let mut trajectory = split.trajectory(TandemState { x: first.mean(), y: second.mean(), q: 0.0 }, seed);
    let (mut segment, mut elapsed) = (trajectory.step(), 0.0);
    let states: Vec<(f64, TandemState)> = (0..if seconds > 0.0 { POINTS } else { 0 })
        .map(|point| {
            let shown = seconds * point as f64 / POINTS as f64;
            while elapsed + segment.span <= shown + seconds {
                elapsed += segment.span;
                segment = trajectory.step();
            }
            (shown, segment.at(shown + seconds - elapsed))
        })
        .collect();
    let one = |what: &str, whose: &str, unit: &str, of: &dyn Fn(&TandemState) -> f64| {
        let (t, v) = states.iter().map(|(t, state)| (*t, of(state))).unzip();
        Series { what: what.into(), whose: whose.into(), unit: unit.into(), t, v }
    };
    let mut all = vec![one("cwnd", "flow 0 leg 1", "pkt", &|state| state.x * first.rtt_s())];
    if legs > 1 {
        all.push(one("cwnd", "flow 0 leg 2", "pkt", &|state| state.y * second.rtt_s()));
        all.push(one("held", "all", "B", &|state| state.q * PAYLOAD));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_is_rounded_up() {
        let cases = [(0.031, "0.05"), (0.05, "0.05"), (0.07, "0.1"), (0.9, "1"), (1.1, "2"), (13.0, "20"), (0.0, "0")];
        for (percent, written) in cases {
            assert_eq!(round_up(percent).to_string(), written);
        }
    }
    use scenario::ScenarioFile;

    fn scenario(text: &str) -> Scenario {
        ScenarioFile::parse(text, "test").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    const TANDEM: &str = "name = \"x\"\nduration = \"60s\"\n[control]\nsender = \"reno\"\nproxy = \"reno\"\n\
        [[link]]\nrate = \"100Mbit\"\ndelay = \"20ms\"\nloss = { per_second = 0.4 }\n\
        [[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\nloss = { per_second = 0.4 }\n";
    const SPLIT: &str = "[[split]]\nafter = 1\nbuffer = \"100pkt\"\nbackpressure = \"fluid\"\n[[flow]]\n";

    fn refused(text: &str) -> String {
        match Theory.can_answer(&scenario(text)).unwrap_err() {
            EngineError::CannotAnswer { key, .. } => key,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_split_connection_is_answered() {
        let outcome = Theory.run(&scenario(&format!("{TANDEM}{SPLIT}")), 1, &()).unwrap();
        // The rate of the isolated first leg is 2/(0.04² · 0.4) = 3125 packets/s.
        let isolated = 3125.0 * PAYLOAD * 8.0;
        assert!(outcome.goodput_bps > 0.9 * isolated && outcome.goodput_bps < isolated, "{}", outcome.goodput_bps);
        let proxy = outcome.proxy.unwrap();
        assert!((proxy.phases.free + proxy.phases.starvation + proxy.phases.backpressure - 1.0).abs() < 1e-9);
        assert!(proxy.buffer_bytes.max <= 100.0 * PAYLOAD && proxy.delay_s.p50 >= 0.03);
        let series: Vec<&str> = outcome.series.iter().map(|series| series.whose.as_str()).collect();
        assert_eq!(series, ["flow 0 leg 1", "flow 0 leg 2", "all"]);
        assert!(outcome.series[2].v.iter().all(|held| (0.0..=100.0 * PAYLOAD).contains(held)));
    }

    #[test]
    fn one_connection_has_its_closed_form_rate_on_a_fast_link() {
        let text = "name = \"x\"\nduration = \"60s\"\n[control]\nsender = \"reno\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"50ms\"\n\
            loss = { per_packet = 0.001 }\n[[flow]]\n";
        let outcome = Theory.run(&scenario(text), 1, &()).unwrap();
        let mean = Aimd::new(0.1, LossRate::PerPacket(0.001)).unwrap().mean() * PAYLOAD * 8.0;
        assert!((outcome.goodput_bps / mean - 1.0).abs() < 0.01, "{} of {mean}", outcome.goodput_bps);
        let narrow = Theory.run(&scenario(&text.replace("1Gbit", "2Mbit")), 1, &()).unwrap();
        assert!(narrow.utilization <= 1.0 && narrow.goodput_bps < 2e6, "{}", narrow.goodput_bps);
    }

    #[test]
    fn it_names_what_it_cannot_answer() {
        assert_eq!(refused(&format!("{TANDEM}[[split]]\nafter = 1\nbuffer = \"20pkt\"\n[[flow]]\n")), "split[1].backpressure");
        assert_eq!(refused(&format!("{TANDEM}{SPLIT}bytes = \"1MB\"\n")), "flow.bytes");
        assert_eq!(refused(&format!("{TANDEM}{SPLIT}count = 2\n")), "flow");
        assert_eq!(refused(&format!("{TANDEM}{SPLIT}").replace("proxy = \"reno\"", "proxy = \"cubic\"")), "control");
        assert_eq!(refused(&format!("{TANDEM}[[flow]]\n")), "link.loss");
        let endless = SPLIT.replace("100pkt", "unlimited");
        let fast_first = format!("{TANDEM}{endless}").replace("20ms", "5ms");
        let error = Theory.run(&scenario(&fast_first), 1, &()).unwrap_err().to_string();
        // 4 by the losses alone; the first leg's capacity reduces it.
        assert!(error.contains("rho = 1."), "{error}");
        // By the losses alone the second leg is faster; by its capacity it is not.
        let narrow = format!("{TANDEM}{endless}").replacen("100Mbit\"\ndelay = \"10ms", "20Mbit\"\ndelay = \"10ms", 1);
        let error = Theory.run(&scenario(&narrow), 1, &()).unwrap_err().to_string();
        assert!(error.contains("rho = 1.") || error.contains("rho = 2"), "{error}");
    }
}
