//! What TCP is like where a scenario does not say: Linux, unless set otherwise.

use scenario::Tcp;
use units::Span;

/// How a sender finds out what is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// As Linux: selective acknowledgements (RFC 2018), RACK and tail loss probes (RFC 8985), proportional rate reduction (RFC 6937).
    #[default]
    Sack,
    /// Without selective acknowledgements: three duplicates and partial acknowledgements (RFC 6582).
    NewReno,
}

/// What TCP is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Window at the start, in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// How losses are found.
    pub recovery: Recovery,
    /// Retransmission timeout before a round trip was measured (RFC 6298 §2.1: 1 s).
    pub initial_rto: Span,
    /// Whether receivers hold acknowledgements back (RFC 1122 §4.2.3.2).
    pub delayed_acks: bool,
    /// Whether a window grows only while it is used, and shrinks where it is not (RFC 7661, RFC 2861). Equations and older simulators have it
    /// grow with every acknowledgement.
    pub validation: bool,
    /// Payload of a full segment, in bytes: 1500 less the headers of IPv4 and of TCP with timestamps.
    pub mss: u32,
    /// The most points that a curve over time has, and looks that figures over time are from.
    pub looks: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            initial_window: 10,
            recovery: Recovery::Sack,
            initial_rto: Span(1_000_000_000),
            delayed_acks: true,
            validation: true,
            mss: 1448,
            looks: 3000,
        }
    }
}

impl Settings {
    /// The same, but for what a scenario sets.
    pub(crate) fn of(self, tcp: &Tcp) -> Self {
        let recovery = |sack: bool| if sack { Recovery::Sack } else { Recovery::NewReno };
        Settings {
            initial_rto: tcp.initial_rto.unwrap_or(self.initial_rto),
            initial_window: tcp.initial_window.unwrap_or(self.initial_window),
            recovery: tcp.sack.map_or(self.recovery, recovery),
            delayed_acks: tcp.delayed_acks.unwrap_or(self.delayed_acks),
            validation: tcp.validation.unwrap_or(self.validation),
            ..self
        }
    }
}
