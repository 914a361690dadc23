//! The engine: which scenarios it answers, and how it plays one.

use crate::{measure, measure::Looks, settings::Settings, world::World};
use control::Controller;
use scenario::{Buffer, Engine, EngineError, Outcome, Progress, QueueKind, Scenario, Span, SplitMode};

/// Controllers that exist elsewhere.
const ELSEWHERE: [&str; 4] = ["bbr", "xcp-e2e", "vcp-e2e", "mpcp-e2e"];

/// A run without a duration, whose flows do not end either (a link that loses everything), is given up after a month.
const PATIENCE: Span = Span(30 * 86_400 * 1_000_000_000);

/// The engine that answers with packets in virtual time.
#[derive(Debug, Default, Clone, Copy)]
pub struct Sim {
    /// What TCP is like where the scenario does not say.
    pub settings: Settings,
}

/// What a run did, beside its outcome: for those who check or measure the simulator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Things that happened.
    pub events: u64,
    /// Data segments that were sent, again or for the first time, over all connections.
    pub segments: u64,
    /// Acknowledgements that were sent.
    pub acks: u64,
    /// Times a retransmission timer fired, reductions that were taken back, and probes of the tail.
    pub timeouts: u64,
    /// Reductions that were taken back.
    pub undone: u64,
    /// Probes of the tail.
    pub probes: u64,
}

impl Engine for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError> {
        for (index, link) in (1..).zip(&scenario.links) {
            if !matches!(link.queue.kind, QueueKind::Droptail | QueueKind::Ecn) {
                return cannot(format!("link[{index}].queue.kind"), "its queues are droptail and ecn");
            }
        }
        for (index, split) in scenario.splits.iter().enumerate() {
            let key = |what: &str| format!("split[{}].{what}", index + 1);
            match split.mode {
                SplitMode::Stream => {}
                SplitMode::Semi => return cannot(key("mode"), "its proxy acknowledges what it has received"),
                SplitMode::Store if split.buffer != Buffer::Unlimited => {
                    return cannot(key("buffer"), "to store all before it forwards takes buffer = \"unlimited\"");
                }
                SplitMode::Store if scenario.flows.iter().any(|flow| flow.bytes.is_none()) => {
                    return cannot(key("mode"), "a flow without an end is never stored whole: give the flows bytes");
                }
                SplitMode::Store => {}
            }
        }
        controllers(scenario).map(drop)
    }

    fn run(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError> {
        self.play(scenario, seed, progress).map(|(outcome, _)| outcome)
    }
}

impl Sim {
    /// With settings other than the default.
    pub fn with(settings: Settings) -> Self {
        Sim { settings }
    }

    /// As [`Engine::run`], and tells what it took.
    pub fn play(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<(Outcome, Effort), EngineError> {
        self.can_answer(scenario)?;
        let controllers = controllers(scenario)?;
        let settings = self.settings.of(&scenario.tcp);
        let mut world = World::new(scenario, seed, &controllers, settings);
        let mut looks = Looks::new(world.flows.len(), world.legs, &settings);
        let until = scenario.duration.unwrap_or(PATIENCE).0;
        if !world.run(until, &mut looks, progress) {
            return Err(EngineError::Cancelled);
        }
        progress.at(1.0, "measuring");
        let effort = world.effort();
        let mut outcome = measure::outcome(&mut world, seed, looks);
        if scenario.duration.is_none() && outcome.flows.iter().any(|flow| flow.end_s.is_none()) {
            outcome.warnings.push("a flow had not ended after a month".into());
        }
        Ok((outcome, effort))
    }
}

fn cannot<T>(key: String, why: &str) -> Result<T, EngineError> {
    Err(EngineError::CannotAnswer { engine: "sim", key, why: why.into() })
}

/// The controller of each leg.
fn controllers(scenario: &Scenario) -> Result<Vec<Controller>, EngineError> {
    let key = |leg: usize| if leg == 0 { "control.sender" } else { "control.proxy" };
    let names = scenario.leg_controls().into_iter().enumerate();
    let found = names.map(|(leg, name)| match Controller::named(name) {
        Some(controller) if leg == 0 && controller.needs_capacity() => {
            cannot(key(leg).into(), &format!("{name:?} shares out the capacity of a proxy's egress; a sender knows none"))
        }
        Some(controller) => Ok(controller),
        None if name == "bbr" => cannot(key(leg).into(), "the kernel's BBR is the lab's"),
        None if ELSEWHERE.contains(&name) => cannot(key(leg).into(), &format!("{name:?} needs routers that it has not got")),
        None => {
            let all: Vec<&str> = Controller::all().map(Controller::name).collect();
            let why = format!("there is no controller {name:?}; there are {}", all.join(", "));
            Err(EngineError::WrongScenario { key: key(leg).into(), why })
        }
    });
    found.collect()
}
