//! State of one connection of a client.

use crate::{
    client_gate::ClientGate,
    limits::ClientShare,
    server_pool::{ClientConnectionId, ServerAddress},
    shared::Shared,
    target::TargetResource,
};
use intercept::{Destinations, Source, Users};
use std::{net::SocketAddr, sync::Arc};

/// A client, as seen from one of its connections. Dropping it closes the idle connections to
/// servers that were opened for it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
    /// The destination of the connection. None in an explicit proxy, where each request names it.
    pub(crate) server: Option<SocketAddr>,
    /// The source address of connections to servers, where that is the client's. None: this host's.
    pub(crate) source: Option<Source>,
    /// The destinations that its requests may name.
    pub(crate) destinations: Destinations,
    /// The users that may name destinations.
    pub(crate) users: Users,
    /// The share of the memory limits that all connections from its address have.
    pub(crate) share: ClientShare,
    /// Identifies this connection in the pool of idle connections to servers.
    pub(crate) id: ClientConnectionId,
    /// The way of the connection out of hyper.
    pub(crate) gate: Arc<ClientGate>,
}

impl Client {
    /// The server that has this target.
    pub(crate) fn server_of(&self, target: &TargetResource) -> ServerAddress {
        ServerAddress::of(self.server, &target.authority, 80)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.server_pool.close_all(self.id);
    }
}
