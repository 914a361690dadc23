//! Quantities with units: [`Rate`], [`Bytes`] and [`Span`] are exact integers in one unit each,
//! with their arithmetic and their text form.
//!
//! Every crate uses these types instead of bare numbers. [`Phase`] is here too, as the proxy, the
//! engines and the reports share it.
//!
//! ```
//! use units::{Bytes, Rate, Span};
//! let rate: Rate = "10Mbit".parse()?;
//! assert_eq!(rate.bytes_in(Span::from_secs_f64(0.02)), Bytes(25_000));
//! assert_eq!(rate.time_for(Bytes(25_000)).to_string(), "20ms");
//! # Ok::<(), units::UnitError>(())
//! ```

mod phase;
mod quantities;
mod text_form;

pub use phase::Phase;
pub use quantities::{Bytes, PKT, Quantity, QueueLimit, QueueSize, Rate, Span};
#[doc(hidden)]
pub use schemars;
pub use text_form::UnitError;
