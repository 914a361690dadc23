//! The bond between two hosts with two networks between them: what goes through it, how connections end, networks that fail, and those who do not belong.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod failures;
mod memory;
mod strangers;
mod through;
