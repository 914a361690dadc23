//! Links in series: flows over a path of links, end to end or split by proxies.

mod application;
mod cross_traffic;
mod link_changes;
mod place;
mod sampler;
mod setup;
mod simulation;
mod split_node;
mod web;

pub(crate) use sampler::{RunSampler, outcome};
pub(crate) use setup::SeriesControls;
pub(crate) use simulation::SeriesSimulation;
