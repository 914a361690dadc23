//! Watches a running proxy or bond from another process: what its flows carry now, which of them
//! are shown and in which order, a table of them, and a full-screen view for a terminal.
//!
//! Everything is computed from what the control socket answers ([`proxy::control`]).

mod experiment;
mod filter;
mod measured_path;
mod order;
mod rates;
mod table;
mod text;
pub mod top;

pub use experiment::{ExperimentEvidence, GainVerdict, experiment_text};
pub use filter::{FilterError, FlowFilter};
pub use measured_path::{MeasuredLeg, MeasuredPath, PathGroup, PathObserver};
pub use order::FlowOrder;
pub use rates::{NetworkRates, RateTracker, WatchedFlow};
pub use table::accounts_text;
pub use table::{flows_text, summary};
pub use text::limiter_name;
