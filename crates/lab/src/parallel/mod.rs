//! Plays a scenario of networks in parallel: transfers come, those of a network's own go over that network, those of the foreground over the bond.

mod bond_samples;
mod network;
mod transfers;

use crate::{emulator::LinkReport, measure};
use bond_samples::Looks;
use network::{Networks, PATIENCE, wire_rate};
use outcome::{CountedJobs, EngineError, FlowOutcome, NetworkOutcome, Outcome, Progress, ReorderOutcome};
use proxy::FlowRecord;
use scenario::{FlowSpec, Opens, Parallel, PlannedTransfer, Scenario, TransferScheduler, TransferSchedule};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::{Duration, Instant},
};
use transfers::{Ended, Ends, Over, Spec, Transfer};
use units::Span;

/// How often progress is told.
const LOOK: Duration = Duration::from_millis(50);
/// Transfers at once; with more the networks are overloaded, and a run would have no end.
const MOST_LIVE: usize = 4000;

/// What of networks in parallel there is no answer to.
pub(crate) fn can_answer(parallel: &Parallel<'_>) -> Result<(), EngineError> {
    for (index, network) in (1..).zip(parallel.networks) {
        if network.queue.kind != scenario::QueueKind::Droptail {
            return EngineError::cannot(
                "lab",
                format!("network[{index}].queue.kind"),
                "its networks are drop-tail queues; others are the simulator's: --on sim",
            );
        }
    }
    match parallel.bond.scheduler {
        TransferScheduler::Fluid => {
            return EngineError::cannot("lab", "bond.scheduler", "a fluid is the ideal that no real bond attains: --on theory,sim");
        }
        TransferScheduler::Mptcp if !transfers::has_multipath() => {
            return EngineError::cannot("lab", "bond.scheduler", "this kernel has no Multipath TCP");
        }
        _ => {}
    }
    if let Some((network, load)) = parallel.overload() {
        let why = format!("network {network} would have a load of {load:.3}, and times would grow for ever: there is no mean");
        return EngineError::cannot("lab", "bond.scheduler", &why);
    }
    Ok(())
}

/// What came over the bond, as its two ends tell: payload by network, and what waited of each stream at its most.
#[derive(Debug, Default)]
struct Carried {
    shares: Vec<u64>,
    held: Vec<u64>,
}

/// What had happened by a time.
#[derive(Debug, Clone, Default)]
struct Mark {
    at: f64,
    left: Vec<u64>,
}

impl Mark {
    fn of(networks: &Networks, at: f64) -> Self {
        Mark { at, left: networks.left() }
    }
}

/// A flow that is given: its transfer once it has begun, when it ended, or what went wrong.
struct Given {
    spec: FlowSpec,
    transfer: Option<Arc<Transfer>>,
    end: Option<f64>,
    error: Option<String>,
}

/// A run, as it is measured.
struct Run<'a> {
    parallel: &'a Parallel<'a>,
    networks: &'a Networks,
    ends: &'a Ends,
    jobs: CountedJobs<Mark>,
    /// Transfers under way, by number; with the part of the run that they count in, if they do.
    live: HashMap<u64, (PlannedTransfer, Option<usize>, Arc<Transfer>)>,
    number: u64,
    carried: u64,
    flows: Vec<Given>,
    failures: Vec<String>,
    looks: Looks,
    /// The kernel has had no room for what hosts received.
    short_of_memory: bool,
}

/// Plays it.
pub(crate) fn play(
    scenario: &Scenario,
    parallel: &Parallel<'_>,
    seed: u64,
    capture: Option<&PathBuf>,
    progress: &dyn Progress,
) -> Result<Outcome, EngineError> {
    progress.at(0.0, "building");
    let held = match kernel::resolve(&scenario.control.sender) {
        Some(ours) => Some(kernel::load(ours.name(), &[]).map_err(|error| EngineError::Failed(error.to_string()))?),
        None => None,
    };
    let control = held.as_ref().map_or(scenario.control.sender.clone(), |held| format!("td_{}", held.controller().name()));
    let specs = scenario.flow_specs(seed);
    let mut networks = Networks::build(parallel, seed, capture)?;
    let carried = Arc::new(Mutex::new(Carried { shares: vec![0; parallel.networks.len()], held: Vec::new() }));
    let (over, multipath) = match parallel.bond.settings() {
        Some(settings) => {
            let opens = if specs.is_empty() { vec![Opens::Sender] } else { [Opens::Sender, Opens::Receiver].into() };
            for opens in opens.into_iter().filter(|opens| specs.is_empty() || specs.iter().any(|spec| spec.opens == *opens)) {
                let heard = carried.clone();
                networks.bond(parallel, opens, settings, &control, move |end, record| note(&heard, opens, end, record))?;
            }
            (Over::Bond, false)
        }
        None if parallel.bond.scheduler == TransferScheduler::Mptcp => {
            networks.multipath(parallel.networks.len())?;
            (Over::Multipath, true)
        }
        None => (Over::Network(parallel.best()), false),
    };
    let (tell, ended) = mpsc::channel();
    let windows: Vec<_> = (0..parallel.classes()).map(|class| parallel.window(class)).collect();
    // The bond's connections have their handshakes before the run begins.
    let rtt = parallel.networks.iter().map(|network| 2 * network.delay.0).max().unwrap_or(0);
    thread::sleep((Duration::from_millis(200) + Span(8 * rtt).duration()).min(PATIENCE));
    let mut ends = Ends::start(&networks, parallel.networks.len(), (seed, &control), &windows, multipath, tell)?;
    let mut run = Run {
        parallel,
        networks: &networks,
        ends: &ends,
        jobs: CountedJobs::new(parallel),
        live: HashMap::new(),
        number: 0,
        carried: 0,
        flows: specs.iter().map(|spec| Given { spec: *spec, transfer: None, end: None, error: None }).collect(),
        failures: Vec::new(),
        looks: Looks::default(),
        short_of_memory: false,
    };
    let whole = run.run(scenario, over, &ended, seed, progress)?;
    progress.at(1.0, "measuring");
    let mut outcome = run.outcome(scenario, seed);
    // The last streams are told of when their last words are acknowledged.
    let begun = Instant::now();
    while over == Over::Bond && whole && !networks.streams().is_empty() && begun.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(5));
    }
    ends.finish();
    let reports = networks.finish()?;
    judge(&mut outcome, parallel, &reports);
    let carried = carried.lock().unwrap_or_else(PoisonError::into_inner);
    let all: u64 = carried.shares.iter().sum();
    if all > 0 {
        for (network, share) in outcome.networks.iter_mut().zip(&carried.shares) {
            network.share = Some(*share as f64 / all as f64);
        }
        let (sum, most) = (carried.held.iter().sum::<u64>(), carried.held.iter().copied().max().unwrap_or(0));
        outcome.reorder = Some(ReorderOutcome { mean_bytes: sum as f64 / carried.held.len().max(1) as f64, max_bytes: most });
    }
    if let Over::Network(best) = over {
        outcome.networks.iter_mut().enumerate().for_each(|(index, network)| network.share = Some(f64::from(u8::from(index == best))));
    }
    Ok(outcome)
}

/// What an end of the bond tells of a stream that has ended: the end that dials (0), what went over which network; the end that receives, what waited.
fn note(carried: &Mutex<Carried>, opens: Opens, end: usize, record: &FlowRecord) {
    let Some(bond) = &record.last.multipath else { return };
    let mut carried = carried.lock().unwrap_or_else(PoisonError::into_inner);
    let dials = end == 0;
    if dials {
        for path in &bond.paths {
            let index = path.network.parse::<usize>().unwrap_or(0).wrapping_sub(1);
            let bytes = if opens == Opens::Sender { path.sent_bytes } else { path.received_bytes };
            if let Some(share) = carried.shares.get_mut(index) {
                *share += bytes;
            }
        }
    }
    if dials == (opens == Opens::Receiver) {
        carried.held.push(bond.most_waiting_bytes);
    }
}

/// What the machine failed to do.
fn judge(outcome: &mut Outcome, parallel: &Parallel<'_>, reports: &[LinkReport]) {
    for (index, (network, report)) in parallel.networks.iter().zip(reports).enumerate() {
        let rtt = network.delay * 2;
        let warnings = measure::faults(&format!("network {}", index + 1), wire_rate(network.rate), rtt, report);
        outcome.warnings.extend(warnings);
        outcome.networks[index].queue_drops = Some(report.counts.queue_drops);
    }
    outcome.valid = outcome.warnings.is_empty();
}

impl Run<'_> {
    fn mark(&self) -> Mark {
        Mark::of(self.networks, self.ends.all.now())
    }

    /// Lets transfers come until all that is measured has ended; false: it was ended before.
    fn run(
        &mut self,
        scenario: &Scenario,
        over: Over,
        ended: &mpsc::Receiver<Ended>,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<bool, EngineError> {
        let specs: Vec<FlowSpec> = self.flows.iter().map(|flow| flow.spec).collect();
        let mut planned = TransferSchedule::new(self.parallel, &specs, seed).peekable();
        if !self.jobs.has_foreground() {
            self.jobs.begin(self.mark());
        }
        let duration = scenario.duration.map(Span::secs);
        loop {
            let now = self.ends.all.now();
            while let Some(transfer) = planned.next_if(|transfer| transfer.job.at.secs() <= now) {
                let over = transfer.job.class.checked_sub(1).map_or(over, Over::Network);
                self.begin(transfer, over);
            }
            if self.is_over() {
                return Ok(true);
            }
            if duration.is_some_and(|duration| now >= duration) {
                return Ok(false);
            }
            if !self.jobs.has_foreground() {
                let read = self.live.values().map(|(.., transfer)| transfer.read.load(Relaxed)).sum::<u64>() + self.carried;
                self.looks.look(now, read, self.networks);
            }
            self.short_of_memory |= measure::is_short_of_memory().unwrap_or(false);
            if self.live.len() > MOST_LIVE {
                let why = format!("{MOST_LIVE} transfers are under way at once: the networks have more to carry than they can");
                return Err(EngineError::Failed(why));
            }
            if progress.cancelled() {
                return Err(EngineError::Cancelled);
            }
            let done = self.jobs.progress();
            progress.at(duration.map_or(done, |duration| done.max(now / duration)).min(1.0), "running");
            let wait = planned
                .peek()
                .map(|transfer| transfer.job.at)
                .map_or(LOOK, |at| at.duration().saturating_sub(self.ends.all.began.elapsed()))
                .min(LOOK);
            if let Ok(first) = ended.recv_timeout(wait) {
                self.end(first);
                while let Ok(more) = ended.try_recv() {
                    self.end(more);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        if self.jobs.has_foreground() {
            return self.jobs.is_over();
        }
        self.flows.iter().all(|flow| flow.spec.bytes.is_some() && (flow.end.is_some() || flow.error.is_some()))
    }

    fn begin(&mut self, coming: PlannedTransfer, over: Over) {
        let (networks, all) = (self.networks, &self.ends.all);
        let part = self.jobs.arrive(coming.job.class, || Mark::of(networks, all.now()));
        self.number += 1;
        let bytes = coming.ends.then_some(coming.job.bytes);
        let spec = Spec { number: self.number, over, opens: coming.opens, bytes, window: coming.window };
        let transfer = self.ends.open(spec);
        if let Some(flow) = coming.flow {
            self.flows[flow].transfer = Some(transfer.clone());
        }
        self.live.insert(self.number, (coming, part, transfer));
    }

    fn end(&mut self, (number, how): Ended) {
        self.ends.all.forget(number);
        // A transfer whose other end has failed as well is told of twice.
        let Some((coming, part, transfer)) = self.live.remove(&number) else { return };
        let time_s = how.as_ref().ok().map(|at| at - coming.job.at.secs());
        self.jobs.end(coming.job.class, part, time_s);
        match how {
            Ok(at) => {
                self.carried += transfer.read.load(Relaxed);
                if let Some(flow) = coming.flow {
                    self.flows[flow].end = Some(at);
                }
            }
            Err(why) => {
                let told = format!("a transfer of class {} failed, after {} bytes: {why}", coming.job.class, transfer.read.load(Relaxed));
                match coming.flow {
                    Some(flow) => self.flows[flow].error = Some(why),
                    None => self.failures.push(told),
                }
            }
        }
    }

    fn outcome(&mut self, scenario: &Scenario, seed: u64) -> Outcome {
        if self.short_of_memory {
            self.failures.push(measure::SHORT_OF_MEMORY.into());
        }
        let (began, stopped) = self.jobs.marks();
        let (began, stopped) = (began.cloned().unwrap_or_default(), stopped.cloned().unwrap_or_else(|| self.mark()));
        let span = (stopped.at - began.at).max(1e-9);
        let capacity = |index: usize| wire_rate(self.parallel.networks[index].rate).bits_per_s() as f64 / 8.0 * span;
        let left = |index: usize| {
            let of = |mark: &Mark| mark.left.get(index).copied().unwrap_or(0);
            of(&stopped).saturating_sub(of(&began)) as f64
        };
        let count = self.parallel.networks.len();
        let network = |index: usize| NetworkOutcome {
            network: index + 1,
            utilization: left(index) / capacity(index),
            share: None,
            queue_drops: None,
        };
        let means = self.jobs.means();
        let flows: Vec<FlowOutcome> = self.flows.iter().map(|flow| flow_outcome(flow, stopped.at)).collect();
        // What was read, of those too that have not ended.
        let reading: u64 = self.live.values().map(|(.., transfer)| transfer.read.load(Relaxed)).sum();
        let carried = if flows.is_empty() { self.carried + reading } else { flows.iter().map(|flow| flow.bytes).sum() };
        let elapsed = if flows.is_empty() { self.ends.all.now() } else { span };
        Outcome {
            scenario: scenario.name.clone(),
            engine: "lab".into(),
            seed,
            valid: true,
            warnings: std::mem::take(&mut self.failures),
            goodput_bps: carried as f64 * 8.0 / elapsed,
            utilization: (0..count).map(left).sum::<f64>() / (0..count).map(capacity).sum::<f64>(),
            flows,
            sojourn_s: means.sojourn_s,
            sojourn_jobs: means.jobs,
            networks: (0..count).map(network).collect(),
            ci95: means.ci95,
            series: self.looks.series(),
            ..Outcome::default()
        }
    }
}

fn flow_outcome(flow: &Given, until: f64) -> FlowOutcome {
    let Given { spec, transfer, end, error } = flow;
    let bytes = transfer.as_ref().map_or(0, |transfer| transfer.read.load(Relaxed));
    let time = end.unwrap_or(until) - spec.start.secs();
    FlowOutcome {
        id: spec.id,
        asked_bytes: spec.bytes.map(|bytes| bytes.0),
        bytes,
        start_s: spec.start.secs(),
        end_s: *end,
        goodput_bps: if time > 0.0 { bytes as f64 * 8.0 / time } else { 0.0 },
        error: error.clone(),
        ..FlowOutcome::default()
    }
}
