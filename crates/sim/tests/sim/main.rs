//! The simulator, from scenario to outcome.

mod common;
mod explicit;
mod golden;
mod one_leg;
mod parallel;
mod properties;
mod split;
mod theory;
