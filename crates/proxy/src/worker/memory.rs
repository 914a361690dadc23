//! The memory of a worker's connections: when it is measured, and what the worker does while it is
//! short.

use super::{Worker, WorkerSlot, client_shares::ClientShares};
use crate::{
    config::{Buffer, ProxyConfig},
    connection::Connection,
    memory::{MEMORY_OF_A_FLOW, MemoryLevel, STUCK_FOR, STUCK_FOR_MANY},
};
use intercept::{ClientKey, leg};
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
/// Until this age a connection takes more and more memory.
const YOUNG: Duration = Duration::from_secs(1);
/// What a connection takes by then, bytes, while too few are known: so many of them count besides
/// those that are.
const MEMORY_BY_THEN: u64 = 64 * 1024;
const ASSUMED: u64 = 16;
/// Connections that were held and begin in one turn, at most.
const HELD_AT_ONCE: usize = 16;
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
    /// Whether connections that cannot pass unsplit are limited to a share for each client.
    pub(super) is_shared: bool,
    pub(super) clients: ClientShares,
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
            is_shared: false,
            clients: ClientShares::default(),
            pauses: false,
        }
    }

    /// Takes another configuration.
    pub(super) fn configure(&mut self, config: &ProxyConfig) {
        self.short_config = config.while_short().map(Arc::new);
    }

    /// The time until the next look; none: nothing is open, and nothing waits.
    pub(super) fn wait(&self, has_connections: bool) -> Option<Duration> {
        let has_held = self.clients.held() > 0;
        if has_held && !self.is_shared {
            return Some(Duration::ZERO);
        }
        if !has_connections && !self.has_noted && !self.is_shared && !has_held {
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
            if matches!(self.config.buffer, Buffer::Adaptive { .. }) {
                let workers = self.config.threads.max(1) as u64;
                self.scratch.budget.set_limit(memory.budget().map(|bytes| bytes / workers));
            }
            self.memory.room = memory.room(self.context.number);
            if self.memory.is_shared {
                self.share_among_clients();
            }
        }
        let level = memory.level();
        self.scratch.budget.set_cap(memory.cap(), self.memory.room);
        if level != std::mem::replace(&mut self.memory.level, level) {
            self.limit_clients(level);
        }
        self.serve_held();
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

    /// Notes what the connections take outside of TCP, and will take.
    fn note_memory(&mut self) {
        self.memory.has_noted = self.alive() > 0;
        self.context.memory.note(self.context.number, self.other_memory(), self.coming_memory(), &self.scratch.budget);
        if !self.memory.has_noted {
            self.context.memory.note_sockets(self.context.number, 0);
        }
    }

    /// What connections that have just begun will take besides what they were seen to take: each as
    /// much as the mean of the older ones, bytes.
    fn coming_memory(&self) -> u64 {
        let ([mut young, mut old], [mut of_young, mut of_old]) = ([0, 0], [0, 0]);
        for flow in self.flows.iter().filter_map(|(_, flow)| flow.split()) {
            let is_young = self.scratch.now.saturating_duration_since(flow.born()) < YOUNG;
            let (count, sum) = match (is_young, flow.is_dialling()) {
                (true, _) => (&mut young, &mut of_young),
                (false, false) => (&mut old, &mut of_old),
                (false, true) => continue,
            };
            *count += 1;
            *sum += flow.memory();
        }
        let mean = (of_old + ASSUMED * MEMORY_BY_THEN) / (old + ASSUMED);
        (mean * young).saturating_sub(of_young)
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
    /// most first, until the budget has room for new connections. While accepts pause, the flows of
    /// clients with many connections end after a shorter time.
    fn end_stuck_flows(&mut self) {
        let (now, excess) = (self.scratch.now, self.context.memory.excess_of(self.context.number));
        let held = |connection: &Connection| connection.memory() + connection.in_hand();
        let flows = self.flows.iter().filter_map(|(slot, flow)| Some((slot, flow.split()?)));
        let patience = |client| {
            let is_urgent = self.memory.pauses && self.memory.clients.has_many(client);
            if is_urgent { STUCK_FOR_MANY } else { STUCK_FOR }
        };
        let stuck = flows.filter(|(_, connection)| connection.is_stuck(patience(connection.client().ip().into()), now));
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

    /// Applies a level: each client has a share of the connections, or listeners stop accepting, or
    /// neither.
    fn limit_clients(&mut self, level: MemoryLevel) {
        let (is_shared, pauses, is_scarce) = (level >= MemoryLevel::Full, level >= MemoryLevel::Exhausted, level >= MemoryLevel::Critical);
        if (is_shared, pauses, is_scarce) == (self.memory.is_shared, self.memory.pauses, self.memory.clients.is_scarce) {
            return;
        }
        (self.memory.is_shared, self.memory.pauses, self.memory.clients.is_scarce) = (is_shared, pauses, is_scarce);
        if is_shared {
            self.count_clients();
        } else {
            self.memory.clients.clear();
        }
        self.apply_accepting();
        let paused = self.listeners_paused;
        self.pause_listeners(paused);
    }

    /// Counts the connections of each client; returns whether others wait than before.
    fn count_clients(&mut self) -> bool {
        let clients = self.flows.iter().map(|(_, flow)| ClientKey::from(flow.client().ip()));
        self.memory.clients.recount(clients)
    }

    /// Follows the connections of each client. To be called at intervals.
    fn share_among_clients(&mut self) {
        if self.count_clients() {
            self.apply_accepting();
        }
    }

    /// Begins connections that were held: those of clients that have got room, or, once memory is
    /// not short any more, all of them, a batch in each turn.
    fn serve_held(&mut self) {
        for _ in 0..self.memory.clients.held().min(HELD_AT_ONCE) {
            let Some((listener, arrival)) = self.memory.clients.take_held() else { return };
            if self.memory.pauses || (self.memory.is_shared && !self.memory.clients.admits(arrival.client.ip().into())) {
                self.memory.clients.hold(listener, arrival);
            } else {
                self.begin_arrival(listener, arrival);
            }
        }
    }

    /// Begins all connections that were held. To be called before the listeners are closed.
    pub(super) fn serve_all_held(&mut self) {
        while let Some((listener, arrival)) = self.memory.clients.take_held() {
            self.begin_arrival(listener, arrival);
        }
    }
}
