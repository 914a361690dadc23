//! Is this connection split? Packet traces in, evidence and a verdict out.
//!
//! [`CaptureFile::read`] reads a trace (pcap or pcapng) as a stream, in bounded memory.
//! [`findings`] matches the connections of the sender's trace with those of the receiver's, also
//! through NAT. For each connection it lists the evidence and derives a verdict from it.
//!
//! The evidence comes from the three methods of Wei et al. ("Inference and Evaluation of
//! Split-Connection Approaches in Cellular Data Networks", 2005), and from what a middlebox changes
//! in sequence numbers, options, timestamps, hop counts and segment boundaries.
//!
//! This crate opens no socket and reads no clock: the result follows from the traces alone. The
//! crate `probe` opens connections of its own and weighs its evidence by the same rules.
//!
//! ```no_run
//! use detect::{CaptureFile, FindingOptions, findings};
//!
//! # fn main() -> Result<(), detect::TraceError> {
//! let sender = CaptureFile::read("sender.pcap".as_ref())?;
//! let receiver = CaptureFile::read("receiver.pcap".as_ref())?;
//! for finding in findings(Some(&sender), Some(&receiver), &FindingOptions::default()) {
//!     println!("{}: {}", finding.verdict, finding.reason);
//! }
//! # Ok(())
//! # }
//! ```

mod ack_timing;
mod behaviour;
mod capture_file;
mod clock_fit;
mod clock_offset;
mod copies;
mod endpoints;
mod evidence;
mod findings;
mod layer;
mod link_layer;
mod obstacle;
pub mod packet;
mod packet_comparison;
mod pairing;
mod progress;
mod series;
mod sketch;
mod split_kind;
mod stream_stats;
pub mod text;
pub mod trace;
mod traced_connection;
mod tunnel;
mod verdict;
mod wifi;

pub use ack_timing::{ClockEstimate, TraceConditions};
pub use behaviour::{CloseKind, ConnectionBehaviour, DelaySummary, Teardown, WindowSummary};
pub use capture_file::{CaptureFile, CaptureTally};
pub use clock_fit::{MAX_CLOCK_DRIFT, TIMESTAMP_JITTER_S};
pub use evidence::{Evidence, Indication, Method, Strength};
pub use findings::{ConnectionFinding, FindingOptions, findings};
pub use obstacle::Obstacle;
pub use pairing::MatchedBy;
pub use series::{BehaviourPlot, Burstiness, ReceivedSeries};
pub use trace::TraceError;
pub use verdict::{SplitVerdict, weigh};
