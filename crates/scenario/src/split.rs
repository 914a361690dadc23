//! A proxy that splits connections: its place, its buffer, and how it forwards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use units::{Bytes, Rate, UnitError, impl_text};

/// A proxy that splits every connection that crosses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// The link after which the proxy stands, from 1. A later link must follow, or networks in
    /// parallel.
    pub after: usize,
    /// B, the payload that the proxy holds at most in each direction of a connection: a size;
    /// `"unlimited"`; `"auto"`, the larger BDP of the legs beside it, at least 256 KiB; or
    /// `"adaptive"`, the proxy's own `buffer = "auto"`, which knows no link and follows each flow, up
    /// to 16 MiB (the lab).
    #[serde(default)]
    pub buffer: Buffer,
    /// How the proxy forwards.
    #[serde(default)]
    pub mode: SplitMode,
    /// How the proxy holds a sender back.
    #[serde(default)]
    pub backpressure: Backpressure,
    /// Capacity of the next link as the proxy is told it, for controllers that divide it among flows
    /// (`share`, `xcp`, `mpcp`). `"auto"`: it is not told it, and `share` estimates it. Absent: the
    /// link's rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<LinkCapacity>,
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

/// The capacity of the next link as a proxy is told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCapacity {
    /// This rate, in IP bits a second.
    Rate(Rate),
    /// None: the proxy estimates it from what its flows deliver.
    Auto,
}

impl LinkCapacity {
    /// The rate that the proxy is told, if it is told one.
    pub fn rate(self) -> Option<Rate> {
        match self {
            LinkCapacity::Rate(rate) => Some(rate),
            LinkCapacity::Auto => None,
        }
    }
}

impl FromStr for LinkCapacity {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(LinkCapacity::Auto),
            _ if !text.contains(|c: char| c.is_ascii_digit()) => {
                Err(format!("cannot be {text:?}: write a rate such as \"10Mbit\", or \"auto\""))
            }
            _ => text.parse().map(LinkCapacity::Rate).map_err(|error: UnitError| error.to_string()),
        }
    }
}

impl fmt::Display for LinkCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkCapacity::Rate(rate) => write!(f, "{rate}"),
            LinkCapacity::Auto => f.write_str("auto"),
        }
    }
}
impl_text!(LinkCapacity, "a rate or \"auto\"", "10Mbit");

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
    /// What the proxy finds from its measurements of each flow, up to
    /// [`MOST_ADAPTIVE`](Self::MOST_ADAPTIVE).
    Adaptive,
}

impl Buffer {
    /// The largest buffer that adapts.
    pub const MOST_ADAPTIVE: Bytes = Bytes(16 << 20);
}

impl FromStr for Buffer {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Buffer::Unlimited),
            "auto" => Ok(Buffer::Auto),
            "adaptive" => Ok(Buffer::Adaptive),
            _ if !text.contains(|c: char| c.is_ascii_digit()) => {
                Err(format!("cannot be {text:?}: write \"auto\", \"adaptive\", \"unlimited\" or a size such as \"1MiB\""))
            }
            _ => text.parse().map(Buffer::Bytes).map_err(|error: UnitError| error.to_string()),
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Bytes(bytes) => write!(f, "{bytes}"),
            Buffer::Unlimited => f.write_str("unlimited"),
            Buffer::Auto => f.write_str("auto"),
            Buffer::Adaptive => f.write_str("adaptive"),
        }
    }
}
impl_text!(Buffer, "a size, \"unlimited\", \"auto\" or \"adaptive\"", "1MiB");

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
#[serde(rename_all = "kebab-case")]
pub enum Backpressure {
    /// The advertised window is the free space, as with real sockets: room is free once data is
    /// sent on
    #[default]
    Window,
    /// As `window`, but room is free once the proxy has read the data, into a store without a limit
    /// (a relay of two agents in ns-2)
    WindowRead,
    /// As `window`, but room is free once the next leg has acknowledged the data
    WindowAcked,
    /// None: the proxy drops what finds its buffer full, which the sender takes for congestion
    Drop,
    /// The sender is held to the drain rate, and only while the buffer is full (the paper's equations)
    Fluid,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_a_size_or_a_word() {
        assert_eq!("auto".parse(), Ok(Buffer::Auto));
        assert_eq!("adaptive".parse(), Ok(Buffer::Adaptive));
        assert_eq!("1MiB".parse(), Ok(Buffer::Bytes(Bytes(1 << 20))));
        let wrong = |text: &str| text.parse::<Buffer>().unwrap_err();
        assert_eq!(wrong("Auto"), "cannot be \"Auto\": write \"auto\", \"adaptive\", \"unlimited\" or a size such as \"1MiB\"");
        assert_eq!(wrong("4M"), "\"4M\" ends in the unknown unit \"M\": write 4MB or 4MiB");
    }
}
