//! Connections over a bond: the worker brings them in, and hears of those that have ended.

use super::Worker;
use crate::connection::{Start, refuse_socks};
use bond::Target;
use relay::{FlowRecord, FlowStats, Readiness};
use rustix::event::epoll::EventFlags;
use std::{mem, net::SocketAddr};

impl Worker {
    /// Whether the far leg of a connection is a bond; its server may be known by name alone.
    pub(super) fn is_bonded(&self, client: SocketAddr, server: Option<SocketAddr>) -> bool {
        let routes = self.routes.as_ref();
        self.bonds.is_some() && self.config.policy.is_bonded(client, server, |address| routes?.interface_to(address))
    }

    /// Begins a connection over the bond; its slot is free again.
    pub(super) fn begin_bonded(&mut self, slot: usize, start: Start, to: Target) {
        self.ended.push(slot);
        let (client, server) = (start.client, start.server);
        let Some(bonds) = &mut self.bonds else { return };
        if let Err((ending, socks)) = bonds.begin(start, to) {
            if let Some(near) = socks {
                refuse_socks(&near, ending);
            }
            self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        }
    }

    /// What epoll said of a socket of a bond.
    pub(super) fn on_bond(&mut self, entry: usize, flags: EventFlags) {
        let events = Readiness::of(flags);
        if let Some(bonds) = &mut self.bonds {
            bonds.on_event(entry, events, &mut self.scratch);
        }
    }

    /// What of bonds is due, and what has ended of them.
    pub(super) fn turn_of_bonds(&mut self) {
        if let Some(bonds) = &mut self.bonds {
            bonds.turn(&mut self.scratch);
        }
        self.record_bonds();
    }

    pub(super) fn record_bonds(&mut self) {
        let ended = self.bonds.as_mut().map(|bonds| mem::take(&mut bonds.ended)).unwrap_or_default();
        let has_ended = !ended.is_empty();
        for record in ended {
            self.record(record);
        }
        if has_ended {
            self.after_end();
        }
    }
}
