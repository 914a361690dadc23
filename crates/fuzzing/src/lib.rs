//! The fuzz targets: one function each, which panics if a property that it checks does not hold.
//!
//! The programs in `fuzz/`, which need a nightly compiler, call these functions. So does
//! `tests/replay.rs`, with the same seeds and a few thousand inputs made from them. Targets that
//! test private items of a crate are in that crate's `fuzz_api`.

mod bond_handshake;
mod exchange;
mod frames;
mod inbound;
mod open_message;
mod outbound;
mod picture;
mod recipe;
mod segments;
mod trace;

pub use bond_handshake::bond_handshake;
pub use cache::fuzz_api::message;
pub use exchange::exchange;
pub use frames::frames;
pub use inbound::inbound;
pub use intercept::fuzz_api::netlink;
pub use multipath::fuzz_api::handshake;
pub use open_message::open_message;
pub use outbound::outbound;
pub use picture::picture;
pub use probe::fuzz_api::probe_messages;
pub use proxy::fuzz_api::greeting;
pub use segments::segments;
pub use trace::trace;
