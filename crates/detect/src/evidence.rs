//! Evidence: one observation, with its number, and what it indicates.

use serde::Serialize;

/// The method by which a piece of evidence was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Wei et al. §III-A, method 1: ACKs that arrive before they were sent, by synchronised clocks.
    #[serde(rename = "method-1")]
    SynchronisedClocks,
    /// Wei et al. §III-A, method 2: the same by clocks with a fixed offset or a drift.
    #[serde(rename = "method-2")]
    FixedOffset,
    /// Wei et al. §III-A, method 3: ACKs that arrive sooner than the receiver sends them.
    #[serde(rename = "method-3")]
    DelayedAcks,
    /// Whether the ACKs that arrive are the ones that were sent.
    Acknowledgements,
    /// Initial sequence numbers.
    Isn,
    /// TCP options of SYNs.
    Options,
    /// Clocks of TCP timestamps (RFC 7323).
    TimestampClock,
    /// Remaining hop count (TTL).
    Ttl,
    /// IPv4 identification numbers.
    IpId,
    /// Segment boundaries and sizes.
    Segments,
    /// Addresses and ports.
    Addresses,
    /// Amount and content of the payload.
    Payload,
    /// The transport protocol.
    Transport,
    /// Round trip of the handshake compared with that of data.
    Handshake,
    /// The advertised window.
    Window,
    /// The delay to the first byte.
    FirstByte,
    /// Repeated content that did not come from the sender.
    Cache,
    /// Probing: data whose TTL is too small to reach the host.
    ShortData,
    /// Probing: SYNs whose TTL is too small to reach the host.
    ShortSyn,
    /// Probing: connect time compared with the round trip of other protocols.
    ConnectTime,
    /// Probing: ports where no service is expected.
    ClosedPort,
    /// Probing: one port is answered from fewer hops away than others.
    PortDependence,
    /// Probing: SYNs that the host drops.
    HeldSyn,
}

/// What a piece of evidence indicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indication {
    /// A single connection from end to end.
    EndToEnd,
    /// Two connections, of either kind.
    Split,
    /// If the connection is split, the middlebox forwards data while they arrive (Split-TCP).
    SplitTcp,
    /// If the connection is split, the middlebox holds data until they are complete, or changes
    /// them (TCP proxy).
    TcpProxy,
    /// The observation is neutral.
    Nothing,
}

/// How reliable a piece of evidence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Other causes often produce the same observation.
    Weak,
    /// Other causes seldom produce the same observation.
    Moderate,
    /// No other cause is known.
    Strong,
}

/// A piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// The method by which it was found.
    pub method: Method,
    /// What it indicates.
    pub says: Indication,
    /// How reliable it is.
    pub strength: Strength,
    /// The measured value, in `unit`.
    pub value: f64,
    /// Unit of `value`.
    pub unit: &'static str,
    /// A description in words, with the numbers.
    pub text: String,
}

impl Evidence {
    /// Makes a piece of evidence. `number` is its value and unit.
    pub fn new(method: Method, says: Indication, strength: Strength, number: (f64, &'static str), text: String) -> Self {
        Evidence { method, says, strength, value: number.0, unit: number.1, text }
    }
}
