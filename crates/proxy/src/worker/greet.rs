//! Clients that have not said yet where they go: those of SOCKS5, and those behind a PROXY header.

use super::{Worker, WorkerSlot, pending_clients::PendingClient};
use crate::{
    config::{Listen, ListenMode},
    connection::{Start, refuse_socks},
    greeting::{Greeting, GreetingStep, RequestedServer, proxy_header, socks_reply},
    resolver::{Asker, Question},
};
use intercept::canonical;
use relay::{Ending, FlowRecord, FlowStats, LegSide, Slab, Token, UNKNOWN_ADDRESS};
use rustix::{
    event::epoll::EventFlags,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use socket2::Socket;
use std::{io, net::SocketAddr};

impl Worker {
    /// Takes in a client that is to say where it goes.
    pub(super) fn await_greeting(&mut self, socket: Socket, client: SocketAddr, listen: Listen) {
        let greeting = Greeting::new(listen.accept_proxy, listen.mode == ListenMode::Socks5).with_users(&listen.users);
        self.serial += 1;
        let serial = self.serial;
        let slot = self.flows.insert(WorkerSlot::Pending(Box::new(PendingClient { socket, client, greeting, listen, serial })));
        let Some(pending) = self.flows.get(slot).and_then(WorkerSlot::pending) else { return };
        if self.reactor.watch(&pending.socket, Token::Leg(slot, LegSide::Near), EventFlags::IN).is_err() {
            self.flows.remove(slot);
            return;
        }
        let flows = &self.flows;
        self.pending.push((slot, serial, self.scratch.now), |slot, serial| is_pending(flows, slot, serial));
    }

    /// Takes a pending client out of its slot.
    fn take_pending(&mut self, slot: usize) -> Option<PendingClient> {
        self.flows.get(slot)?.pending()?;
        let WorkerSlot::Pending(pending) = self.flows.remove(slot)? else { return None };
        self.pending.remove_one();
        Some(*pending)
    }

    /// Reads what a pending client has sent, and goes on with its greeting.
    pub(super) fn on_client(&mut self, slot: usize) {
        let Some(pending) = self.flows.get_mut(slot).and_then(WorkerSlot::pending_mut) else { return };
        let mut bytes = [0; 2048];
        let heard = match recv(&pending.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return self.drop_client(slot, "it went away", &[]),
            Ok((_, count)) => pending.greeting.receive(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.drop_client(slot, "it went away", &[]),
        };
        let mut heard = heard;
        loop {
            match heard {
                Ok(GreetingStep::More) => return,
                Ok(GreetingStep::Reply(bytes)) => {
                    // A few bytes, which the empty send queue of a new connection always takes. A
                    // client that never received them would wait.
                    if say(&pending.socket, &bytes) != Ok(bytes.len()) {
                        return self.drop_client(slot, "it cannot be answered", &[]);
                    }
                    heard = pending.greeting.receive(&[]);
                }
                Ok(GreetingStep::Done(None)) => {
                    let ListenMode::Forward(to) = pending.listen.mode else { return self.drop_client(slot, "it leads nowhere", &[]) };
                    return self.begin_greeted(slot, vec![to]);
                }
                Ok(GreetingStep::Done(Some(RequestedServer::Address(to)))) => return self.begin_where_permitted(slot, vec![to]),
                Ok(GreetingStep::Done(Some(RequestedServer::Name(name, port)))) => return self.begin_by_name(slot, name, port),
                Err(refusal) => return self.drop_client(slot, refusal.why, &refusal.say),
            }
        }
    }

    /// The name that a client wants to connect to has been looked up.
    pub(super) fn on_resolved(&mut self, slot: usize, serial: u64, addresses: io::Result<Vec<SocketAddr>>) {
        if !is_pending(&self.flows, slot, serial) {
            return;
        }
        match addresses {
            Ok(addresses) if !addresses.is_empty() => self.begin_where_permitted(slot, addresses),
            // RFC 1928 §6: host unreachable.
            _ => self.drop_client(slot, "its name has no address", &socks_reply(4)),
        }
    }

    /// A client has named its destination. Only addresses that its listener permits are dialled.
    fn begin_where_permitted(&mut self, slot: usize, servers: Vec<SocketAddr>) {
        let Some(pending) = self.flows.get(slot).and_then(WorkerSlot::pending) else { return };
        let client = pending.greeting.client.unwrap_or(pending.client);
        // Only a single address is sure to go over the bond, whose other end has its own defaults.
        let over_bond = servers.len() == 1 && self.is_carried(client, servers.first().copied().map(canonical));
        let (mut permitted, mut refusal) = (Vec::new(), None);
        for server in servers.into_iter().map(canonical) {
            let destinations = &pending.listen.destinations;
            let judged = if over_bond { destinations.check_lists(server.ip()) } else { destinations.check(server) };
            match judged {
                Ok(()) if self.is_refused(client, server) => {
                    refusal = Some((server, io::Error::new(io::ErrorKind::PermissionDenied, format!("a rule refuses {server}"))));
                }
                Ok(()) => permitted.push(server),
                Err(why) => refusal = Some((server, why)),
            }
        }
        match refusal {
            Some((server, why)) if permitted.is_empty() => self.refuse_client(slot, server, &why),
            _ => self.begin_greeted(slot, permitted),
        }
    }

    /// Tells a SOCKS5 client that it may not connect to a server.
    fn refuse_client(&mut self, slot: usize, server: SocketAddr, why: &io::Error) {
        let Some(pending) = self.take_pending(slot) else { return };
        let client = pending.greeting.client.unwrap_or(pending.client);
        tracing::info!(%client, "not split: {why}");
        let ending = Ending::undialled(why);
        refuse_socks(&pending.socket, ending);
        self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        self.after_end();
    }

    /// A client's greeting is complete: begins its connection.
    pub(super) fn begin_greeted(&mut self, slot: usize, mut servers: Vec<SocketAddr>) {
        let Some(pending) = self.take_pending(slot) else { return };
        let _ = self.reactor.unwatch(&pending.socket);
        let listen = pending.listen;
        let server = servers.remove(0);
        let client = pending.greeting.client.unwrap_or(pending.client);
        let preface = listen.send_proxy.map_or(Vec::new(), |version| proxy_header(version, client, server));
        let heard = pending.greeting.rest();
        let socks = listen.mode == ListenMode::Socks5;
        self.begin(Start { near: pending.socket, client, server, others: servers, keep_source: false, preface, heard, socks });
    }

    /// A client wants to connect to a name: over a bond, whose other end looks it up, or once it
    /// has been looked up here.
    fn begin_by_name(&mut self, slot: usize, name: String, port: u16) {
        let Some(pending) = self.flows.get(slot).and_then(WorkerSlot::pending) else { return };
        // What it sends meanwhile stays in its receive queue.
        let _ = self.reactor.unwatch(&pending.socket);
        let client = pending.greeting.client.unwrap_or(pending.client);
        if !self.is_carried(client, None) {
            let _ = self.context.names.send(Question {
                name,
                port,
                worker: self.context.number,
                asker: Asker::Client(slot),
                serial: pending.serial,
            });
            return;
        }
        if pending.listen.destinations.has_lists() {
            let why = format!("{name} is looked up at the other end of the bond, so allow and deny cannot be applied to its addresses");
            return self.refuse_client(slot, UNKNOWN_ADDRESS, &io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (Some(pending), to) = (self.take_pending(slot), RequestedServer::Name(name, port)) else { return };
        let socks = pending.listen.mode == ListenMode::Socks5;
        let (server, others, preface, heard) = (UNKNOWN_ADDRESS, Vec::new(), Vec::new(), pending.greeting.rest());
        let start = Start { near: pending.socket, client, server, others, keep_source: false, preface, heard, socks };
        self.begin_carried(start, to);
    }

    /// Gives up a client that did not say where it goes.
    pub(super) fn drop_client(&mut self, slot: usize, why: &str, say: &[u8]) {
        let Some(pending) = self.take_pending(slot) else { return };
        tracing::info!(client = %pending.client, "not split: {why}");
        if !say.is_empty() {
            let _ = self::say(&pending.socket, say);
            let _ = pending.socket.set_linger(None);
        }
        self.totals.ended[Ending::NoGreeting.index()] += 1;
        self.after_end();
    }

    /// Gives up clients whose greeting has taken as long as a connect may.
    pub(super) fn check_clients(&mut self) {
        let Some(since) = self.scratch.now.checked_sub(self.config.connect_timeout) else { return };
        while let Some(slot) = self.pending.late(since, |slot, serial| is_pending(&self.flows, slot, serial)) {
            self.drop_client(slot, "it took too long to say where it goes", &[]);
        }
    }
}

/// Whether the client of a slot is the one with this serial number, and has not said yet where it
/// goes.
fn is_pending(flows: &Slab<WorkerSlot>, slot: usize, serial: u64) -> bool {
    flows.get(slot).and_then(WorkerSlot::pending).is_some_and(|pending| pending.serial == serial)
}

/// Sends what a client's socket takes at once; returns how many bytes.
fn say(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}
