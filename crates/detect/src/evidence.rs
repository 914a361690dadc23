//! What a trace shows, with its number.

use serde::Serialize;

/// How it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Wei et al., method 1: acknowledgements that come before they were sent, by synchronised clocks.
    #[serde(rename = "method-1")]
    SynchronisedClocks,
    /// Method 2: the same by clocks at a fixed offset, or drifting.
    #[serde(rename = "method-2")]
    FixedOffset,
    /// Method 3: acknowledgements sooner than the receiver delays them.
    #[serde(rename = "method-3")]
    DelayedAcks,
    /// Whether the acknowledgements that arrive are those that were sent.
    Acknowledgements,
    /// Initial sequence numbers.
    Isn,
    /// TCP options in SYNs.
    Options,
    /// The clocks of TCP timestamps.
    TimestampClock,
    /// Hops left.
    Ttl,
    /// The numbers of IP packets.
    IpId,
    /// Where segments begin, and how large they are.
    Segments,
    /// Addresses and ports.
    Addresses,
    /// Payload bytes, how many and which.
    Payload,
    /// The transport protocol.
    Transport,
    /// Handshake against data.
    Handshake,
    /// The advertised window.
    Window,
    /// The delay to the first byte.
    FirstByte,
    /// The same bytes again, without the sender.
    Cache,
    /// Probing: data that can go fewer hops than the host is away.
    ShortData,
    /// Probing: SYNs that can.
    ShortSyn,
    /// Probing: the time to connect against that of packets which are no TCP.
    ConnectTime,
    /// Probing: ports at which nobody listens.
    ClosedPort,
    /// Probing: one port answered from nearer than others.
    PortDependence,
    /// Probing: SYNs that the host does not let in.
    HeldSyn,
}

/// What it speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indication {
    /// One connection.
    EndToEnd,
    /// Two, of either kind.
    Split,
    /// If it is split, data flow on both at once.
    SplitTcp,
    /// If it is split, data are held until they are complete, or changed.
    TcpProxy,
    /// It was looked at, and shows neither.
    Nothing,
}

/// How far it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Other things often look the same.
    Weak,
    /// Other things seldom look the same.
    Moderate,
    /// Nothing else is known to look the same.
    Strong,
}

/// A piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// How it was found.
    pub method: Method,
    /// What it speaks for.
    pub says: Indication,
    /// How strongly.
    pub strength: Strength,
    /// Its number.
    pub value: f64,
    /// The number's unit.
    pub unit: &'static str,
    /// In words, with the numbers.
    pub text: String,
}

impl Evidence {
    /// A piece of evidence; `number` is its value and unit.
    pub fn new(method: Method, says: Indication, strength: Strength, number: (f64, &'static str), text: String) -> Self {
        Evidence { method, says, strength, value: number.0, unit: number.1, text }
    }
}
