//! Is this connection split? Traces in, evidence and a verdict out.
//!
//! [`Capture::read`] reads a trace, pcap or pcapng, as a stream and in bounded memory; [`findings`] matches the connections of the sender's trace with those of
//! the receiver's, also through NAT, and says of each what its evidence is and what follows from it: the methods of Wei et al. ("Inference and
//! Evaluation of Split-Connection Approaches in Cellular Data Networks", 2005), and what a middle leaves on sequence numbers, options, timestamps, hops and
//! segments. No sockets, no clock: what it says follows from the traces alone.

mod ack_timing;
mod behaviour;
mod capture_file;
mod clock_fit;
mod clock_offset;
mod endpoints;
mod evidence;
mod findings;
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
mod verdict;

pub use ack_timing::{ClockEstimate, TraceConditions};
pub use behaviour::{CloseKind, ConnectionBehaviour, DelaySummary, Teardown, WindowSummary};
pub use capture_file::{CaptureFile, CaptureTally};
pub use clock_fit::{MAX_CLOCK_DRIFT, TIMESTAMP_JITTER_S};
pub use evidence::{Evidence, Indication, Method, Strength};
pub use findings::{ConnectionFinding, FindingOptions, findings};
pub use pairing::MatchedBy;
pub use series::{BehaviourPlot, Burstiness, ReceivedSeries};
pub use trace::TraceError;
pub use verdict::{SplitVerdict, weigh};
