//! Probing: is a connection to this host split? Connections are opened for the purpose and looked at, from one end ([`probe`]) or, where [`respond`] runs on
//! the host, from both.
//!
//! What is done is done by the kernel's own TCP: a socket's TTL changed before its SYN or between its data (`dial`), a filter on a socket that keeps data from
//! being acknowledged for a while (`body`), a packet socket that takes the trace (`tap`). No packet is made by hand, no rule and no route is set: so most of it
//! needs no root, and a process that is killed leaves nothing. What follows from what was measured is decided in `rules` and `pair_rules`, which have
//! neither sockets nor a clock.

mod body;
mod clock;
mod dial;
mod error;
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
pub use error::ProbeError;
pub use paired::{Prober, probe_with_responder};
pub use respond::{Responder, respond};
pub use rules::{Place, PortSeen};
pub use single::{Probed, Row, probe};
pub use way::{Baseline, Hop, RoundTrip, Way};
pub use wire::{Application, CONTROL_PORT, Direction, LONGEST_HOLD, MOST_BYTES, Offset, Report, Transferred};
