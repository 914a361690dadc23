//! What both endpoints of a connection are to do, and what an endpoint reports.

use std::io;

/// Number of a connection, unique within a soak.
pub(crate) type ConnectionId = u64;

/// How a connection ended, as one endpoint saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndpointOutcome {
    /// All bytes were correct, then came end of file.
    Complete,
    /// This endpoint aborted as planned.
    Aborted,
    /// The connection failed with an error.
    Failed(io::ErrorKind),
    /// Must never happen: wrong bytes, or an end of file in the wrong place.
    Violation(String),
}

/// What an endpoint saw.
#[derive(Debug, Clone)]
pub(crate) struct EndpointReport {
    pub(crate) end: EndpointOutcome,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// Carries a given number of bytes in each direction.
    Transfer,
    /// Exchanges messages with long pauses.
    Conversation,
    /// Carries nothing after its plan.
    Silent,
}

/// What both endpoints of a connection are to do. The client sends it first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionPlan {
    pub(crate) kind: ConnectionKind,
    pub(crate) id: ConnectionId,
    pub(crate) seed: u32,
    pub(crate) up: u64,
    pub(crate) down: u64,
    /// Bytes per second; 0 for no limit.
    pub(crate) rate: u64,
    /// The client sends its FIN after its last byte. Otherwise it waits for the server's FIN.
    pub(crate) early: bool,
    /// Which endpoint aborts, and when.
    pub(crate) abort: Option<PlannedAbort>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedAbort {
    pub(crate) client: bool,
    pub(crate) silent: bool,
    pub(crate) after: u64,
}

/// Length of an encoded plan, bytes.
pub(crate) const HEADER: usize = 48;

impl ConnectionPlan {
    pub(crate) fn pack(&self) -> [u8; HEADER] {
        let kind = match self.kind {
            ConnectionKind::Transfer => 1,
            ConnectionKind::Conversation => 2,
            ConnectionKind::Silent => 3,
        };
        let abort = self.abort.map_or(0, |abort| 4 | u8::from(abort.client) << 1 | u8::from(abort.silent));
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&[0x54, kind, u8::from(self.early), abort]);
        bytes[4..8].copy_from_slice(&self.seed.to_be_bytes());
        let numbers = [self.id, self.up, self.down, self.rate, self.abort.map_or(0, |abort| abort.after)];
        for (number, place) in numbers.iter().zip(bytes[8..].chunks_mut(8)) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    pub(crate) fn unpack(bytes: &[u8; HEADER]) -> Option<ConnectionPlan> {
        let number = |index: usize| bytes[8 + 8 * index..].first_chunk().copied().map(u64::from_be_bytes);
        let kind = match (bytes[0], bytes[1]) {
            (0x54, 1) => ConnectionKind::Transfer,
            (0x54, 2) => ConnectionKind::Conversation,
            (0x54, 3) => ConnectionKind::Silent,
            _ => return None,
        };
        let abort = (bytes[3] & 4 != 0)
            .then(|| Some(PlannedAbort { client: bytes[3] & 2 != 0, silent: bytes[3] & 1 != 0, after: number(4)? }))
            .flatten();
        Some(ConnectionPlan {
            kind,
            id: number(0)?,
            seed: u32::from_be_bytes(*bytes[4..].first_chunk()?),
            up: number(1)?,
            down: number(2)?,
            rate: number(3)?,
            early: bytes[2] == 1,
            abort,
        })
    }
}
