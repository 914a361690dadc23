//! Many runs side by side: engines, variants of a scenario, and seeds.
//!
//! [`plan`] lists the runs, [`run_all`] executes them on several threads and returns the answers in
//! the order of the list, whatever the order in which they end; [`run_each`] passes them on one by
//! one. There is one thread per core for engines in virtual time. For engines in real time
//! ([`Engine::runs_in_real_time`](outcome::Engine::runs_in_real_time)) there are as many threads as
//! the machine can run without falling behind; many of them are pinned to cores, which saves
//! processor time. [`sort_answers`] separates outcomes from errors, which name their cases.
//!
//! This crate does not know which engines there are or what a command does with the outcomes.

mod answers;
mod cores;
mod interrupt;
mod plan;
mod pool;
mod progress;

pub use answers::{FailedRuns, RunError, sort_answers};
pub use interrupt::interrupt_flag;
pub use plan::{PlannedRun, RunOrder, SeedRange, plan};
pub use pool::{RunOptions, run_all, run_all_until, run_each};
