//! Connections of the carrier (a bond): the worker hands them over, and records those that have
//! ended.

use super::Worker;
use crate::{
    connection::{ConnectionStart, refuse_socks},
    gate::GateCommand,
    greeting::RequestedServer,
};
use intercept::Carried;
use relay::{Ending, FlowRecord, FlowStats, ProfileId, Readiness};
use rustix::event::epoll::EventFlags;
use std::{io, mem, net::SocketAddr};

impl Worker {
    /// Whether the carrier takes a connection; its server may be known by name alone. Without
    /// networks the carrier only accepts streams.
    pub(super) fn is_carried(&self, client: SocketAddr, server: Option<SocketAddr>) -> bool {
        let routes = self.routes.as_ref();
        let may_dial = self.carrier.is_some() && !self.config.networks.is_empty();
        may_dial && self.config.policy.is_carried(client, server, |address| routes?.interface_to(address))
    }

    /// Hands a connection over to the carrier. One that the carrier cannot carry at present is
    /// split without it if it was routed through this host, as if it had passed unsplit. Others are
    /// refused: their clients have chosen the carrier.
    pub(super) fn begin_carried(&mut self, start: ConnectionStart, to: RequestedServer) {
        let (client, server) = (start.client, start.server);
        let Some(carrier) = &mut self.carrier else { return };
        let carried = carrier.carried();
        let includes = match &to {
            RequestedServer::Address(server) => carried.includes(server.ip()),
            RequestedServer::Name(..) => carried.reached,
        };
        if !includes {
            return if start.keep_source { self.begin_plain(start, None) } else { self.refuse_uncarried(start) };
        }
        if let Err(ending) = carrier.begin(start, to) {
            self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
            self.after_end();
        }
    }

    /// Refuses a connection that the carrier cannot carry.
    fn refuse_uncarried(&mut self, start: ConnectionStart) {
        let ending = Ending::FarNotReached(io::ErrorKind::NetworkUnreachable);
        if start.socks {
            refuse_socks(&start.near, ending);
        }
        self.record(FlowRecord { last: FlowStats::unbegun(start.client, start.server), ending });
        self.after_end();
    }

    /// Passes an event on to the carrier.
    pub(super) fn on_carrier_event(&mut self, index: usize, flags: EventFlags) {
        if let Some(carrier) = &mut self.carrier {
            carrier.on_event(index, Readiness::of(flags), &mut self.scratch);
        }
    }

    /// Runs the carrier's turn, and records its connections that have ended.
    pub(super) fn run_carrier(&mut self) {
        if let Some(carrier) = &mut self.carrier {
            carrier.turn(&mut self.scratch);
        }
        self.record_carried();
        self.update_carried();
    }

    /// Has the firewall let connections pass unsplit that the carrier cannot carry any more, and
    /// splits those without it that it has returned.
    fn update_carried(&mut self) {
        let Some(carrier) = &mut self.carrier else { return };
        let (carried, returned) = (carrier.carried(), carrier.take_returned());
        let before = mem::replace(&mut self.carried, carried);
        if carried != before {
            log_carried(before, carried, self.context.gate.is_some());
            if let Some(gate) = &self.context.gate {
                let _ = gate.send(GateCommand::Carried(self.context.number, carried));
            }
        }
        returned.into_iter().for_each(|start| self.begin_plain(start, None));
    }

    /// Records the carrier's connections that have ended.
    pub(super) fn record_carried(&mut self) {
        let ended = self.carrier.as_mut().map(|carrier| carrier.take_ended()).unwrap_or_default();
        let has_ended = !ended.is_empty();
        for mut record in ended {
            self.name_plain_leg(&mut record.last);
            self.record(record);
        }
        if has_ended {
            self.after_end();
        }
    }

    /// Completes the profiles of a flow of which one leg is the carrier's.
    fn name_plain_leg(&self, flow: &mut FlowStats) {
        let profiles = &mut flow.measured.profiles;
        if !profiles.contains(&ProfileId::Bond) {
            return;
        }
        let routes = self.routes.as_ref();
        let chosen = self.config.policy.chosen_legs(flow.client, flow.server, |address| routes?.interface_to(address));
        for (profile, index) in profiles.iter_mut().zip(chosen) {
            if *profile == ProfileId::Unknown {
                *profile = self.measurements.profiles.of(index);
            }
        }
    }
}

/// Logs what becomes of connections after a change. `has_rules`: routed ones can pass unsplit.
fn log_carried(before: Carried, now: Carried, has_rules: bool) {
    match (before.reached, now.reached) {
        (true, false) => tracing::warn!(
            "the other end of the bond is not reached over any network: routed connections pass unsplit, other clients are refused"
        ),
        (false, true) => tracing::info!("the other end of the bond is reached again: new connections go over the bond"),
        _ => {}
    }
    if !has_rules {
        return;
    }
    for (family, had, has) in [("IPv4", before.ipv4, now.ipv4), ("the IPv6 Internet", before.ipv6, now.ipv6)] {
        match (had, has) {
            (true, false) => tracing::info!("the other end of the bond has no route to {family}: routed connections there pass unsplit"),
            (false, true) => tracing::info!("the other end of the bond has a route to {family}: connections there go over the bond"),
            _ => {}
        }
    }
}
