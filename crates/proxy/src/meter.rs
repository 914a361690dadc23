//! What is known of a flow: both legs, both directions.

use crate::{ending::Ending, sys::TcpInfo};
use scenario::Bytes;
use std::{net::SocketAddr, time::Duration};

/// A flow as it is now.
#[derive(Debug, Clone)]
pub struct FlowStats {
    /// Who opened it.
    pub client: SocketAddr,
    /// Where it goes.
    pub server: SocketAddr,
    /// How long it has been here.
    pub age: Duration,
    /// The accepted connection.
    pub near: TcpInfo,
    /// The dialled one.
    pub far: TcpInfo,
    /// From client to server.
    pub up: DirectionStats,
    /// From server to client.
    pub down: DirectionStats,
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// Bytes given to the destination's socket.
    pub moved: u64,
    /// Payload in the receive queue of the source.
    pub received: usize,
    /// Payload in the proxy's own hands.
    pub in_hand: usize,
    /// Payload in the send queue of the destination, not sent yet.
    pub unsent: usize,
}

impl DirectionStats {
    /// What the proxy holds: the Q that B bounds.
    pub fn held(&self) -> Bytes {
        Bytes((self.received + self.in_hand + self.unsent) as u64)
    }
}

/// A flow that has ended.
#[derive(Debug, Clone)]
pub struct FlowRecord {
    /// Its last state.
    pub last: FlowStats,
    /// How it ended.
    pub ending: Ending,
}
