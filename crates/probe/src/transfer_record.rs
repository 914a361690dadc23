//! Records of a transfer: what each end did and saw. The field names are part of the protocol and
//! of `tandem detect probe --json`.

use crate::clock_offset::ClockOffset;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// An application protocol that a transfer imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// Bytes without a protocol.
    Tcp,
    /// Text by HTTP/1.1.
    HttpData,
    /// A JPEG image by HTTP/1.1.
    HttpImage,
    /// A file by FTP. The data connection is what is measured.
    Ftp,
}

impl std::fmt::Display for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Application::Tcp => "TCP",
            Application::HttpData => "HTTP data",
            Application::HttpImage => "HTTP image",
            Application::Ftp => "FTP",
        })
    }
}

/// Direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferDirection {
    /// To the prober.
    Down,
    /// From the prober.
    Up,
}

/// What one end did and saw. Times are ns since 1970 by its own clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferReport {
    /// Own address and peer address of the data connection.
    pub connection: Option<[SocketAddr; 2]>,
    /// The head before the data, as sent or received.
    pub head: String,
    /// Length of the body, bytes.
    pub bytes: u64,
    /// Checksum of the body (XXH3).
    pub checksum: u64,
    /// Whether the body is complete.
    pub whole: bool,
    /// When the first byte was sent or received.
    pub first: Option<i64>,
    /// When the second half began to be sent.
    pub resumed: Option<i64>,
    /// When the last byte was sent or received.
    pub last: Option<i64>,
    /// If the peer held its ACKs: time until the first ACK, s.
    pub acknowledged_s: Option<f64>,
    /// Negotiated window scales: own, then the peer's.
    pub scales: Option<(u8, u8)>,
    /// Whether timestamps were negotiated.
    pub timestamps: Option<bool>,
    /// Why the transfer failed, if it did.
    pub error: Option<String>,
}

/// A transfer as both ends saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferRecord {
    /// The application.
    pub application: Application,
    /// The direction.
    pub direction: TransferDirection,
    /// Port of the host.
    pub port: u16,
    /// Whether it repeats an earlier request.
    pub again: bool,
    /// How long the receiver dropped data, s.
    pub hold_s: Option<f64>,
    /// How long the responder waited for the connection, s.
    pub patience_s: f64,
    /// Offset between the clocks, measured just before.
    pub clocks: Option<ClockOffset>,
    /// The prober's report.
    pub here: TransferReport,
    /// The responder's report.
    pub there: TransferReport,
}
