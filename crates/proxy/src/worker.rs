//! A worker: one thread, its listeners, its epoll, its connections. It shares nothing with the others.

use crate::{
    StartError,
    config::Config,
    connection::{Connection, Events, Side, Wants},
    ending::Ending,
    intercept::{self, Listener},
    meter::{FlowRecord, FlowStats},
    relay::Tools,
};
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    fd::OwnedFd,
    io::Errno,
};
use std::{
    collections::VecDeque,
    io, mem,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// What a worker may be told.
#[derive(Debug)]
pub(crate) enum Command {
    /// Tell every flow.
    Flows(mpsc::Sender<Vec<FlowStats>>),
    /// Take no new connections; end when the last one has.
    Drain,
    /// Reset every connection and end.
    Stop,
}

/// Who hears of each flow that ends.
pub(crate) type OnEnd = Arc<dyn Fn(FlowRecord) + Send + Sync>;

/// How often connects are checked against their limit.
const CONNECT_TICK: Duration = Duration::from_millis(200);
/// How often connections that wait for something without an event get a turn.
const TICK: Duration = Duration::from_millis(2);

/// What an event belongs to. Connections come two tokens each, after the waker and the listeners.
#[derive(Debug, Clone, Copy)]
enum Token {
    Waker,
    Listener(usize),
    Connection(usize, Side),
}

impl Token {
    const LISTENER: u64 = 1 << 62;

    fn pack(self) -> EventData {
        EventData::new_u64(match self {
            Token::Waker => u64::MAX,
            Token::Listener(index) => Self::LISTENER | index as u64,
            Token::Connection(slot, side) => (slot as u64) << 1 | u64::from(side == Side::Far),
        })
    }

    fn unpack(data: EventData) -> Self {
        match data.u64() {
            u64::MAX => Token::Waker,
            value if value & Self::LISTENER != 0 => Token::Listener((value & !Self::LISTENER) as usize),
            value => Token::Connection((value >> 1) as usize, if value & 1 == 1 { Side::Far } else { Side::Near }),
        }
    }
}

/// One thread's share of the proxy.
pub(crate) struct Worker {
    config: Arc<Config>,
    epoll: OwnedFd,
    waker: OwnedFd,
    inbox: mpsc::Receiver<Command>,
    listeners: Vec<Listener>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Slots that ended in this round: events already fetched may still name them, so they are reused only in the next.
    ended: Vec<usize>,
    /// Connections that have more to do than one turn allows.
    again: VecDeque<usize>,
    /// Connections that wait for something without an event, and when they get their next turn.
    ticking: Vec<usize>,
    next_tick: Instant,
    /// When connects were begun, oldest first.
    dialling: VecDeque<(Instant, usize)>,
    /// Those that take their time, and when to look at them next.
    dialling_long: Vec<(Instant, usize)>,
    next_check: Instant,
    tools: Tools,
    on_end: OnEnd,
    draining: bool,
    /// Listeners are deaf for want of descriptors until something ends.
    starved: bool,
}

impl Worker {
    pub(crate) fn new(config: Arc<Config>, waker: OwnedFd, inbox: mpsc::Receiver<Command>, on_end: OnEnd) -> Result<Self, StartError> {
        let listeners = intercept::open(&config)?;
        Self::watch(config, waker, listeners, inbox, on_end).map_err(|why| StartError::System { what: "set up epoll for a worker", why })
    }

    fn watch(
        config: Arc<Config>,
        waker: OwnedFd,
        listeners: Vec<Listener>,
        inbox: mpsc::Receiver<Command>,
        on_end: OnEnd,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &waker, Token::Waker.pack(), EventFlags::IN)?;
        for (index, listener) in listeners.iter().enumerate() {
            epoll::add(&epoll, &listener.socket, Token::Listener(index).pack(), EventFlags::IN)?;
        }
        Ok(Worker {
            config,
            epoll,
            waker,
            inbox,
            listeners,
            connections: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            again: VecDeque::new(),
            ticking: Vec::new(),
            next_tick: Instant::now(),
            dialling: VecDeque::new(),
            dialling_long: Vec::new(),
            next_check: Instant::now(),
            tools: Tools::new(),
            on_end,
            draining: false,
            starved: false,
        })
    }

    fn alive(&self) -> usize {
        self.connections.len() - self.free.len() - self.ended.len()
    }

    /// Runs until told to stop, or drained.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        while !(self.draining && self.alive() == 0) {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!("cannot wait for events: {errno}");
                    return;
                }
            }
            self.tools.now = Instant::now();
            for event in &events {
                match Token::unpack(event.data) {
                    Token::Waker => {
                        if !self.obey() {
                            return;
                        }
                    }
                    Token::Listener(index) => self.accept(index),
                    Token::Connection(slot, side) => self.on_events(slot, side, event.flags),
                }
            }
            for _ in 0..self.again.len() {
                if let Some(slot) = self.again.pop_front() {
                    self.advance(slot, |connection, tools| {
                        connection.in_again = false;
                        connection.proceed(tools)
                    });
                }
            }
            if !self.ticking.is_empty() && self.tools.now >= self.next_tick {
                self.next_tick = self.tools.now + TICK;
                for slot in mem::take(&mut self.ticking) {
                    self.advance(slot, |connection, tools| {
                        connection.in_ticking = false;
                        connection.tick(tools)
                    });
                }
            }
            self.check_dialling();
            self.free.append(&mut self.ended);
        }
    }

    /// How long to wait: not at all while somebody has more to do, a tick while somebody waits for the clock.
    fn timeout(&self) -> Option<Timespec> {
        if !self.again.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let tick = match (self.ticking.is_empty(), self.dialling.is_empty() && self.dialling_long.is_empty()) {
            (false, _) => self.next_tick.saturating_duration_since(Instant::now()),
            (true, false) => CONNECT_TICK,
            (true, true) => return None,
        };
        Some(Timespec { tv_sec: 0, tv_nsec: i64::from(tick.subsec_nanos()) })
    }

    /// Does what it was told; false when that was to end.
    fn obey(&mut self) -> bool {
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Flows(reply) => {
                    let _ = reply.send(self.connections.iter().flatten().map(Connection::stats).collect());
                }
                Command::Drain => {
                    self.draining = true;
                    self.listeners.clear();
                }
                Command::Stop => {
                    for slot in 0..self.connections.len() {
                        self.end(slot, Ending::Stopped);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn accept(&mut self, index: usize) {
        // A bounded batch, so that a flood of connections does not stall those there are.
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok(Some(arrival)) => {
                    let (client, server) = (arrival.client, arrival.server);
                    match Connection::begin(&self.config, arrival, self.tools.now) {
                        Ok(connection) => self.take_in(connection),
                        Err(ending) => tracing::warn!(%client, %server, %ending, "not split"),
                    }
                }
                Ok(None) => return,
                Err(why) => {
                    // Level-triggered, a listener that can't accept would spin: it rests until a descriptor is free.
                    tracing::error!("cannot accept a connection: {why}; it waits until another ends");
                    self.hear(false);
                    return;
                }
            }
        }
    }

    /// Lets listeners rest, or wakes them.
    fn hear(&mut self, listen: bool) {
        self.starved = !listen;
        let flags = if listen { EventFlags::IN } else { EventFlags::empty() };
        for (index, listener) in self.listeners.iter().enumerate() {
            let _ = epoll::modify(&self.epoll, &listener.socket, Token::Listener(index).pack(), flags);
        }
    }

    fn take_in(&mut self, connection: Connection) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.dialling.push_back((connection.born(), slot));
        self.connections[slot] = Some(connection);
        self.watch_leg(slot, Side::Far);
    }

    /// Lets epoll watch a leg; its first event tells how things stand.
    fn watch_leg(&mut self, slot: usize, side: Side) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        connection.watches_near |= side == Side::Near;
        if let Err(errno) = epoll::add(&self.epoll, connection.socket(side), Token::Connection(slot, side).pack(), Self::interest()) {
            tracing::error!("cannot watch a connection: {errno}");
            self.end(slot, Ending::NoRoom);
        }
    }

    fn interest() -> EventFlags {
        EventFlags::IN | EventFlags::PRI | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
    }

    fn on_events(&mut self, slot: usize, side: Side, flags: EventFlags) {
        let events = Events {
            readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP),
            writable: flags.contains(EventFlags::OUT),
            hung_up: flags.contains(EventFlags::RDHUP),
            failed: flags.contains(EventFlags::ERR),
            urgent: flags.contains(EventFlags::PRI),
        };
        self.advance(slot, |connection, tools| connection.on_events(side, events, tools));
    }

    /// Lets a connection act, then does what it wants.
    fn advance(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Tools) -> Result<Wants, Ending>) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        match act(connection, &mut self.tools) {
            Ok(wants) => {
                if wants.again && !mem::replace(&mut connection.in_again, true) {
                    self.again.push_back(slot);
                }
                if wants.tick && !mem::replace(&mut connection.in_ticking, true) {
                    if self.ticking.is_empty() {
                        self.next_tick = self.tools.now + TICK;
                    }
                    self.ticking.push(slot);
                }
                if wants.watch_near {
                    self.watch_leg(slot, Side::Near);
                    return;
                }
                for (look, side) in [(wants.look_near, Side::Near), (wants.look_far, Side::Far)] {
                    if look {
                        let token = Token::Connection(slot, side).pack();
                        let _ = epoll::modify(&self.epoll, connection.socket(side), token, Self::interest());
                    }
                }
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    fn end(&mut self, slot: usize, ending: Ending) {
        let Some(mut connection) = self.connections.get_mut(slot).and_then(mem::take) else { return };
        connection.release(&mut self.tools);
        let last = connection.stats();
        tracing::info!(
            client = %last.client, server = %last.server, up = last.up.moved, down = last.down.moved,
            seconds = last.age.as_secs_f64(), near_retrans = last.near.total_retrans, far_retrans = last.far.total_retrans,
            %ending, "flow"
        );
        drop(connection);
        self.ended.push(slot);
        (self.on_end)(FlowRecord { last, ending });
        if self.starved {
            self.hear(true);
        }
    }

    /// Gives up far legs that have been connecting for too long. Of those that have been at it for a while the near leg is
    /// watched too: its end may have gone.
    fn check_dialling(&mut self) {
        let now = self.tools.now;
        while let Some(&(begun, slot)) = self.dialling.front() {
            if self.still_dials(begun, slot) {
                if now - begun < CONNECT_TICK {
                    break;
                }
                self.watch_leg(slot, Side::Near);
                self.dialling_long.push((begun, slot));
            }
            self.dialling.pop_front();
        }
        if self.dialling_long.is_empty() || now < self.next_check {
            return;
        }
        self.next_check = now + CONNECT_TICK;
        let limit = self.config.connect_timeout;
        for (begun, slot) in mem::take(&mut self.dialling_long) {
            if !self.still_dials(begun, slot) {
                continue;
            }
            if now - begun < limit {
                self.dialling_long.push((begun, slot));
            } else {
                self.end(slot, Ending::FarNotReached(io::ErrorKind::TimedOut));
            }
        }
    }

    fn still_dials(&self, begun: Instant, slot: usize) -> bool {
        let connection = self.connections.get(slot).and_then(Option::as_ref);
        connection.is_some_and(|connection| connection.is_dialling() && connection.born() == begun)
    }
}
