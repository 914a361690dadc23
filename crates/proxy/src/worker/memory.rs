//! The memory of a worker's connections: when it is measured, and what the worker does while it is
//! short.

use super::{Worker, WorkerSlot};
use crate::{
    config::ProxyConfig,
    connection::Connection,
    memory::{MEMORY_OF_A_FLOW, MemoryLevel, STUCK_FOR},
};
use intercept::leg;
use relay::{BufferRoom, Ending};
use socket2::Socket;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The shortest and the longest time between two looks at the host's memory, and the longest while
/// memory is short.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
const MOST_PAUSE: Duration = Duration::from_secs(1);
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// The most connections whose sockets are asked at a time, about two milliseconds of system calls,
/// and the shortest time between two times.
const ASKED_AT_ONCE: usize = 2048;
pub(super) const ASK_PAUSE: Duration = Duration::from_millis(100);
/// What may arrive at a new connection before the relay sees it, with the overhead of packets,
/// bytes: the kernel's first window.
pub(super) const FIRST_WINDOW: u64 = 128 * 1024;
/// A flow that holds less is not ended, bytes.
const LEAST_HELD: u64 = 16 * 1024;

/// When a worker measures, and what it follows.
#[derive(Debug)]
pub(super) struct MemoryTurns {
    looked: Instant,
    pub(super) asked: Instant,
    /// The slot that is asked first.
    next_asked: usize,
    level: MemoryLevel,
    /// The configuration of connections that begin while memory is short; none: it is the same.
    short_config: Option<Arc<ProxyConfig>>,
    room: BufferRoom,
    /// Connections were noted, which may have ended since.
    has_noted: bool,
    /// Whether listeners whose connections cannot pass unsplit have stopped accepting.
    pub(super) pauses: bool,
}

impl MemoryTurns {
    pub(super) fn new(config: &ProxyConfig, now: Instant) -> Self {
        // It looks in the first turn.
        let before = now.checked_sub(MOST_PAUSE).unwrap_or(now);
        let short_config = config.while_short().map(Arc::new);
        MemoryTurns {
            short_config,
            looked: before,
            asked: before,
            next_asked: 0,
            level: MemoryLevel::Free,
            room: BufferRoom::UNLIMITED,
            has_noted: false,
            pauses: false,
        }
    }

    /// Takes another configuration.
    pub(super) fn configure(&mut self, config: &ProxyConfig) {
        self.short_config = config.while_short().map(Arc::new);
    }

    /// The time until the next look; none: nothing is open, and nothing waits.
    pub(super) fn wait(&self, has_connections: bool) -> Option<Duration> {
        if !has_connections && !self.has_noted && !self.pauses {
            return None;
        }
        let pause = if self.level == MemoryLevel::Free { MOST_PAUSE } else { SHORT_PAUSE };
        Some((self.looked + pause).saturating_duration_since(Instant::now()))
    }
}

impl Worker {
    /// Measures memory when that is due, and follows the budget. To be called in each turn.
    pub(super) fn watch_memory(&mut self) {
        let (now, memory) = (self.scratch.now, self.context.memory.clone());
        let since = now.saturating_duration_since(self.memory.looked);
        let pause = if self.memory.level == MemoryLevel::Free { MOST_PAUSE } else { SHORT_PAUSE };
        if since >= pause || (since >= LEAST_PAUSE && self.scratch.budget.growth() >= memory.quantum()) {
            self.memory.looked = now;
            if memory.asks_sockets() && now.saturating_duration_since(self.memory.asked) >= ASK_PAUSE {
                self.ask_sockets();
            }
            self.note_memory();
            self.scratch.budget.measured();
            memory.look();
            if self.config.auto_buffer {
                let workers = self.config.threads.max(1) as u64;
                self.scratch.budget.set_limit(memory.budget().map(|bytes| bytes / workers));
            }
            self.memory.room = memory.room(self.context.number);
        }
        let level = memory.level();
        self.scratch.budget.set_cap(memory.cap(), self.memory.room);
        if level != std::mem::replace(&mut self.memory.level, level) {
            self.pause_for_memory(level >= MemoryLevel::Full);
        }
    }

    /// The configuration of a new connection, whose near leg this is. While memory is short, or so
    /// many connections begin that it may become short before it is measured, no B is unlimited.
    pub(super) fn config_of_new_flow(&mut self, near: &Socket) -> Arc<ProxyConfig> {
        let is_short = self.memory.level != MemoryLevel::Free || self.scratch.budget.growth() >= self.context.memory.quantum();
        self.scratch.budget.note_growth(MEMORY_OF_A_FLOW + 2 * FIRST_WINDOW);
        if is_short
            && let Some(config) = &self.memory.short_config
            && let Some(shares) = config.shares()
            && leg::bound_receive(near, shares.receive).is_ok()
        {
            return config.clone();
        }
        self.config.clone()
    }

    /// Notes what the connections take outside of TCP.
    fn note_memory(&mut self) {
        self.memory.has_noted = self.alive() > 0;
        self.context.memory.note(self.context.number, self.other_memory(), &self.scratch.budget);
        if !self.memory.has_noted {
            self.context.memory.note_sockets(self.context.number, 0);
        }
    }

    /// What the connections take outside of TCP, bytes.
    fn other_memory(&self) -> u64 {
        let flows = self.flows.iter().filter_map(|(_, flow)| flow.split()).map(Connection::in_hand).sum::<u64>();
        let carried = self.carrier.as_ref().map_or(0, |carrier| carrier.memory());
        flows + carried + self.alive() as u64 * MEMORY_OF_A_FLOW
    }

    /// Memory of the sockets when they were asked last, bytes.
    fn socket_memory(&self) -> u64 {
        let flows = self.flows.iter().filter_map(|(_, flow)| flow.split()).map(Connection::memory).sum::<u64>();
        flows + self.carrier.as_ref().map_or(0, |carrier| carrier.socket_memory())
    }

    /// What the connections take, bytes.
    pub(super) fn own_memory(&self) -> u64 {
        self.other_memory() + self.socket_memory()
    }

    /// Asks the sockets of connections, those next in turn if there are many, and ends flows that
    /// are stuck.
    pub(super) fn ask_sockets(&mut self) {
        let now = self.scratch.now;
        self.memory.asked = now;
        let (bound, mut asked) = (self.flows.bound(), 0);
        for step in 0..bound {
            let slot = (self.memory.next_asked + step) % bound;
            let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { continue };
            connection.ask_memory(LEAST_HELD, now);
            asked += 1;
            if asked == ASKED_AT_ONCE {
                self.memory.next_asked = slot + 1;
                break;
            }
        }
        if self.memory.level >= MemoryLevel::Full {
            self.end_stuck_flows();
        }
        self.context.memory.note_sockets(self.context.number, self.socket_memory());
    }

    /// Ends flows of which nothing has moved for a while although they hold bytes: those that hold
    /// most first, until the budget has room for new connections.
    fn end_stuck_flows(&mut self) {
        let (now, excess) = (self.scratch.now, self.context.memory.excess_of(self.context.number));
        let held = |connection: &Connection| connection.memory() + connection.in_hand();
        let flows = self.flows.iter().filter_map(|(slot, flow)| Some((slot, flow.split()?)));
        let stuck = flows.filter(|(_, connection)| connection.is_stuck(STUCK_FOR, now));
        let mut stuck: Vec<(u64, usize)> =
            stuck.map(|(slot, connection)| (held(connection), slot)).filter(|(held, _)| *held >= LEAST_HELD).collect();
        stuck.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
        let (mut ended, mut freed) = (0, 0);
        for (held, slot) in stuck {
            if freed >= excess {
                break;
            }
            self.end(slot, Ending::Stuck);
            (ended, freed) = (ended + 1, freed + held);
        }
        // Streams are asked in each turn, so that their progress is known when some have to end.
        if let Some(carrier) = &mut self.carrier {
            let (streams, bytes) = carrier.end_stuck(STUCK_FOR, LEAST_HELD, excess.saturating_sub(freed), now);
            (ended, freed) = (ended + streams, freed + bytes);
        }
        if ended > 0 {
            self.context.memory.note_ended(ended, freed);
        }
    }

    /// Has listeners whose connections cannot pass unsplit stop accepting, or accept again.
    fn pause_for_memory(&mut self, pause: bool) {
        if pause != std::mem::replace(&mut self.memory.pauses, pause) {
            self.apply_accepting();
            let paused = self.listeners_paused;
            self.pause_listeners(paused);
        }
    }
}
