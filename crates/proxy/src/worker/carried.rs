//! Connections of the carrier (a bond): the worker hands them over, and records those that have
//! ended.

use super::Worker;
use crate::{connection::ConnectionStart, greeting::RequestedServer};
use relay::{FlowRecord, FlowStats, ProfileId, Readiness};
use rustix::event::epoll::EventFlags;
use std::net::SocketAddr;

impl Worker {
    /// Whether the carrier takes a connection; its server may be known by name alone. Without
    /// networks the carrier only accepts streams.
    pub(super) fn is_carried(&self, client: SocketAddr, server: Option<SocketAddr>) -> bool {
        let routes = self.routes.as_ref();
        let may_dial = self.carrier.is_some() && !self.config.networks.is_empty();
        may_dial && self.config.policy.is_carried(client, server, |address| routes?.interface_to(address))
    }

    /// Hands a connection over to the carrier.
    pub(super) fn begin_carried(&mut self, start: ConnectionStart, to: RequestedServer) {
        let (client, server) = (start.client, start.server);
        let Some(carrier) = &mut self.carrier else { return };
        if let Err(ending) = carrier.begin(start, to) {
            self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        }
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
