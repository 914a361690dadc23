//! The simulator as an [`Engine`]: which scenarios it can answer, and how it runs one.

use crate::{
    event_loop::RunEnd,
    external::ExternalController,
    parallel::{self, MAX_WEIGHT, ParallelSimulation},
    run_counters::RunCounters,
    sender::CongestionControl,
    series::{self, RunSampler, SeriesControls, SeriesSimulation},
    settings::TcpSettings,
};
use control::Controller;
use outcome::{Engine, EngineError, Outcome, Progress};
use scenario::{Buffer, ControllerSetting, Explicit, FlowGroup, Parallel, QueueKind, Scenario, Split, SplitMode, TransferScheduler};
use std::sync::Arc;
use units::Span;

/// Time limit of a run without a duration: a month. It is reached when a flow cannot end, for
/// example over a link that loses everything.
const TIME_LIMIT: Span = Span(30 * 86_400 * 1_000_000_000);

/// The engine that simulates packets in virtual time.
#[derive(Debug, Default, Clone)]
pub struct Sim {
    /// TCP parameters for what the scenario leaves open.
    pub settings: TcpSettings,
    /// Controllers beside Tandem's.
    pub controllers: Vec<Arc<dyn ExternalController>>,
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
            if split.buffer == Buffer::Adaptive {
                let why = "a buffer that follows each flow is the real proxy's: use the lab (--on lab), or set it to \"auto\"";
                return EngineError::cannot("sim", key("buffer"), why);
            }
            match split.mode {
                SplitMode::Stream | SplitMode::Semi => {}
                SplitMode::Store if split.buffer != Buffer::Unlimited => {
                    let why = "mode = \"store\" receives a whole flow before it forwards it: set buffer = \"unlimited\"";
                    return EngineError::cannot("sim", key("buffer"), why);
                }
                SplitMode::Store if scenario.flows.iter().any(|flow| flow.bytes.is_none()) => {
                    let why = "mode = \"store\" never forwards a flow without an end: give every flow a size in bytes";
                    return EngineError::cannot("sim", key("mode"), why);
                }
                SplitMode::Store => {}
            }
        }
        can_answer_agents(scenario)?;
        can_answer_two_way(scenario)?;
        can_answer_web(scenario)?;
        let controls = self.controls(scenario)?;
        if scenario.parallel().is_some() { series_only(&controls) } else { Ok(()) }
    }

    fn run(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError> {
        self.play(scenario, seed, progress).map(|(outcome, _)| outcome)
    }
}

impl Sim {
    /// A simulator with these TCP parameters.
    pub fn with(settings: TcpSettings) -> Self {
        Sim { settings, ..Sim::default() }
    }

    /// Runs a scenario, as [`Engine::run`], and also returns internal counters of the run.
    ///
    /// # Errors
    /// - [`EngineError::CannotAnswer`] and [`EngineError::WrongScenario`]: the simulator has no
    ///   answer to the scenario, as [`Engine::can_answer`] tells.
    /// - [`EngineError::Failed`]: too many connections were open at once, or the program of an own
    ///   controller failed.
    /// - [`EngineError::Cancelled`]: `progress` asked for the end.
    pub fn play(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<(Outcome, RunCounters), EngineError> {
        self.can_answer(scenario)?;
        let controls = self.controls(scenario)?;
        let settings = self.settings.with_scenario(&scenario.tcp);
        // A proxy before parallel networks has a controller of its own.
        let native = |leg: usize| match &controls.legs[leg.min(controls.legs.len() - 1)] {
            CongestionControl::Native(controller) => Some(*controller),
            CongestionControl::RouterAssisted(_) | CongestionControl::External(_) => None,
        };
        if let (Some(parallel), Some(sender), Some(last)) = (scenario.parallel(), native(0), native(1)) {
            let simulation = ParallelSimulation::new(scenario, parallel, seed, [sender, last], settings);
            return run_parallel(simulation, scenario, parallel, seed, progress);
        }
        run_series(scenario, seed, &controls, settings, progress)
    }

    /// The congestion control of every connection of a scenario.
    fn controls(&self, scenario: &Scenario) -> Result<SeriesControls, EngineError> {
        let choice = ControlChoice { scenario, external: &self.controllers };
        Ok(SeriesControls {
            web: choice.of_web()?,
            flows: choice.of_groups()?,
            cross_flows: choice.of_cross_flows()?,
            legs: choice.of_legs()?,
        })
    }
}

/// Refuses controllers of the caller where networks are in parallel.
fn series_only(controls: &SeriesControls) -> Result<(), EngineError> {
    let is_external = |control: &CongestionControl| matches!(control, CongestionControl::External(_));
    if controls.legs.iter().chain(&controls.flows).any(is_external) {
        let why = "connections over parallel networks have Tandem's controllers only: choose one of them, or put the links in series";
        return EngineError::cannot("sim", "control", why);
    }
    Ok(())
}

fn run_series(
    scenario: &Scenario,
    seed: u64,
    controls: &SeriesControls,
    settings: TcpSettings,
    progress: &dyn Progress,
) -> Result<(Outcome, RunCounters), EngineError> {
    let mut simulation = SeriesSimulation::new(scenario, seed, controls, settings);
    let mut sampler = RunSampler::new(&simulation, &settings);
    let until = scenario.duration.unwrap_or(TIME_LIMIT).0;
    let end = simulation.run(until, &mut sampler, progress);
    simulation.net.check_controllers()?;
    if end == RunEnd::Cancelled {
        return Err(EngineError::Cancelled);
    }
    progress.at(1.0, "measuring");
    let counters = simulation.counters();
    let mut outcome = series::outcome(&mut simulation, seed, sampler);
    simulation.run_until_confirmed(until);
    simulation.net.check_controllers()?;
    for (outcome, flow) in outcome.flows.iter_mut().zip(&simulation.flows) {
        outcome.acked_s = flow.acked.map(|at| at as f64 / 1e9);
    }
    if scenario.duration.is_none() && simulation.is_unfinished() {
        outcome.warnings.push("a flow or a page had not ended after a month of simulated time".into());
    }
    Ok((outcome, counters))
}

fn run_parallel(
    mut simulation: ParallelSimulation<'_>,
    scenario: &Scenario,
    parallel: Parallel<'_>,
    seed: u64,
    progress: &dyn Progress,
) -> Result<(Outcome, RunCounters), EngineError> {
    // Random arrivals take ten times their mean time with negligible probability.
    let mean_s = parallel.foreground.map_or(0.0, |foreground| foreground.jobs as f64 / parallel.arrivals_per_s(0));
    let until = scenario.duration.unwrap_or(TIME_LIMIT + Span::from_secs_f64(10.0 * mean_s)).0;
    let end = simulation.run(until, progress);
    simulation.check_controllers()?;
    if simulation.is_out_of_slots() {
        let why = "the simulation of the parallel networks was stopped: more than a million connections were open at once; lower the loads, or \
                   set windows and queues with which transfers complete";
        return Err(EngineError::Failed(why.into()));
    }
    if end == RunEnd::Cancelled {
        return Err(EngineError::Cancelled);
    }
    progress.at(1.0, "measuring");
    let mut outcome = parallel::outcome(&simulation, seed);
    if end == RunEnd::TimeLimit && scenario.duration.is_none() {
        outcome.valid = false;
        let why = "transfers had not ended after ten times the time in which they arrive, and a month: their mean times are too low";
        outcome.warnings.push(why.into());
    }
    Ok((outcome, simulation.counters()))
}

/// Refuses agents on legs whose controllers follow feedback of routers.
fn can_answer_agents(scenario: &Scenario) -> Result<(), EngineError> {
    let (legs, controls) = (scenario.legs(), scenario.leg_controls());
    for (index, agent) in (1..).zip(&scenario.agents) {
        let leg = legs.iter().position(|leg| agent.after < leg.end).unwrap_or(0);
        if Explicit::named(controls[leg]).is_some() {
            let why = format!("it discards or changes acknowledgements with the feedback of routers, which {} needs", controls[leg]);
            return EngineError::cannot("sim", format!("agent[{index}].kind"), why);
        }
    }
    Ok(())
}

/// Refuses data against the links, or connections over some of them, beside what assumes flows from
/// the first link to the last.
fn can_answer_two_way(scenario: &Scenario) -> Result<(), EngineError> {
    if let (Some(key), false) = (scenario.beyond_forward_flows(), scenario.agents.is_empty()) {
        return EngineError::cannot("sim", key, "its agents know flows from the first link to the last only: leave the [[agent]]s out");
    }
    let Some(key) = scenario.reverse_key() else { return Ok(()) };
    for control in scenario.leg_controls() {
        if Explicit::named(control).is_some() {
            let why = format!("routers give feedback to data from the first link to the last only, and {control:?} needs it");
            return EngineError::cannot("sim", key, why);
        }
    }
    Ok(())
}

/// Refuses scenarios with parallel networks that the simulator has no answer to.
fn can_answer_parallel(scenario: &Scenario, parallel: &Parallel<'_>) -> Result<(), EngineError> {
    let networks = (1..).zip(parallel.networks).map(|(number, network)| (format!("network[{number}]"), &network.link));
    let before = (1..).zip(parallel.links).map(|(number, link)| (format!("link[{number}]"), link));
    for (path, link) in networks.chain(before) {
        if matches!(link.queue.kind, QueueKind::Xcp | QueueKind::Vcp | QueueKind::Mpcp) {
            let why = "connections over parallel networks get no feedback of routers: use \"droptail\" or another queue";
            return EngineError::cannot("sim", format!("{path}.queue.kind"), why);
        }
    }
    can_answer_proxy_before_networks(scenario, parallel)?;
    if Explicit::named(scenario.control.sender_name()).is_some() {
        return EngineError::cannot("sim", "control.sender", "parallel networks have no routers that send feedback to senders");
    }
    for (index, flow) in (1..).zip(&scenario.flows) {
        if let Some((key, why)) = unsupported_flow_key(flow) {
            return EngineError::cannot("sim", format!("flow[{index}].{key}"), why);
        }
    }
    if let Some(index) = parallel.networks.iter().position(|network| network.streams.is_some()) {
        let key = format!("network[{}].streams", index + 1);
        return EngineError::cannot("sim", key, "its networks carry TCP transfers only; the equations have streams: --on theory");
    }
    let weight = parallel.foreground.map_or(1.0, |foreground| foreground.weight);
    if weight.fract() != 0.0 || weight > MAX_WEIGHT as f64 {
        let why = format!(
            "it opens as many connections over each network, 1 to {MAX_WEIGHT}, and {weight} is no such number; the equations have any weight: --on theory"
        );
        return EngineError::cannot("sim", "foreground.weight", why);
    }
    if weight > 1.0 && parallel.parts().is_some() {
        let why =
            "fixed parts go over one connection each; give a scheduler that shares out, such as score, or ask the equations: --on theory";
        return EngineError::cannot("sim", "foreground.weight", why);
    }
    if parallel.bond.scheduler == TransferScheduler::Mptcp {
        return EngineError::cannot("sim", "bond.scheduler", "Multipath TCP is available in the kernel only: use --on lab");
    }
    match parallel.overload() {
        Some((network, load)) => {
            let why = format!("network {network} would have a load of {load:.3}: sojourn times would grow without bound and have no mean");
            EngineError::cannot("sim", "bond.scheduler", &why)
        }
        None => Ok(()),
    }
}

/// Refuses what the proxy between links and parallel networks does not have.
fn can_answer_proxy_before_networks(scenario: &Scenario, parallel: &Parallel<'_>) -> Result<(), EngineError> {
    let Some(split) = parallel.split else { return Ok(()) };
    let plain = Split::at(split.after);
    for (key, is_plain) in [
        ("mode", split.mode == plain.mode),
        ("backpressure", split.backpressure == plain.backpressure),
        ("capacity", split.capacity.is_none()),
        ("shaper", !split.shaper),
        ("fast_open", !split.fast_open),
    ] {
        if !is_plain {
            let why = "the proxy before parallel networks forwards as a stream, without more: leave it out";
            return EngineError::cannot("sim", format!("split[1].{key}"), why);
        }
    }
    let control = scenario.leg_controls()[1];
    let divides_capacity = Controller::named(control).is_some_and(Controller::needs_capacity);
    if divides_capacity || Explicit::named(control).is_some() {
        let why =
            format!("the proxy before parallel networks knows neither their capacity nor feedback of routers, which {control:?} needs");
        return EngineError::cannot("sim", "control.proxy", why);
    }
    Ok(())
}

/// A key of a flow that is not supported over parallel networks, and why.
fn unsupported_flow_key(flow: &FlowGroup) -> Option<(&'static str, &'static str)> {
    if flow.offers.is_some() {
        return Some(("offers", "a transfer over several networks is available as a whole from the start"));
    }
    if flow.fast_open {
        return Some(("fast_open", "connections over parallel networks do not use TCP Fast Open"));
    }
    flow.send_buffer.map(|_| ("send_buffer", "a transfer over several networks has no limit to its send buffer"))
}

/// Refuses web traffic beside what its connections do not have.
fn can_answer_web(scenario: &Scenario) -> Result<(), EngineError> {
    let Some(key) = scenario.web_key() else { return Ok(()) };
    for (index, split) in (1..).zip(&scenario.splits) {
        if split.mode != SplitMode::Stream {
            let why = format!("proxies that carry a [[{key}]] forward it as a stream: set mode = \"stream\"");
            return EngineError::cannot("sim", format!("split[{index}].mode"), why);
        }
        if split.fast_open {
            let why = format!("the connections of a [[{key}]] do not use TCP Fast Open: leave it out");
            return EngineError::cannot("sim", format!("split[{index}].fast_open"), why);
        }
    }
    Ok(())
}

/// Which congestion control the connections of a scenario have.
struct ControlChoice<'a> {
    scenario: &'a Scenario,
    external: &'a [Arc<dyn ExternalController>],
}

impl ControlChoice<'_> {
    /// Of each leg.
    fn of_legs(&self) -> Result<Vec<CongestionControl>, EngineError> {
        let key = |leg| if leg == 0 { "control.sender" } else { "control.proxy" };
        let settings = self.scenario.leg_settings().into_iter().enumerate();
        settings.map(|(leg, setting)| self.of(leg, &setting, key(leg).into())).collect()
    }

    /// Of the sender of each group of flows.
    fn of_groups(&self) -> Result<Vec<CongestionControl>, EngineError> {
        let key = |group: usize| match self.scenario.flows[group].control {
            Some(_) => format!("flow[{}].control", group + 1),
            None => "control.sender".into(),
        };
        let settings = self.scenario.sender_settings().into_iter().enumerate();
        settings.map(|(group, setting)| self.of(0, &setting, key(group))).collect()
    }

    /// Of each table of web traffic, pages first.
    fn of_web(&self) -> Result<Vec<CongestionControl>, EngineError> {
        self.scenario.web_settings().into_iter().map(|(key, setting)| self.of(0, &setting, key)).collect()
    }

    /// Of the sender of each group of TCP cross traffic. Its links may have no routers that give
    /// feedback.
    fn of_cross_flows(&self) -> Result<Vec<CongestionControl>, EngineError> {
        let key = |group: usize| match self.scenario.cross_flows[group].control {
            Some(_) => format!("cross_flow[{}].control", group + 1),
            None => "control.sender".into(),
        };
        let settings = self.scenario.cross_sender_settings().into_iter().enumerate();
        let of = |(group, setting): (usize, ControllerSetting)| {
            if Explicit::named(&setting.name).is_some() {
                let why = format!(
                    "{:?} needs feedback of routers, which TCP cross traffic does not follow: give it a control of its own",
                    setting.name
                );
                return EngineError::cannot("sim", key(group), why);
            }
            self.of(0, &setting, key(group))
        };
        settings.map(of).collect()
    }

    /// Of leg `leg` by its setting, that of `key`.
    fn of(&self, leg: usize, setting: &ControllerSetting, key: String) -> Result<CongestionControl, EngineError> {
        let name = setting.name.as_str();
        let wrong = |why: String| Err(EngineError::WrongScenario { key: key.clone(), why });
        match CongestionControl::of(setting, self.external) {
            Some(control) if leg == 0 && control.needs_capacity() => {
                let why = format!("{name:?} divides the capacity of a proxy's egress link, which a sender does not know");
                EngineError::cannot("sim", key, why)
            }
            Some(CongestionControl::RouterAssisted(explicit)) if !has_router(self.scenario, leg, explicit) => {
                wrong(missing_router(self.scenario, leg, name, explicit))
            }
            Some(control) => Ok(control),
            None => {
                if let Err(why) = Controller::find(name) {
                    return wrong(why.to_string());
                }
                let mut all: Vec<&str> = Controller::available_names().into_iter().chain(Explicit::NAMES).collect();
                all.extend(self.external.iter().map(|control| control.name()));
                wrong(format!("there is no controller {name:?}; there are {}", all.join(", ")))
            }
        }
    }
}

/// Whether a link of the leg has the routers that this controller needs.
fn has_router(scenario: &Scenario, leg: usize, explicit: Explicit) -> bool {
    let leg = scenario.legs()[leg];
    scenario.links[leg.first..leg.end].iter().any(|link| link.queue.kind == explicit.routers)
}

/// Why a controller without routers cannot work, and the cure.
fn missing_router(scenario: &Scenario, leg: usize, name: &str, explicit: Explicit) -> String {
    let leg = scenario.legs()[leg];
    let links = match leg.end - leg.first {
        1 => format!("link {} has none", leg.end),
        _ => format!("none of links {} to {} has one", leg.first + 1, leg.end),
    };
    let kind = format!("{:?}", explicit.routers).to_lowercase();
    let slowest = (leg.first..leg.end).min_by_key(|link| scenario.links[*link].rate).unwrap_or(leg.first) + 1;
    format!("{name:?} needs feedback of {kind} routers, and {links}: give link {slowest} queue = {{ kind = \"{kind}\" }}")
}
