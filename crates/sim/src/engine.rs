//! The engine: which scenarios it answers, and how it plays one.

use crate::{
    parallel,
    parallel::Ended,
    run_counters::Effort,
    sender::Law,
    series,
    series::{Looks, World},
    settings::Settings,
};
use control::Controller;
use outcome::{Engine, EngineError, Outcome, Progress};
use scenario::{Buffer, Explicit, Parallel, QueueKind, Scenario, Scheduler, SplitMode};
use units::Span;

/// A run without a duration, whose flows do not end either (a link that loses everything), is given up after a month.
const PATIENCE: Span = Span(30 * 86_400 * 1_000_000_000);

/// The engine that answers with packets in virtual time.
#[derive(Debug, Default, Clone, Copy)]
pub struct Sim {
    /// What TCP is like where the scenario does not say.
    pub settings: Settings,
}

impl Engine for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError> {
        if let Some(parallel) = scenario.parallel() {
            can_answer_parallel(scenario, &parallel)?;
        }
        for (index, split) in scenario.splits.iter().enumerate() {
            let key = |what: &str| format!("split[{}].{what}", index + 1);
            match split.mode {
                SplitMode::Stream | SplitMode::Semi => {}
                SplitMode::Store if split.buffer != Buffer::Unlimited => {
                    return EngineError::cannot("sim", key("buffer"), "to store all before it forwards takes buffer = \"unlimited\"");
                }
                SplitMode::Store if scenario.flows.iter().any(|flow| flow.bytes.is_none()) => {
                    return EngineError::cannot("sim", key("mode"), "a flow without an end is never stored whole: give the flows bytes");
                }
                SplitMode::Store => {}
            }
        }
        laws(scenario).map(drop)
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
        let laws = laws(scenario)?;
        let settings = self.settings.of(&scenario.tcp);
        if let (Some(parallel), Law::Own(controller)) = (scenario.parallel(), laws[0]) {
            return self.play_parallel(scenario, parallel, controller, seed, progress);
        }
        let mut world = World::new(scenario, seed, &laws, settings);
        let mut looks = Looks::new(world.flows.len(), world.legs, &settings);
        let until = scenario.duration.unwrap_or(PATIENCE).0;
        if !world.run(until, &mut looks, progress) {
            return Err(EngineError::Cancelled);
        }
        progress.at(1.0, "measuring");
        let effort = world.effort();
        let mut outcome = series::outcome(&mut world, seed, looks);
        world.let_senders_hear(until);
        for (outcome, flow) in outcome.flows.iter_mut().zip(&world.flows) {
            outcome.acked_s = flow.acked.map(|at| at as f64 / 1e9);
        }
        if scenario.duration.is_none() && outcome.flows.iter().any(|flow| flow.end_s.is_none()) {
            outcome.warnings.push("a flow had not ended after a month".into());
        }
        Ok((outcome, effort))
    }

    fn play_parallel(
        &self,
        scenario: &Scenario,
        parallel: Parallel<'_>,
        controller: Controller,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<(Outcome, Effort), EngineError> {
        let mut world = parallel::World::new(scenario, parallel, seed, controller, self.settings.of(&scenario.tcp));
        // What comes by chance has come in ten times the time that it takes in the mean.
        let expected = parallel.foreground.map_or(0.0, |foreground| foreground.jobs as f64 / parallel.arrivals_per_s(0));
        let until = scenario.duration.unwrap_or(PATIENCE + Span::from_secs_f64(10.0 * expected)).0;
        match world.run(until, progress) {
            Ended::Well => {}
            Ended::Cancelled => return Err(EngineError::Cancelled),
            Ended::Crowded => {
                let why = "the simulator gave up: more than a million connections were open at once; take lower loads, or windows and queues with \
                           which transfers get through";
                return Err(EngineError::Failed(why.into()));
            }
        }
        progress.at(1.0, "measuring");
        let mut outcome = parallel::outcome(&world, seed);
        if world.gave_up() {
            outcome.valid = false;
            outcome
                .warnings
                .push("transfers had not ended after ten times the time in which they come, and a month: their means are too low".into());
        }
        Ok((outcome, world.effort()))
    }
}

/// What of networks in parallel it has no answer to.
fn can_answer_parallel(scenario: &Scenario, parallel: &Parallel<'_>) -> Result<(), EngineError> {
    for (index, network) in (1..).zip(parallel.networks) {
        if !matches!(network.queue.kind, QueueKind::Droptail | QueueKind::Ecn) {
            return EngineError::cannot("sim", format!("network[{index}].queue.kind"), "its queues are droptail and ecn");
        }
    }
    if let Some(Law::Told(_)) = Law::named(&scenario.control.sender) {
        return EngineError::cannot("sim", "control.sender", "networks in parallel have no routers that would tell it what to send");
    }
    let refused = |flow: &scenario::FlowGroup| {
        let because = [
            ("offers", flow.offers.is_some(), "what is shared out over several networks is there as a whole"),
            ("fast_open", flow.fast_open, "its connections in parallel networks open as ever"),
            ("send_buffer", flow.send_buffer.is_some(), "what is shared out over several networks has no bound"),
        ];
        because.into_iter().find(|(_, is_there, _)| *is_there)
    };
    if let Some((index, (key, _, why))) = (1..).zip(&scenario.flows).find_map(|(index, flow)| Some((index, refused(flow)?))) {
        return EngineError::cannot("sim", format!("flow[{index}].{key}"), why);
    }
    if parallel.bond.scheduler == Scheduler::Mptcp {
        return EngineError::cannot("sim", "bond.scheduler", "Multipath TCP is the kernel's: --on lab");
    }
    match parallel.overload() {
        Some((network, load)) => {
            let why = format!("network {network} would have a load of {load:.3}, and times would grow for ever: there is no mean");
            EngineError::cannot("sim", "bond.scheduler", &why)
        }
        None => Ok(()),
    }
}

/// What each leg is under.
fn laws(scenario: &Scenario) -> Result<Vec<Law>, EngineError> {
    let found = scenario.leg_controls().into_iter().enumerate().map(|(leg, name)| {
        let key = if leg == 0 { "control.sender" } else { "control.proxy" };
        let wrong = |why: String| Err(EngineError::WrongScenario { key: key.into(), why });
        match Law::named(name) {
            Some(Law::Own(controller)) if leg == 0 && controller.needs_capacity() => {
                EngineError::cannot("sim", key, format!("{name:?} shares out the capacity of a proxy's egress; a sender knows none"))
            }
            Some(Law::Told(explicit)) if !is_told(scenario, leg, explicit) => wrong(untold(scenario, leg, name, explicit)),
            Some(law) => Ok(law),
            None if name == "bbr" => EngineError::cannot("sim", key, "the kernel's BBR is the lab's"),
            None => {
                let all: Vec<&str> = Controller::all().map(Controller::name).chain(Explicit::NAMES).collect();
                wrong(format!("there is no controller {name:?}; there are {}", all.join(", ")))
            }
        }
    });
    found.collect()
}

/// Whether there is a router on the leg that tells what this is to be told.
fn is_told(scenario: &Scenario, leg: usize, explicit: Explicit) -> bool {
    let leg = scenario.legs()[leg];
    scenario.links[leg.first..leg.end].iter().any(|link| link.queue.kind == explicit.routers)
}

/// That there is none, and what to do about it.
fn untold(scenario: &Scenario, leg: usize, name: &str, explicit: Explicit) -> String {
    let leg = scenario.legs()[leg];
    let links = match leg.end - leg.first {
        1 => format!("link {} has none", leg.end),
        _ => format!("none of links {} to {} has one", leg.first + 1, leg.end),
    };
    let kind = format!("{:?}", explicit.routers).to_lowercase();
    let slowest = (leg.first..leg.end).min_by_key(|link| scenario.links[*link].rate).unwrap_or(leg.first) + 1;
    format!("{name:?} sends what {kind} routers tell it to, and {links}: give link {slowest} queue = {{ kind = \"{kind}\" }}")
}
