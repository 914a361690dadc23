//! Plays a scenario on the real kernel: hosts are network namespaces, links are emulated between
//! TUN devices, connections are real TCP, and splits are the real proxy. No host has a link to the
//! machine's own network.
//!
//! Links in series: `host` makes hosts, `network` joins them, `emulator` carries packets between
//! them, `workload` runs the endpoints of flows and `web` those of pages, `fast_open` gives hosts
//! their cookies, `run` plays a scenario, and `measure` turns the samples of a run into an
//! [`Outcome`](outcome::Outcome). `parallel` does the same for networks in parallel. `kept`
//! keeps either kind up for other programs.

mod calibrate;
mod capture;
mod controllers;
mod emulator;
mod error;
mod fast_open;
mod host;
mod impairments;
mod ip_packet;
mod keep_cpus_awake;
mod kept;
mod least_sleep;
mod measure;
mod network;
mod other_proxy;
mod parallel;
mod playable;
mod probes;
mod rate_changes;
mod rate_meter;
mod reachable_proxy;
mod run;
mod run_context;
mod sys;
mod web;
mod workload;

pub use calibrate::{Calibration, calibrate};
pub use emulator::Reordering;
pub use error::LabError;
pub use host::{Host, clear_stale};
pub use impairments::{ImpairmentMeasurement, measure_impairments, measure_network_impairments};
pub use kept::{KeptHosts, KeptNetwork};
pub use network::{HostMemory, NetworkOptions, SeriesNetwork, SocketMemory, try_realtime_scheduling, try_tun};
pub use other_proxy::{OtherProxy, RunningProgram};
pub use parallel::{BondRoute, ParallelNetworks};
pub use playable::{Unplayable, playable};
pub use run::Lab;
