//! Is this connection split? Traces in, evidence and a verdict out.
//!
//! [`Capture::read`] reads a trace, pcap or pcapng, as a stream and in bounded memory; [`findings`] matches the connections of the sender's trace with those of
//! the receiver's, also through NAT, and says of each what its evidence is and what follows from it: the methods of Wei et al. ("Inference and
//! Evaluation of Split-Connection Approaches in Cellular Data Networks", 2005), and what a middle leaves on sequence numbers, options, timestamps, hops and
//! segments. No sockets, no clock: what it says follows from the traces alone.

mod capture;
mod clocks;
mod curve;
mod ends;
mod evidence;
mod flow;
mod inspect;
mod kind;
mod methods;
pub mod packet;
mod pairing;
mod series;
mod sketch;
pub mod text;
pub mod trace;
mod verdict;

pub use capture::{Capture, Tally};
pub use clocks::{DRIFT, JITTER};
pub use evidence::{Evidence, Method, Says, Strength};
pub use kind::{Character, Delay, Ending, Left, Window};
pub use methods::{Clocks, Known};
pub use pairing::MatchedBy;
pub use series::{Burstiness, Plot, Received};
pub use trace::TraceError;
pub use verdict::{Asked, Finding, Verdict, findings, weigh};
