//! The bond between two hosts with two networks between them: what goes through it, how connections end, networks that fail, and those who do not belong.

mod bench;
mod failures;
mod memory;
mod strangers;
mod through;
