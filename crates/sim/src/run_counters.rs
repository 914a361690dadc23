//! What a run did internally, for tests and benchmarks of the simulator.

use crate::connection::TcpConnection;

/// Counters of a run that are not part of its outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunCounters {
    /// Events processed.
    pub events: u64,
    /// Data segments sent over all connections, including retransmissions.
    pub segments: u64,
    /// Acknowledgements sent.
    pub acks: u64,
    /// Expired retransmission timers.
    pub timeouts: u64,
    /// Window reductions undone because the loss turned out to be spurious.
    pub undone: u64,
    /// Tail loss probes sent.
    pub probes: u64,
}

impl RunCounters {
    /// Adds the counters of a connection.
    pub(crate) fn add(&mut self, connection: &TcpConnection) {
        self.segments += connection.sender.segments_sent();
        self.acks += connection.receiver.acks_sent;
        self.timeouts += connection.sender.counters.timeouts;
        self.undone += connection.sender.counters.undone;
        self.probes += connection.sender.counters.probes;
    }
}
