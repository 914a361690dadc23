//! What the fuzz targets do with their bytes: a function a target, which panics when what it tries
//! does not hold.
//!
//! The targets in `fuzz/`, which need a nightly compiler, call these functions, and so does
//! `tests/replay.rs`, with the same seeds and a few thousand inputs made from them. What a target
//! tries that is private to a crate stands in that crate's `fuzz_api`.

mod call;
mod exchange;
mod frames;
mod hello;
mod inbound;
mod outbound;
mod picture;
mod recipe;
mod segments;
mod trace;

pub use cache::fuzz_api::message;
pub use call::call;
pub use exchange::exchange;
pub use frames::frames;
pub use hello::hello;
pub use inbound::inbound;
pub use intercept::fuzz_api::netlink;
pub use multipath::fuzz_api::handshake;
pub use outbound::outbound;
pub use picture::picture;
pub use probe::fuzz_api::words;
pub use proxy::fuzz_api::greeting;
pub use segments::segments;
pub use trace::trace;
