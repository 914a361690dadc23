//! Records.

use crate::clock_offset::ClockOffset;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What an application carries, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// Bytes without a protocol.
    Tcp,
    /// Text, by HTTP/1.1.
    HttpData,
    /// A JPEG image, by HTTP/1.1.
    HttpImage,
    /// A file, by FTP: what is looked at is its data connection.
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

/// Which way the data go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferDirection {
    /// To the prober.
    Down,
    /// From it.
    Up,
}

/// What one end did, and how it saw the other's doing. Times are ns since 1970 by its own clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferReport {
    /// Its own address and the other's, of the connection with the data.
    pub connection: Option<[SocketAddr; 2]>,
    /// The head that came before the data, as it was sent or received.
    pub head: String,
    /// Bytes of the body, their checksum (XXH3), whether they came to their end.
    pub bytes: u64,
    /// Of those.
    pub checksum: u64,
    /// Whether it came to its end.
    pub whole: bool,
    /// When the first byte was sent or received.
    pub first: Option<i64>,
    /// When the second half began to be sent.
    pub resumed: Option<i64>,
    /// When the last byte was sent or received.
    pub last: Option<i64>,
    /// Of data that the other end would not acknowledge: after what time the first of them were, s.
    pub acknowledged_s: Option<f64>,
    /// Window scales (this end's and the other's) and whether there are timestamps, as this end's TCP has agreed to them.
    pub scales: Option<(u8, u8)>,
    /// Timestamps.
    pub timestamps: Option<bool>,
    /// Why it came to nothing.
    pub error: Option<String>,
}

/// A transfer as both ends saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferRecord {
    /// What was carried.
    pub application: Application,
    /// Which way.
    pub direction: TransferDirection,
    /// By which port of the host.
    pub port: u16,
    /// Whether the same had been asked for before.
    pub again: bool,
    /// For how long the receiver let no data in, s.
    pub hold_s: Option<f64>,
    /// How long the responder waited for the connection, s.
    pub patience_s: f64,
    /// The clocks, compared just before.
    pub clocks: Option<ClockOffset>,
    /// The prober's report.
    pub here: TransferReport,
    /// The responder's.
    pub there: TransferReport,
}
