//! Measurements of the lab's links and runs. `survival.rs`, beside this directory, is a separate
//! program because its transfers would disturb the measurements.

#[path = "../common/mod.rs"]
mod common;

mod links;
mod parallel;
mod play;
mod web;

use std::sync::Mutex;

/// Locked while a test measures, since concurrent measurements would disturb each other.
static ALONE: Mutex<()> = Mutex::new(());
