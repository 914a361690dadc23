//! The simulator, from scenario to outcome.

mod common;
mod fast_open;
mod golden;
mod one_leg;
mod properties;
mod semi;
mod sources;
mod split;
mod theory;
