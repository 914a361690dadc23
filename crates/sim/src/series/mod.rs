//! Links in series: flows over a path of links, end to end or split by proxies.

mod application;
mod controls;
mod cross_traffic;
mod link_changes;
mod place;
mod sampler;
mod setup;
mod simulation;
mod split_node;
mod web;
mod web_traffic;

pub(crate) use controls::SeriesControls;
pub(crate) use sampler::{RunSampler, outcome};
pub(crate) use simulation::SeriesSimulation;
