//! The memory that the proxy may take: one budget for the connections of all listeners.
//!
//! [`MemoryWatch`] is shared by all workers. There is no call of the kernel for a read or a write:
//! a worker counts how much its connections *may* have taken, without a system call, and [looks]
//! at the host's TCP memory (one read of `/proc/net/sockstat`) when that exceeds a part of what is
//! left, or a second has passed. Only while more than a part of the budget is used does it ask the
//! sockets of its connections (SO_MEMINFO), which tells the proxy's memory from that of others. A
//! thread follows the limits themselves once a second.
//!
//! [`law`] decides what is done; the workers do it (`worker/memory.rs`).
//!
//! [looks]: MemoryWatch::look

pub(crate) mod law;

use crate::gate::GateCommand;
use intercept::host_memory::{self, GroupMemory};
use law::MemoryReading;
pub(crate) use law::{LimitKind, MemoryLevel};
use relay::{BufferBudget, BufferCap, BufferRoom};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};
use units::Bytes;

/// Memory of a connection besides its queues, bytes: two sockets with their files and epoll
/// entries, and its state here.
pub(crate) const MEMORY_OF_A_FLOW: u64 = 12 * 1024;
/// The part of a control group's limit that the proxy leaves to what it cannot measure, as a
/// divisor.
const RESERVE_OF_A_GROUP: u64 = 8;
/// The shortest time between two reports of a shortage in the log.
const REPORTS: Duration = Duration::from_secs(60);

/// What a worker's connections take.
#[derive(Debug, Default)]
struct WorkerMemory {
    /// Memory of its sockets when they were last asked, bytes.
    sockets: AtomicU64,
    /// TCP memory of the host at that time, bytes.
    host_then: AtomicU64,
    /// Memory outside of TCP, bytes.
    other: AtomicU64,
    /// Queues that will fill (`held_back` of the law), bytes.
    held_back: AtomicU64,
    /// What connections will take that have just begun (`coming` of the law), bytes.
    coming: AtomicU64,
    /// Directions that carry bulk data.
    directions: AtomicU64,
}

/// The budget, its present use, and what follows from that.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    workers: Vec<WorkerMemory>,
    state: Mutex<WatchState>,
    level: AtomicU8,
    cap: AtomicU64,
    excess: AtomicU64,
    quantum: AtomicU64,
    budget: AtomicU64,
    asks_sockets: AtomicBool,
    is_strict: AtomicBool,
}

/// The limits, and the last measurement.
#[derive(Debug, Default)]
struct WatchState {
    configured: Option<u64>,
    host: Option<u64>,
    group: Option<u64>,
    /// What processes take from which this one has taken over, bytes.
    earlier: u64,
    gate: Option<mpsc::Sender<GateCommand>>,
    reading: MemoryReading,
    host_used: u64,
    level: MemoryLevel,
    cap: Option<u64>,
    reported: Option<Instant>,
    /// A report of the shortage has been logged, and its end has not.
    is_reported: bool,
    /// Flows that were ended since the shortage began, and what they held, bytes.
    ended: (u64, u64),
}

/// The memory that a proxy takes and may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryView {
    /// What its connections take, bytes: queues in the kernel, pipes, and a fixed amount for each.
    /// Asked of the sockets when more than a third of the budget may be in use; less is at most
    /// this.
    pub used: u64,
    /// What they may take beside other programs, bytes; absent: no limit is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u64>,
    /// What sets the budget: `configured` (`memory`), `host` (`net.ipv4.tcp_mem`) or `group` (the
    /// control group).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<String>,
    /// `free`; `tight`: buffers are limited to their share; `full`: clients share
    /// the connections too; `critical`: only clients that have none are served; `exhausted`:
    /// accepts pause.
    pub level: String,
    /// The most that B of a direction may be, bytes; absent: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_cap: Option<u64>,
    /// TCP memory of the whole host, bytes.
    pub host_used: u64,
}

impl LimitKind {
    fn name(self) -> &'static str {
        match self {
            LimitKind::Configured => "configured",
            LimitKind::Host => "host",
            LimitKind::Group => "group",
        }
    }

    /// The limit and the cure, for the log.
    pub(crate) fn cure(name: &str) -> &'static str {
        match name {
            "host" => "by what the kernel allows TCP beside other programs: raise net.ipv4.tcp_mem, or the memory of this host",
            "group" => "by the limit of its control group: raise MemoryMax= or memory.max",
            _ => "by the configuration: raise memory",
        }
    }
}

impl MemoryWatch {
    /// For so many workers. `configured`: what the connections may take, bytes.
    pub(crate) fn new(workers: usize, configured: Option<u64>) -> Self {
        let watch = MemoryWatch {
            workers: (0..workers).map(|_| WorkerMemory::default()).collect(),
            state: Mutex::new(WatchState { configured, ..WatchState::default() }),
            level: AtomicU8::new(0),
            cap: AtomicU64::new(u64::MAX),
            excess: AtomicU64::new(0),
            quantum: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            asks_sockets: AtomicBool::new(false),
            is_strict: AtomicBool::new(false),
        };
        watch.refresh(0);
        watch
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the configured limit.
    pub(crate) fn configure(&self, configured: Option<u64>) {
        self.state().configured = configured;
        self.look();
    }

    /// Sets the gate, which has connections pass unsplit while memory is short.
    pub(crate) fn set_gate(&self, gate: mpsc::Sender<GateCommand>) {
        let mut state = self.state();
        let _ = gate.send(GateCommand::ShortOfMemory(state.level >= MemoryLevel::Full));
        state.gate = Some(gate);
    }

    /// Lets go of the gate, whose thread ends with its last sender.
    pub(crate) fn forget_gate(&self) {
        self.state().gate = None;
    }

    /// Another process has taken over: of a configured limit, this one keeps what it takes, or
    /// half.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        let own = state.reading.own;
        state.configured = state.configured.map(|limit| limit.min(own.max(limit / 2)));
    }

    /// Follows the limits of host and control group, and looks. `earlier`: what processes take from
    /// which this one has taken over, bytes.
    pub(crate) fn refresh(&self, earlier: u64) {
        let (host, group) = (host_memory::tcp_pressure(), GroupMemory::of_process());
        let mut state = self.state();
        let (own, _) = self.own(state.host_used);
        state.host = host;
        state.group =
            group.map(|GroupMemory { limit, used }| (limit - limit / RESERVE_OF_A_GROUP).saturating_sub(used.saturating_sub(own)));
        state.earlier = earlier;
        drop(state);
        self.look();
    }

    fn sum(&self, value: fn(&WorkerMemory) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|worker| value(worker).load(Relaxed)).sum()
    }

    /// What the proxy takes in all, and outside of TCP, bytes.
    fn own(&self, host_used: u64) -> (u64, u64) {
        // What the host's memory has grown by since the sockets were asked counts as the proxy's.
        let with_flows = self.workers.iter().filter(|worker| worker.other.load(Relaxed) > 0);
        let grown = with_flows.map(|worker| host_used.saturating_sub(worker.host_then.load(Relaxed))).max().unwrap_or(0);
        let sockets = (self.sum(|worker| &worker.sockets) + grown).min(host_used);
        let other = self.sum(|worker| &worker.other);
        (sockets + other, other)
    }

    /// Measures, and decides. Cheap: one read of a small file.
    pub(crate) fn look(&self) {
        // Another worker does it.
        let Ok(mut state) = self.state.try_lock() else { return };
        let Some(host_used) = host_memory::tcp_memory() else { return };
        let (own, other) = self.own(host_used);
        let others = (host_used + other).saturating_sub(own);
        let budget = law::least([
            (LimitKind::Configured, state.configured.map(|limit| limit.saturating_sub(state.earlier))),
            (LimitKind::Host, state.host.map(|limit| limit.saturating_sub(others) + other)),
            (LimitKind::Group, state.group),
        ]);
        let (held_back, directions) = (self.sum(|worker| &worker.held_back), self.sum(|worker| &worker.directions));
        let reading = MemoryReading { own, coming: self.sum(|worker| &worker.coming), budget, held_back, directions };
        let decision = law::decide(state.level, &reading);
        (state.reading, state.host_used, state.cap) = (reading, host_used, decision.cap);
        let most = budget.map_or(u64::MAX, |(_, bytes)| bytes);
        self.budget.store(most, Relaxed);
        self.quantum.store(law::quantum(&reading) / self.workers.len().max(1) as u64, Relaxed);
        self.cap.store(decision.cap.unwrap_or(u64::MAX), Relaxed);
        self.excess.store(decision.excess, Relaxed);
        self.is_strict.store(decision.is_strict, Relaxed);
        self.asks_sockets.store(u128::from(own) * 8 >= u128::from(most) * 3, Relaxed);
        self.level.store(decision.level as u8, Relaxed);
        if decision.level != state.level {
            state.change(decision.level);
        }
    }

    /// How short memory is.
    pub(crate) fn level(&self) -> MemoryLevel {
        MemoryLevel::ALL.get(usize::from(self.level.load(Relaxed))).copied().unwrap_or_default()
    }

    /// The most that B of a direction may be.
    pub(crate) fn cap(&self) -> BufferCap {
        let buffer = self.cap.load(Relaxed);
        if buffer == u64::MAX { BufferCap::NONE } else { BufferCap { buffer, is_strict: self.is_strict.load(Relaxed) } }
    }

    /// What a worker's connections may take before the next measurement.
    pub(crate) fn room(&self, worker: usize) -> BufferRoom {
        let Some(worker) = self.workers.get(worker) else { return BufferRoom::UNLIMITED };
        let room = law::room(&self.state().reading, worker.held_back.load(Relaxed), worker.directions.load(Relaxed));
        BufferRoom { for_trials: room.for_trials / self.workers.len() as u64, ..room }
    }

    /// What the proxy may take, bytes; none: there is no limit.
    pub(crate) fn budget(&self) -> Option<u64> {
        Some(self.budget.load(Relaxed)).filter(|bytes| *bytes < u64::MAX)
    }

    /// The kernel's mark of TCP memory on this host, bytes; none: not known.
    pub(crate) fn host_mark(&self) -> Option<u64> {
        self.state().host
    }

    /// By how much a worker's connections may have grown before it looks again, bytes.
    pub(crate) fn quantum(&self) -> u64 {
        self.quantum.load(Relaxed)
    }

    /// Whether enough is in use that the sockets have to be asked.
    pub(crate) fn asks_sockets(&self) -> bool {
        self.asks_sockets.load(Relaxed)
    }

    /// What the stuck flows of a worker should give back, bytes, by its part of what is in use.
    pub(crate) fn excess_of(&self, worker: usize) -> u64 {
        let sockets = |worker: &WorkerMemory| u128::from(worker.sockets.load(Relaxed));
        let all: u128 = self.workers.iter().map(sockets).sum();
        let own = self.workers.get(worker).map_or(0, sockets);
        (u128::from(self.excess.load(Relaxed)) * own).checked_div(all).map_or(0, |bytes| bytes as u64)
    }

    /// Notes what a worker's connections take outside of TCP, what those will take that have just
    /// begun, and what its directions may take.
    pub(crate) fn note(&self, worker: usize, other: u64, coming: u64, budget: &BufferBudget) {
        let Some(worker) = self.workers.get(worker) else { return };
        worker.other.store(other, Relaxed);
        worker.coming.store(coming, Relaxed);
        worker.held_back.store(budget.held_back(), Relaxed);
        worker.directions.store(budget.bulk() as u64, Relaxed);
    }

    /// Notes the memory of a worker's sockets, which it has asked.
    pub(crate) fn note_sockets(&self, worker: usize, bytes: u64) {
        let Some(worker) = self.workers.get(worker) else { return };
        worker.sockets.store(bytes, Relaxed);
        worker.host_then.store(host_memory::tcp_memory().unwrap_or(0), Relaxed);
    }

    /// Notes that flows were ended since they were stuck.
    pub(crate) fn note_ended(&self, flows: u64, bytes: u64) {
        let mut state = self.state();
        state.ended.0 += flows;
        state.ended.1 += bytes;
    }

    /// The present state.
    pub(crate) fn view(&self) -> MemoryView {
        let state = self.state();
        MemoryView {
            used: state.reading.own,
            budget: state.reading.budget.map(|(_, bytes)| bytes),
            limited_by: state.reading.budget.map(|(kind, _)| kind.name().to_owned()),
            level: state.level.name().to_owned(),
            buffer_cap: state.cap,
            host_used: state.host_used,
        }
    }
}

impl WatchState {
    /// Enters another level: tells the gate and the log.
    fn change(&mut self, level: MemoryLevel) {
        let before = std::mem::replace(&mut self.level, level);
        let is_full = level >= MemoryLevel::Full;
        if is_full != (before >= MemoryLevel::Full)
            && let Some(gate) = &self.gate
        {
            let _ = gate.send(GateCommand::ShortOfMemory(is_full));
        }
        let Some((kind, budget)) = self.reading.budget else { return };
        let (used, budget, what) = (Bytes(self.reading.own), Bytes(budget), LimitKind::cure(kind.name()));
        let is_late = self.reported.is_none_or(|at| at.elapsed() >= REPORTS);
        if is_full && before < MemoryLevel::Full && is_late {
            (self.reported, self.is_reported) = (Some(Instant::now()), true);
            tracing::warn!(
                "memory is short: connections take {used} of {budget}, which is limited {what}; new connections pass unsplit, or, if \
                 they cannot, those of clients that have most wait, and flows that have been stuck for {} s end",
                STUCK_FOR.as_secs()
            );
        } else if level == MemoryLevel::Tight && before == MemoryLevel::Free {
            tracing::debug!("connections take {used} of {budget}, which is limited {what}: buffers are limited to their share");
        } else if level == MemoryLevel::Free {
            let (flows, bytes) = std::mem::take(&mut self.ended);
            if std::mem::take(&mut self.is_reported) || flows > 0 {
                let bytes = Bytes(bytes);
                tracing::info!(
                    "memory is free again: connections take {used} of {budget}; {flows} flows that were stuck were ended, they held {bytes}"
                );
            }
        }
    }
}

/// How long nothing of a flow has moved, although it holds bytes, before it may be ended while
/// memory is short.
pub(crate) const STUCK_FOR: Duration = Duration::from_secs(30);
/// The same for a client with many connections, while accepts pause.
pub(crate) const STUCK_FOR_MANY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_of_the_host_counts_until_the_sockets_are_asked() {
        let watch = MemoryWatch::new(2, Some(1 << 30));
        let none = BufferBudget::default();
        watch.note(0, 5, 0, &none);
        watch.note(1, 7, 0, &none);
        assert_eq!(watch.own(1000), (1012, 12), "all that the host has may be the proxy's");
        for (worker, sockets) in watch.workers.iter().zip([100, 200]) {
            worker.sockets.store(sockets, Relaxed);
            worker.host_then.store(900, Relaxed);
        }
        assert_eq!(watch.own(1000).0, 300 + 100 + 12);
        assert_eq!(watch.own(800).0, 312);
        watch.excess.store(60, Relaxed);
        assert_eq!((watch.excess_of(0), watch.excess_of(1)), (20, 40));
    }

    /// With no other limit, and without what other programs take at the same time.
    fn watch_of_64_mib() -> MemoryWatch {
        let watch = MemoryWatch::new(1, Some(64 << 20));
        watch.workers[0].host_then.store(u64::MAX, Relaxed);
        let mut state = watch.state();
        (state.host, state.group) = (None, None);
        drop(state);
        watch
    }

    #[test]
    fn a_limit_that_is_exceeded_caps_buffers_and_is_shown() {
        let watch = watch_of_64_mib();
        watch.note(0, 50 << 20, 0, &BufferBudget::default());
        watch.look();
        assert!(watch.level() >= MemoryLevel::Full && watch.cap().is_strict, "{:?}", watch.view());
        let view = watch.view();
        assert_eq!(view.limited_by.as_deref(), Some("configured"));
        assert!(view.used >= 50 << 20 && view.budget == Some(64 << 20), "{view:?}");
        watch.configure(Some(64 << 30));
        assert_eq!((watch.level(), watch.cap()), (MemoryLevel::Free, BufferCap::NONE), "{:?}", watch.view());
    }

    #[test]
    fn a_process_that_is_left_keeps_what_it_takes_or_half() {
        for (other, kept) in [(10, 32), (40, 40)] {
            let watch = watch_of_64_mib();
            watch.note(0, other << 20, 0, &BufferBudget::default());
            watch.look();
            watch.leave();
            let configured = watch.state().configured.unwrap() >> 20;
            assert!((kept..kept + 3).contains(&configured), "{configured} MiB");
        }
    }
}
