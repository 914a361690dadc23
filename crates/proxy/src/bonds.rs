//! Adapts bonds (the crate `multipath`) to workers: [`BondCarrier`] is what a worker drives,
//! [`ProxyHost`] is what a bond asks of the proxy.

use crate::{
    brief::{FlowBrief, FlowId},
    carrier::{CarrierContext, StreamCarrier},
    config::{ListenerConfig, ProxyConfig, ProxyVersion},
    connection::{ConnectionStart, refuse_socks},
    greeting::{RequestedServer, proxy_header, socks_reply},
    memory::{MemoryLevel, MemoryWatch},
    meter::{NetworkTotals, Totals},
    resolver::{LookupOrigin, NameLookup},
};
use intercept::{
    AddressHistory, Carried, Routes,
    leg::{LegProfile, Shares},
};
use multipath::{BondConfig, BondHost, Bonds, ClientReply, Preface, StreamStart, Target};
use relay::{Ending, FlowRecord, FlowStats, Readiness, Scratch};
use socket2::Socket;
use std::{
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, LazyLock, mpsc},
    time::{Duration, Instant},
};

/// Opens the bond of a configuration; none: the configuration has no bond.
///
/// # Errors
/// When the bond has no key, or TLS cannot be set up.
pub(crate) fn open(config: &Arc<ProxyConfig>, context: CarrierContext) -> Result<Option<Box<dyn StreamCarrier>>, String> {
    if config.bond.is_none() {
        return Ok(None);
    }
    let CarrierContext { reactor, lookups, history, memory, worker, took_over } = context;
    let host = ProxyHost { config: config.clone(), routes: Rc::new(Routes::open().ok()), lookups, history, memory, worker, took_over };
    let bonds = Bonds::new(Box::new(host.clone()), &config.networks, reactor)?;
    Ok(Some(Box::new(BondCarrier { bonds, host })))
}

/// A lookup of the other end's name that has to wait for longer has failed.
const FAR_END_LOOKUP: Duration = Duration::from_secs(30);

/// What a bond asks of its proxy: configuration, routes and name lookups.
#[derive(Debug, Clone)]
struct ProxyHost {
    config: Arc<ProxyConfig>,
    routes: Rc<Option<Routes>>,
    lookups: mpsc::Sender<NameLookup>,
    history: Arc<AddressHistory>,
    memory: Arc<MemoryWatch>,
    worker: usize,
    took_over: bool,
}

impl BondHost for ProxyHost {
    fn bond(&self) -> &BondConfig {
        // Never used: only a configuration with a bond has a host, and a reload cannot remove the
        // bond.
        static DEFAULT: LazyLock<BondConfig> = LazyLock::new(BondConfig::default);
        self.config.bond.as_ref().unwrap_or(&DEFAULT)
    }

    fn leg_profiles(&self, client: SocketAddr, server: SocketAddr) -> (&LegProfile, &LegProfile) {
        let routes = self.routes.as_ref().as_ref();
        self.config.policy.legs_of(client, server, |address| routes?.interface_to(address))
    }

    fn is_refused(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let routes = self.routes.as_ref().as_ref();
        self.config.policy.is_refused(client, server, |address| routes?.interface_to(address))
    }

    fn shares(&self) -> Option<Shares> {
        self.config.shares()
    }

    fn bulk_shares(&self) -> Option<Shares> {
        self.config.buffer.most().map(|buffer| Shares::of(buffer.0 as usize))
    }

    fn connect_timeout(&self) -> Duration {
        self.config.connect_timeout
    }

    fn idle_timeout(&self) -> Option<Duration> {
        self.config.idle_timeout
    }

    fn most_streams(&self) -> usize {
        // While memory is short the other end is refused new streams.
        if self.memory.level() >= MemoryLevel::Full { 0 } else { self.config.soft_limit_of_a_worker() }
    }

    fn took_over(&self) -> bool {
        self.took_over
    }

    fn history(&self) -> &AddressHistory {
        &self.history
    }

    fn look_up(&self, name: String, port: u16, stream: usize, serial: u64) {
        let (worker, origin, until) = (self.worker, LookupOrigin::Stream(stream), Instant::now() + self.config.connect_timeout);
        // The resolver ends only with the proxy.
        let _ = self.lookups.send(NameLookup { name, port, worker, origin, serial, until });
    }

    fn look_up_far_end(&self, name: String, port: u16, network: usize) {
        let (worker, origin, until) = (self.worker, LookupOrigin::FarEnd(network), Instant::now() + FAR_END_LOOKUP);
        let _ = self.lookups.send(NameLookup { name, port, worker, origin, serial: 0, until });
    }
}

/// The PROXY protocol header that a listener with `send_proxy` sends to servers before the bytes of
/// a stream.
fn preface(version: ProxyVersion) -> Preface {
    match version {
        ProxyVersion::V1 => |client, server| proxy_header(ProxyVersion::V1, client, server),
        ProxyVersion::V2 => |client, server| proxy_header(ProxyVersion::V2, client, server),
    }
}

/// The replies to SOCKS clients.
const SOCKS_REPLY: ClientReply = ClientReply { reached: || socks_reply(0), refuse: refuse_socks };

/// The bond of a worker, as its carrier.
#[derive(Debug)]
struct BondCarrier {
    bonds: Bonds,
    host: ProxyHost,
}

impl StreamCarrier for BondCarrier {
    fn count(&self) -> usize {
        self.bonds.stream_count()
    }

    fn is_over(&self) -> bool {
        self.bonds.is_over()
    }

    fn reload(&mut self, config: &Arc<ProxyConfig>) {
        self.host.config = config.clone();
        self.bonds.reload(Box::new(self.host.clone()));
    }

    fn drain(&mut self) {
        self.bonds.drain();
    }

    fn stop(&mut self) {
        self.bonds.stop();
    }

    fn carried(&self) -> Carried {
        self.bonds.can_carry()
    }

    fn take_returned(&mut self) -> Vec<ConnectionStart> {
        let returned = self.bonds.take_returned().into_iter().filter_map(|start| {
            let StreamStart { near, client, to: Target::Address(server), preface, already_read, .. } = start else { return None };
            Some(ConnectionStart { near, client, server, far: None, keep_source: true, preface, already_read, socks: false })
        });
        returned.collect()
    }

    fn begin(&mut self, start: ConnectionStart, to: RequestedServer) -> Result<(), Ending> {
        let ConnectionStart { near, client, preface, already_read, socks, keep_source, .. } = start;
        let to = match to {
            RequestedServer::Address(address) => Target::Address(address),
            RequestedServer::Name(name, port) => Target::Name(name, port),
        };
        let reply = socks.then_some(SOCKS_REPLY);
        self.bonds.begin(StreamStart { near, client, to, preface, already_read, reply, may_return: keep_source })
    }

    fn accept(&mut self, socket: Socket, listen: &ListenerConfig) {
        self.bonds.accept(socket, listen.send_proxy.map(preface));
    }

    fn on_event(&mut self, index: usize, readiness: Readiness, scratch: &mut Scratch) {
        self.bonds.on_event(index, readiness, scratch);
    }

    fn on_resolved(&mut self, stream: usize, serial: u64, addresses: io::Result<Vec<SocketAddr>>) {
        self.bonds.on_resolved(stream, serial, addresses);
    }

    fn on_far_end_resolved(&mut self, network: usize, addresses: io::Result<Vec<SocketAddr>>) {
        self.bonds.on_far_end_resolved(network, addresses);
    }

    fn turn(&mut self, scratch: &mut Scratch) {
        self.bonds.turn(scratch);
    }

    fn is_busy(&self) -> bool {
        self.bonds.is_busy()
    }

    fn wait(&self) -> Option<Duration> {
        self.bonds.wait()
    }

    fn take_ended(&mut self) -> Vec<FlowRecord> {
        self.bonds.take_ended()
    }

    fn stats(&self) -> Vec<FlowStats> {
        self.bonds.stats()
    }

    fn briefs(&self, worker: usize) -> Vec<FlowBrief> {
        let briefs = self.bonds.briefs().map(|stream| FlowBrief {
            id: FlowId::new(worker, true, stream.index, stream.born),
            client: stream.client,
            server: stream.server,
            up: stream.up,
            down: stream.down,
            // What the other end of the bond has acknowledged is not known.
            acknowledged: [stream.up, stream.down],
        });
        briefs.collect()
    }

    fn stats_of(&self, id: &FlowId) -> Option<FlowStats> {
        self.bonds.stats_at(id.slot, id.born)
    }

    fn memory(&self) -> u64 {
        self.bonds.memory()
    }

    fn socket_memory(&self) -> u64 {
        self.bonds.socket_memory()
    }

    fn end_stuck(&mut self, limit: Duration, least: u64, excess: u64, now: Instant) -> (u64, u64) {
        self.bonds.end_stuck(limit, least, excess, now)
    }

    fn add_to(&self, totals: &mut Totals) {
        let (up, down) = self.bonds.carried();
        totals.up += up;
        totals.down += down;
        totals.add_acknowledged([up, down]);
        totals.refused += self.bonds.refused();
        self.bonds.views().for_each(|view| totals.add_paths(&view, true));
        for (network, up) in self.bonds.networks() {
            *totals.networks.entry(network.to_owned()).or_default() += NetworkTotals { up, ..NetworkTotals::default() };
        }
    }
}
