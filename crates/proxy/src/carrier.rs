//! What a worker knows of connections that it does not relay itself: those of which one leg
//! consists of several TCP connections.

use crate::{
    config::{Config, Listen},
    connection::Start,
    greeting::RequestedServer,
    meter::Totals,
    resolver::Question,
};
use relay::{Ending, FlowRecord, FlowStats, Reactor, Readiness, Scratch};
use socket2::Socket;
use std::{
    fmt, io,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Carries connections of which one leg consists of several TCP connections.
///
/// Its sockets are watched by the worker's reactor. After each wait the worker calls
/// [`on_event`](Self::on_event) for each event of them, then [`turn`](Self::turn) once, then
/// [`take_ended`](Self::take_ended). It waits no longer than [`wait`](Self::wait) says, and not at
/// all while the carrier [is busy](Self::is_busy).
pub(crate) trait StreamCarrier: fmt::Debug {
    /// How many connections it carries.
    fn count(&self) -> usize;

    /// Whether nothing is left that must end by itself.
    fn is_over(&self) -> bool;

    /// Takes another configuration, for connections that begin from now on.
    fn reload(&mut self, config: &Arc<Config>);

    /// Takes no new connections, and keeps none ready.
    fn drain(&mut self);

    /// Ends all connections.
    fn stop(&mut self);

    /// Carries a client's connection to a server.
    ///
    /// # Errors
    /// How the connection has ended, when it could not be begun.
    fn begin(&mut self, start: Start, to: RequestedServer) -> Result<(), Ending>;

    /// Takes a connection that came to a listener which [takes streams](Listen::takes_streams).
    fn accept(&mut self, socket: Socket, listen: &Listen);

    /// Takes in what epoll told of the socket with this index, and acts on it.
    fn on_event(&mut self, index: usize, readiness: Readiness, scratch: &mut Scratch);

    /// Takes the answer to a question that it asked.
    fn on_resolved(&mut self, stream: usize, serial: u64, addresses: io::Result<Vec<SocketAddr>>);

    /// Does what is due.
    fn turn(&mut self, scratch: &mut Scratch);

    /// Whether it has more to do at once.
    fn is_busy(&self) -> bool;

    /// How long until something is due; none: until the next event.
    fn wait(&self) -> Option<Duration>;

    /// The connections that have ended since this was last called.
    fn take_ended(&mut self) -> Vec<FlowRecord>;

    /// Every connection as it is now.
    fn stats(&self) -> Vec<FlowStats>;

    /// Adds what its connections, those too that are not over, have come to.
    fn add_to(&self, totals: &mut Totals);
}

/// What a carrier gets of its worker.
#[derive(Debug)]
pub(crate) struct CarrierContext {
    /// The worker's reactor. It tells of the carrier's sockets by
    /// [`Token::Carrier`](relay::Token::Carrier).
    pub(crate) reactor: Rc<Reactor>,
    /// Where it asks for the addresses of names.
    pub(crate) names: mpsc::Sender<Question>,
    /// The worker's number.
    pub(crate) worker: usize,
}

/// Opens the carrier that a configuration asks for; none: it asks for none.
pub(crate) type OpenCarrier = fn(&Arc<Config>, CarrierContext) -> Result<Option<Box<dyn StreamCarrier>>, String>;
