//! Loads the congestion controllers and the egress monitor into the running kernel by BPF.
//!
//! [`load`] registers a controller with the kernel's TCP by struct_ops, under the name `td_NAME`.
//! It takes no module and no kernel patch, only BTF. Any program may then use it (`iperf3 -C
//! td_hybla`). The [`Monitor`] measures the traffic that leaves an interface and the queue before
//! it, and shares the measurements with the controllers in a [`LinkRecord`].
//!
//! The controllers' algorithms are in crate `control`. Which leg gets which controller is decided
//! by the proxy.

mod controllers;
mod error;
mod features;
mod monitor;
mod registration;
mod replay;
mod shared_maps;
mod sock_diag;
mod sys;

pub use control::{CapacityEstimate, Controller, LinkRecord, OwnError};
pub use controllers::{ControllerStatus, LAYOUT, LoadedController, has_congestion_control, list, load, own_key, resolve, unload, verify};
pub use error::Error;
pub use monitor::{LinkId, Monitor, MonitorSettings, WatchMode};
pub use replay::Replay;
pub use shared_maps::set_weight;
#[doc(hidden)]
pub use sock_diag::read_inodes;
pub use sock_diag::{ControllerUser, controller_users};
pub use sys::may_load;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
