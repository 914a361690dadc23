//! Rates, sizes and times: exact integers in one unit each, their arithmetic and their text form.
//!
//! Every crate uses these types instead of bare numbers. [`Phase`] is here too: what a proxy is
//! doing for one direction of a connection, the word that the proxy, the engines and the reports
//! share.

mod phase;
mod quantities;

pub use phase::Phase;
pub use quantities::{Bytes, PKT, Quantity, QueueLimit, QueueSize, Rate, Span, UnitError};
#[doc(hidden)]
pub use schemars;
