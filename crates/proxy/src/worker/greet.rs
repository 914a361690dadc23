//! Clients whose connection begins with a greeting: a SOCKS5 request, a PROXY header, or both.

use super::{Worker, WorkerSlot, pending_clients::PendingClient};
use crate::{
    config::{ListenMode, ListenerConfig},
    connection::{ConnectionStart, refuse_socks},
    greeting::{Greeting, GreetingStep, RequestedServer, proxy_header, socks_reply},
    resolver::{LookupOrigin, NameLookup},
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
    /// Adds a client whose greeting is to be read.
    pub(super) fn await_greeting(&mut self, socket: Socket, client: SocketAddr, listen: ListenerConfig) {
        let greeting = Greeting::new(listen.accept_proxy, listen.mode == ListenMode::Socks5).with_users(&listen.users);
        let greeting = greeting.with_longest_header(listen.accept_proxy_max);
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

    /// Removes a pending client from its slot.
    fn take_pending(&mut self, slot: usize) -> Option<PendingClient> {
        self.flows.get(slot)?.pending()?;
        let WorkerSlot::Pending(pending) = self.flows.remove(slot)? else { return None };
        self.pending.remove_one();
        Some(*pending)
    }

    /// Reads from a pending client, and continues its greeting.
    pub(super) fn on_client(&mut self, slot: usize) {
        let Some(pending) = self.flows.get_mut(slot).and_then(WorkerSlot::pending_mut) else { return };
        let mut bytes = [0; 2048];
        let mut step = match recv(&pending.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return self.drop_client(slot, "it closed the connection before its greeting was complete", &[]),
            Ok((_, count)) => pending.greeting.receive(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.drop_client(slot, "it closed the connection before its greeting was complete", &[]),
        };
        loop {
            match step {
                Ok(GreetingStep::More) => return,
                Ok(GreetingStep::Reply(bytes)) => {
                    // The empty send queue of a new connection takes these few bytes. If it does
                    // not, the client would wait for ever.
                    if send_now(&pending.socket, &bytes) != Ok(bytes.len()) {
                        return self.drop_client(slot, "cannot send it a reply", &[]);
                    }
                    step = pending.greeting.receive(&[]);
                }
                Ok(GreetingStep::Done(None)) => {
                    let ListenMode::Forward(to) = pending.listen.mode else {
                        return self.drop_client(slot, "its listener has no destination", &[]);
                    };
                    return self.begin_greeted(slot, vec![to]);
                }
                Ok(GreetingStep::Done(Some(RequestedServer::Address(to)))) => return self.begin_where_permitted(slot, vec![to]),
                Ok(GreetingStep::Done(Some(RequestedServer::Name(name, port)))) => return self.begin_by_name(slot, name, port),
                Err(refusal) => return self.drop_client(slot, &refusal.why, &refusal.reply),
            }
        }
    }

    /// Handles the result of looking up the name that a client requested.
    pub(super) fn on_resolved(&mut self, slot: usize, serial: u64, name: &str, addresses: io::Result<Vec<SocketAddr>>) {
        if !is_pending(&self.flows, slot, serial) {
            return;
        }
        let why = match addresses {
            Ok(addresses) if !addresses.is_empty() => return self.begin_where_permitted(slot, addresses),
            Ok(_) => "it has no address".to_owned(),
            Err(why) => why.to_string(),
        };
        self.measurements.count_unresolved();
        // As a literal: the client has chosen the name, and the log is read in terminals. RFC 1928
        // §6: host unreachable.
        self.drop_client(slot, &format!("cannot look up {name:?}, which it requested: {why}"), &socks_reply(4));
    }

    /// Begins the connection of a client that has named its destination. Only addresses that its
    /// listener permits are dialled.
    fn begin_where_permitted(&mut self, slot: usize, servers: Vec<SocketAddr>) {
        let Some(pending) = self.flows.get(slot).and_then(WorkerSlot::pending) else { return };
        let client = pending.greeting.client.unwrap_or(pending.client);
        // Over the bond, the other end applies its own defaults. With several addresses it is not
        // certain that the connection goes over the bond.
        let over_bond = servers.len() == 1 && self.is_carried(client, servers.first().copied().map(canonical));
        let (mut permitted, mut refusal) = (Vec::new(), None);
        for server in servers.into_iter().map(canonical) {
            let destinations = &pending.listen.destinations;
            let judged = if over_bond { destinations.check_lists(server.ip()) } else { destinations.check(server) };
            match judged {
                Ok(()) if self.is_refused(client, server) => {
                    refusal = Some((server, io::Error::new(io::ErrorKind::PermissionDenied, format!("a rule refuses {server}"))));
                }
                Ok(()) if !permitted.contains(&server) => permitted.push(server),
                Ok(()) => {}
                Err(why) => refusal = Some((server, why)),
            }
        }
        match refusal {
            Some((server, why)) if permitted.is_empty() => self.refuse_client(slot, server, &why),
            _ => self.begin_greeted(slot, permitted),
        }
    }

    /// Refuses a SOCKS5 client the connection to a server.
    fn refuse_client(&mut self, slot: usize, server: SocketAddr, why: &io::Error) {
        let Some(pending) = self.take_pending(slot) else { return };
        let client = pending.greeting.client.unwrap_or(pending.client);
        tracing::info!(%client, "not split: {why}");
        let ending = Ending::undialled(why);
        refuse_socks(&pending.socket, ending);
        self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        self.after_end();
    }

    /// Begins the connection of a client whose greeting is complete.
    pub(super) fn begin_greeted(&mut self, slot: usize, mut servers: Vec<SocketAddr>) {
        let Some(pending) = self.take_pending(slot) else { return };
        let _ = self.reactor.unwatch(&pending.socket);
        let listen = pending.listen;
        let Some(server) = servers.first().copied() else { return };
        let client = pending.greeting.client.unwrap_or(pending.client);
        let preface = header_for_server(&listen, client, pending.greeting.destination, &pending.socket);
        let already_read = pending.greeting.into_rest();
        let socks = listen.mode == ListenMode::Socks5;
        let start = ConnectionStart { near: pending.socket, client, server, far: None, keep_source: false, preface, already_read, socks };
        if servers.len() == 1 || self.is_carried(client, Some(server)) {
            return self.begin(start);
        }
        // Which leg an address needs is decided by rules. Those of a bond are not tried beside it.
        servers.retain(|server| !self.is_carried(client, Some(*server)));
        self.reach(start, servers);
    }

    /// Handles the request for a name. Over a bond the other end looks the name up, else the
    /// resolver.
    fn begin_by_name(&mut self, slot: usize, name: String, port: u16) {
        let Some(pending) = self.flows.get(slot).and_then(WorkerSlot::pending) else { return };
        // Data of the client stays in the receive queue meanwhile.
        let _ = self.reactor.unwatch(&pending.socket);
        let client = pending.greeting.client.unwrap_or(pending.client);
        if !self.is_carried(client, None) {
            let _ = self.context.lookups.send(NameLookup {
                name,
                port,
                worker: self.context.number,
                origin: LookupOrigin::Client(slot),
                serial: pending.serial,
                until: self.scratch.now + self.config.connect_timeout,
            });
            return;
        }
        if pending.listen.destinations.has_lists() {
            let why = format!("{name} is looked up at the other end of the bond, so allow and deny cannot be applied to its addresses");
            return self.refuse_client(slot, UNKNOWN_ADDRESS, &io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (Some(pending), to) = (self.take_pending(slot), RequestedServer::Name(name, port)) else { return };
        let socks = pending.listen.mode == ListenMode::Socks5;
        let preface = header_for_server(&pending.listen, client, pending.greeting.destination, &pending.socket);
        let start = ConnectionStart {
            near: pending.socket,
            client,
            server: UNKNOWN_ADDRESS,
            far: None,
            keep_source: false,
            preface,
            already_read: pending.greeting.into_rest(),
            socks,
        };
        self.begin_carried(start, to);
    }

    /// Closes the connection of a pending client, after a reply if there is one.
    pub(super) fn drop_client(&mut self, slot: usize, why: &str, reply: &[u8]) {
        let Some(pending) = self.take_pending(slot) else { return };
        tracing::info!(client = %pending.client, "not split: {why}");
        if !reply.is_empty() {
            let _ = send_now(&pending.socket, reply);
            let _ = pending.socket.set_linger(None);
        }
        self.totals.ended[Ending::NoGreeting.index()] += 1;
        self.after_end();
    }

    /// Drops clients whose greeting has taken longer than the connect timeout.
    pub(super) fn check_clients(&mut self) {
        let Some(since) = self.scratch.now.checked_sub(self.config.connect_timeout) else { return };
        while let Some(slot) = self.pending.late(since, |slot, serial| is_pending(&self.flows, slot, serial)) {
            self.drop_client(slot, "its greeting took too long (connect_timeout)", &[]);
        }
    }
}

/// The PROXY protocol header that a listener sends to servers before the client's bytes; empty: it
/// sends none. `destination`: the address that the client connected to, if an accepted header named
/// it; else it is the local address of the client's socket.
pub(super) fn header_for_server(listen: &ListenerConfig, client: SocketAddr, destination: Option<SocketAddr>, near: &Socket) -> Vec<u8> {
    let Some(version) = listen.send_proxy else { return Vec::new() };
    let local = || near.local_addr().ok().and_then(|local| local.as_socket()).map(canonical);
    proxy_header(version, client, destination.or_else(local).unwrap_or(listen.at))
}

/// Whether the slot has a pending client with this serial number.
fn is_pending(flows: &Slab<WorkerSlot>, slot: usize, serial: u64) -> bool {
    flows.get(slot).and_then(WorkerSlot::pending).is_some_and(|pending| pending.serial == serial)
}

/// Sends as many bytes as the socket takes without blocking; returns how many.
fn send_now(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}
