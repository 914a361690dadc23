//! Clients that have not said yet where they go: those of SOCKS5, and those behind a PROXY header.

use super::{Token, Worker, pending_clients::PendingClient};
use crate::{
    config::{Listen, Way},
    connection::{Side, Start, refuse_socks},
    greeting::{Greeting, Heard, RequestedServer, proxy_header, socks_reply},
    resolver::{Asker, Question},
};
use intercept::canonical;
use relay::{Ending, FlowRecord, FlowStats, UNKNOWN_ADDRESS};
use rustix::{
    event::epoll::{self, EventFlags},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use socket2::Socket;
use std::{io, net::SocketAddr};

impl Worker {
    /// Takes in a client that is to say where it goes.
    pub(super) fn listen_to(&mut self, socket: Socket, client: SocketAddr, listen: Listen) {
        let greeting = Greeting::new(listen.accept_proxy, listen.way == Way::Socks5).with_users(&listen.users);
        let slot = self.slot();
        self.serial += 1;
        if epoll::add(&self.epoll, &socket, Token::Connection(slot, Side::Near).pack(), EventFlags::IN).is_err() {
            self.ended.push(slot);
            return;
        }
        self.clients.insert(slot, PendingClient { socket, client, greeting, listen, serial: self.serial, since: self.scratch.now });
    }

    /// A client that has not said yet where it goes says something, or goes away.
    pub(super) fn on_client(&mut self, slot: usize) {
        let Some(caller) = self.clients.get_mut(slot) else { return };
        let mut bytes = [0; 2048];
        let heard = match recv(&caller.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return self.drop_client(slot, "it went away", &[]),
            Ok((_, count)) => caller.greeting.hear(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => return self.drop_client(slot, "it went away", &[]),
        };
        let mut heard = heard;
        loop {
            match heard {
                Ok(Heard::More) => return,
                Ok(Heard::Say(bytes)) => {
                    // A few bytes, which the empty queue of a new connection always takes; a client that never
                    // hears them would wait.
                    if say(&caller.socket, &bytes) != Ok(bytes.len()) {
                        return self.drop_client(slot, "it cannot be answered", &[]);
                    }
                    heard = caller.greeting.hear(&[]);
                }
                Ok(Heard::Over(None)) => {
                    let Way::Forward(to) = caller.listen.way else { return self.drop_client(slot, "it leads nowhere", &[]) };
                    return self.go_on(slot, vec![to]);
                }
                Ok(Heard::Over(Some(RequestedServer::Address(to)))) => return self.go_where_allowed(slot, vec![to]),
                Ok(Heard::Over(Some(RequestedServer::Name(name, port)))) => return self.go_on_by_name(slot, name, port),
                Err(refusal) => return self.drop_client(slot, refusal.why, &refusal.say),
            }
        }
    }

    /// The name has been looked up that a client wants to go to.
    pub(super) fn on_resolved(&mut self, slot: usize, serial: u64, addresses: io::Result<Vec<SocketAddr>>) {
        if self.clients.get(slot).is_none_or(|caller| caller.serial != serial) {
            return;
        }
        match addresses {
            Ok(addresses) if !addresses.is_empty() => self.go_where_allowed(slot, addresses),
            // RFC 1928 §6: host unreachable.
            _ => self.drop_client(slot, "its name has no address", &socks_reply(4)),
        }
    }

    /// A client has named its destination. Of several addresses only those are dialled that its
    /// listener permits.
    fn go_where_allowed(&mut self, slot: usize, servers: Vec<SocketAddr>) {
        let Some(caller) = self.clients.get(slot) else { return };
        let client = caller.greeting.client.unwrap_or(caller.client);
        // Only a single address is sure to go over the bond, whose other end has its own defaults.
        let over_bond = servers.len() == 1 && self.is_carried(client, servers.first().copied().map(canonical));
        let (mut permitted, mut refusal) = (Vec::new(), None);
        for server in servers.into_iter().map(canonical) {
            let destinations = &caller.listen.destinations;
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
            _ => self.go_on(slot, permitted),
        }
    }

    /// Tells a client of SOCKS5 that it may not go there.
    fn refuse_client(&mut self, slot: usize, server: SocketAddr, why: &io::Error) {
        let Some(caller) = self.clients.remove(slot) else { return };
        let client = caller.greeting.client.unwrap_or(caller.client);
        tracing::info!(%client, "not split: {why}");
        let ending = Ending::undialled(why);
        refuse_socks(&caller.socket, ending);
        self.ended.push(slot);
        self.record(FlowRecord { last: FlowStats::unbegun(client, server), ending });
        self.after_end();
    }

    /// A client has said where it goes: from now on it is a connection.
    pub(super) fn go_on(&mut self, slot: usize, mut servers: Vec<SocketAddr>) {
        let Some(caller) = self.clients.remove(slot) else { return };
        let _ = epoll::delete(&self.epoll, &caller.socket);
        let listen = caller.listen;
        let server = servers.remove(0);
        let client = caller.greeting.client.unwrap_or(caller.client);
        let preface = listen.send_proxy.map_or(Vec::new(), |version| proxy_header(version, client, server));
        let heard = caller.greeting.rest();
        let socks = listen.way == Way::Socks5;
        self.begin(slot, Start { near: caller.socket, client, server, others: servers, keep_source: false, preface, heard, socks });
    }

    /// A client goes to a name: over a bond, at whose other end it is looked up, or when it has been looked up.
    fn go_on_by_name(&mut self, slot: usize, name: String, port: u16) {
        let Some(caller) = self.clients.get(slot) else { return };
        // What it says meanwhile waits in the kernel.
        let _ = epoll::delete(&self.epoll, &caller.socket);
        let client = caller.greeting.client.unwrap_or(caller.client);
        if !self.is_carried(client, None) {
            let _ =
                self.ties.names.send(Question { name, port, worker: self.ties.number, asker: Asker::Client(slot), serial: caller.serial });
            return;
        }
        if caller.listen.destinations.has_lists() {
            let why = format!("{name} is looked up at the other end of the bond, so allow and deny cannot be applied to its addresses");
            return self.refuse_client(slot, UNKNOWN_ADDRESS, &io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (Some(caller), to) = (self.clients.remove(slot), RequestedServer::Name(name, port)) else { return };
        let socks = caller.listen.way == Way::Socks5;
        let (server, others, preface, heard) = (UNKNOWN_ADDRESS, Vec::new(), Vec::new(), caller.greeting.rest());
        let start = Start { near: caller.socket, client, server, others, keep_source: false, preface, heard, socks };
        self.begin_carried(slot, start, to);
    }

    /// Gives up a client that did not say where it goes.
    pub(super) fn drop_client(&mut self, slot: usize, why: &str, say: &[u8]) {
        let Some(caller) = self.clients.remove(slot) else { return };
        tracing::info!(client = %caller.client, "not split: {why}");
        if !say.is_empty() {
            let _ = self::say(&caller.socket, say);
            let _ = caller.socket.set_linger(None);
        }
        self.totals.ended[Ending::NoGreeting.index()] += 1;
        self.ended.push(slot);
        self.after_end();
    }

    /// Gives up clients that have not said where they go for as long as a connect may take.
    pub(super) fn check_clients(&mut self) {
        let Some(since) = self.scratch.now.checked_sub(self.config.connect_timeout) else { return };
        while let Some(slot) = self.clients.late(since) {
            self.drop_client(slot, "it took too long to say where it goes", &[]);
        }
    }
}

/// Sends what a client's socket takes at once, and tells how much that was.
fn say(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}
