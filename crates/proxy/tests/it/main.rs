//! The proxy over loopback. `survival.rs`, beside this directory, is a test program of its own,
//! since its transfers keep the processors busy and these tests have deadlines.

#[path = "../common/mod.rs"]
mod common;

mod auto_buffer;
mod destinations;
mod failures;
mod forward;
mod life;
mod measurements;
mod proxy_header;
mod received_before_failure;
mod users;
