//! Idle connections to servers. Each serves only the client connection that it was opened for,
//! since a server may identify a client by its connection. All are in one list, so that the oldest
//! can be closed when a request waits for memory.

use crate::{body::MessageBody, per_client::accounting_address, server_stream::ServerGate};
use hyper::client::conn::http1::SendRequest;
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// Idle connections for one client connection, at most.
const MAX_IDLE: usize = 6;
/// How long a connection may be idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    Socket(SocketAddr),
    /// Host and port, to be resolved.
    Name(String),
}

impl ServerAddress {
    /// The address `server`, or, where that is none, the authority with `default_port`.
    pub(crate) fn of(server: Option<SocketAddr>, authority: &str, default_port: u16) -> Self {
        match server {
            Some(server) => ServerAddress::Socket(server),
            None => {
                let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                ServerAddress::Name(if has_port { authority.into() } else { format!("{authority}:{default_port}") })
            }
        }
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAddress::Socket(server) => server.fmt(f),
            ServerAddress::Name(name) => f.write_str(name),
        }
    }
}

/// An HTTP connection to a server: the handle that sends requests, and the task that does its input
/// and output. The task owns the connection's reservation of memory.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(crate) sender: SendRequest<MessageBody>,
    pub(crate) task: AbortHandle,
    pub(crate) gate: Arc<ServerGate>,
}

/// Identifies a client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientConnectionId {
    number: u64,
    client: IpAddr,
}

#[derive(Debug)]
struct IdleConnection {
    /// The client connection that it was opened for.
    owner: ClientConnectionId,
    server: ServerAddress,
    connection: ServerConnection,
    since: Instant,
}

/// The idle connections of all clients.
#[derive(Debug, Default)]
pub(crate) struct ServerPool {
    /// The oldest first.
    idle: Mutex<VecDeque<IdleConnection>>,
    next_id: AtomicU64,
}

impl ServerPool {
    /// Returns an identifier for a new client connection.
    pub(crate) fn new_id(&self, client: IpAddr) -> ClientConnectionId {
        ClientConnectionId { number: self.next_id.fetch_add(1, Ordering::Relaxed), client }
    }

    /// Locks the list, and removes connections that have ended or timed out.
    fn idle(&self) -> MutexGuard<'_, VecDeque<IdleConnection>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE_TIMEOUT && !idle.connection.sender.is_closed());
        idle
    }

    /// Adds a connection, or closes it when its owner has enough of them.
    pub(crate) fn put(&self, owner: ClientConnectionId, server: ServerAddress, connection: ServerConnection) {
        let mut idle = self.idle();
        if idle.iter().filter(|idle| idle.owner == owner).count() < MAX_IDLE {
            idle.push_back(IdleConnection { owner, server, connection, since: Instant::now() });
        }
    }

    /// Takes the newest of the owner's connections to a server.
    pub(crate) fn take(&self, owner: ClientConnectionId, server: &ServerAddress) -> Option<ServerConnection> {
        let mut idle = self.idle();
        let usable = |idle: &IdleConnection| idle.owner == owner && idle.server == *server && idle.connection.sender.is_ready();
        let position = idle.iter().rposition(usable)?;
        idle.remove(position).map(|idle| idle.connection)
    }

    /// Closes the oldest connection of one client, or of all clients. Returns false when there is
    /// none.
    pub(crate) fn close_oldest(&self, client: Option<IpAddr>) -> bool {
        let mut idle = self.idle();
        let client = client.map(accounting_address);
        let matches = |idle: &IdleConnection| client.is_none_or(|client| client == accounting_address(idle.owner.client));
        let position = idle.iter().position(matches);
        position.is_some_and(|position| idle.remove(position).is_some())
    }

    /// Closes the connections of an owner.
    pub(crate) fn close_all(&self, owner: ClientConnectionId) {
        self.idle().retain(|idle| idle.owner != owner);
    }
}
