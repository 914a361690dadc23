//! The lab's links and runs, measured. `survival.rs`, beside this directory, is a program of its own
//! because its transfers would disturb the measurements.

#[path = "../common/mod.rs"]
mod common;

mod links;
mod play;

use std::sync::Mutex;

/// Held while a test measures: two measurements at a time would disturb each other.
static ALONE: Mutex<()> = Mutex::new(());
