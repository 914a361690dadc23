//! Clients whose server has several addresses: their connection begins when one of these is
//! connected (RFC 8305). A server with a single address is dialled without this.

use super::{
    Worker, WorkerSlot,
    reaching_client::{Attempt, ReachingClient},
};
use crate::connection::{ConnectedLeg, ConnectionStart, connect_timeout, refuse_socks};
use intercept::{AddressRace, leg::DialOptions, sys};
use relay::{DialRace, Ending, FlowRecord, FlowStats, LegSide, Readiness, Token};
use rustix::event::epoll::EventFlags;
use std::{
    cmp::Reverse,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

impl Worker {
    /// Reaches one of these addresses for a client, in the resolver's order, then begins its
    /// connection.
    pub(super) fn reach(&mut self, start: ConnectionStart, servers: Vec<SocketAddr>) {
        let (now, config) = (self.scratch.now, self.config_of_new_flow(&start.near));
        let routes = self.routes.as_ref();
        let limit = |server: &SocketAddr| {
            let [_, far] = config.policy.chosen_legs(start.client, *server, |address| routes?.interface_to(address));
            connect_timeout(config.policy.profile(far), &config)
        };
        let limit = servers.iter().map(limit).max().unwrap_or(config.connect_timeout);
        let race = DialRace::new(servers, &self.context.history, limit, now);
        let slot = self.flows.insert(WorkerSlot::Reaching(Box::new(ReachingClient { start, config, race, next_number: 0 })));
        let Some(client) = self.flows.get(slot).and_then(WorkerSlot::reaching) else { return };
        // Without interest, epoll reports only that the client has reset its connection.
        if let Err(errno) = self.reactor.watch(&client.start.near, Token::Leg(slot, LegSide::Near), EventFlags::empty()) {
            tracing::error!("cannot have epoll watch a connection: {errno}; it is reset");
            return self.end_reaching(slot, Ending::NoRoom);
        }
        self.proceed_reaching(slot);
    }

    /// Dials the addresses whose time has come.
    fn proceed_reaching(&mut self, slot: usize) {
        // A full worker has no descriptors for a second attempt beside the first.
        let (now, most) = (self.scratch.now, if self.full { 1 } else { AddressRace::MOST_ATTEMPTS });
        let (reactor, routes) = (&self.reactor, self.routes.as_ref());
        let Some(client) = self.flows.get_mut(slot).and_then(WorkerSlot::reaching_mut) else { return };
        let ReachingClient { start, config, race, next_number } = client;
        let given_up = race.proceed(most, now, |server| {
            let [_, far] = config.policy.chosen_legs(start.client, server, |address| routes?.interface_to(address));
            let profile = config.policy.profile(far);
            let call = DialOptions { profile, shares: config.shares(), from: None, to: server, fast_open: false };
            let socket = call.dial(|| sys::dscp_of_syn(&start.near)).map_err(|why| Ending::undialled(&why))?;
            let number = *next_number;
            *next_number += 1;
            reactor.watch(&socket, Token::Attempt(slot, number), Readiness::INTEREST).map_err(|_| Ending::NoRoom)?;
            Ok(Attempt { number, socket })
        });
        drop(given_up);
        match race.ending(now) {
            Some(ending) => self.end_reaching(slot, ending),
            None => self.reaching.push(Reverse((race.wakes(), slot))),
        }
    }

    /// Continues the clients whose next address is due, or whose time is over.
    pub(super) fn check_reaching(&mut self) {
        while let Some(Reverse((at, slot))) = self.reaching.peek().copied()
            && at <= self.scratch.now
        {
            self.reaching.pop();
            // An entry may be out of date: the client was connected, or has another entry.
            if self.flows.get(slot).and_then(WorkerSlot::reaching).is_some_and(|client| client.race.wakes() <= self.scratch.now) {
                self.proceed_reaching(slot);
            }
        }
    }

    /// Time until a client's next address is due; none: no client is waiting for that.
    pub(super) fn reaching_timeout(&self) -> Option<Duration> {
        self.reaching.peek().map(|Reverse((at, _))| at.saturating_duration_since(Instant::now()))
    }

    /// Handles an event of an attempt.
    pub(super) fn on_attempt(&mut self, slot: usize, number: u16, flags: EventFlags) {
        let (events, now) = (Readiness::of(flags), self.scratch.now);
        let Some(client) = self.flows.get_mut(slot).and_then(WorkerSlot::reaching_mut) else { return };
        let Some(attempt) = client.race.open().iter().find(|attempt| attempt.socket.number == number) else { return };
        if events.failed {
            let why = attempt.socket.socket.take_error().unwrap_or_else(Some);
            let kind = why.map_or(io::ErrorKind::Other, |why| why.kind());
            client.race.failed(|attempt| attempt.number == number, Ending::FarNotReached(kind), now);
            self.proceed_reaching(slot);
        } else if events.writable {
            self.reached(slot, number);
        }
    }

    /// Begins the connection of a client whose attempt with this number is connected. The others
    /// are closed.
    fn reached(&mut self, slot: usize, number: u16) {
        let Some(ReachingClient { mut start, config, race, .. }) = self.take_reaching(slot) else { return };
        let won = race.won(|attempt| attempt.number == number, &self.context.history, self.scratch.now);
        let Some((winner, _others)) = won else { return };
        let socket = winner.socket.socket;
        let _ = self.reactor.unwatch(&socket);
        let _ = self.reactor.unwatch(&start.near);
        start.server = winner.server;
        start.far = Some(ConnectedLeg { socket, dialled_at: winner.dialled_at });
        self.begin_plain(start, Some(&config));
    }

    /// Ends a client whose server is being reached, after its near leg has failed.
    pub(super) fn on_reaching_client(&mut self, slot: usize) {
        let Some(client) = self.flows.get(slot).and_then(WorkerSlot::reaching) else { return };
        let why = client.start.near.take_error().unwrap_or_else(Some);
        self.end_reaching(slot, Ending::NearFailed(why.map_or(io::ErrorKind::ConnectionReset, |why| why.kind())));
    }

    /// Ends a client whose server was not reached.
    pub(super) fn end_reaching(&mut self, slot: usize, ending: Ending) {
        let Some(ReachingClient { start, config, race, .. }) = self.take_reaching(slot) else { return };
        let (client, now) = (start.client, self.scratch.now);
        if let Ending::FarNotReached(_) = ending {
            let time = now.saturating_duration_since(race.begun()).as_secs_f64();
            tracing::info!(%client, "not split: no address of the name that it requested was reached in {time:.1} s: {race}");
        }
        if start.socks {
            refuse_socks(&start.near, ending);
        }
        let routes = self.routes.as_ref();
        let mut last = FlowStats::unbegun(client, race.last_dialled().unwrap_or(start.server));
        (last.age, last.near) = (now.saturating_duration_since(race.begun()), sys::tcp_info(&start.near).unwrap_or_default());
        let legs = config.policy.chosen_legs(client, last.server, |address| routes?.interface_to(address));
        last.measured.profiles = legs.map(|leg| self.measurements.profiles.of(leg));
        self.record(FlowRecord { last, ending });
        self.after_end();
    }

    fn take_reaching(&mut self, slot: usize) -> Option<ReachingClient> {
        self.flows.get(slot)?.reaching()?;
        let WorkerSlot::Reaching(client) = self.flows.remove(slot)? else { return None };
        Some(*client)
    }
}
