//! The slots of a worker's connections.

use super::{pending_clients::PendingClient, reaching_client::ReachingClient};
use crate::connection::Connection;
use std::net::SocketAddr;

/// A connection of a worker.
// Not boxed: nearly all are split, and a box would cost each an allocation, and each event an
// indirection.
#[allow(clippy::large_enum_variant)]
pub(super) enum WorkerSlot {
    /// The client's greeting is not complete yet.
    Pending(Box<PendingClient>),
    /// One of the server's addresses is being reached.
    Reaching(Box<ReachingClient>),
    /// A split connection.
    Split(Connection),
}

impl WorkerSlot {
    /// The client's address.
    pub(super) fn client(&self) -> SocketAddr {
        match self {
            WorkerSlot::Pending(pending) => pending.client,
            WorkerSlot::Reaching(client) => client.start.client,
            WorkerSlot::Split(connection) => connection.client(),
        }
    }

    pub(super) fn pending(&self) -> Option<&PendingClient> {
        if let WorkerSlot::Pending(pending) = self { Some(pending) } else { None }
    }

    pub(super) fn pending_mut(&mut self) -> Option<&mut PendingClient> {
        if let WorkerSlot::Pending(pending) = self { Some(pending) } else { None }
    }

    pub(super) fn reaching(&self) -> Option<&ReachingClient> {
        if let WorkerSlot::Reaching(client) = self { Some(client) } else { None }
    }

    pub(super) fn reaching_mut(&mut self) -> Option<&mut ReachingClient> {
        if let WorkerSlot::Reaching(client) = self { Some(client) } else { None }
    }

    pub(super) fn split(&self) -> Option<&Connection> {
        if let WorkerSlot::Split(connection) = self { Some(connection) } else { None }
    }

    pub(super) fn split_mut(&mut self) -> Option<&mut Connection> {
        if let WorkerSlot::Split(connection) = self { Some(connection) } else { None }
    }
}
