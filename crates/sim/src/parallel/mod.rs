//! Networks in parallel: transfers arrive, each is striped over one connection in each network, and
//! leaves.

mod bonded_transfer;
mod connections;
mod limits;
mod measurement;
mod proxy;
mod results;
mod simulation;
mod striping;

pub(crate) use limits::MAX_WEIGHT;
pub(crate) use results::outcome;
pub(crate) use simulation::ParallelSimulation;
