//! The detector on traces that the tests make: formats, evidence, verdicts.

#[path = "../common/mod.rs"]
mod common;

mod encapsulations;
mod evidence;
mod formats;
mod verdicts;
