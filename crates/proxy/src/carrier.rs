//! The interface of connections that a worker does not relay itself: one of their legs consists of
//! several TCP connections.

use crate::{
    brief::{FlowBrief, FlowId},
    config::{ListenerConfig, ProxyConfig},
    connection::ConnectionStart,
    greeting::RequestedServer,
    memory::MemoryWatch,
    meter::Totals,
    resolver::NameLookup,
};
use intercept::{AddressHistory, Carried};
use relay::{Ending, FlowRecord, FlowStats, Reactor, Readiness, Scratch};
use socket2::Socket;
use std::{
    fmt, io,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// Carries connections one of whose legs consists of several TCP connections.
///
/// The worker's reactor watches its sockets. After each wait the worker calls
/// [`on_event`](Self::on_event) for each event of these sockets, then [`turn`](Self::turn) once,
/// then [`take_ended`](Self::take_ended) and [`take_returned`](Self::take_returned). The worker
/// waits at most for [`wait`](Self::wait), and not at all while the carrier [is
/// busy](Self::is_busy).
pub(crate) trait StreamCarrier: fmt::Debug {
    /// Number of connections that it carries.
    fn count(&self) -> usize;

    /// Whether a draining worker may end: nothing is left that must finish first.
    fn is_over(&self) -> bool;

    /// Applies another configuration to connections that begin from now on.
    fn reload(&mut self, config: &Arc<ProxyConfig>);

    /// Refuses new connections from now on, and closes those that carry nothing yet.
    fn drain(&mut self);

    /// Resets all connections.
    fn stop(&mut self);

    /// What it can carry at present. The worker begins no other connections.
    fn carried(&self) -> Carried;

    /// Connections that it was given and cannot carry any more. The worker splits them without the
    /// carrier.
    fn take_returned(&mut self) -> Vec<ConnectionStart>;

    /// Carries a client's connection to a server.
    ///
    /// # Errors
    /// The ending of a connection that could not be begun.
    fn begin(&mut self, start: ConnectionStart, to: RequestedServer) -> Result<(), Ending>;

    /// Takes a connection of a listener that [takes streams](ListenerConfig::takes_streams).
    fn accept(&mut self, socket: Socket, listen: &ListenerConfig);

    /// Handles an event of the socket with this index.
    fn on_event(&mut self, index: usize, readiness: Readiness, scratch: &mut Scratch);

    /// Takes the result of a name lookup that it requested.
    fn on_resolved(&mut self, stream: usize, serial: u64, addresses: io::Result<Vec<SocketAddr>>);

    /// Takes the result of looking up the name of its other end over this network.
    fn on_far_end_resolved(&mut self, network: usize, addresses: io::Result<Vec<SocketAddr>>);

    /// Does the work of a turn: connections that have more to do, and timers that have expired.
    fn turn(&mut self, scratch: &mut Scratch);

    /// Whether it has more to do without waiting for an event.
    fn is_busy(&self) -> bool;

    /// Time until its next timer expires; none: it has no timer.
    fn wait(&self) -> Option<Duration>;

    /// The connections that have ended since the last call.
    fn take_ended(&mut self) -> Vec<FlowRecord>;

    /// The present state of every connection.
    fn stats(&self) -> Vec<FlowStats>;

    /// Every connection in brief, with `worker` as the number of the worker.
    fn briefs(&self, worker: usize) -> Vec<FlowBrief>;

    /// The present state of one connection; none: it has ended.
    fn stats_of(&self, id: &FlowId) -> Option<FlowStats>;

    /// What its connections hold outside of sockets, bytes.
    fn memory(&self) -> u64;

    /// Kernel memory of its sockets, bytes: asks each.
    fn socket_memory(&self) -> u64;

    /// Ends connections that are stuck, until so many bytes are freed: those that hold at least
    /// `least` bytes, of which nothing has moved for `limit`. Returns how many, and what they held.
    fn end_stuck(&mut self, limit: Duration, least: u64, excess: u64, now: Instant) -> (u64, u64);

    /// Adds the counts of its connections, open ones too.
    fn add_to(&self, totals: &mut Totals);
}

/// What a worker gives its carrier.
#[derive(Debug)]
pub(crate) struct CarrierContext {
    /// The worker's reactor. Events of the carrier's sockets have the token
    /// [`Token::Carrier`](relay::Token::Carrier).
    pub(crate) reactor: Rc<Reactor>,
    /// Channel for name lookups.
    pub(crate) lookups: mpsc::Sender<NameLookup>,
    /// Which addresses of names were reached lately.
    pub(crate) history: Arc<AddressHistory>,
    pub(crate) memory: Arc<MemoryWatch>,
    /// The worker's number.
    pub(crate) worker: usize,
    /// Whether this process took over from another one.
    pub(crate) took_over: bool,
}

/// Opens the carrier of a configuration; none: the configuration needs no carrier.
pub(crate) type OpenCarrier = fn(&Arc<ProxyConfig>, CarrierContext) -> Result<Option<Box<dyn StreamCarrier>>, String>;
