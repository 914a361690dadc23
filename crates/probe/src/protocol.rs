//! Messages between prober and responder: JSON in frames of bounded size over one TCP connection.
//!
//! The prober connects and the responder sends a challenge. The prober proves that it knows the
//! token (HMAC-SHA256). Then the prober sends orders one after the other, and the responder reports
//! the result of each. Nothing is sent to an address that has not completed a TCP handshake. A
//! datagram is answered only if it begins with the key of the session, and the answer is as large
//! as the request.

use crate::transfer_record::{Application, TransferDirection, TransferReport};
use serde::{Deserialize, Serialize};

/// Default control port of the responder, TCP and UDP.
pub const CONTROL_PORT: u16 = 7707;
/// Protocol version. Both ends must have the same.
pub(crate) const VERSION: u32 = 1;
/// Upper bound on the payload of a transfer, bytes.
pub const MAX_TRANSFER_BYTES: u64 = 4 << 20;
/// Upper bound on the time that ACKs are held, s.
pub const MAX_HOLD_S: f64 = 20.0;

/// The responder's first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResponderChallenge {
    pub(crate) version: u32,
    pub(crate) nonce: String,
}

/// The prober's first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProberHello {
    pub(crate) version: u32,
    pub(crate) proof: String,
}

/// The responder's answer to the hello.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Why the responder refuses, if it does.
    pub(crate) refused: Option<String>,
    pub(crate) ports: Vec<u16>,
    pub(crate) ftp_data: u16,
    /// Why it cannot capture, if it cannot.
    pub(crate) no_trace: Option<String>,
    /// Key that its datagrams must begin with.
    pub(crate) key: String,
}

/// An order of the prober.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProberOrder {
    Transfer(TransferOrder),
    /// Drop SYNs at this port for so long, s.
    #[serde(rename = "deaf")]
    DropSyns {
        port: u16,
        seconds: f64,
    },
    /// End the capture and send it.
    Trace,
}

/// Parameters of a transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TransferOrder {
    pub(crate) application: Application,
    pub(crate) direction: TransferDirection,
    pub(crate) port: u16,
    /// Identifies the data connection. Letters and digits.
    pub(crate) nonce: String,
    pub(crate) bytes: u64,
    /// Pause between the first half and the second, s.
    pub(crate) pause: f64,
    /// Time for which the receiver sends no ACK, s, from when it learns that the first byte was
    /// sent.
    pub(crate) hold: Option<f64>,
    /// How long the responder waits for the data connection, s.
    pub(crate) patience: f64,
}

impl TransferOrder {
    /// Whether the parameters are within the limits of a responder.
    pub(crate) fn is_allowed(&self) -> bool {
        self.bytes <= MAX_TRANSFER_BYTES
            && (0.0..=MAX_HOLD_S).contains(&self.pause)
            && self.hold.is_none_or(|hold| (0.0..=MAX_HOLD_S).contains(&hold))
            && (8..=64).contains(&self.nonce.len())
            && self.nonce.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }
}

/// An event of the responder while a transfer runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ResponderEvent {
    /// The order is accepted: connect now.
    Ready,
    /// The connection has arrived, and its data will not be acknowledged.
    Holding,
    /// The first byte was sent.
    Sent,
    Done(TransferReport),
}
