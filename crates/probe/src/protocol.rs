//! What prober and responder say to each other: frames of JSON over one connection, which both bound in size; and the clocks' offset, by datagrams.
//!
//! The prober opens; the responder challenges; the prober proves that it knows the token (HMAC-SHA256). Then it gives orders, one after the other, and hears
//! what came of each. Nothing is ever sent to an address that has not answered a SYN, and a datagram is answered by one as large, to those who know the
//! session's key.

use crate::transfer_record::{Application, TransferDirection, TransferReport};
use serde::{Deserialize, Serialize};

/// Where the responder is spoken to unless it is told otherwise.
pub const CONTROL_PORT: u16 = 7707;
/// What both ends must speak.
pub(crate) const VERSION: u32 = 1;
/// The most that is carried in one transfer, bytes.
pub const MOST_BYTES: u64 = 4 << 20;
/// The longest that ACKs are held, s.
pub const LONGEST_HOLD: f64 = 20.0;

/// The responder's first word.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResponderChallenge {
    pub(crate) version: u32,
    pub(crate) nonce: String,
}

/// The prober's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProberHello {
    pub(crate) version: u32,
    pub(crate) proof: String,
}

/// What the responder has to offer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Why it won't.
    pub(crate) refused: Option<String>,
    pub(crate) ports: Vec<u16>,
    pub(crate) ftp_data: u16,
    /// Why it takes no trace, if it takes none.
    pub(crate) no_trace: Option<String>,
    /// What its datagrams must begin with.
    pub(crate) key: String,
}

/// What the prober wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProberOrder {
    Transfer(TransferOrder),
    /// Let no SYN in at this port for so long, s.
    Deaf {
        port: u16,
        seconds: f64,
    },
    /// End the trace and send it.
    Trace,
}

/// A transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TransferOrder {
    pub(crate) application: Application,
    pub(crate) direction: TransferDirection,
    pub(crate) port: u16,
    /// What its connection is known by: letters and digits.
    pub(crate) nonce: String,
    pub(crate) bytes: u64,
    /// Between the first half and the second, s.
    pub(crate) pause: f64,
    /// The receiver sends no ACK for so long, s, after it has heard that the first byte was sent.
    pub(crate) hold: Option<f64>,
    /// How long the connection is waited for, s.
    pub(crate) patience: f64,
}

impl TransferOrder {
    /// Whether it is within what a responder does for anybody.
    pub(crate) fn is_allowed(&self) -> bool {
        self.bytes <= MOST_BYTES
            && (0.0..=LONGEST_HOLD).contains(&self.pause)
            && self.hold.is_none_or(|hold| (0.0..=LONGEST_HOLD).contains(&hold))
            && (8..=64).contains(&self.nonce.len())
            && self.nonce.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }
}

/// What the responder says while a transfer runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ResponderEvent {
    /// The order is taken: connect.
    Ready,
    /// The connection has come, and its data won't be acknowledged.
    Holding,
    /// The first byte was sent.
    Sent,
    Done(TransferReport),
}
