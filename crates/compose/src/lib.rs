//! The split throughput heuristic of Yuan, Rossman and Winstein ("Internet Connection Splitting:
//! What's Old is New Again", USENIX ATC 2025): a split connection is as fast as the slower of its
//! segments would be alone.
//!
//! [`Compose`] is an engine. It cuts the scenario at its proxies ([`segments`]), has the simulator
//! play every segment alone, and answers with the least throughput. In front of each segment data
//! never runs out, and behind it there is always room: what the segments do to each other through
//! the proxy's buffer is left out. The difference to the simulator is therefore the coupling of the
//! legs. A scenario without a proxy has one segment, and the answer is the simulator's.
//!
//! Left out: `split.buffer`, `split.backpressure`. Refused: what a segment alone cannot have (modes
//! that do not forward as data arrives, shapers, controllers that divide the capacity of a proxy's
//! link).

mod segment;

use control::Controller;
use outcome::{Engine, EngineError, FlowOutcome, IntervalOutcome, Outcome, Progress};
use scenario::{Scenario, SplitMode};
pub use segment::{PathSegment, segments};
use sim::Sim;

/// The engine that composes the answers of the simulator to the segments of a path.
#[derive(Debug, Default, Clone)]
pub struct Compose {
    /// The simulator that plays the segments.
    pub sim: Sim,
}

const NAME: &str = "compose";

impl Engine for Compose {
    fn name(&self) -> &'static str {
        NAME
    }

    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError> {
        if scenario.parallel().is_some() {
            return EngineError::cannot(NAME, "network", "it composes links in series; the simulator has parallel networks: --on sim");
        }
        if let Some(key) = scenario.beyond_forward_flows().filter(|_| !scenario.splits.is_empty()) {
            let why = "its segments carry flows from the first link to the last; the simulator has other traffic: --on sim";
            return EngineError::cannot(NAME, key, why);
        }
        for (index, split) in (1..).zip(&scenario.splits) {
            if split.mode != SplitMode::Stream {
                let why = "its segments forward data as it arrives; the simulator has the other modes: --on sim";
                return EngineError::cannot(NAME, format!("split[{index}].mode"), why);
            }
            if split.shaper {
                let why = "a segment alone has no proxy that could shape; the simulator has shapers: --on sim";
                return EngineError::cannot(NAME, format!("split[{index}].shaper"), why);
            }
        }
        let proxied = scenario.leg_controls().into_iter().skip(1);
        let needs_capacity = |name: &&str| Controller::named(name).is_some_and(Controller::needs_capacity);
        if let Some(name) = proxied.into_iter().find(needs_capacity) {
            let why = format!("{name:?} divides the capacity of a proxy's link, and a segment alone has no proxy: --on sim has both");
            return EngineError::cannot(NAME, "control.proxy", why);
        }
        segments(scenario, scenario.seed).iter().try_for_each(|segment| self.sim.can_answer(&segment.scenario)).map_err(as_ours)
    }

    fn run(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError> {
        self.can_answer(scenario)?;
        let segments = segments(scenario, seed);
        let mut outcomes = Vec::with_capacity(segments.len());
        for (done, segment) in segments.iter().enumerate() {
            let part = Part { progress, done, of: segments.len() };
            outcomes.push(self.sim.run(&segment.scenario, segment.seed, &part).map_err(as_ours)?);
        }
        Ok(composed(scenario, seed, &segments, outcomes))
    }
}

/// Puts this engine's name in place of the simulator's.
fn as_ours(error: EngineError) -> EngineError {
    match error {
        EngineError::CannotAnswer { key, why, .. } => EngineError::CannotAnswer { engine: NAME, key, why },
        other => other,
    }
}

/// The progress of one of several segments.
struct Part<'a> {
    progress: &'a dyn Progress,
    done: usize,
    of: usize,
}

impl Progress for Part<'_> {
    fn at(&self, done: f64, what: &str) {
        self.progress.at((self.done as f64 + done) / self.of as f64, what);
    }

    fn cancelled(&self) -> bool {
        self.progress.cancelled()
    }
}

/// The answer for the path from those of its segments, in the same order.
fn composed(scenario: &Scenario, seed: u64, segments: &[PathSegment], mut outcomes: Vec<Outcome>) -> Outcome {
    if outcomes.len() == 1 {
        let alone = outcomes.remove(0);
        return Outcome { engine: NAME.into(), ..alone };
    }
    let slowest = outcomes.iter().min_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps)).cloned().unwrap_or_default();
    let bottleneck = scenario.bottleneck();
    let with_bottleneck =
        segments.iter().zip(&outcomes).find(|(segment, _)| (segment.links.first..segment.links.end).contains(&bottleneck));
    // The bottleneck carries no more than the slowest segment lets through.
    let utilization = with_bottleneck.map_or(0.0, |(_, outcome)| outcome.utilization * slowest.goodput_bps / outcome.goodput_bps.max(1e-9));
    let links = segments.iter().zip(&outcomes).flat_map(|(segment, outcome)| {
        outcome.links.iter().map(|link| outcome::LinkOutcome { link: link.link + segment.links.first, ..link.clone() })
    });
    Outcome {
        scenario: scenario.name.clone(),
        engine: NAME.into(),
        seed,
        valid: outcomes.iter().all(|outcome| outcome.valid),
        warnings: outcomes.iter().flat_map(|outcome| outcome.warnings.clone()).collect(),
        goodput_bps: slowest.goodput_bps,
        utilization,
        intervals: (0..slowest.intervals.len()).filter_map(|at| least_in_interval(&outcomes, at)).collect(),
        jain: slowest.jain,
        jain_window: slowest.jain_window,
        links: links.collect(),
        flows: (0..slowest.flows.len()).filter_map(|at| slowest_flow(&outcomes, at)).collect(),
        ..Outcome::default()
    }
}

/// The least goodput of the segments in interval `at`.
fn least_in_interval(outcomes: &[Outcome], at: usize) -> Option<IntervalOutcome> {
    let all = outcomes.iter().filter_map(|outcome| outcome.intervals.get(at)).copied();
    all.min_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps))
}

/// Flow `at` as on the segment where it is slowest, with the connections of all segments. It ends
/// when it has ended on every segment.
fn slowest_flow(outcomes: &[Outcome], at: usize) -> Option<FlowOutcome> {
    let all: Vec<&FlowOutcome> = outcomes.iter().filter_map(|outcome| outcome.flows.get(at)).collect();
    let slowest = all.iter().min_by(|a, b| a.goodput_bps.total_cmp(&b.goodput_bps))?;
    let ends: Option<Vec<f64>> = all.iter().map(|flow| flow.end_s).collect();
    Some(FlowOutcome {
        id: slowest.id,
        asked_bytes: slowest.asked_bytes,
        bytes: slowest.bytes,
        start_s: slowest.start_s,
        end_s: ends.and_then(|ends| ends.into_iter().reduce(f64::max)),
        goodput_bps: slowest.goodput_bps,
        error: all.iter().find_map(|flow| flow.error.clone()),
        legs: all.iter().flat_map(|flow| flow.legs.clone()).collect(),
        ..FlowOutcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;

    const PATH: &str = "name = \"t\"\nduration = \"20s\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"20ms\"\nloss = { per_packet = 0.01 }\n\
                        [[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\n";
    const SPLIT: &str = "[[split]]\nafter = 1\nbuffer = \"unlimited\"\n";

    fn scenario(more: &str) -> Scenario {
        ScenarioFile::parse(&format!("{PATH}{more}[[flow]]\n"), "t").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    fn composed(scenario: &Scenario) -> Outcome {
        Compose::default().run(scenario, 1, &()).unwrap()
    }

    #[test]
    fn a_split_path_with_other_traffic_is_refused() {
        let reverse = scenario("[[split]]\nafter = 1\n[[flow]]\ndirection = \"reverse\"\n");
        let refused = Compose::default().can_answer(&reverse).unwrap_err().to_string();
        assert!(refused.contains("direction") && refused.contains("--on sim"), "{refused}");
    }

    #[test]
    fn without_a_proxy_the_answer_is_the_simulators() {
        let scenario = scenario("");
        let simulated = Sim::default().run(&scenario, 1, &()).unwrap();
        assert_eq!(composed(&scenario), Outcome { engine: "compose".into(), ..simulated });
    }

    #[test]
    fn the_answer_is_that_of_the_slowest_segment_and_near_the_simulators() {
        let scenario = scenario(SPLIT);
        let outcome = composed(&scenario);
        let alone: Vec<f64> = segments(&scenario, 1)
            .iter()
            .map(|segment| Sim::default().run(&segment.scenario, segment.seed, &()).unwrap().goodput_bps)
            .collect();
        // The first segment loses packets over a round trip of 40 ms; the second is clean.
        assert!(alone[0] < 0.7 * alone[1], "{alone:?}");
        assert_eq!((outcome.goodput_bps, outcome.flows[0].goodput_bps), (alone[0], alone[0]));
        let simulated = Sim::default().run(&scenario, 1, &()).unwrap();
        assert!((outcome.goodput_bps / simulated.goodput_bps - 1.0).abs() < 0.1, "{} {}", outcome.goodput_bps, simulated.goodput_bps);
        // Link 2 is the bottleneck by its rate, and carries what link 1 lets through.
        assert!((outcome.utilization - outcome.goodput_bps / 10e6).abs() < 0.05, "{}", outcome.utilization);
        assert_eq!(outcome.links.iter().map(|link| link.link).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(outcome.flows[0].legs.len(), 2);
    }

    #[test]
    fn a_file_ends_when_it_has_ended_on_every_segment() {
        let mut scenario = scenario(SPLIT);
        scenario.duration = None;
        scenario.flows[0].bytes = Some(scenario::SizeLaw { shape: scenario::Shape::Deterministic, mean: units::Bytes(1_000_000) });
        let outcome = composed(&scenario);
        let ends = segments(&scenario, 1).into_iter().map(|segment| {
            let alone = Sim::default().run(&segment.scenario, segment.seed, &()).unwrap();
            assert_eq!(alone.flows[0].bytes, 1_000_000);
            alone.flows[0].end_s.unwrap()
        });
        assert_eq!(outcome.flows[0].end_s, ends.reduce(f64::max));
    }

    #[test]
    fn what_a_segment_alone_cannot_have_is_refused() {
        let key = |more: &str| match Compose::default().can_answer(&scenario(more)) {
            Err(EngineError::CannotAnswer { engine: "compose", key, .. }) => key,
            other => panic!("{more}: {other:?}"),
        };
        assert_eq!(key("[control]\nproxy = \"share\"\n[[split]]\nafter = 1\n"), "control.proxy");
        assert_eq!(key("[[split]]\nafter = 1\nshaper = true\n"), "split[1].shaper");
        assert_eq!(key("[[split]]\nafter = 1\nmode = \"semi\"\n"), "split[1].mode");
        assert!(Compose::default().can_answer(&scenario("[control]\nproxy = \"bbr3\"\n[[split]]\nafter = 1\n")).is_ok());
    }
}
