//! A bond between two hosts with two networks: data transfer, closing of connections, failures of
//! networks, and unauthenticated peers.

pub(crate) mod bench;
mod failures;
mod memory;
mod strangers;
mod takeover;
mod through;
mod unreachable;
