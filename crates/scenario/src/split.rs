//! A proxy that splits connections: where it stands, how much it holds, and how it forwards.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use units::{Bytes, Rate, UnitError, impl_text};

/// A proxy that splits every connection which crosses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// It stands after this link, counted from 1.
    pub after: usize,
    /// What it holds in each direction of a connection.
    #[serde(default)]
    pub buffer: Buffer,
    /// How it forwards.
    #[serde(default)]
    pub mode: SplitMode,
    /// How it holds a sender back.
    #[serde(default)]
    pub backpressure: Backpressure,
    /// What it is told that the link after it carries, where its controller shares that out (`share`, `xcp`, `mpcp`); absent: the truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Rate>,
    /// Whether it shapes what it sends to that capacity, so that the bottleneck's queue is its own; absent: it does not, and the queue is
    /// the next link's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shaper: bool,
    /// Whether the connections that it dials have TCP Fast Open (RFC 7413), with a cookie from earlier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fast_open: bool,
}

impl Split {
    /// One after this link, with all else as where a file says no more.
    pub fn at(after: usize) -> Self {
        Split {
            after,
            buffer: Buffer::default(),
            mode: SplitMode::default(),
            backpressure: Backpressure::default(),
            capacity: None,
            shaper: false,
            fast_open: false,
        }
    }
}

/// How much a proxy holds in each direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer {
    /// So many bytes of payload. Packets are counted at 1500 bytes.
    Bytes(Bytes),
    /// As much as comes.
    Unlimited,
    /// What the links ask for: the larger BDP of the legs beside it, at least 256 KiB.
    #[default]
    Auto,
}

impl FromStr for Buffer {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text {
            "unlimited" => Ok(Buffer::Unlimited),
            "auto" => Ok(Buffer::Auto),
            _ => text.parse().map(Buffer::Bytes),
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Bytes(bytes) => write!(f, "{bytes}"),
            Buffer::Unlimited => f.write_str("unlimited"),
            Buffer::Auto => f.write_str("auto"),
        }
    }
}
impl_text!(Buffer);

/// How a proxy forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum SplitMode {
    /// Bytes go on as they come.
    #[default]
    Stream,
    /// Receive all, then forward.
    Store,
    /// Forward as a stream, but acknowledge only what the far end has acknowledged: the sender's window follows what the proxy has, and its
    /// send buffer what was delivered (Semi-Split TCP, Xie, Jiang, Ho and Hua 2007).
    Semi,
}

/// How a proxy holds a sender back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Backpressure {
    /// The advertised window is the free space, as real sockets do.
    #[default]
    Window,
    /// The sender is held to the drain rate, only while the buffer is full (the paper's equations).
    Fluid,
}
