//! Networks in parallel: each transfer is striped over one connection in each network.

mod bonded_transfer;
mod measurement;
mod results;
mod simulation;
mod striping;

pub(crate) use results::outcome;
pub(crate) use simulation::{Ended, World};
