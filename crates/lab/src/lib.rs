//! Plays a scenario on the real kernel: hosts are network namespaces, links are emulated between TUN devices, connections are
//! real TCP, and splits are the real proxy.
//!
//! `host` makes hosts, `network` joins them, `emulator` is the links, `workload` is the ends, `run` plays a scenario and
//! `measure` turns what was seen into an [`Outcome`](outcome::Outcome); `parallel` has all of that for networks in parallel. Nothing here has a link to the machine's own network.

mod calibrate;
mod capture;
mod emulator;
mod error;
mod host;
mod keep_cpus_awake;
mod measure;
mod network;
mod parallel;
mod playable;
mod run;
mod sys;
mod workload;

pub use calibrate::{Calibration, calibrate};
pub use emulator::Reordering;
pub use error::LabError;
pub use host::{Host, clear_stale};
pub use network::{Extras, Network, try_punctual, try_tun};
pub use playable::{Unplayable, playable};
pub use run::Lab;
