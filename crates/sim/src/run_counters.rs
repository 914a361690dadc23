//! What a run took: for checks and measurements of the simulator itself.

use crate::connection::Conn;

/// What a run did, beside its outcome: for those who check or measure the simulator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Things that happened.
    pub events: u64,
    /// Data segments that were sent, again or for the first time, over all connections.
    pub segments: u64,
    /// Acknowledgements that were sent.
    pub acks: u64,
    /// Times a retransmission timer fired, reductions that were taken back, and probes of the tail.
    pub timeouts: u64,
    /// Reductions that were taken back.
    pub undone: u64,
    /// Probes of the tail.
    pub probes: u64,
}

impl Effort {
    /// With what a connection has done.
    pub(crate) fn add(&mut self, conn: &Conn) {
        self.segments += conn.sender.segments_sent();
        self.acks += conn.receiver.acks;
        self.timeouts += conn.sender.tally.timeouts;
        self.undone += conn.sender.tally.undone;
        self.probes += conn.sender.tally.probes;
    }
}
