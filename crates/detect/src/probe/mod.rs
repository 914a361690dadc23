//! Probing: is a connection to this host split? Connections are opened for the purpose and looked at, from one end ([`probe`]) or, where [`respond`] runs on
//! the host, from both.
//!
//! What is done is done by the kernel's own TCP: a socket's TTL changed before its SYN or between its data (`dial`), a filter on a socket that keeps data from
//! being acknowledged for a while (`body`), a packet socket that takes the trace (`tap`). No packet is made by hand, no rule and no route is set: so most of it
//! needs no root, and a process that is killed leaves nothing. What follows from what was measured is decided in `rules` and `pair_rules`, which have
//! neither sockets nor a clock.

mod body;
mod dial;
#[doc(hidden)]
pub mod fuzz_api;
mod lobby;
mod orders;
mod pair_rules;
mod paired;
mod respond;
mod rules;
mod single;
mod sys;
mod tap;
mod way;
mod wire;

pub use dial::{Answer, DataSeen, SynSeen};
pub use paired::{Prober, probe_with_responder};
pub use respond::{Responder, respond};
pub use rules::{Place, PortSeen};
pub use single::{Probed, Row, probe};
pub use way::{Baseline, Hop, RoundTrip, Way};
pub use wire::{Application, CONTROL_PORT, Direction, LONGEST_HOLD, MOST_BYTES, Offset, Report, Transferred};

use std::time::{SystemTime, UNIX_EPOCH};

/// ns since 1970, by the clock that dates packets.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// Why something could not be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket would not do it.
    #[error("could not {what}: {why}")]
    Socket {
        /// What was attempted, on what, and the cure where there is one.
        what: String,
        /// Why not.
        why: std::io::Error,
    },
    /// The responder won't.
    #[error("the responder at {at} will not help: {why}")]
    Refused {
        /// Which.
        at: std::net::SocketAddr,
        /// Why not.
        why: String,
    },
    /// The host has no address.
    #[error("could not find an address of {host}: {why}")]
    NoAddress {
        /// Which.
        host: String,
        /// Why not.
        why: String,
    },
}
