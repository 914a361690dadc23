//! What a connection of a soak is to do, as both its ends know it, and what an end says that it did.

use std::io;

/// What a connection is called.
pub(crate) type ConnectionId = u64;

/// How an end saw its connection end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndpointOutcome {
    /// All bytes were right, and then came the end of file.
    Complete,
    /// It killed itself.
    Aborted,
    /// The connection broke.
    Failed(io::ErrorKind),
    /// What must never be: wrong bytes, or an end of file in the wrong place.
    Violation(String),
}

/// What an end saw.
#[derive(Debug, Clone)]
pub(crate) struct EndpointReport {
    pub(crate) end: EndpointOutcome,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// So many bytes up, so many down.
    Transfer,
    /// It speaks now and then, for as long as it likes.
    Conversation,
    /// It never speaks.
    Silent,
}

/// A connection as both ends know it: its first bytes say it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionPlan {
    pub(crate) kind: ConnectionKind,
    pub(crate) id: ConnectionId,
    pub(crate) seed: u32,
    pub(crate) up: u64,
    pub(crate) down: u64,
    /// Bytes a second; 0: as fast as it goes.
    pub(crate) rate: u64,
    /// The client sends its FIN after its last byte; else it waits for the server's.
    pub(crate) early: bool,
    /// The end that kills itself, after so many bytes; without a word or by a reset.
    pub(crate) kill: Option<Abort>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abort {
    pub(crate) client: bool,
    pub(crate) silent: bool,
    pub(crate) after: u64,
}

/// Length of a plan on the wire.
pub(crate) const HEADER: usize = 48;

impl ConnectionPlan {
    pub(crate) fn pack(&self) -> [u8; HEADER] {
        let kind = match self.kind {
            ConnectionKind::Transfer => 1,
            ConnectionKind::Conversation => 2,
            ConnectionKind::Silent => 3,
        };
        let kill = self.kill.map_or(0, |kill| 4 | u8::from(kill.client) << 1 | u8::from(kill.silent));
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&[0x54, kind, u8::from(self.early), kill]);
        bytes[4..8].copy_from_slice(&self.seed.to_be_bytes());
        let numbers = [self.id, self.up, self.down, self.rate, self.kill.map_or(0, |kill| kill.after)];
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
        let kill =
            (bytes[3] & 4 != 0).then(|| Some(Abort { client: bytes[3] & 2 != 0, silent: bytes[3] & 1 != 0, after: number(4)? })).flatten();
        Some(ConnectionPlan {
            kind,
            id: number(0)?,
            seed: u32::from_be_bytes(*bytes[4..].first_chunk()?),
            up: number(1)?,
            down: number(2)?,
            rate: number(3)?,
            early: bytes[2] == 1,
            kill,
        })
    }
}
