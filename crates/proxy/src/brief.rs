//! What is known of a flow without a system call, so that all flows can be listed every second.

use std::{net::SocketAddr, time::Instant};

/// Names a flow of a running proxy. No other flow ever has the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Number of its worker.
    pub(crate) worker: usize,
    /// Whether it is carried by a bond, which has slots of its own.
    pub(crate) is_carried: bool,
    /// Its slot. A slot is reused, but not by two flows that were accepted at the same time.
    pub(crate) slot: usize,
    /// When its connection was accepted.
    pub(crate) born: Instant,
}

impl FlowId {
    /// The name of the flow that a worker, or its bond, has in a slot.
    pub fn new(worker: usize, is_carried: bool, slot: usize, born: Instant) -> Self {
        FlowId { worker, is_carried, slot, born }
    }

    /// When its connection was accepted.
    pub fn born(&self) -> Instant {
        self.born
    }

    /// Number of its worker, and whether it is carried by that worker's bond.
    pub fn group(&self) -> (usize, bool) {
        (self.worker, self.is_carried)
    }

    /// Its slot, which no other flow of its group has at the same time. Slots of flows that have
    /// ended are taken before new ones.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

/// A flow, in brief.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowBrief {
    /// Its name.
    pub id: FlowId,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Payload carried from client to server, bytes.
    pub up: u64,
    /// Payload carried from server to client, bytes.
    pub down: u64,
    /// What of both is acknowledged by its destination, bytes, as of the proxy's last totals; what
    /// was carried since is included.
    pub acknowledged: [u64; 2],
}
