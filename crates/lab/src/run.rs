//! Plays a scenario: builds its network, starts its flows, samples them, and measures.

use crate::{
    LabError, OtherProxy,
    controllers::{LegControllers, check_tunables},
    emulator::can_emulate,
    fast_open,
    measure::{self, Recorder},
    network::{HostMemory, NetworkOptions, SeriesNetwork, uses_fast_open},
    parallel,
    rate_changes::RateChanges,
    run_context::RunContext,
    workload::{self, FlowGroups, Workload},
};
use outcome::{Engine, EngineError, Outcome, Progress};
use scenario::{Backpressure, Explicit, Scenario, SplitMode, Tcp, WebClient};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Interval between samples of a run.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of flows: each has its own server port.
const MAX_FLOWS: usize = 20_000;

/// Why the lab does not play Semi-Split TCP (`docs/decisions/0047-no-semi-split-in-the-lab.md`).
const NO_SEMI_SPLIT: &str = "the kernel's sender has one acknowledgement number: if it covers only what was delivered, the near leg's \
     round trip is that of the whole path, and if selective acknowledgements cover the rest, the sender takes them for revoked and times \
     out; the simulator has a sender that knows both numbers: --on sim. On the lab, \"stream\" confirms delivery by a clean close";

/// Controllers of Linux that Tandem does not bring and that a kernel may lack.
const LINUX_CONTROLLERS: [&str; 10] = ["bic", "cdg", "highspeed", "htcp", "illinois", "lp", "nv", "scalable", "veno", "yeah"];

/// The engine that plays scenarios on the real kernel.
#[derive(Debug, Default, Clone)]
pub struct Lab {
    /// Path prefix of the captures, one file for each host: `<prefix><host>.pcapng`.
    pub capture: Option<PathBuf>,
    /// Splits connections in place of Tandem's proxy. The outcome then has no samples of what the
    /// proxy holds, nor of its legs.
    pub other_proxy: Option<OtherProxy>,
    /// Socket buffers of the hosts of links in series. Absent: so large that they limit no
    /// connection.
    pub memory: Option<HostMemory>,
}

impl Engine for Lab {
    fn name(&self) -> &'static str {
        "lab"
    }

    fn runs_in_real_time(&self) -> bool {
        true
    }

    fn can_answer(&self, scenario: &Scenario) -> Result<(), EngineError> {
        if let Some(parallel) = scenario.parallel() {
            parallel::can_answer(&parallel)?;
            if self.other_proxy.is_some() {
                return EngineError::cannot("lab", "network", "another program than Tandem splits connections over links in series only");
            }
        }
        for (index, link) in (1..).zip(&scenario.links) {
            can_emulate(&format!("link[{index}]"), link)?;
        }
        if !scenario.agents.is_empty() {
            let why = "its hosts forward or split connections; the simulator has agents that repair or report losses: --on sim";
            return EngineError::cannot("lab", "agent", why);
        }
        for (index, split) in scenario.splits.iter().enumerate() {
            match split.mode {
                SplitMode::Stream => {}
                SplitMode::Store => {
                    return EngineError::cannot(
                        "lab",
                        format!("split[{}].mode", index + 1),
                        "its proxy forwards data as they arrive; the simulator has store-and-forward proxies: --on sim",
                    );
                }
                SplitMode::Semi => {
                    return EngineError::cannot("lab", format!("split[{}].mode", index + 1), NO_SEMI_SPLIT);
                }
            }
            if split.fast_open && self.other_proxy.is_some() {
                let why = "only Tandem's proxy is told to use TCP Fast Open";
                return EngineError::cannot("lab", format!("split[{}].fast_open", index + 1), why);
            }
            if let (true, Some(key)) = (split.fast_open, scenario.web_key()) {
                let why = format!("the connections of a [[{key}]] do not use TCP Fast Open: leave it out");
                return EngineError::cannot("lab", format!("split[{}].fast_open", index + 1), why);
            }
            if split.backpressure != Backpressure::Window {
                return EngineError::cannot(
                    "lab",
                    format!("split[{}].backpressure", index + 1),
                    "real sockets exert backpressure by their advertised window: set it to \"window\"",
                );
            }
            let least = proxy::ProxyConfig::LEAST_BUFFER;
            if scenario.buffer_limit(index).is_some_and(|buffer| buffer < least) {
                return EngineError::cannot(
                    "lab",
                    format!("split[{}].buffer", index + 1),
                    format!("the buffers of real sockets cannot be bounded below {least}: set at least that"),
                );
            }
        }
        // The initial window is an attribute of routes, which networks in parallel do not have.
        let initial_window = scenario.tcp.initial_window.filter(|_| scenario.parallel().is_some());
        let others = Tcp { initial_window, receive_buffers: None, ..scenario.tcp };
        if let Some(key) = others.first_set() {
            return EngineError::cannot("lab", key, "the lab cannot change the kernel's TCP; the simulator can: --on sim");
        }
        for (index, flow) in (1..).zip(&scenario.flows) {
            if flow.fast_open && scenario.parallel().is_some() {
                let why = "connections over parallel networks do not use TCP Fast Open";
                return EngineError::cannot("lab", format!("flow[{index}].fast_open"), why);
            }
            if flow.send_buffer.is_some() {
                let why = "the send buffer of a real socket counts memory, not payload: leave it out, or use the simulator: --on sim";
                return EngineError::cannot("lab", format!("flow[{index}].send_buffer"), why);
            }
        }
        let flows = scenario.flow_specs(scenario.seed).len();
        let others = scenario.cross_flow_specs(scenario.seed, 0).len() + scenario.web_clients(scenario.seed).len();
        if flows + others > MAX_FLOWS {
            return EngineError::cannot("lab", "flow.count", format!("it has ports for {MAX_FLOWS} flows only: ask for fewer"));
        }
        let available = intercept::available_controllers();
        let legs = scenario.leg_controls().into_iter().enumerate();
        let legs = legs.map(|(leg, name)| (if leg == 0 { "control.sender" } else { "control.proxy" }.to_owned(), leg, name));
        let senders = scenario.sender_settings();
        let groups = (1..).zip(&senders).map(|(group, setting)| (format!("flow[{group}].control"), 0, setting.name.as_str()));
        let cross_senders = scenario.cross_sender_settings();
        let cross = (1..).zip(&cross_senders).map(|(group, setting)| (format!("cross_flow[{group}].control"), 0, setting.name.as_str()));
        let web = scenario.web_settings();
        let ends = web.iter().map(|(key, setting)| (key.clone(), 0, setting.name.as_str()));
        for (key, leg, name) in legs.chain(groups).chain(cross).chain(ends) {
            if !name.contains('/') && kernel::has_congestion_control(name) {
                continue;
            }
            match kernel::resolve(name) {
                Some(ours) if leg == 0 && ours.needs_capacity() => {
                    return EngineError::cannot(
                        "lab",
                        key,
                        format!("{name:?} shares the capacity of a proxy's egress link among flows; a sender has no such link"),
                    );
                }
                Some(_) => continue,
                None => {}
            }
            if Explicit::named(name).is_some() {
                return EngineError::cannot(
                    "lab",
                    key,
                    format!("{name:?} needs router-assisted queues, which the simulator has: --on sim"),
                );
            }
            if LINUX_CONTROLLERS.contains(&name) {
                return EngineError::cannot("lab", key, format!("this kernel has no controller {name:?}; it has {}", available.join(", ")));
            }
            if let Err(why) = kernel::Controller::find(name) {
                return Err(EngineError::WrongScenario { key, why: why.to_string() });
            }
            return Err(EngineError::WrongScenario {
                key,
                why: format!("there is no controller {name:?}; this kernel has {}", available.join(", ")),
            });
        }
        check_tunables(scenario)
    }

    fn run(&self, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError> {
        self.can_answer(scenario)?;
        if let Some(parallel) = scenario.parallel() {
            return parallel::play(scenario, &parallel, seed, self.capture.as_ref(), progress);
        }
        play(self, scenario, seed, progress)
    }
}

impl From<LabError> for EngineError {
    fn from(error: LabError) -> Self {
        EngineError::Failed(error.to_string())
    }
}

/// Plays a scenario with links in series.
fn play(lab: &Lab, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError> {
    progress.at(0.0, "building");
    let specs = scenario.flow_specs(seed);
    let cross_specs = scenario.cross_flow_specs(seed, specs.len() as u32);
    let delayed = specs.iter().filter(|flow| flow.access_delay.0 > 0);
    let options = NetworkOptions {
        capture: lab.capture.clone(),
        other_proxy: lab.other_proxy.clone(),
        memory: lab.memory.clone(),
        access_delays: delayed.map(|flow| (workload::port(flow.id), flow.access_delay)).collect(),
        ..NetworkOptions::default()
    };
    // Keeps the controllers loaded during the run.
    let controllers = LegControllers::load(scenario)?;
    let ended = Arc::new(Mutex::new(Vec::new()));
    let records = ended.clone();
    let mut network = SeriesNetwork::build(scenario, seed, &options, move |proxy, record| {
        if let Ok(mut records) = records.lock() {
            records.push((proxy, record));
        }
    })?;
    let has_fast_open = uses_fast_open(scenario);
    if has_fast_open {
        fast_open::give_cookies(&network, scenario)?;
    }
    let context = Arc::new(RunContext::new(seed, has_fast_open));
    network.start_clock();
    let mut rate_changes = RateChanges::of(scenario);
    let flows = FlowGroups { specs: &specs, controls: &controllers.groups };
    let cross_flows = FlowGroups { specs: &cross_specs, controls: &controllers.cross_groups };
    let mut workload = Workload::start(&network, context.clone(), [flows, cross_flows], &scenario.cross)?;
    let clients = scenario.web_clients(seed);
    let ends_by_itself = specs.iter().all(|flow| flow.bytes.is_some()) && clients.iter().all(WebClient::has_end);
    let web_controls = clients.iter().map(|client| controllers.of_web_client(client, scenario.pages.len())).collect();
    workload.start_web(&network, clients, web_controls)?;
    let mut recorder = Recorder::new(scenario, &specs, &cross_specs);

    let duration = scenario.duration.map(units::Span::duration);
    let mut next = Instant::now();
    let cancelled = loop {
        recorder.sample(&context, &workload, &network);
        let elapsed = context.began.elapsed();
        rate_changes.apply(&mut network, scenario, elapsed)?;
        progress.at(progress_of(&workload, elapsed, duration), "running");
        if (ends_by_itself && workload.is_done()) || duration.is_some_and(|duration| elapsed >= duration) {
            break false;
        }
        if progress.cancelled() {
            break true;
        }
        // After a late sample the next is taken at once; missed samples are not caught up on.
        next = (next + SAMPLE_INTERVAL).max(Instant::now());
        thread::sleep(next - Instant::now());
    };
    let end_s = context.now();
    progress.at(1.0, "measuring");
    workload.finish();
    if ends_by_itself && !cancelled {
        // Proxies receive the last acknowledgement a moment after the endpoints do; their records
        // are complete only then.
        let begun = Instant::now();
        while network.proxy_flows().iter().any(|flows| !flows.is_empty()) && begun.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(5));
        }
    }
    recorder.count_overruns(&network);
    let flows = workload.flows.clone();
    let web = workload.web.iter().map(|session| session.result()).collect();
    drop(workload);
    let links = network.finish()?;
    if cancelled {
        return Err(EngineError::Cancelled);
    }
    let records = ended.lock().map(|mut records| std::mem::take(&mut *records)).unwrap_or_default();
    Ok(measure::outcome(scenario, seed, recorder, (&flows, web), records, &links, end_s))
}

/// Completed share of a run, estimated from elapsed time and from the bytes read.
fn progress_of(workload: &Workload, elapsed: Duration, duration: Option<Duration>) -> f64 {
    let time = duration.map(|duration| elapsed.as_secs_f64() / duration.as_secs_f64());
    let (mut read, mut asked) = (0, 0);
    for flow in workload.awaited_flows() {
        if let Some(bytes) = flow.spec.bytes {
            read += flow.read.load(std::sync::atomic::Ordering::Relaxed);
            asked += bytes.0;
        }
    }
    let bytes = (asked > 0).then(|| read as f64 / asked as f64);
    time.into_iter().chain(bytes).fold(0.0, f64::max).min(1.0)
}
