//! A proxy that splits connections: its place, its buffer, and how it forwards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use units::{Bytes, Rate, UnitError, impl_text};

/// A proxy that splits every connection that crosses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// The link after which the proxy stands, from 1. A later link must follow.
    pub after: usize,
    /// B, the payload that the proxy holds at most in each direction of a connection: a size;
    /// `"unlimited"`; or `"auto"`, the larger BDP of the legs beside it, at least 256 KiB.
    #[serde(default)]
    pub buffer: Buffer,
    /// How the proxy forwards.
    #[serde(default)]
    pub mode: SplitMode,
    /// How the proxy holds a sender back.
    #[serde(default)]
    pub backpressure: Backpressure,
    /// Capacity of the next link as the proxy is told it, for controllers that divide it among flows
    /// (`share`, `xcp`, `mpcp`). Absent: the link's rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Rate>,
    /// Whether the proxy shapes what it sends to that capacity, so that the bottleneck's queue is its
    /// own instead of the next link's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub shaper: bool,
    /// Whether the connections that the proxy dials have TCP Fast Open (RFC 7413), with the cookie of an
    /// earlier connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub fast_open: bool,
}

impl Split {
    /// A proxy after this link with the defaults of a file for all other keys.
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

/// How much payload a proxy holds in each direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer {
    /// At most so many bytes. Packets count as 1500 bytes.
    Bytes(Bytes),
    /// No limit.
    Unlimited,
    /// The larger BDP of the legs beside the proxy, at least 256 KiB.
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
impl_text!(Buffer, "a size, \"unlimited\" or \"auto\"", "1MiB");

/// How a proxy forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SplitMode {
    /// Bytes are forwarded as they arrive
    #[default]
    Stream,
    /// All of a transfer is received before any of it is forwarded
    Store,
    /// As `stream`, but with end-to-end acknowledgements: the sender's window follows what the proxy
    /// has, its send buffer what was delivered (Semi-Split TCP, Xie, Jiang, Ho and Hua 2007)
    Semi,
}

/// How a proxy holds a sender back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backpressure {
    /// The advertised window is the free space, as with real sockets
    #[default]
    Window,
    /// The sender is held to the drain rate, and only while the buffer is full (the paper's equations)
    Fluid,
}
