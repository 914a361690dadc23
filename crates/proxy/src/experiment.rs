//! The experiment: some of the connections that would be split pass unsplit, as many are split and
//! measured beside them, and the comparison says how much sooner split ones were.
//!
//! The firewall chooses and reports packets (`intercept::rules`). A thread reads them and follows
//! the `connections`, whose bytes it compares with those that the relay has counted (`relayed`);
//! `results` adds their times up by client (`clients`), `estimate` compares the groups.

mod clients;
mod clock;
mod connections;
mod estimate;
mod log_times;
mod relayed;
mod results;
mod sequence;

pub use clients::prefix_of;
pub use estimate::Gain;
pub(crate) use relayed::RelayedFlows;
use results::Course;
pub(crate) use results::Results;
pub use results::{ExperimentRow, GroupCounts, GroupView};

use crate::worker::sys;
use clock::ClockSteps;
use connections::Connections;
use intercept::{ExperimentShare, PacketLog, Reading};
use rustix::{
    event::{EventfdFlags, eventfd},
    fd::{AsFd as _, OwnedFd},
};
use serde::{Deserialize, Serialize};
use std::{
    io, panic,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Interval at which connections without packets are removed, and the longest wait of a read.
const SWEEP: Duration = Duration::from_secs(5);
/// The longest wait of a read while connections wait for what the relay has counted.
const RELAY_WAIT: Duration = Duration::from_millis(100);
/// How often the packet log is tried again, while an earlier process reads it.
const RETRY: Duration = Duration::from_millis(100);

/// An experiment's results, for display.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentView {
    /// One connection in this many is in each group.
    pub one_in: u32,
    /// For how long it has measured, seconds.
    pub measured_s: f64,
    /// Why nothing is measured; absent: it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// How often packets were lost before they were read.
    pub lost: u64,
    /// Connections that were not followed, because there were too many.
    pub left_out: u64,
    /// Both groups.
    pub groups: Vec<GroupView>,
    /// The comparisons: all destinations, then by prefix; each of all sizes, then by size.
    pub rows: Vec<ExperimentRow>,
}

impl ExperimentView {
    /// The same without the comparisons of single prefixes.
    #[must_use]
    pub fn without_prefixes(mut self) -> Self {
        self.rows.retain(|row| row.prefix.is_none());
        self
    }
}

/// Shared by the measuring thread and its callers.
#[derive(Debug)]
struct State {
    share: ExperimentShare,
    /// When this process began to measure.
    begun: Instant,
    failure: Option<String>,
    connections: Connections,
    results: Results,
}

/// A running experiment. Dropping it ends the thread, and frees the packet log.
#[derive(Debug)]
pub(crate) struct RunningExperiment {
    state: Arc<Mutex<State>>,
    relayed: Arc<RelayedFlows>,
    is_over: Arc<AtomicBool>,
    waker: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunningExperiment {
    /// Starts to measure in the network namespace of the calling thread, from these results on if
    /// they were measured with the same settings. The workers add flows that have ended to
    /// `relayed`.
    ///
    /// # Errors
    /// The thread cannot be started. If the packet log cannot be opened, the experiment's view says
    /// so.
    pub(crate) fn start(share: ExperimentShare, settings: u64, results: Results, relayed: Arc<RelayedFlows>) -> io::Result<Self> {
        if !results.is_empty() && results.settings() != settings {
            tracing::info!("the experiment begins anew: what was measured before was measured with other settings");
        }
        let results = if results.settings() == settings { results } else { Results::with(settings) };
        let state = State { share, begun: Instant::now(), failure: None, connections: Connections::default(), results };
        let (state, is_over) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        let waker = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (shared, flows, over, woken) = (state.clone(), relayed.clone(), is_over.clone(), waker.clone());
        relayed.set_wanted(true);
        // Before the thread starts, so that no connection of a proxy that is ready is missed.
        let log = PacketLog::open();
        let work = move || {
            let measured = panic::catch_unwind(panic::AssertUnwindSafe(|| measure(log, &shared, &flows, &over, &woken)));
            let failure = measured.unwrap_or_else(|_| Err(io::Error::other("its thread panicked"))).err();
            if let Some(why) = failure {
                // Connections are chosen, split and forwarded as before.
                tracing::error!("the experiment measures nothing: {why}; the proxy goes on, and a share of connections passes unsplit");
                lock(&shared).failure = Some(why.to_string());
            }
        };
        let thread = thread::Builder::new().name("tandem-measure".into()).spawn(work)?;
        Ok(RunningExperiment { state, relayed, is_over, waker, thread: Some(thread) })
    }

    /// Begins anew: what was measured before was measured with other settings.
    pub(crate) fn reset(&self, share: ExperimentShare, settings: u64) {
        let mut state = lock(&self.state);
        let failure = state.failure.take();
        *state = State { share, begun: Instant::now(), failure, connections: Connections::default(), results: Results::with(settings) };
    }

    /// The results, for the next process. It does not follow the connections that are open now.
    pub(crate) fn results(&self) -> Results {
        let state = lock(&self.state);
        let mut results = state.results.clone();
        results.pass_on(state.begun.elapsed(), state.connections.left_out, |group| state.connections.open_of(group));
        results
    }

    /// What it has shown so far.
    pub(crate) fn view(&self) -> ExperimentView {
        let state = lock(&self.state);
        let Course { measured_s, lost, left_out, .. } = state.results.course();
        ExperimentView {
            one_in: state.share.one_in(),
            measured_s: measured_s + state.begun.elapsed().as_secs_f64(),
            failure: state.failure.clone(),
            lost,
            left_out: left_out + state.connections.left_out,
            groups: state.results.groups(|group| state.connections.open_of(group)),
            rows: state.results.rows(),
        }
    }
}

impl Drop for RunningExperiment {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        sys::signal(&self.waker);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.relayed.set_wanted(false);
    }
}

/// Reads the packet log until the experiment is over. `opened` is the first attempt to open it.
///
/// # Errors
/// The log cannot be opened or read.
fn measure(
    mut opened: io::Result<PacketLog>,
    state: &Mutex<State>,
    relayed: &RelayedFlows,
    is_over: &AtomicBool,
    waker: &OwnedFd,
) -> io::Result<()> {
    let mut log = loop {
        match opened {
            Ok(log) => break log,
            // The process from which this one takes over still reads it.
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied && !is_over.load(Relaxed) => {
                lock(state).failure = Some("another process reads the packet log, or CAP_NET_ADMIN is missing; tries again".into());
                thread::sleep(RETRY);
                opened = PacketLog::open();
            }
            Err(why) => return Err(why),
        }
    };
    lock(state).failure = None;
    let (mut swept, mut clock) = (Instant::now(), ClockSteps::new());
    while !is_over.load(Relaxed) {
        let waits_for_relay = lock(state).connections.waits_for_relay();
        log.wait(waker.as_fd(), if waits_for_relay { RELAY_WAIT } else { SWEEP })?;
        if clock.has_stepped() {
            let mut state = lock(state);
            let State { connections, results, .. } = &mut *state;
            connections.abandon(|group, event| results.add(group, event));
        }
        // Taken before the packets are read, so that the packets of most of them are known then.
        let flows = relayed.take();
        loop {
            let mut state = lock(state);
            let State { connections, results, .. } = &mut *state;
            match log.read(|packet| connections.take(&packet, |group, event| results.add(group, event)))? {
                Reading::Packets => {}
                Reading::Lost => {
                    results.lose();
                    connections.lose(|group, event| results.add(group, event));
                }
                Reading::Nothing => break,
            }
        }
        if !flows.is_empty() {
            let mut state = lock(state);
            let State { connections, results, .. } = &mut *state;
            flows.iter().for_each(|flow| connections.take_relayed(flow, |group, event| results.add(group, event)));
        }
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            let mut state = lock(state);
            let State { connections, results, .. } = &mut *state;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            connections.sweep(now, |group, event| results.add(group, event));
        }
    }
    Ok(())
}
