//! Is a connection to this host split? Opens connections for the purpose and measures them: from
//! one end ([`probe()`]), or from both where [`respond`] runs on the host
//! ([`probe_with_responder`]).
//!
//! All TCP packets come from the kernel's own TCP. A socket's TTL is changed before its SYN or
//! between its data (`ttl_limited`), a socket filter drops data so that they are not acknowledged
//! for a while (`socket_filter`), and a packet socket captures the traffic (`capture`). No packet
//! is made by hand, no firewall rule and no route is set. Most of it therefore works without root,
//! and a killed process leaves nothing behind.
//!
//! What the measurements show is decided in `single_ended_evidence` and `two_ended_evidence`, which
//! use neither sockets nor clocks. The verdict is weighed by the rules of the crate `detect`.
//!
//! ```no_run
//! # fn main() -> Result<(), probe::ProbeError> {
//! let report = probe::probe("www.example.org", &[80, 443], |step| eprintln!("{step}"))?;
//! for row in &report.rows {
//!     println!("port {}: {} ({})", row.port, row.verdict, row.reason);
//! }
//! # Ok(())
//! # }
//! ```

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
pub use protocol::{CONTROL_PORT, MAX_HOLD_S, MAX_TRANSFER_BYTES};
pub use responder::{ResponderOptions, respond};
pub use single_ended::probe;
pub use single_ended_evidence::{PortProbe, SplitLocation};
pub use traceroute::{Baseline, NetworkPath, PathRoundTrip, RouterHop};
pub use transfer_record::{Application, TransferDirection, TransferRecord, TransferReport};
pub use ttl_limited::{DataProbe, SynOutcome, SynProbe};
pub use two_ended::{TwoEndedOptions, probe_with_responder};
