//! Settings of TCP that differ from Linux, for comparisons with simulators and equations that leave
//! out parts of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml_file::Fault;
use units::{Bytes, Span};

/// Settings of all ends. What is absent is as in Linux.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// Retransmission timeout before the first measured round trip. Linux: 1 s (RFC 6298 §2.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_rto: Option<Span>,
    /// Initial congestion window in segments. Linux: 10 (RFC 6928).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<u32>,
    /// Selective acknowledgements (RFC 2018) and what is built on them. `false`: NewReno's recovery
    /// (RFC 6582). Linux: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sack: Option<bool>,
    /// Delayed acknowledgements (RFC 1122 §4.2.3.2). `false`: every segment is acknowledged at once.
    /// Linux: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_acks: Option<bool>,
    /// Congestion window validation: the window grows only while it is used, and shrinks while it is
    /// not (RFC 7661, RFC 2861). `false`: it grows with every acknowledgement. Linux: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<bool>,
    /// Time until a receiving application reads data that has arrived in order; an acknowledgement
    /// of two segments or more is sent then. Linux: some 50 us, as fast as the machine wakes the
    /// application. Absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_delay: Option<Span>,
    /// Receive buffers of the ends: `{ first = "128KiB", most = "6MiB" }`, the last two numbers of
    /// `net.ipv4.tcp_rmem`. They grow as the application reads, and memory counts with its
    /// overhead. Absent: so large from the start that they limit no connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffers: Option<ReceiveBuffers>,
}

/// Receive buffers of hosts that adapt them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveBuffers {
    /// At the start of a connection.
    pub first: Bytes,
    /// The largest.
    pub most: Bytes,
}

impl ReceiveBuffers {
    /// Debian's and most other distributions' defaults, the kernel's own with 4 GB of memory and
    /// more: a first window of 64 kB, and up to about 4 MB.
    pub const DEBIAN: ReceiveBuffers = ReceiveBuffers { first: Bytes(131_072), most: Bytes(6_291_456) };

    /// The least share of a buffer that is payload: single packets of 1500 bytes, with the kernel's
    /// overhead.
    pub const PAYLOAD_SHARE: f64 = 0.63;
}

impl Tcp {
    const LEAST_BUFFER: Bytes = Bytes(6000);
    const MOST_BUFFER: Bytes = Bytes(1 << 30);

    /// The first key that is set, for the error of an engine that cannot change it; none if all is as
    /// in Linux.
    pub fn first_set(&self) -> Option<&'static str> {
        let keys = [
            (self.initial_rto.is_some(), "tcp.initial_rto"),
            (self.initial_window.is_some(), "tcp.initial_window"),
            (self.sack.is_some(), "tcp.sack"),
            (self.delayed_acks.is_some(), "tcp.delayed_acks"),
            (self.validation.is_some(), "tcp.validation"),
            (self.read_delay.is_some(), "tcp.read_delay"),
            (self.receive_buffers.is_some(), "tcp.receive_buffers"),
        ];
        keys.into_iter().find_map(|(set, key)| set.then_some(key))
    }

    pub(crate) fn is_linux(&self) -> bool {
        self.first_set().is_none()
    }

    pub(crate) fn check(&self) -> Result<(), Fault> {
        let wrong = |key: &str, message: &str| Err(Fault::new(format!("tcp.{key}"), message));
        if self.initial_rto == Some(Span::ZERO) {
            return wrong("initial_rto", "is 0: every packet would be sent again at once");
        }
        if self.initial_window == Some(0) {
            return wrong("initial_window", "is 0: nothing would ever be sent");
        }
        if let Some(ReceiveBuffers { first, most }) = self.receive_buffers {
            if first < Self::LEAST_BUFFER {
                return wrong("receive_buffers", "first is less than two segments: give at least 6000B");
            }
            if most < first {
                return wrong("receive_buffers", "most is less than first: exchange them");
            }
            if most > Self::MOST_BUFFER {
                return wrong("receive_buffers", "most is more than the kernel can give a socket: give at most 1GiB");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScenarioFile;

    fn tcp(text: &str) -> Result<Tcp, String> {
        let text = format!("name = \"x\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\n[[flow]]\nbytes = \"1MB\"\n{text}");
        let file = ScenarioFile::parse(&text, "x").map_err(|error| error.to_string())?;
        Ok(file.variants(&[]).map_err(|error| error.to_string())?.remove(0).scenario.tcp)
    }

    #[test]
    fn what_is_set_is_told_and_what_is_not_is_as_linux_has_it() {
        assert_eq!(tcp("").unwrap().first_set(), None);
        let set = tcp("[tcp]\ninitial_rto = \"6s\"\nvalidation = false\n").unwrap();
        assert_eq!((set.initial_rto, set.validation, set.first_set()), (Some(Span(6_000_000_000)), Some(false), Some("tcp.initial_rto")));
    }

    #[test]
    fn what_would_never_send_is_refused_by_its_key() {
        for (text, key) in [
            ("initial_rto = \"0s\"", "tcp.initial_rto"),
            ("initial_window = 0", "tcp.initial_window"),
            ("receive_buffers = { first = \"1kB\", most = \"1MB\" }", "tcp.receive_buffers"),
            ("receive_buffers = { first = \"1MB\", most = \"64kB\" }", "tcp.receive_buffers"),
            ("rto = 1", "tcp"),
        ] {
            let error = tcp(&format!("[tcp]\n{text}\n")).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }
}
