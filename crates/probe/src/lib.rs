//! Probing: is a connection to this host split? Connections are opened for the purpose and looked at, from one end ([`probe`]) or, where [`respond`] runs on
//! the host, from both.
//!
//! What is done is done by the kernel's own TCP: a socket's TTL changed before its SYN or between its data (`dial`), a filter on a socket that keeps data from
//! being acknowledged for a while (`body`), a packet socket that takes the trace (`tap`). No packet is made by hand, no rule and no route is set: so most of it
//! needs no root, and a process that is killed leaves nothing. What follows from what was measured is decided in `rules` and `pair_rules`, which have
//! neither sockets nor a clock.

mod capture;
mod clock;
mod clock_offset;
mod error;
mod framing;
mod ftp;
#[doc(hidden)]
pub mod fuzz_api;
mod handshake;
mod http;
mod icmp;
mod payload;
mod pending_connections;
mod port_filter;
mod probe_report;
mod prober_session;
mod protocol;
mod responder;
mod responder_session;
mod single_ended;
mod single_ended_evidence;
mod socket_filter;
mod sys;
mod token;
mod traceroute;
mod transfer;
mod transfer_record;
mod ttl_limited;
mod two_ended;
mod two_ended_evidence;

pub use clock_offset::ClockOffset;
pub use error::ProbeError;
pub use probe_report::{ProbeReport, ProbeRow};
pub use protocol::{CONTROL_PORT, LONGEST_HOLD, MOST_BYTES};
pub use responder::{ResponderOptions, respond};
pub use single_ended::probe;
pub use single_ended_evidence::{PortProbe, SplitLocation};
pub use traceroute::{Baseline, NetworkPath, PathRoundTrip, RouterHop};
pub use transfer_record::{Application, TransferDirection, TransferRecord, TransferReport};
pub use ttl_limited::{DataProbe, SynOutcome, SynProbe};
pub use two_ended::{TwoEndedOptions, probe_with_responder};
