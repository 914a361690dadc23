//! Plays a scenario with networks in parallel. Background transfers of a network use that network
//! alone; foreground transfers use the bond, Multipath TCP, or a single network.

mod bond_samples;
mod foreground;
mod network;
mod transfers;

use crate::{
    controllers::LegControllers,
    emulator::{LinkReport, can_emulate},
    measure,
    network::NetworkOptions,
};
use bond_samples::BondSampler;
use network::MAX_START_DELAY;
pub use network::{BondRoute, ParallelNetworks};
use outcome::{CountedJobs, EngineError, FlowOutcome, NetworkOutcome, Outcome, Progress, ReorderOutcome};
use proxy::{BondConfig, FlowRecord};
use scenario::{FlowSpec, Opens, Parallel, PlannedTransfer, Scenario, TransferSchedule, TransferScheduler};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::{Duration, Instant},
};
use transfers::{Transfer, TransferRequest, TransferResult, TransferRoute, TransferThreads};
use units::Span;

/// Interval between progress reports, samples and checks of a run.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of concurrent transfers. More mean that the networks are overloaded, and the run
/// would never end.
const MAX_LIVE_TRANSFERS: usize = 4000;

/// Checks whether the lab can play these networks in parallel.
///
/// # Errors
/// [`EngineError::CannotAnswer`], with the key that it cannot play.
pub(crate) fn can_answer(parallel: &Parallel<'_>) -> Result<(), EngineError> {
    if !parallel.links.is_empty() {
        let why = "its networks in parallel begin at the sender's host; the simulator has links before them: --on sim";
        return EngineError::cannot("lab", "link", why);
    }
    for (index, network) in (1..).zip(parallel.networks) {
        can_emulate(&format!("network[{index}]"), &network.link)?;
    }
    if let Some(index) = parallel.networks.iter().position(|network| network.streams.is_some()) {
        let key = format!("network[{}].streams", index + 1);
        return EngineError::cannot("lab", key, "its networks carry TCP transfers only; the equations have streams: --on theory");
    }
    if parallel.foreground.is_some_and(|foreground| foreground.weight != 1.0) {
        let why = "TCP shares a network equally among connections; the equations have weights: --on theory";
        return EngineError::cannot("lab", "foreground.weight", why);
    }
    if parallel.bond.window.is_some_and(|window| window < BondConfig::LEAST_WINDOW) {
        let why = format!("the window of a bond is at least {}; the simulator has smaller ones: --on sim", BondConfig::LEAST_WINDOW);
        return EngineError::cannot("lab", "bond.window", &why);
    }
    match parallel.bond.scheduler {
        TransferScheduler::Static => {
            let why = "a real bond decides piece by piece; equations and simulator have fixed parts: --on theory,sim";
            return EngineError::cannot("lab", "bond.scheduler", why);
        }
        TransferScheduler::Fluid => {
            return EngineError::cannot(
                "lab",
                "bond.scheduler",
                "no real bond attains the fluid ideal; equations and simulator compute it: --on theory,sim",
            );
        }
        TransferScheduler::Mptcp if !transfers::has_multipath_tcp() => {
            return EngineError::cannot(
                "lab",
                "bond.scheduler",
                "this kernel has no Multipath TCP: use one that is built with CONFIG_MPTCP",
            );
        }
        _ => {}
    }
    if let Some((network, load)) = parallel.overload() {
        let why = format!(
            "network {network} would have a load of {load:.3}, so transfer times would grow without bound and have no mean: lower the load"
        );
        return EngineError::cannot("lab", "bond.scheduler", &why);
    }
    Ok(())
}

/// Totals of ended streams, as both ends of the bonds report them.
#[derive(Debug, Default)]
struct BondTotals {
    /// Payload carried by each network, bytes.
    shares: Vec<u64>,
    /// Of each stream, the maximum payload that waited for earlier bytes at the receiver, bytes.
    held: Vec<u64>,
}

/// Traffic up to a moment.
#[derive(Debug, Clone, Default)]
struct TrafficSnapshot {
    /// Seconds since the start of the run.
    at: f64,
    /// IP bytes that have left the queue of each network.
    left: Vec<u64>,
}

impl TrafficSnapshot {
    fn of(networks: &ParallelNetworks, at: f64) -> Self {
        TrafficSnapshot { at, left: networks.departed_bytes() }
    }
}

/// A flow that the scenario lists.
struct GivenFlow {
    spec: FlowSpec,
    /// Its transfer, once it has started.
    transfer: Option<Arc<Transfer>>,
    /// When its last byte was read, in seconds since the start of the run.
    end: Option<f64>,
    /// Why it failed.
    error: Option<String>,
}

/// A run and its measurements.
struct ParallelRun<'a> {
    parallel: &'a Parallel<'a>,
    networks: &'a ParallelNetworks,
    transfers: &'a TransferThreads,
    jobs: CountedJobs<TrafficSnapshot>,
    /// Running transfers by number, each with its plan and the batch of the run in which it counts,
    /// if it does.
    live: HashMap<u64, (PlannedTransfer, Option<usize>, Arc<Transfer>)>,
    /// Number of the last transfer that was started.
    number: u64,
    /// Payload of ended transfers, bytes.
    carried: u64,
    flows: Vec<GivenFlow>,
    /// Errors of transfers that are not listed flows.
    failures: Vec<String>,
    bond_samples: BondSampler,
    /// The kernel has run short of memory for TCP at least once.
    short_of_memory: bool,
}

/// Plays a scenario with networks in parallel.
pub(crate) fn play(
    scenario: &Scenario,
    parallel: &Parallel<'_>,
    seed: u64,
    capture: Option<&PathBuf>,
    progress: &dyn Progress,
) -> Result<Outcome, EngineError> {
    progress.at(0.0, "building");
    // Keeps the sender's controller loaded during the run.
    let controllers = LegControllers::load(scenario)?;
    let specs = scenario.flow_specs(seed);
    let options = NetworkOptions { capture: capture.cloned(), ..NetworkOptions::default() };
    let mut networks = ParallelNetworks::without_bonds(parallel, seed, &options)?;
    let totals = Arc::new(Mutex::new(BondTotals { shares: vec![0; parallel.networks.len()], held: Vec::new() }));
    let route = foreground::start(&mut networks, parallel, &specs, &controllers.sender, |opens| {
        let totals = totals.clone();
        move |end, record: &FlowRecord| record_ended_stream(&totals, opens, end, record)
    })?;
    let (results, ended) = mpsc::channel();
    let windows: Vec<_> = (0..parallel.classes()).map(|class| parallel.window(class)).collect();
    // The run starts after the handshakes of the bond's connections.
    let rtt = parallel.networks.iter().map(|network| 2 * network.link.delay.0).max().unwrap_or(0);
    thread::sleep((Duration::from_millis(200) + Span(8 * rtt).duration()).min(MAX_START_DELAY));
    let mut transfers = TransferThreads::start(
        &networks,
        parallel.networks.len(),
        (seed, &controllers.sender),
        &windows,
        route == TransferRoute::Multipath,
        results,
    )?;
    networks.start_clock();
    let mut run = ParallelRun {
        parallel,
        networks: &networks,
        transfers: &transfers,
        jobs: CountedJobs::new(parallel),
        live: HashMap::new(),
        number: 0,
        carried: 0,
        flows: specs.iter().map(|spec| GivenFlow { spec: *spec, transfer: None, end: None, error: None }).collect(),
        failures: Vec::new(),
        bond_samples: BondSampler::default(),
        short_of_memory: false,
    };
    let whole = run.run(scenario, route, &ended, seed, progress)?;
    progress.at(1.0, "measuring");
    let mut outcome = run.outcome(scenario, seed);
    // The bond reports a stream when its last frames have been acknowledged.
    let begun = Instant::now();
    while route == TransferRoute::Bond && whole && !networks.streams().is_empty() && begun.elapsed() < Duration::from_secs(2) {
        thread::sleep(Duration::from_millis(5));
    }
    transfers.finish();
    let reports = networks.finish()?;
    add_link_reports(&mut outcome, parallel, &reports);
    let totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    let all: u64 = totals.shares.iter().sum();
    if all > 0 {
        for (network, share) in outcome.networks.iter_mut().zip(&totals.shares) {
            network.share = Some(*share as f64 / all as f64);
        }
        let (sum, most) = (totals.held.iter().sum::<u64>(), totals.held.iter().copied().max().unwrap_or(0));
        outcome.reorder = Some(ReorderOutcome { mean_bytes: sum as f64 / totals.held.len().max(1) as f64, max_bytes: most });
    }
    if let TransferRoute::Network(best) = route {
        outcome.networks.iter_mut().enumerate().for_each(|(index, network)| network.share = Some(f64::from(u8::from(index == best))));
    }
    Ok(outcome)
}

/// Adds an ended stream to the totals. The dialling end (0) reports the payload carried by each
/// network; the end that receives the data reports how much payload waited for earlier bytes.
fn record_ended_stream(totals: &Mutex<BondTotals>, opens: Opens, end: usize, record: &FlowRecord) {
    let Some(bond) = &record.last.multipath else { return };
    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    let dials = end == 0;
    if dials {
        for path in &bond.paths {
            let index = path.network.parse::<usize>().unwrap_or(0).wrapping_sub(1);
            let bytes = if opens == Opens::Sender { path.sent_bytes } else { path.received_bytes };
            if let Some(share) = totals.shares.get_mut(index) {
                *share += bytes;
            }
        }
    }
    if dials == (opens == Opens::Receiver) {
        totals.held.push(bond.most_waiting_bytes);
    }
}

/// Adds warnings and drops of each network to an outcome, which is valid without warnings.
fn add_link_reports(outcome: &mut Outcome, parallel: &Parallel<'_>, reports: &[LinkReport]) {
    for (index, (link, report)) in network::ip_links(parallel).iter().zip(reports).enumerate() {
        let warnings = measure::link_warnings(&format!("network {}", index + 1), link.rate, link.delay * 2, report);
        outcome.warnings.extend(warnings);
        outcome.networks[index].queue_drops = Some(report.counts.queue_drops);
    }
    outcome.valid = outcome.warnings.is_empty();
}

impl ParallelRun<'_> {
    fn snapshot(&self) -> TrafficSnapshot {
        TrafficSnapshot::of(self.networks, self.transfers.all.now())
    }

    /// Starts transfers at their times until all that are measured have ended. Returns false if the
    /// duration of the scenario ended the run before.
    fn run(
        &mut self,
        scenario: &Scenario,
        route: TransferRoute,
        ended: &mpsc::Receiver<TransferResult>,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<bool, EngineError> {
        let specs: Vec<FlowSpec> = self.flows.iter().map(|flow| flow.spec).collect();
        let mut planned = TransferSchedule::new(self.parallel, &specs, seed).peekable();
        if !self.jobs.has_foreground() {
            self.jobs.begin(self.snapshot());
        }
        let duration = scenario.duration.map(Span::secs);
        loop {
            let now = self.transfers.all.now();
            while let Some(transfer) = planned.next_if(|transfer| transfer.job.at.secs() <= now) {
                let route = transfer.job.class.checked_sub(1).map_or(route, TransferRoute::Network);
                self.begin(transfer, route);
            }
            if self.is_over() {
                return Ok(true);
            }
            if duration.is_some_and(|duration| now >= duration) {
                return Ok(false);
            }
            if !self.jobs.has_foreground() {
                let read = self.live.values().map(|(.., transfer)| transfer.read.load(Relaxed)).sum::<u64>() + self.carried;
                self.bond_samples.sample(now, read, self.networks);
            }
            self.short_of_memory |= measure::is_short_of_memory().unwrap_or(false);
            if self.live.len() > MAX_LIVE_TRANSFERS {
                let why = format!("more than {MAX_LIVE_TRANSFERS} transfers run at once: the networks are overloaded; lower the load");
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
                .map_or(PROGRESS_INTERVAL, |at| at.duration().saturating_sub(self.transfers.all.began.elapsed()))
                .min(PROGRESS_INTERVAL);
            if let Ok(first) = ended.recv_timeout(wait) {
                self.end(first);
                while let Ok(more) = ended.try_recv() {
                    self.end(more);
                }
            }
        }
    }

    /// Whether all that is measured has ended.
    fn is_over(&self) -> bool {
        if self.jobs.has_foreground() {
            return self.jobs.is_over();
        }
        self.flows.iter().all(|flow| flow.spec.bytes.is_some() && (flow.end.is_some() || flow.error.is_some()))
    }

    /// Starts a transfer.
    fn begin(&mut self, coming: PlannedTransfer, route: TransferRoute) {
        let (networks, all) = (self.networks, &self.transfers.all);
        let part = self.jobs.arrive(coming.job.class, || TrafficSnapshot::of(networks, all.now()));
        self.number += 1;
        let bytes = coming.ends.then_some(coming.job.bytes);
        let request = TransferRequest { number: self.number, route, opens: coming.opens, bytes, window: coming.window };
        let transfer = self.transfers.open(request);
        if let Some(flow) = coming.flow {
            self.flows[flow].transfer = Some(transfer.clone());
        }
        self.live.insert(self.number, (coming, part, transfer));
    }

    /// Records the end of a transfer.
    fn end(&mut self, (number, how): TransferResult) {
        self.transfers.all.forget(number);
        // If both ends of a transfer fail, its result comes twice.
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
                let failure = format!("a transfer of class {} failed after {} bytes: {why}", coming.job.class, transfer.read.load(Relaxed));
                match coming.flow {
                    Some(flow) => self.flows[flow].error = Some(why),
                    None => self.failures.push(failure),
                }
            }
        }
    }

    fn outcome(&mut self, scenario: &Scenario, seed: u64) -> Outcome {
        if self.short_of_memory {
            self.failures.push(measure::SHORT_OF_MEMORY.into());
        }
        let (began, stopped) = self.jobs.marks();
        let (began, stopped) = (began.cloned().unwrap_or_default(), stopped.cloned().unwrap_or_else(|| self.snapshot()));
        let span = (stopped.at - began.at).max(1e-9);
        let links = network::ip_links(self.parallel);
        let capacity = |index: usize| links[index].capacity_between(began.at, began.at + span);
        let left = |index: usize| {
            let of = |snapshot: &TrafficSnapshot| snapshot.left.get(index).copied().unwrap_or(0);
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
        // Includes transfers that have not ended.
        let reading: u64 = self.live.values().map(|(.., transfer)| transfer.read.load(Relaxed)).sum();
        let carried = if flows.is_empty() { self.carried + reading } else { flows.iter().map(|flow| flow.bytes).sum() };
        let elapsed = if flows.is_empty() { self.transfers.all.now() } else { span };
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
            series: self.bond_samples.series(),
            ..Outcome::default()
        }
    }
}

fn flow_outcome(flow: &GivenFlow, until: f64) -> FlowOutcome {
    let GivenFlow { spec, transfer, end, error } = flow;
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
