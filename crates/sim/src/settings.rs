//! TCP parameters for what a scenario leaves open. The defaults are those of Linux.

use scenario::Tcp;
use units::Span;

/// How a sender detects and repairs losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// As Linux: selective acknowledgements (RFC 2018), RACK and tail loss probes (RFC 8985),
    /// proportional rate reduction (RFC 6937).
    #[default]
    Sack,
    /// NewReno without selective acknowledgements: three duplicate and partial acknowledgements
    /// (RFC 6582).
    NewReno,
}

/// The TCP parameters of all connections of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSettings {
    /// Initial congestion window, segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Loss detection and repair.
    pub recovery: Recovery,
    /// Retransmission timeout before the first RTT sample (RFC 6298 §2.1: 1 s).
    pub initial_rto: Span,
    /// Whether receivers delay acknowledgements (RFC 1122 §4.2.3.2).
    pub delayed_acks: bool,
    /// Congestion window validation: the window grows only while it is used, and shrinks while it
    /// is not (RFC 7661, RFC 2861). Models and older simulators grow it with every acknowledgement.
    pub validation: bool,
    /// Time until a receiving application reads data in order: an acknowledgement of two segments
    /// or more is sent then, as by Linux's `tcp_cleanup_rbuf`. Zero: at once.
    pub read_delay: Span,
    /// Payload of a full segment, bytes: 1500 less the headers of IPv4 and of TCP with timestamps.
    pub mss: u32,
    /// Largest number of samples over time of a run: the most points of a curve.
    pub max_samples: usize,
}

impl Default for TcpSettings {
    fn default() -> Self {
        TcpSettings {
            initial_window: 10,
            recovery: Recovery::Sack,
            initial_rto: Span(1_000_000_000),
            delayed_acks: true,
            validation: true,
            read_delay: Span::ZERO,
            mss: 1448,
            max_samples: 3000,
        }
    }
}

impl TcpSettings {
    /// These settings, with what the scenario sets in their place.
    pub(crate) fn with_scenario(self, tcp: &Tcp) -> Self {
        let recovery = |sack: bool| if sack { Recovery::Sack } else { Recovery::NewReno };
        TcpSettings {
            initial_rto: tcp.initial_rto.unwrap_or(self.initial_rto),
            initial_window: tcp.initial_window.unwrap_or(self.initial_window),
            recovery: tcp.sack.map_or(self.recovery, recovery),
            delayed_acks: tcp.delayed_acks.unwrap_or(self.delayed_acks),
            validation: tcp.validation.unwrap_or(self.validation),
            read_delay: tcp.read_delay.unwrap_or(self.read_delay),
            ..self
        }
    }
}
