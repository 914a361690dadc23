//! Idle connections to servers. Each serves only the client connection that it was opened for,
//! since a server may identify a client by its connection. All are in one list, so that the oldest
//! can be closed when a request waits for memory.

use crate::{body::Body, per_client};
use hyper::client::conn::http1::SendRequest;
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::AbortHandle;

/// Idle connections kept for one client connection, and for how long.
const IDLE: (usize, Duration) = (6, Duration::from_secs(50));

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    At(SocketAddr),
    /// Host and port.
    Named(String),
}

impl Where {
    pub(crate) fn of(server: Option<SocketAddr>, authority: &str, port: u16) -> Self {
        match server {
            Some(server) => Where::At(server),
            None => {
                let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                Where::Named(if has_port { authority.into() } else { format!("{authority}:{port}") })
            }
        }
    }
}

impl std::fmt::Display for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Where::At(server) => server.fmt(f),
            Where::Named(name) => f.write_str(name),
        }
    }
}

/// A connection to a server: the handle that sends requests, and the task that does its input and
/// output. The task owns the connection's reservation.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(crate) sender: SendRequest<Body>,
    pub(crate) task: AbortHandle,
}

/// The client connection that a connection to a server was opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Numbers the connections.
    connection: u64,
    client: IpAddr,
}

#[derive(Debug)]
struct Idle {
    owner: Owner,
    to: Where,
    line: ServerConnection,
    since: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The oldest first.
    idle: Mutex<VecDeque<Idle>>,
    owners: AtomicU64,
}

impl Pool {
    /// Returns an identifier for a new client connection.
    pub(crate) fn owner(&self, client: IpAddr) -> Owner {
        Owner { connection: self.owners.fetch_add(1, Ordering::Relaxed), client }
    }

    /// Locks the list, without those that have ended or are too old.
    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE.1 && !idle.line.sender.is_closed());
        idle
    }

    /// Keeps a connection, unless its owner has enough.
    pub(crate) fn keep(&self, owner: Owner, to: Where, line: ServerConnection) {
        let mut idle = self.idle();
        if idle.iter().filter(|idle| idle.owner == owner).count() < IDLE.0 {
            idle.push_back(Idle { owner, to, line, since: Instant::now() });
        }
    }

    /// Takes the newest of the owner's connections to a server.
    pub(crate) fn take(&self, owner: Owner, to: &Where) -> Option<ServerConnection> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|idle| idle.owner == owner && idle.to == *to && idle.line.sender.is_ready())?;
        idle.remove(at).map(|idle| idle.line)
    }

    /// Closes the oldest connection of one client, or of all; returns false when there is none.
    pub(crate) fn close_oldest(&self, client: Option<IpAddr>) -> bool {
        let mut idle = self.idle();
        let is_theirs = |idle: &Idle| client.is_none_or(|client| per_client::key(client) == per_client::key(idle.owner.client));
        let found = idle.iter().position(is_theirs);
        found.is_some_and(|at| idle.remove(at).is_some())
    }

    /// Closes the connections of an owner that has gone.
    pub(crate) fn close_all(&self, owner: Owner) {
        self.idle().retain(|idle| idle.owner != owner);
    }
}
