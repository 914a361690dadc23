//! Plays a scenario: builds its network, lets its flows run, watches, and measures.

use crate::{
    LabError,
    measure::{self, Recorder},
    network::{Extras, Network},
    parallel,
    workload::{self, Stage, Workload},
};
use outcome::{Engine, EngineError, Outcome, Progress};
use scenario::{Backpressure, Explicit, QueueKind, RateChange, Scenario, SplitMode, Tcp};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// How often a run is looked at.
const TICK: Duration = Duration::from_millis(20);
/// The most flows: each has a port of its own.
const MOST_FLOWS: usize = 20_000;

/// Why there is no Fast Open.
const NO_COOKIES: &str =
    "its hosts are new in every run, and have no cookies of earlier connections; the simulator (sim) takes them for granted";

/// Controllers of Linux that Tandem does not bring: a kernel may have them or not.
const OF_LINUX: [&str; 11] = ["bbr", "bic", "cdg", "highspeed", "htcp", "illinois", "lp", "nv", "scalable", "veno", "yeah"];

/// The engine that plays scenarios on the real kernel.
#[derive(Debug, Default, Clone)]
pub struct Lab {
    /// Where captures go, one file a host; the file names begin with what this ends in.
    pub capture: Option<PathBuf>,
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
        }
        for (index, link) in (1..).zip(&scenario.links) {
            if link.queue.kind != QueueKind::Droptail {
                let why = "its links are drop-tail queues; others, and routers that take part, are the simulator's: --on sim";
                return EngineError::cannot("lab", format!("link[{index}].queue.kind"), why);
            }
        }
        for (index, split) in scenario.splits.iter().enumerate() {
            match split.mode {
                SplitMode::Stream => {}
                SplitMode::Store => return EngineError::cannot("lab", format!("split[{}].mode", index + 1), "its proxy forwards a stream"),
                SplitMode::Semi => {
                    let why =
                        "a real socket acknowledges what it has received; the simulator (sim) has proxies that acknowledge end to end";
                    return EngineError::cannot("lab", format!("split[{}].mode", index + 1), why);
                }
            }
            if split.fast_open {
                return EngineError::cannot("lab", format!("split[{}].fast_open", index + 1), NO_COOKIES);
            }
            if split.backpressure == Backpressure::Fluid {
                return EngineError::cannot(
                    "lab",
                    format!("split[{}].backpressure", index + 1),
                    "real sockets hold a sender back by its window",
                );
            }
            let least = proxy::ProxyConfig::LEAST_BUFFER;
            if scenario.buffer_limit(index).is_some_and(|buffer| buffer < least) {
                return EngineError::cannot(
                    "lab",
                    format!("split[{}].buffer", index + 1),
                    format!("a real host cannot hold to less than {least}"),
                );
            }
        }
        // How a connection begins is a route's to say; a bond's networks have none of the kind.
        let initial_window = scenario.tcp.initial_window.filter(|_| scenario.parallel().is_some());
        let others = Tcp { initial_window, ..scenario.tcp };
        if let Some(key) = others.first_set() {
            return EngineError::cannot("lab", key, "the kernel's TCP is as it is; one that is otherwise is the simulator's");
        }
        for (index, flow) in (1..).zip(&scenario.flows) {
            if flow.fast_open {
                return EngineError::cannot("lab", format!("flow[{index}].fast_open"), NO_COOKIES);
            }
            if flow.send_buffer.is_some() {
                let why = "a real socket counts its memory, not its payload: leave it out, or ask the simulator (sim)";
                return EngineError::cannot("lab", format!("flow[{index}].send_buffer"), why);
            }
        }
        if scenario.flow_specs(scenario.seed).len() > MOST_FLOWS {
            return EngineError::cannot("lab", "flow.count", format!("it has ports for {MOST_FLOWS} flows"));
        }
        let available = intercept::available_controllers();
        for (leg, name) in scenario.leg_controls().into_iter().enumerate() {
            let key = if leg == 0 { "control.sender" } else { "control.proxy" };
            if kernel::has_congestion_control(name) {
                continue;
            }
            match kernel::resolve(name) {
                Some(ours) if leg == 0 && ours.needs_capacity() => {
                    return EngineError::cannot(
                        "lab",
                        key,
                        format!("{name:?} shares out the capacity of a proxy's egress; a sender knows none"),
                    );
                }
                Some(_) => continue,
                None => {}
            }
            if Explicit::named(name).is_some() {
                return EngineError::cannot(
                    "lab",
                    key,
                    format!("{name:?} works with routers that take part, which are the simulator's: --on sim"),
                );
            }
            if OF_LINUX.contains(&name) {
                return EngineError::cannot("lab", key, format!("this kernel has no controller {name:?}; it has {}", available.join(", ")));
            }
            return Err(EngineError::WrongScenario {
                key: key.into(),
                why: format!("there is no controller {name:?}; this kernel has {}", available.join(", ")),
            });
        }
        Ok(())
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

fn play(lab: &Lab, scenario: &Scenario, seed: u64, progress: &dyn Progress) -> Result<Outcome, EngineError> {
    progress.at(0.0, "building");
    let specs = scenario.flow_specs(seed);
    let delayed = specs.iter().filter(|flow| flow.access_delay.0 > 0);
    let extras = Extras {
        capture: lab.capture.clone(),
        access_delays: delayed.map(|flow| (workload::port(flow.id), flow.access_delay)).collect(),
        ..Extras::default()
    };
    // The proxies hold their own.
    let sender = match kernel::resolve(&scenario.control.sender) {
        Some(ours) => Some(kernel::load(ours.name(), &[]).map_err(|error| EngineError::Failed(error.to_string()))?),
        None => None,
    };
    let control = sender.as_ref().map_or(scenario.control.sender.clone(), |held| format!("td_{}", held.controller().name()));
    let ended = Arc::new(Mutex::new(Vec::new()));
    let records = ended.clone();
    let mut network = Network::build(scenario, seed, &extras, move |proxy, record| {
        if let Ok(mut records) = records.lock() {
            records.push((proxy, record));
        }
    })?;
    let stage = Arc::new(Stage::new(seed, &control));
    network.begin();
    let mut changes = changes(scenario).into_iter().peekable();
    let mut workload = Workload::start(&network, stage.clone(), &specs, &scenario.cross)?;
    let mut recorder = Recorder::new(scenario, &specs);

    let duration = scenario.duration.map(units::Span::duration);
    let ends_by_itself = specs.iter().all(|flow| flow.bytes.is_some());
    let mut next = Instant::now();
    let cancelled = loop {
        recorder.look(&stage, &workload.flows, &network);
        let elapsed = stage.began.elapsed();
        while let Some((index, change)) = changes.next_if(|(_, change)| change.at.duration() <= elapsed) {
            network.tell(scenario, index, change.rate)?;
        }
        progress.at(share_done(&workload, elapsed, duration), "running");
        if (ends_by_itself && workload.is_done()) || duration.is_some_and(|duration| elapsed >= duration) {
            break false;
        }
        if progress.cancelled() {
            break true;
        }
        // A look that came late is not made up for: the next is a tick from now.
        next = (next + TICK).max(Instant::now());
        thread::sleep(next - Instant::now());
    };
    let end_s = stage.now();
    progress.at(1.0, "measuring");
    workload.finish();
    if ends_by_itself && !cancelled {
        // Proxies hear the last acknowledgement a moment after the ends do; their last figures are worth it.
        let begun = Instant::now();
        while network.proxy_flows().iter().any(|flows| !flows.is_empty()) && begun.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(5));
        }
    }
    recorder.count_overruns(&network);
    let flows = workload.flows.clone();
    drop(workload);
    let links = network.finish()?;
    if cancelled {
        return Err(EngineError::Cancelled);
    }
    let records = ended.lock().map(|mut records| std::mem::take(&mut *records)).unwrap_or_default();
    Ok(measure::outcome(scenario, seed, recorder, &flows, records, &links, end_s))
}

/// When rates change, of which link (from 0), in order.
fn changes(scenario: &Scenario) -> Vec<(usize, RateChange)> {
    let all = scenario.links.iter().enumerate().flat_map(|(index, link)| link.changes.iter().map(move |change| (index, *change)));
    let mut all: Vec<(usize, RateChange)> = all.collect();
    all.sort_by_key(|(_, change)| change.at);
    all
}

/// How much of a run is done, as far as can be told.
fn share_done(workload: &Workload, elapsed: Duration, duration: Option<Duration>) -> f64 {
    let time = duration.map(|duration| elapsed.as_secs_f64() / duration.as_secs_f64());
    let (mut read, mut asked) = (0, 0);
    for flow in &workload.flows {
        if let Some(bytes) = flow.spec.bytes {
            read += flow.read.load(std::sync::atomic::Ordering::Relaxed);
            asked += bytes.0;
        }
    }
    let bytes = (asked > 0).then(|| read as f64 / asked as f64);
    time.into_iter().chain(bytes).fold(0.0, f64::max).min(1.0)
}
