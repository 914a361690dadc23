//! Drives the split connections of a worker from begin to end.

use super::{Worker, WorkerSlot};
use crate::{
    config::ProxyConfig,
    connection::{Connection, ConnectionStart, FollowUp, refuse_socks},
    flow_log, flow_records,
    greeting::RequestedServer,
    measure::FlowId,
};
use relay::{Ending, FlowRecord, FlowStats, LegSide, Readiness, Scratch, Token};
use rustix::event::epoll::EventFlags;
use std::{io, mem, net::SocketAddr, time::Duration};

/// The longest interval of checking established connections.
const CONNECTIONS_CHECK: Duration = Duration::from_secs(5);
/// Interval of polling for connections that wait for something that raises no event.
const TICK: Duration = Duration::from_millis(2);

impl Worker {
    /// Whether a rule refuses a connection. Transparent connections that a rule refuses are reset
    /// by the proxy's firewall rules, if it has some, and do not get here.
    pub(super) fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let routes = self.routes.as_ref();
        self.config.policy.is_refused(client, server, |address| routes?.interface_to(address))
    }

    /// Splits a connection, or hands it over to the carrier.
    pub(super) fn begin(&mut self, start: ConnectionStart) {
        let (client, server) = (start.client, start.server);
        if self.is_refused(client, server) {
            let ending = Ending::FarNotReached(io::ErrorKind::PermissionDenied);
            tracing::info!(%client, %server, "not split: a rule refuses it");
            if start.socks {
                refuse_socks(&start.near, ending);
            }
            self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
            return self.after_end();
        }
        if self.is_carried(client, Some(server)) {
            return self.begin_carried(start, RequestedServer::Address(server));
        }
        self.begin_plain(start, None);
    }

    /// Splits a connection into two plain legs. `config` is the configuration that its far leg was
    /// dialled by; none: it is not dialled yet.
    pub(super) fn begin_plain(&mut self, start: ConnectionStart, config: Option<&ProxyConfig>) {
        let new = config.is_none().then(|| self.config_of_new_flow(&start.near));
        let (client, server, config) = (start.client, start.server, config.or(new.as_deref()).unwrap_or(&self.config));
        let routes = self.routes.as_ref();
        let route = |address| routes?.interface_to(address);
        match Connection::begin(config, &self.measurements.profiles, start, route, self.scratch.now) {
            Ok(connection) => {
                if let Some(interval) = connection.silence_interval() {
                    self.next_connections_check = self.next_connections_check.min(self.scratch.now + interval);
                }
                let slot = self.flows.insert(WorkerSlot::Split(connection));
                self.watch_dialled(slot);
            }
            Err((ending, socks)) => {
                if let Some(near) = socks {
                    refuse_socks(&near, ending);
                }
                let mut last = FlowStats::unbegun(client, server);
                let [_, far] = config.policy.chosen_legs(client, server, route);
                last.measured.profiles[1] = self.measurements.profiles.of(far);
                self.record(FlowRecord { last, ending });
                self.after_end();
            }
        }
    }

    /// Checks all connections at intervals: switches keepalive on (short connections end before and
    /// save the system call), and ends those whose peer is silent or that have been idle for too
    /// long.
    pub(super) fn check_connections(&mut self) {
        let now = self.scratch.now;
        if now < self.next_connections_check {
            return;
        }
        let limit = self.config.idle_timeout;
        let mut pause = limit.map_or(CONNECTIONS_CHECK, |limit| CONNECTIONS_CHECK.min(limit / 4));
        let (mut silent, mut idle) = (Vec::new(), Vec::new());
        for (slot, flow) in self.flows.iter_mut() {
            let Some(connection) = flow.split_mut().filter(|connection| !connection.is_dialling()) else { continue };
            connection.keep_alive();
            pause = pause.min(connection.silence_interval().unwrap_or(CONNECTIONS_CHECK));
            if let Some(side) = connection.silent_leg(now) {
                silent.push((slot, side));
            } else if limit.is_some_and(|limit| connection.idle(now) >= limit) {
                idle.push(slot);
            }
        }
        self.next_connections_check = now + pause;
        for (slot, side) in silent {
            self.advance(slot, |connection, scratch| connection.end_silent(side, scratch));
        }
        for slot in idle {
            self.end(slot, Ending::Idle);
        }
    }

    /// Watches a far leg that was dialled in this turn, and its connect timeout.
    fn watch_dialled(&mut self, slot: usize) {
        self.dialling.push_back((self.scratch.now, slot));
        self.watch_leg(slot, LegSide::Far);
    }

    /// Has epoll watch a leg. The first event reports its present state.
    pub(super) fn watch_leg(&mut self, slot: usize, side: LegSide) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        connection.watches_near |= side == LegSide::Near;
        if let Err(errno) = self.reactor.watch(connection.socket(side), Token::Leg(slot, side), Readiness::INTEREST) {
            tracing::error!("cannot have epoll watch a connection: {errno}; it is reset");
            self.end(slot, Ending::NoRoom);
        }
    }

    pub(super) fn on_events(&mut self, slot: usize, side: LegSide, flags: EventFlags) {
        match self.flows.get(slot) {
            Some(WorkerSlot::Pending(_)) => return self.on_client(slot),
            Some(WorkerSlot::Reaching(_)) => return self.on_reaching_client(slot),
            _ => {}
        }
        let events = Readiness::of(flags);
        self.advance(slot, |connection, scratch| connection.on_events(side, events, scratch));
    }

    /// Calls a connection, then acts on its result.
    fn advance(&mut self, slot: usize, act: impl FnOnce(&mut Connection, &mut Scratch) -> Result<FollowUp, Ending>) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        match act(connection, &mut self.scratch) {
            Ok(follow_up) => {
                if follow_up.again && !mem::replace(&mut connection.in_again, true) {
                    self.again.push_back(slot);
                }
                if follow_up.tick && !mem::replace(&mut connection.in_ticking, true) {
                    if self.ticking.is_empty() {
                        self.next_tick = self.scratch.now + TICK;
                    }
                    self.ticking.push(slot);
                }
                if follow_up.watch_near {
                    self.watch_leg(slot, LegSide::Near);
                    return;
                }
                for (rearm, side) in [(follow_up.rearm_near, LegSide::Near), (follow_up.rearm_far, LegSide::Far)] {
                    if !rearm {
                        continue;
                    }
                    let rearmed = self.reactor.rearm(connection.socket(side), Token::Leg(slot, side), Readiness::INTEREST);
                    if let Err(errno) = rearmed {
                        // The flow would stall without this event.
                        tracing::error!("cannot have epoll watch a connection: {errno}; it is reset");
                        return self.end(slot, Ending::NoRoom);
                    }
                }
            }
            Err(ending) => self.end(slot, ending),
        }
    }

    /// Ends a connection.
    pub(super) fn end(&mut self, slot: usize, ending: Ending) {
        let Some(connection) = self.flows.get_mut(slot).and_then(WorkerSlot::split_mut) else { return };
        connection.release(ending, &mut self.scratch);
        let record = FlowRecord { last: connection.last_stats(self.scratch.now), ending };
        let flow = self.measurements.add(&record, connection.samples(), self.scratch.now);
        self.flows.remove(slot);
        self.report(flow, record);
        self.after_end();
    }

    /// Continues the connections that had more to do than the last turn allowed.
    pub(super) fn proceed_again(&mut self) {
        for _ in 0..self.again.len() {
            if let Some(slot) = self.again.pop_front() {
                self.advance(slot, |connection, scratch| {
                    connection.in_again = false;
                    connection.proceed(scratch)
                });
            }
        }
    }

    /// Polls for the connections that wait for something that raises no event, when that is due.
    pub(super) fn run_ticks(&mut self) {
        if self.ticking.is_empty() || self.scratch.now < self.next_tick {
            return;
        }
        self.next_tick = self.scratch.now + TICK;
        for slot in mem::take(&mut self.ticking) {
            self.advance(slot, |connection, scratch| {
                connection.in_ticking = false;
                connection.tick(scratch)
            });
        }
    }

    /// Measures and reports a flow that has ended and was not sampled.
    pub(super) fn record(&mut self, record: FlowRecord) {
        let flow = self.measurements.add(&record, None, self.scratch.now);
        self.report(flow, record);
    }

    /// Counts, logs and reports a flow that has ended and was measured.
    fn report(&mut self, flow: FlowId, record: FlowRecord) {
        self.totals.add(&record);
        if let Some(lines) = self.lines.as_mut().filter(|_| self.config.log_flows) {
            lines.add(self.scratch.now, |lines, time| flow_log::append(lines, time, flow, &record));
        }
        if let Some(records) = self.records.as_mut().filter(|_| self.config.flow_records.is_some()) {
            let profiles = &self.measurements.profiles;
            records.add(self.scratch.now, |lines, time| flow_records::append(lines, time, flow, &record, profiles));
        }
        (self.context.on_end)(record);
    }
}
